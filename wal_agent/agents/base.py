"""The protocol of an agent module: all that wal-agent must know of one coding-agent CLI.

Data first: what hooks say is parsed into a `HookEvent`; what is decided is a `Decision`; the module turns the one into
the other's bytes. Nothing outside `agents/<name>` knows a payload, a settings file or a session format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from wal_agent.rehearsal.model import Call, Dialect

Env = Mapping[str, str]


# ---- what hooks say ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The handshake: hooks live. `source` is the agent's word (startup, resume, clear)."""

    session: str
    source: str


@dataclass(frozen=True, slots=True)
class TurnStarted:
    session: str
    prompt: str


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """The agent's own completion event; the only proof of a clean end of a turn. `pending`: it left work running in the
    background, whose end may begin a turn; then it counts only once the agent ends by itself, with 0."""

    session: str
    pending: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The model is about to be asked: every call of the batch before is in the session file now. While a call that runs
    a subagent is open it may be the subagent that asks; then it says nothing of the batch around it."""

    session: str


@dataclass(frozen=True, slots=True)
class ToolStarting:
    """`inner`: the subagent that makes the call, where hooks tell; then the main file need not tell of it, but may
    (OpenCode's does), or another .jsonl of `session_files` in the main file's form, by its `call_id`. `cwd`: where the
    call runs, absolute, if hooks tell and it may be another folder than the workspace and its input say."""

    session: str
    tool: str
    input: bytes  # JSON object, the agent's own spelling
    call_id: str = ""
    inner: str = ""
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class ToolEnded:
    session: str
    tool: str
    input: bytes
    result: bytes  # JSON
    failed: bool
    call_id: str = ""
    clean: bool = True  # nothing in the result says that it went wrong (a command's exit code)


@dataclass(frozen=True, slots=True)
class AwaitingApproval:
    session: str
    what: str


@dataclass(frozen=True, slots=True)
class Compacting:
    """The agent begins to shorten its conversation, or has done so; both ask the model by themselves."""

    session: str
    done: bool


@dataclass(frozen=True, slots=True)
class ContextRequested:
    """The agent has shortened its conversation, and asks what must be said in it all the same."""

    session: str


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn ended because the model could not be had. `cls`: what for; `retry_after`: seconds, where the provider
    said (0: it did not). The agent may try again by itself, which begins a turn."""

    session: str
    cls: Literal["quota", "context", "other"]
    why: str
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionEnded:
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Known to the agent, of no weight here."""

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
    | SessionEnded
    | OtherEvent
)


# ---- what is answered ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allow:
    """`words`: said to the model besides, where the event has room for them."""

    words: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """`reason` is one sentence for the agent (UX.md, "What the agent is told"). `stop`: end the agent's turn too.
    `word`: the same in one word, for those who count."""

    reason: str
    stop: bool = False
    word: str = field(default="", compare=False)


Decision = Allow | Deny


# ---- starting the agent --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cli:
    """The agent's program as found on this machine."""

    path: Path
    version: str


@dataclass(frozen=True, slots=True)
class NewSession:
    id: str


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """Go on with a restored session; `prompt` (the recovery prompt) stands in for the user's own, if not empty.
    `asked`: the agent was given the user's own already, so it is left out (only where there is an `Agent.again`)."""

    id: str
    prompt: str
    asked: bool = False


@dataclass(frozen=True, slots=True)
class HookSetup:
    """All that an injected hook needs. Everything goes into the command line: some agents strip the environment.

    `run_dir` is this run's private folder (0700) with `hook.sock`, `agent.pid` (decimal, the agent's process) and
    `lock` (the supervisor holds its flock, from before `inject` on); for tools in `skip` no hook is to start at all.
    `protocol`: the standing text that the agent is to have as system context (Markdown).
    """

    run: str
    run_dir: Path
    client: tuple[str, ...]  # argv of the hook client, without its arguments
    skip: tuple[str, ...] = ()
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class Injected:
    """Files that `inject` made for this run; `env` is to be added to the agent's environment."""

    env: dict[str, str] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """`env` is to be added. `no_stdin`: give it /dev/null, since what stands there is the prompt of the first start."""

    argv: tuple[str, ...]
    env: dict[str, str]
    no_stdin: bool = False


HookCaller = Literal["agent", "shell", "session", "wrapped"]
"""Who connects for a hook: the agent's own process; a shell that it starts in its own session, while its tools lead
sessions of theirs; a shell that leads a session, as its tools do; the same, and a person may have the agent put another
command before it."""

HookTable = dict[str, list[dict[str, Any]]]  # event -> groups, as an agent's settings have them under "hooks"


@dataclass(frozen=True, slots=True)
class HooksToInstall:
    """Hooks for the user's own settings of an agent (`configure-hooks --install`). `title`: the agent, for people."""

    agent: str
    title: str
    settings: Path
    hooks: HookTable


# ---- the session's files -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionFile:
    """One file that makes up a session: the logical name (posix, the same on every machine) and where it is here."""

    name: str
    path: Path
    begins: Callable[[int], bool] | None = None
    """Whether an open file starts as the session does. If not, it was deleted under its agent, which has begun another:
    that one goes on where the deleted one ended. None: it is whole, whatever stands in it."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call as the log knows it, for `reconcile`. `result` None = dangling; then `note` says what is known of it.
    `started` is the time of its intent (0: not known): an equal call that ended before it, in the file, is another.
    `result` is what the module's `ToolEnded` said, or a JSON string with words of ours, or bytes that were cut off.
    `call_id` is the agent's own, where its hooks tell one.
    """

    call: int
    tool: str
    input: bytes
    result: bytes | None
    failed: bool
    note: str = ""
    started: float = 0.0
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call as the session file tells it after its batch. `status` is the module's reading of the agent's word; `id`
    is the file's own, by which a call that is told twice is known; `call_id` the one that hooks told, where it stands
    in the file too."""

    tool: str
    input: bytes
    status: Literal["done", "failed", "refused", "cancelled"]
    id: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as the model asked for it, in the session file."""

    tool: str
    input: bytes


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The child copy of a restored session file; `put_back` counts calls that the log knew and the session did not.
    `heard`: all that people say in it, as the agent's hooks tell it too; () where no word of theirs was saved. None: it
    has their words, but not as hooks spell them, or it tells of none ever."""

    data: bytes
    put_back: int
    messages: int
    repairs: tuple[str, ...] = ()  # one sentence each: what was cut or mended
    heard: tuple[str, ...] | None = None


# ---- what a person gets --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traits:
    """What a user gets with this agent, in a few words each, for `wal-agent agents` and docs/AGENTS.md: the truth, "no"
    included. `limits`: what could not be held, and why, a sentence each."""

    hooks: str  # how ours come in for one run
    intent: str  # when it is durable
    fail_closed: str
    reconcile: str  # what a resume is given that the agent itself would lose
    resume: str
    interactive: str
    subagents: str
    limits: tuple[str, ...] = ()


class Rehearsal(Protocol):
    """The agent with a scripted model on this machine: for `doctor`, the self-test, `demo` and the tests. It needs no
    key and no network, and reads nothing of the user's."""

    dialect: Dialect

    def home(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Write into an empty HOME what keeps a first start from asking anything; gives the environment that is needed
        beside HOME and PATH. `url` is the model's, without a path."""

    def args(self, prompt: str) -> tuple[str, ...]:
        """Headless, every tool approved."""

    def interactive_args(self, prompt: str) -> tuple[str, ...] | None:
        """The same on a terminal, with a first prompt; None where the agent has no such mode."""

    def shell(self, command: str) -> Call:
        """The model's call that runs a command."""

    def write(self, path: Path, content: str) -> Call:
        """The model's call that writes a file."""


# ---- the module ----------------------------------------------------------------------------------------------------


class Agent(Protocol):
    """One coding-agent CLI. Stateless; `env` is the agent's future environment, `workspace` an absolute real path."""

    name: str
    tested: str  # the version that the contract suite ran on
    also: tuple[str, ...]  # older versions that a part of it still runs on
    traits: Traits
    boundary: Literal["hooks", "file"]
    """Who tells that the main file has all calls of a batch: the hooks (`ModelRequest`), or only the file itself."""
    hook_caller: HookCaller
    main_file: str  # logical name of the session's main file
    again: frozenset[int]  # exit codes by which the agent asks its parent to start it again, in the same session

    def rehearsal(self) -> Rehearsal | None:
        """How it runs with a scripted model; None: there is no one program, any command is run."""

    def locate(self, env: Env) -> Cli:
        """The program on PATH; ConfigError when it is missing or its version is known to be unusable."""

    def hooks_off_reason(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        """Why hooks would not fire in this project or with these arguments, in words (named file and key), or None."""

    def passthrough(self, args: Sequence[str]) -> bool:
        """These arguments start no session (a subcommand, --version): run the agent as it is, unprotected."""

    def is_interactive(self, args: Sequence[str], tty: bool, env: Env) -> bool:
        """Will it talk to a person? `tty`: its stdin and its stdout are a terminal."""

    def session_from_args(self, args: Sequence[str]) -> str | None:
        """The session that the user's own arguments choose: its id, "" where only the handshake tells it, else None."""

    def prompt_from_args(self, args: Sequence[str]) -> str | None:
        """What the user's own arguments ask the agent to do, if they do."""

    def sweep(self, env: Env, runtime: Path) -> None:
        """Remove what injections of dead runs left behind (I7). `runtime` is the folder of all run dirs."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        """Make the hooks fire for this run only, without changing any file of the user's."""

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        """The command line that starts or resumes; the user's prompt is left out when a session with a prompt is
        resumed. `env` holds what `inject` asked for."""

    def parse(self, event: str, payload: bytes) -> HookEvent:
        """What a hook said. ValueError when it is not understood: the caller then denies."""

    def render(self, event: str, decision: Decision) -> bytes:
        """What the hook must print so that the agent does what was decided; one line."""

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        """The files that make up the session on this machine, main file first; empty when there are none yet.
        Never a credential file; never a path outside the agent's own state folder (links are not followed)."""

    def folder(self, env: Env) -> Path:
        """The agent's own state folder on this machine: a restore goes nowhere else."""

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        """Where the logical file belongs so that a resume finds it. ValueError for a name that is not this module's."""

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        """Every file here that a resume of `session` could take for it: to be moved away before a restore."""

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        """Is there a session here that `ResumeSession` would find? If not, only one of a new id can be started."""

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        """A child of the restored main file that resumes well: torn tail cut, known hazards mended, and each of `calls`
        that the file lacks put back. Pure. Idempotent: reconcile(reconcile(x)) == reconcile(x)."""

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        """A child of `main` (what `reconcile` made; empty: a session of only this) in which `prompt` is the user's last
        message, byte for byte, for an agent that would rewrite it on its command line; None where `command` hands it
        over as it is.
        Pure and idempotent. `command` is given the same `ResumeSession.prompt` and then only points at it."""

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        """Calls with an outcome told by bytes appended to the main file (whole lines; junk lines are passed over).
        Where calls that are `inner` have a `call_id`, also of the session's other .jsonl files: only it counts then."""

    def proves_turn(self, appended: bytes) -> bool:
        """Do bytes appended to the main file prove that a turn began? If so and the handshake (`SessionStarted`) has
        not come, hooks are off: stop the whole tree before a tool runs (I5), exit 78."""

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """Clear what a resume leaves that would hurt. To be called before each start, and once the agent works in the
        session that it resumed."""


@runtime_checkable
class LoadsLate(Protocol):
    """An agent that may begin a turn before it has read the session that it resumes: its model is then asked without
    the conversation and without the recovery's words. Its hook before a turn may wait (is firm), and `render` has a no
    for it."""

    grows_when_loaded: Literal[True]
    """It appends to the main file once it has read it, before anything else."""


@runtime_checkable
class NamesCallsOnce(Protocol):
    """An agent whose results name their call by its id only: what it was stands further up, mostly in bytes that were
    read before. A hook announces each call of the main file, and of the session's other .jsonl files, by that id."""

    other_files: tuple[str, ...]
    """A logical name in each folder of such other files."""

    def requested_calls(self, appended: bytes) -> dict[str, RequestedCall]:
        """The calls that these bytes ask for, by id. Pure."""


@runtime_checkable
class RereadsSettings(Protocol):
    """An agent that, while it runs, reads files again that may switch its hooks off."""

    def run_settings_files(self, env: Env) -> list[Path]:
        """Files that `inject` or `command` made for this run: any change of one switches the hooks off."""

    def switches(self, args: Sequence[str], workspace: Path, env: Env) -> list[Path]:
        """Other files that may; some may not exist."""

    def switch_off_reason(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        """Why one of those would switch off the hooks of a run that has begun (named file and key), or None."""


@runtime_checkable
class Hookless(Protocol):
    """An agent that tells nothing: a turn is its whole life, and exit code 0 the only word of a completion. No call of
    it is in the log."""

    def start_lines(self, workspace: Path, env: Env) -> list[str]:
        """What a person is told at each start: that, and what its settings lack."""

    def folders(self, workspace: Path, env: Env) -> list[Path]:
        """Where files of its session may appear: to be watched."""

    def left_out(self, workspace: Path, env: Env) -> list[str]:
        """What of its session cannot be saved, in sentences."""

    def root_of(self, path: Path, workspace: Path, env: Env) -> Path:
        """The folder that a restore of the file `path` stays in; its files may be under several."""


IMPORT_TIMEOUT = 120.0  # seconds at most for `Journals.adopt`


@runtime_checkable
class Journals(Protocol):
    """An agent whose sessions are in a database: `session_files` names journals that we write from it, JSON lines that
    are only appended to, and a restore is brought back into it."""

    def journal(self, session: str, workspace: Path, env: Env) -> None:
        """Bring the session's journals up to what the database has; before each capture, also when the agent is gone.
        Changes nothing of the agent's. Never fails for a database that is not there, or busy."""

    def adopt(self, cli: Cli, session: str, workspace: Path, env: Env) -> None:
        """Bring restored journals into the database, where they differ from it; before a resume's `command`.
        ConfigError when the agent does not take them."""


@runtime_checkable
class EndsItsCalls(Protocol):
    """An agent whose calls are all over once it has ended after its turn. It may be gone before it has written what
    became of one."""

    ends_its_calls: Literal[True]


@runtime_checkable
class Trails(Protocol):
    """An agent whose hooks tell of a boundary before its main file surely has the batch."""

    def settled_length(self, appended: bytes) -> int:
        """How many of these bytes (whole lines of the main file) tell nothing of a call whose result may still come.
        What is behind them is read again with what follows. Pure."""


@dataclass(frozen=True, slots=True)
class ExitCause:
    """What an agent's last words say that it died of. `retry_after`: seconds until its provider serves it again, 0
    where it did not say."""

    cls: Literal["heap", "context", "quota"]
    why: str
    retry_after: float = 0.0


@runtime_checkable
class Fatal(Protocol):
    """An agent that says on stderr why it gives up."""

    def fatal(self, said: bytes, now: float) -> ExitCause | None:
        """`said`: the end of what it wrote there, of a run that did not end well; foreign text. None: nothing known.
        `now`: since 1970, for words such as "try again at 2:17 PM"."""


@runtime_checkable
class Installs(Protocol):
    """An agent whose settings can hold hooks that stay, beside those that each run brings."""

    def standing(self, env: Env) -> HooksToInstall:
        """Ours, and where they would go. Each leaves at once outside of a run, and where the run's own hooks are."""
