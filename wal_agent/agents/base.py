"""The protocol of an agent: all that wal-agent must know about one coding-agent CLI.

An agent is a package of this folder: the module itself implements `Agent`. It parses a hook's payload into a
`HookEvent` and renders a `Decision` as the bytes that the hook prints. No code outside `agents/<name>` knows a payload,
a settings file or a session format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from wal_agent.agents.conversation import Travels
    from wal_agent.rehearsal.model import Call, Dialect
    from wal_agent.safefs import Buffer, Pieces

Env = Mapping[str, str]
# The message that starts the turn, where the notice stands in the conversation already.
ACT_BEGINS = "Do now what the notice above says"  # in older logs too
ACT = f"{ACT_BEGINS}, with a tool call and no text."

LEFT_OUT = "left out."  # ends a repair that tells what is lost
IMPORT_TIMEOUT = 120.0  # seconds at most for `Journal.restore`


class SessionStarted(msgspec.Struct, frozen=True):
    """The handshake: hooks work. `source` is the agent's own word (startup, resume, clear)."""

    session: str
    source: str


class TurnStarted(msgspec.Struct, frozen=True):
    session: str
    prompt: str


class TurnCompleted(msgspec.Struct, frozen=True):
    """The agent's own completion event, the only proof of a clean end of a turn. `pending`: it left work running in the
    background, whose end may begin a turn; the event then counts only once the agent exits by itself, with 0."""

    session: str
    pending: bool = False


class ModelRequest(msgspec.Struct, frozen=True):
    """The agent is about to call the model: every call of the batch before is in the session file now. While a call
    that runs a subagent is open, the subagent may be the caller; the event then proves nothing about the outer
    batch."""

    session: str


class ToolStarting(msgspec.Struct, frozen=True):
    """`inner`: the subagent that makes the call, where hooks report it. The main file may lack such a call (OpenCode's
    has it); or another .jsonl of `session_files`, in the main file's form, has it by its `call_id`. `reported`: the
    main file reports it like a call of the agent's own. `cwd`: the absolute folder in which the call runs, if hooks
    report it and neither the workspace nor the input determines it."""

    session: str
    tool: str
    input: bytes  # JSON object, the agent's own spelling
    call_id: str = ""
    inner: str = ""
    cwd: str = ""
    reported: bool = False


class ToolEnded(msgspec.Struct, frozen=True):
    """`clean`: the result shows no failure (such as a command's exit code). `cut`: the agent stopped the tool (a time
    limit, a cancellation): why, as the rest of a sentence that begins with "it". `runs_on`: the agent has moved it to
    the background, or started it there; `task`: its id of that."""

    session: str
    tool: str
    input: bytes
    result: bytes  # JSON
    failed: bool
    call_id: str = ""
    clean: bool = True
    cut: str = ""
    runs_on: bool = False
    task: str = ""


class AwaitingApproval(msgspec.Struct, frozen=True):
    session: str
    what: str


class Compacting(msgspec.Struct, frozen=True):
    """The agent begins to compact its conversation, or has done so; both call the model by themselves. `aside`: it does
    so beside its work, and no hook reports the end, so the phase stays as it is."""

    session: str
    done: bool
    trigger: str = ""  # the agent's own word: auto, manual
    tokens: int = 0  # of the conversation, as the agent counts them; 0: not reported
    aside: bool = False


class Compacted(msgspec.Struct, frozen=True):
    """A compaction that is done. `key`: the same wherever it is reported again; `summary`: what the agent wrote of what
    is gone, "" for nothing; `history`: the text that the model gets from then on, with the summary, as far as it is
    known; `tokens`: of the conversation before, as the agent counts them, 0: not reported."""

    key: str
    summary: str
    history: str
    tokens: int = 0


class ContextRequested(msgspec.Struct, frozen=True):
    """The agent has compacted its conversation and asks for context that must be in it all the same. `compacted`: what
    is in it, None where the hook does not say so."""

    session: str
    compacted: Compacted | None = None


class TurnFailed(msgspec.Struct, frozen=True):
    """The turn ended because the model was not available. `cls`: the reason; `retry_after`: seconds, as the provider
    gave them (0: it did not). The agent may try again by itself, which begins a turn."""

    session: str
    cls: Literal["quota", "context", "other"]
    why: str
    retry_after: float = 0.0


class TurnStopped(msgspec.Struct, frozen=True):
    """A person stopped the turn, as by Esc, and the agent waits for them. Of agents without such a hook the session's
    file says it (`Capabilities.stopped_turn`)."""

    session: str


class SessionEnded(msgspec.Struct, frozen=True):
    session: str
    reason: str


class OtherEvent(msgspec.Struct, frozen=True):
    """An event without a meaning for wal-agent."""

    name: str


HookEvent = (
    SessionStarted
    | TurnStarted
    | TurnCompleted
    | ModelRequest
    | ToolStarting
    | ToolEnded
    | AwaitingApproval
    | Compacting
    | ContextRequested
    | TurnFailed
    | TurnStopped
    | SessionEnded
    | OtherEvent
)


class Allow(msgspec.Struct, frozen=True):
    """`words`: context for the model, where the event can carry it."""

    words: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """`reason`: one sentence for the agent (RECOVERY.md). `stop`: end the agent's turn too.
    `word`: the reason as one word, for metrics."""

    reason: str
    stop: bool = False
    word: str = field(default="", compare=False)


Decision = Allow | Deny


class Cli(msgspec.Struct, frozen=True):
    """The agent's program as found on this machine."""

    path: Path
    version: str


class NewSession(msgspec.Struct, frozen=True):
    """`id`: to be given to the agent; "": it makes its own, or another program chooses a session."""

    id: str


class ResumeSession(msgspec.Struct, frozen=True):
    """Continue a restored session. `prompt`: the recovery prompt, which replaces the user's own if not empty. `asked`:
    the agent has got the user's own prompt already, and waits for the next one; `prompt` goes in front of that."""

    id: str
    prompt: str
    asked: bool = False

    @property
    def acts(self) -> bool:
        """Whether the agent begins a turn on `prompt` by itself."""
        return self.prompt != "" and not self.asked

    @property
    def drops_prompt(self) -> bool:
        """Whether the prompt among the user's arguments is left out."""
        return self.asked or self.prompt != ""


class McpServer(msgspec.Struct, frozen=True):
    """The MCP server with wal-agent's own tools, which an agent is to start beside its user's servers and may call
    without asking. `variables`: names of all that it should get, for an agent that passes on only what is named."""

    argv: tuple[str, ...]
    variables: tuple[str, ...]

    def as_json(self, **more: object) -> dict[str, object]:
        """As most agents have it in their settings."""
        return {"command": self.argv[0], "args": list(self.argv[1:]), **more}


class HookSetup(msgspec.Struct, frozen=True):
    """The parameters of injected hooks. They go into the command line, since some agents strip the environment.

    `run_dir`: this run's private folder (0700) with `hook.sock`, `agent.pid` (decimal, the agent's process) and `lock`
    (the supervisor holds its flock, from before `inject` on). `skip`: tools for which no hook starts at all.
    `protocol`: the permanent text that the agent gets as system context (Markdown).
    """

    run: str
    run_dir: Path
    client: tuple[str, ...]  # argv of the hook client, without its arguments
    skip: tuple[str, ...] = ()
    protocol: str = ""
    mcp: McpServer | None = None


class Injected(msgspec.Struct, frozen=True):
    """Files that `inject` made for this run, and variables to add to the agent's environment."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    paths: tuple[Path, ...] = ()


class Command(msgspec.Struct, frozen=True):
    """`env`: variables to add. `no_stdin`: use /dev/null, since stdin holds the prompt of the first start."""

    argv: tuple[str, ...]
    env: dict[str, str]
    no_stdin: bool = False


HookCaller = Literal["agent", "shell", "session", "wrapped"]
"""The process that connects for a hook: the agent itself; a shell in the agent's own process session, while its tools
lead sessions of their own; a shell that leads a session, as tools do; or the same, with a command before it that the
user may configure."""

HookTable = dict[str, list[dict[str, Any]]]  # event -> groups, as an agent's settings have them under "hooks"


class HooksToInstall(msgspec.Struct, frozen=True):
    """Hooks for the user's own settings of an agent (`configure-hooks --install`). `title`: the agent's display
    name; `form`: of the settings."""

    agent: str
    title: str
    settings: Path
    hooks: HookTable
    form: Literal["json", "toml"] = "json"


class SessionFile(msgspec.Struct, frozen=True):
    """One file of a session: its logical name (posix, the same on every machine) and its path here."""

    name: str
    path: Path
    begins: Callable[[int], bool] | None = None
    """Whether an open file starts as the session does. If not, the agent's file was deleted while in use, and the agent
    has begun another one, which continues where the deleted one ended. None: the file is always whole."""


class LoggedCall(msgspec.Struct, frozen=True):
    """A call in the log, for `reconcile`.

    `result`: that of the agent's `ToolEnded`, a JSON string of wal-agent's own, or truncated bytes; None for a dangling
    call, whose `note` then says what is known. `started`: the time of its intent (0: unknown); an equal call that ended
    before it, in the file, is another one. `call_id`: the agent's own, where its hooks report one.
    """

    call: int
    tool: str
    input: bytes
    result: bytes | None
    failed: bool
    note: str = ""
    started: float = 0.0
    call_id: str = ""


Status = Literal["done", "failed", "refused", "cancelled", "stopped", "runs_on"]
"""What the agent's hook or session says of a call. `refused`: words that it has only for a call that it did not begin
(a rule of its own, a person's No, or ours); `stopped`: only for one that it had begun; `cancelled`: for both."""


class SeenCall(msgspec.Struct, frozen=True):
    """A call with an outcome in the session file. `id`: the file's own, to recognise a
    call that is written twice. `call_id`: the hooks' id, where the file has it too. `task`: the agent's id of a
    background task: the one in which the call goes on, with the status `runs_on`; with any other, the one that has
    ended, which an earlier call started."""

    tool: str
    input: bytes
    status: Status
    id: str = ""
    call_id: str = ""
    task: str = ""


class RequestedCall(msgspec.Struct, frozen=True):
    """A call that the model requests, in the session file. `input`: a JSON object, in the session's own spelling."""

    id: str
    tool: str
    input: bytes


class Reconciled(msgspec.Struct, frozen=True):
    """The derived copy of a restored session file, in pieces that may be views of the one that it was made from.
    `put_back`: the number of calls that only the log had. `prompts`: all
    user prompts in it, spelled as in the hooks' payloads; () where none was saved. None: the file has prompts in
    another spelling, or never has any."""

    pieces: Pieces
    put_back: int
    messages: int
    repairs: tuple[str, ...] = ()  # one sentence for each part that was cut, mended, or LEFT_OUT
    prompts: tuple[str, ...] | None = None
    queued: tuple[str, ...] = ()  # user prompts that the agent had noted and not read; they are not in the pieces
    timers: tuple[str, ...] = ()  # ids of what was scheduled and the agent takes up again by itself, from the pieces
    gone: tuple[RequestedCall, ...] = ()  # what was scheduled and did not travel with the session

    @property
    def data(self) -> bytes:
        """All of it, in memory."""
        return b"".join(self.pieces)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The repairs that tell what is lost: the agent reads them too."""
        return tuple(text for text in self.repairs if text.endswith(LEFT_OUT))


class Rehearsal(msgspec.Struct, frozen=True):
    """The agent with a scripted model on this machine, for `doctor`, the self-test, `demo` and the tests. It needs no
    key and no network, and reads no file of the user's. `agents/<name>/rehearsal.py` defines it."""

    dialect: Dialect
    home: Callable[[Path, Path, str], dict[str, str]]
    """(home, workspace, url): write settings into an empty HOME so that a first start asks nothing; return the
    variables that are needed besides HOME and PATH. `url`: the model's, without a path."""
    args: Callable[[str], tuple[str, ...]]
    """(prompt): arguments for a headless run that approves every tool."""
    interactive_args: Callable[[str], tuple[str, ...] | None]
    """(prompt): the same for a terminal, with a first prompt; None where the agent has no such mode."""
    shell: Callable[[str], Call]
    """(command): the model's call that runs a command."""
    write: Callable[[Path, str], Call]
    """(path, content): the model's call that writes a file."""
    hooks_alone: Mapping[str, str] = {}
    """Variables with which the hooks in its settings find no run, where they stand there for good: they then refuse."""
    trusts: Mapping[str, str] = {}
    """Variables by which it trusts a scratch folder that no user has trusted."""


class ExitCause(msgspec.Struct, frozen=True):
    """Why an agent exited, by its last error message. `retry_after`: seconds until its provider serves it again, 0
    where the message does not say."""

    cls: Literal["heap", "context", "quota"]
    why: str
    retry_after: float = 0.0


class Hookless(msgspec.Struct, frozen=True):
    """An agent without hooks: a turn is its whole life, and exit code 0 the only sign of a completion. The log has none
    of its calls."""

    start_lines: Callable[[Path, Env], list[str]]
    """(workspace, env): lines to print at each start: this limit, and settings that are missing."""
    folders: Callable[[Path, Env], list[Path]]
    """(workspace, env): folders to watch, in which files of its session may appear."""
    left_out: Callable[[Path, Env], list[str]]
    """(workspace, env): what of its session cannot be saved, in sentences."""
    root_of: Callable[[Path, Path, Env], Path]
    """(path, workspace, env): the folder that a restore of the file stays in; its files may be under several."""


class RequestedCalls(msgspec.Struct, frozen=True):
    """For an agent whose results name their call by id only: tool and input are further up in the file, mostly in bytes
    that were read before. A hook announces each call of the main file, and of the session's other .jsonl files, by that
    id."""

    read: Callable[[bytes], dict[str, RequestedCall]]
    """(appended): the calls that these bytes request, by id. Pure."""
    other_files: tuple[str, ...]
    """A logical name in each folder of such other files."""


class SettingsWatch(msgspec.Struct, frozen=True):
    """For an agent that, while it runs, reads settings files again that may switch its hooks off."""

    run_files: Callable[[Env], list[Path]]
    """(env): files that `inject` or `command` made for this run: any change of one switches the hooks off."""
    user_files: Callable[[Sequence[str], Path, Env], list[Path]]
    """(args, workspace, env): other files that may; some may not exist."""
    switch_off_reason: Callable[[Sequence[str], Path, Env], str | None]
    """(args, workspace, env): why one of those would switch off the hooks of a run that has begun (named file and key),
    or None."""


class Unit(msgspec.Struct, frozen=True):
    """One message of a conversation as the model gets it.

    `key`: the same in each version of the file that keeps the message; `data`: its lines, in the form of the file;
    `prompt`: the words with which a person begins a turn, "" where it begins none; `time`: since 1970, 0 for unknown;
    `asks`: the calls that it requests; `answers`: ids of those whose results it has, `failed`: which of them say that
    the call failed; `summary`: what it says of turns that it stands for, "" where it stands for none."""

    key: str
    data: bytes
    prompt: str = ""
    time: float = 0.0
    asks: tuple[RequestedCall, ...] = ()
    answers: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    summary: str = ""


class Rewriting(msgspec.Struct, frozen=True):
    """For an agent whose session can be rewritten while it does not run: lines are appended to the main file, in the
    agent's own form, and those before them stay. `main` is a whole main file. All are pure. Numbers are of its
    `units`: 0 <= first < last <= len(units), 0 <= keep < len(units)."""

    units: Callable[[bytes], tuple[Unit, ...]]
    """(main): the conversation as the model would get it now."""
    compact: Callable[[bytes, str, Path, int, int, str], bytes]
    """(main, session, workspace, first, last, text): the lines after which units[first:last] are one message of the
    user's with `text`. The units in front of `first` hold no prompt, and may be left out where there is a `branch`."""
    branch: Callable[[bytes, str, Path, int, str], bytes] | None = None
    """As `rewind`, for an agent that goes back to an earlier message without a new form of the whole conversation."""

    def rewind(self, main: bytes, session: str, workspace: Path, keep: int, text: str) -> bytes:
        """Return the lines after which only units[:keep] are left, and behind them a message of the user's with
        `text`."""
        if self.branch is not None:
            return self.branch(main, session, workspace, keep, text)
        return self.compact(main, session, workspace, keep, len(self.units(main)), text)


class Journal(msgspec.Struct, frozen=True):
    """For an agent whose sessions are in a database: `session_files` names journals that wal-agent writes from it, JSON
    lines that are only appended to, and a restore imports them again."""

    update: Callable[[str, Path, Env], None]
    """(session, workspace, env): bring the session's journals up to the database; before each capture, also when the
    agent is gone. Changes no file of the agent's. Never fails for a database that is absent or busy."""
    restore: Callable[[Cli, str, Path, Env, bool], None]
    """(cli, session, workspace, env, for_client): import restored journals into the database, where they differ from
    it; before a resume's `command`. `for_client`: an editor is to show them. ConfigError when the agent does not accept
    them."""


class SessionForms(msgspec.Struct, frozen=True):
    """How arguments choose a session, in front of the others. `resume`: go on in it; `fork`: in a copy of it, under an
    id of the agent's, or why there is no such form, as the rest of a sentence. "{session}" is its id, "{file}" its
    main file."""

    resume: tuple[str, ...]
    fork: tuple[str, ...] | str

    def forked_from(self, args: Sequence[str]) -> tuple[str, str]:
        """Return the session and the main file that arguments in the form of `fork` name; "" for what they do not."""
        form = () if isinstance(self.fork, str) else self.fork
        words = dict(zip(form, args, strict=False))
        same = all(words.get(word) == word for word in form if not word.startswith("{"))
        return (words.get("{session}", ""), words.get("{file}", "")) if same else ("", "")


# Where a hook of an agent can hand text to the model.
Boundary = Literal["tool_ended", "turn_started", "turn_completed"]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent differs from the others, and the optional parts that it has (None: it lacks that part)."""

    boundary: Literal["hooks", "file"] = "hooks"
    """The source that proves that the main file has all calls of a batch: hooks (`ModelRequest`), or the file
    itself."""
    hook_caller: HookCaller = "agent"
    speaks: frozenset[Boundary] = frozenset()
    """Boundaries at which `render` can add words of an `Allow` to the conversation. At the end of a turn the turn then
    goes on."""
    acp: tuple[str, ...] = ()
    """Arguments in front of all others by which it serves the Agent Client Protocol on stdin and stdout, with its hooks
    as in any other mode. (): it has no such mode, or its hooks are silent in it."""
    acp_server: Callable[[Cli, Sequence[str], Env, Path], Command] | None = None
    """Where another program serves that protocol and starts the agent: that program, for these arguments of the agent
    and the variables of its hooks; what it needs may be written into the folder. ConfigError: it is not installed."""

    forks_travel: bool = True
    """A fork of a session that is restored has what was said before the fork."""

    @property
    def serves_acp(self) -> bool:
        return bool(self.acp) or self.acp_server is not None

    mcp: bool = False
    """`inject` can give it an MCP server for one run."""
    headless: tuple[str, ...] = ("-p",)
    """Arguments in front of a prompt that is answered without a person."""
    forms: SessionForms = SessionForms(("--resume", "{session}"), "it has no form for that")
    restart_codes: frozenset[int] = frozenset()
    """Exit codes by which the agent asks its parent to start it again, in the same session."""
    loads_late: bool = False
    """It may begin a turn before it has read the session that it resumes: the model is then called without the
    conversation and without the recovery prompt. Its hook before a turn may wait (is firm), and `render` can refuse it.
    It appends to the main file once it has read it, before anything else."""
    pairs_by_id: bool = False
    """Its API pairs calls and results by id, wherever they stand; else a result belongs right behind its call."""
    passes_cd: bool = True
    """Its list of allowed commands passes each of them behind `cd FOLDER &&` too."""
    timers: Mapping[str, Callable[[bytes], float]] = {}
    """Tools that have the agent begin a turn later, with what reads of a result when (seconds since 1970; inf: again
    and again). What they scheduled is gone with its process, except where the agent takes it up again
    (`Reconciled.timers`)."""
    takes_back: frozenset[str] = frozenset()
    """Tools that take such a thing back, by the id that its result has."""
    scheduled: Callable[[Buffer], tuple[RequestedCall, ...]] | None = None
    """(main): what the agent begins later by itself once it has resumed that file. Pure."""
    ends_background: bool = False
    """It ends what a shell command leaves in its process group, and then reports that the command has ended."""
    ends_its_calls: bool = False
    """All its calls are over once it has exited after its turn. It may exit before it has written their outcomes."""

    sweep: Callable[[Env, Path], None] | None = None
    """(env, runtime): remove what injections of dead runs left behind (I7). `runtime`: the folder of all run dirs."""
    tidy: Callable[[str, Path, Env], None] | None = None
    """(session, workspace, env): remove what a resume leaves that would harm. To be called before each start, and once
    the agent works in the session that it resumed."""
    heal: Callable[[Sequence[str], str, Path, Env, Path], tuple[str, ...]] | None = None
    """(args, session, workspace, env, folder): mend what the agent itself is about to resume, which its own earlier
    resumes have damaged, and return the arguments. `folder`: of this run, for a copy. Before each start,
    but for that of a session that a recovery has just written. ConfigError."""
    blank: Mapping[str, bytes] = {}
    """The files beside the main one without which there is no session, as they are for a session that holds nothing."""
    inject_prompt: Callable[[Buffer, str, Path, str], Pieces] | None = None
    """(main, session, workspace, prompt): the pieces of a copy of `main` (from `reconcile`; empty: a session of only
    this) in which `prompt` is the user's last message, byte for byte. For an agent that would rewrite it on its command
    line; `command` gets the same `ResumeSession.prompt` and then only refers to it. Pure and idempotent."""
    not_after: Callable[[Buffer, float], Pieces] | None = None
    """(main, now): the pieces of a copy of `main` (from `reconcile`) in which nothing lies after `now`. For an agent
    that orders its messages by their times: a clock may be behind the one by which they were written. Pure."""
    last_answer: Callable[[bytes], str] | None = None
    """(main): the text of the model's newest message that has one. Pure. For an agent whose main file has it in no line
    that says who speaks."""
    settled_length: Callable[[bytes], int] | None = None
    """(appended): how many of these bytes (whole lines of the main file) report no call whose result may still come;
    the rest is read again with what follows. Pure. For an agent whose boundary hook may fire before its file is
    flushed."""
    turn_failure: Callable[[bytes], TurnFailed | None] | None = None
    """(end): the failure with which the main file ends, None for none. `end`: its last bytes, foreign text. Pure. For
    an agent that may exit before its hook has reported the failure."""
    stopped_turn: Callable[[bytes], bool] | None = None
    """(appended): whether bytes appended to the main file end with a person's stop of the turn, as by Esc. Pure. For an
    agent that has no hook for it."""
    compactions: Callable[[bytes], list[Compacted]] | None = None
    """(appended): the compactions that bytes appended to the main file report as done. Pure. None: hooks say it
    (`ContextRequested`), or nothing does."""
    exit_cause: Callable[[bytes, float], ExitCause | None] | None = None
    """(stderr, now): the cause in the last bytes that it wrote to stderr in a run that did not end well; foreign text.
    None: unknown. `now`: since 1970, for messages such as "try again at 2:17 PM"."""
    hooks_to_install: Callable[[Env], HooksToInstall] | None = None
    """(env): hooks for its own settings, beside those of each run. Each exits at once outside of a run, and where the
    run's own hooks are present."""
    stored_folder: Callable[[str, Env], Path | None] | None = None
    """(session, env): the folder of a session in the agent's database here. A fork can only work in it."""
    rewriting: Rewriting | str = "wal-agent does not know its form"
    """Or why its sessions cannot be rewritten, as the rest of a sentence."""
    hookless: Hookless | None = None
    requested_calls: RequestedCalls | None = None
    settings_watch: SettingsWatch | None = None
    journal: Journal | None = None


def acp_command(agent: Agent, cli: Cli, args: Sequence[str], env: Env, folder: Path) -> Command:
    """Return what serves the Agent Client Protocol on stdin and stdout with this agent, in no session yet. ConfigError
    as `Capabilities.acp_server`, which also says what `env` and `folder` are."""
    if (serve := agent.capabilities.acp_server) is not None:
        return serve(cli, args, env, folder)
    return agent.command(cli, (*agent.capabilities.acp, *args), NewSession(""), True, env)


class Agent(Protocol):
    """One coding-agent CLI, implemented by the module `wal_agent.agents.<name>`. `env` is the agent's future
    environment, `workspace` an absolute real path."""

    name: str
    tested: str  # the version that the contract suite ran on
    also: tuple[str, ...]  # older versions that a part of it still runs on
    capabilities: Capabilities
    main_file: str  # logical name of the session's main file

    def locate(self, env: Env) -> Cli:
        """Find the program on PATH. ConfigError when it is missing or its version is known to be unusable."""

    def hooks_off_reason(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        """Return why hooks would not fire in this project or with these arguments (named file and key), or None."""

    def passthrough(self, args: Sequence[str]) -> bool:
        """Return whether these arguments start no session (a subcommand, --version): run the agent unprotected."""

    def is_interactive(self, args: Sequence[str], tty: bool, env: Env) -> bool:
        """Return whether it will talk to a person. `tty`: both its stdin and its stdout are a terminal."""

    def session_from_args(self, args: Sequence[str]) -> str | None:
        """Return the id of the session that the user's arguments choose, "" where only the handshake reports it, or
        None."""

    def prompt_from_args(self, args: Sequence[str]) -> str | None:
        """Return the prompt among the user's arguments, or None."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        """Make the hooks fire for this run only, without a change to any file of the user's."""

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        """Return the command line that starts or resumes; the user's prompt is left out when a session with a prompt is
        resumed. `env` holds the variables of `inject`."""

    def parse(self, event: str, payload: bytes) -> HookEvent:
        """Parse a hook's payload. ValueError when it is not understood: the caller then denies."""

    def render(self, event: str, decision: Decision) -> bytes:
        """Return the bytes that the hook must print, one line, so that the agent follows the decision."""

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        """Return the session's files on this machine, main file first; empty when there are none yet. Never a
        credential file; never a path outside the agent's own state folder (links are not followed)."""

    def folder(self, env: Env) -> Path:
        """Return the agent's own state folder on this machine: a restore writes nowhere else."""

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        """Return where a resume looks for the logical file. ValueError for a name that this agent does not use."""

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        """Return every file here that a resume of `session` could take for it, to be moved away before a restore."""

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        """Return whether `ResumeSession` would find a session here. If not, only one of a new id can be started."""

    def travels(self, name: str, workspace: Path) -> Travels:
        """Return what of the logical file is conversation (conversation.py): of a log's bytes only that is restored. An
        allow-list: what sets mode, model, permissions, tools, instructions, folders or environment is not on it."""

    def reconcile(self, main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        """Derive a main file that resumes well: torn tail cut, known hazards mended, each of `calls` that the file
        lacks put back. Pure. Idempotent: reconcile(reconcile(x)) == reconcile(x)."""

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        """Return the calls with an outcome in bytes appended to the main file (whole lines; junk lines are skipped).
        Where `inner` calls have a `call_id`, also in those of the session's other .jsonl files; only that id counts."""

    def proves_turn(self, appended: bytes) -> bool:
        """Return whether bytes appended to the main file prove that a turn began. If so and no handshake
        (`SessionStarted`) has come, hooks are off: stop the whole tree before a tool runs (I5), exit 78."""
