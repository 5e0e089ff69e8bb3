"""Agents that are described, not programmed: one TOML file for a CLI with hooks of Claude Code's shape (a command for
each event, which gets a JSON payload). `declared/<name>.toml` is such a file; the types below say what it holds. A
person may add one (added.py): its names become parts of paths and of shell lines, so the types refuse all others.

A `path` names a value inside a payload or a record: "event.result.output". A template is a JSON value in which the text
"{name}" stands for a value, which keeps its type, and "{name}" inside a longer text for that text.

The hooks stand once in the user's own settings (`wal-agent configure-hooks --agent NAME --install`), since such a CLI
has no other place for them. Each is a short line that does nothing outside a run; in a run it executes the line that
`inject` wrote into the run's folder, and refuses where that is gone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import tomllib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import base
from wal_agent.agents.base import (
    ACT,
    Capabilities,
    Cli,
    Command,
    Compacted,
    Deny,
    Env,
    ExitCause,
    HookCaller,
    HookEvent,
    HookSetup,
    HooksToInstall,
    Injected,
    LoggedCall,
    NewSession,
    Reconciled,
    Rehearsal,
    RequestedCall,
    RequestedCalls,
    ResumeSession,
    SeenCall,
    SessionFile,
    SessionForms,
    Status,
)
from wal_agent.agents.conversation import Records, Travels, fields, keep_fields
from wal_agent.agents.hook_line import GONE, REASON, STANDING, exit_line, on, parser, refuse_answer, renderer, sh_line
from wal_agent.agents.installed_hooks import insert_entries, insert_hooks, missing_hooks
from wal_agent.agents.places import PLACES
from wal_agent.agents.program import (
    Program,
    Syntax,
    cause_from_last_error,
    first_prompt,
    is_given,
    last_value,
    read_object,
    starts_no_session,
    to_words,
)
from wal_agent.agents.session_files import (
    SESSION,
    FileLines,
    Json,
    LineRecord,
    as_object,
    as_text,
    call_input,
    contains,
    encode_json,
    input_digest,
    is_file,
    junk_repair,
    logged_value,
    lost_calls_repair,
    name_parts,
    noted_result,
    plain_text,
    records,
    seconds_of,
    unknown_result,
    walk_files,
)
from wal_agent.errors import ConfigError, Unreadable
from wal_agent.paths import CREDENTIALS, config_dir, home
from wal_agent.rehearsal.dialects import Anthropic, Chat
from wal_agent.safefs import Buffer, Pieces, map_file

FOLDER = Path(__file__).with_name("declared")
MAX_TEXT = 64 << 10  # bytes of a description
SECONDS_BELOW = 1e11  # a number below it is a time in seconds: in milliseconds it would be before 1973
_NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
_EVENT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_OWN = ("protocol", "told", "words")  # files beside those of the events
_MEANT = ("tool_starting", "tool_ended", "turn_started", "turn_completed")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_NO = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "{reason}"}
_DENY: Json = {"hookSpecificOutput": _NO}
_SAY: Json = {"hookSpecificOutput": {"hookEventName": "{event}", "additionalContext": "{words}"}}
_ANY = {"slug": "*", "hash": "*", "path": "*"}
_RAW = msgspec_compat.of_json(dict[str, msgspec.Raw])
_SHOWN = re.compile(r"[\w.:-]{1,60}")  # a field's name that an error message may quote
_MAX_SHOWN = 20
_SIMPLE: Mapping[str, Callable[[str, str], HookEvent]] = {
    "session_started": base.SessionStarted,
    "session_ended": base.SessionEnded,
    "turn_completed": lambda session, about: base.TurnCompleted(session),
    "turn_stopped": lambda session, about: base.TurnStopped(session),
    "turn_failed": lambda session, about: base.TurnFailed(session, "other", about),
    "model_request": lambda session, about: base.ModelRequest(session),
    "awaiting_approval": base.AwaitingApproval,
    "compacting": lambda session, about: base.Compacting(session, done=False, trigger=about),
    "compacted": lambda session, about: base.Compacting(session, done=True, trigger=about),
}


def _require(held: bool, why: str) -> None:
    if not held:
        raise ValueError(why)


def _require_path(path: str, what: str) -> None:
    """Refuse what leads out of the folder that it is in."""
    parts = path.split("/")
    _require(
        not {"", ".", ".."} & {*parts} and path.isprintable() and len(path) < 256, f"{what} is no path in a folder"
    )


def _require_variables(names: Iterable[str]) -> None:
    bad = [n for n in names if not _VARIABLE.fullmatch(n) or n in ("HOME", "PATH") or n.startswith("WAL_AGENT_")]
    _require(not bad, f"{bad[:1]} is no variable that it may set")


def name_fault(name: str) -> str:
    """Return why an agent cannot have this name, "" if it can: it is a part of variables and of paths."""
    return "" if _NAME.fullmatch(name) else f"{name[:60]!r} is no name: up to 32 of a-z and 0-9, a letter first"


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command line, as the program's own `--help` has it; names of options are without dashes.
    What has one letter gets one dash.

    `value`: take a value; `maybe`: take one that does not look like an option; `short`: "S=session". `commands`: words
    that start no session; `no_session`: options that do so. `prompt`: of a prompt that is answered without a person.
    `session`, `last`: choose a session, by its id, or the last one. `first`: only where a session begins. `acp`: serve
    the Agent Client Protocol. `refused`: words that start sessions elsewhere, and why that cannot be saved.
    """

    value: str = ""
    maybe: str = ""
    short: str = ""
    commands: tuple[str, ...] = ()
    no_session: tuple[str, ...] = ("version", "help")
    prompt: str
    session: tuple[str, ...]
    last: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    acp: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    environment: dict[str, str] = {}

    def __post_init__(self) -> None:
        _require_variables(self.environment)
        _require(bool(self.session), "session names no option")


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An option to add where a restored session has lost what it sets, since that does not travel: its value is a
    setting of the user's, unless a line of the main file has these bytes."""

    option: str
    setting: str
    unless: str


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an event of the hooks means, and the paths of what it reports. `call`: the call's id; `result`: what the
    model gets of it; `failed`: whether the tool failed, or the path of what is true where it did ("!" before it: where
    it did not). `about`: a source, reason, trigger, or what is asked; `cwd`: the folder in which a command runs that
    names none. A program without an event of a prompt says turn_started by the event of a session's start."""

    means: Literal[
        "session_started",
        "turn_started",
        "turn_completed",
        "turn_failed",
        "turn_stopped",
        "model_request",
        "tool_starting",
        "tool_ended",
        "awaiting_approval",
        "compacting",
        "compacted",
        "session_ended",
    ]
    session: str = "session_id"
    tool: str = "tool_name"
    input: str = "tool_input"
    call: str = "tool_use_id"
    result: str = "tool_response"
    failed: bool | str = False
    prompt: str = "prompt"
    about: str = ""
    cwd: str = ""


class Hooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`settings`: the file, in the state folder, that holds the hooks: `*.json` in Claude Code's form (an object
    `hooks` at the top, with a list of groups for each event), `*.toml` as a list `[[hooks]]`. `timeout`: the longest
    that the program allows, in its own unit. `deny`: the answer that refuses a tool, with "{reason}", or "exit 2" where
    only that code does, with stderr as the reason; `say`: the one that adds "{words}" for the model, when a turn
    starts, or "none" where no JSON does; else as Claude Code has them. `protocol`: whether plain words of such a hook
    reach the model: the standing protocol is told with the first prompt of a session. `caller`: how the program runs a
    hook (HookCaller). `events`: those of _MEANT have to be among their meanings."""

    settings: str
    timeout: int
    caller: HookCaller
    deny: Json | Literal["exit 2"] | None = None
    say: Json | Literal["none"] | None = None
    protocol: bool = False
    events: dict[str, Event]

    def __post_init__(self) -> None:
        _require_path(self.settings, "settings")
        _require(self.settings.endswith((".json", ".toml")), "settings is neither a .json nor a .toml file")
        bad = [name for name in self.events if not _EVENT.fullmatch(name) or name in _OWN]
        _require(not bad, f"{bad[:1]} is no name of an event")
        means = {event.means for event in self.events.values()}
        lacking = [meaning for meaning in _MEANT if meaning not in means]
        _require(not lacking, f"no event means {lacking[:1]}")


class Saying(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the words of a result mean. `pattern`: searched in them (`task` may be a group of it, the id of what runs
    on); `why`: the rest of a sentence that begins with "it". A result is `refused` only where `failed` calls it a
    failure, and a record's is `cut` only then: a tool that has run may print the same words."""

    pattern: str
    how: Literal["refused", "cut", "runs_on"]
    why: str = ""


class Read(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of record of the main file: the `where` paths have these values (that of Session.kind is one), and the
    others name what it tells. `key`: what a call and its result have in common, where that is not the id. `failed`: as
    in Event."""

    where: dict[str, str]
    id: str = ""
    tool: str = ""
    input: str = ""
    result: str = ""
    failed: str = ""
    key: str = ""
    text: str = ""
    tokens: str = ""
    status: dict[str, Status] = {}

    @property
    def paths(self) -> str:
        """What is read of it."""
        failed = self.failed.removeprefix("!")
        told = (self.id, self.tool, self.input, self.result, failed, self.key, self.text, self.tokens)
        return " ".join(filter(None, (*self.where, *told)))

    @property
    def shape(self) -> Json:
        """A record of this kind as a template."""
        made: Json = {}
        told = {name: getattr(self, name) for name in ("id", "tool", "input", "result", "failed", "key", "text")}
        if self.failed.startswith("!"):
            told |= {"failed": "", "succeeded": self.failed[1:]}
        for path, value in [*self.where.items(), *((told[name], f"{{{name}}}") for name in told if told[name])]:
            *outer, last = path.split(".")
            at = made
            for name in outer:
                at = at.setdefault(name, {})
            at[last] = value
        return made


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`folder`: of a session in the state folder; "{session}" is its id, "{path}" the workspace's path with "-" for
    what is no letter or digit, "{slug}" its last name (in lower case; "-" for what is not of [a-z0-9._-]; 40
    characters), "{hash}" the beginning of the SHA-256 of its path. `main`: the main file, JSON Lines; it has the id in
    its name where `folder` has not. `kind`: the field of each record that tells its kind; a record without that text is
    taken for damage, and left out. `about`: a JSON file without which there is no session, `workspace`: the field of
    it that names the folder. `more`: patterns of other files. `travels`: of a record of a kind, all fields that are
    conversation; of a kind that is not named, what is read of it; what is neither named nor read is left out of a
    restored session. `about_travels`: of `about`. `time`: a record's, as seconds or milliseconds since 1970, or in ISO
    form (UTC where it names no zone). `write_`: what a recovery writes, where a record has more than what is read of
    it; "{succeeded}" is the opposite of "{failed}"."""

    folder: str
    main: str
    kind: str = "type"
    about: str = ""
    workspace: str = ""
    more: tuple[str, ...] = ()
    time: str = ""
    travels: dict[str, str] = {}
    about_travels: str = ""
    prompt: Read
    call: Read
    result: Read
    ended: Read | None = None
    compaction: Read | None = None
    write_batch: tuple[Json, ...] = ()
    """In front of calls whose message was lost; "{batch}" is a name of it."""
    write_call: Json | None = None
    write_result: Json | None = None
    write_batch_end: tuple[Json, ...] = ()
    write_prompt: tuple[Json, ...] | None = None

    def __post_init__(self) -> None:
        for path in (self.folder, self.main, *filter(None, [self.about]), *self.more):
            _require_path(path, path)
        shared = "{session}" not in self.folder
        _require(("{session}" in self.main) == shared, "{session} has to stand in folder, or else in main")
        _require(not (shared and (self.about or self.more)), "about and more need a folder of the session's own")
        _require("." not in self.kind, "kind is no field of a record itself")
        bad = [name for name, read in self.reads.items() if self.kind not in read.where]
        _require(not bad, f"where of session.{''.join(bad[:1])} names no `{self.kind}`; another field: session.kind")

    @property
    def reads(self) -> dict[str, Read]:
        """The kinds of records that tell something, by name."""
        named = ("prompt", "call", "result", "ended", "compaction")
        return {name: read for name in named if (read := getattr(self, name)) is not None}


class Renamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that wal-agent calls `name`: always, or where a `field` of its input has this value. `fields`: what
    wal-agent calls those of its input, where it is a tool of `tools_of` by another name."""

    tool: str
    field: str = ""
    value: str = ""
    name: str
    fields: dict[str, str] = {}


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Patterns of what it writes to stderr: the last error (its text is the first group), and which of those texts mean
    a too long conversation, or that the model will serve again later."""

    last: str
    too_long: str
    waits: str


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With a scripted model: the API that it speaks, the settings and variables of a first start ("{url}" is the
    model's address), arguments of a headless run ("{prompt}"), and the calls that run a command and write a file, which
    may be one tool's."""

    dialect: Literal["chat", "anthropic"]
    settings: str
    environment: dict[str, str] = {}
    args: tuple[str, ...]
    shell: tuple[str, Json]
    write: tuple[str, Json]

    def __post_init__(self) -> None:
        _require_variables(self.environment)


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole agent. `state`: its hidden folder in HOME, and the variable that names another one. `package`: on npm.
    `tools_of`: the agent whose tools it has, by name and input, where the built-in rules do not know its own. `limits`:
    promises that do not hold, in sentences."""

    name: str
    title: str
    package: str = ""
    tested: str
    also: tuple[str, ...] = ()
    state: str
    state_variable: str = ""
    tools_of: str = ""
    limits: tuple[str, ...] = ()
    arguments: Arguments
    resume: Chosen | None = None
    hooks: Hooks
    says: tuple[Saying, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    session: Session
    errors: Errors | None = None
    rehearsal: Rehearsed
    rewriting: str = "wal-agent does not know its form"
    fork: str = "it has no form for that"

    def __post_init__(self) -> None:
        _require(not name_fault(self.name), name_fault(self.name))
        _require_path(self.state, "state")
        parts = self.state.split("/")
        _require(parts[0].startswith("."), "state is no hidden folder of HOME")
        taken = (*CREDENTIALS, ".config/wal-agent", ".local/state/wal-agent", ".config", ".local", ".local/state")
        _require(self.state not in taken, "state is a folder of other programs")
        _require_variables(filter(None, [self.state_variable]))
        names = [each.name for each in self.renamed]
        _require(len({*names}) == len(names), "two tools have one name")
        _require(self.tools_of in ("", *PLACES), "tools_of names no agent of wal-agent's own")
        known = bool(self.tools_of) or self.name in PLACES or not self.renamed
        _require(known, "[[renamed]] says which tool of another agent a tool is, and tools_of names no agent")


_AS_DESCRIPTION = msgspec_compat.of_values(Description)


def added_path(env: Env, name: str) -> Path:
    """Return the file by which a person adds an agent of that name."""
    return config_dir(env) / "agents" / f"{name}.toml"


def load(path: Path) -> Declared:
    """Read a description that is shipped. ConfigError where it is none."""
    return read(path.read_text(), str(path))


def read(text: str, source: str, hint: str = "") -> Declared:
    """Read a description. ConfigError where it is none; `hint`: what to do then."""
    try:
        _require(len(text.encode()) <= MAX_TEXT, f"it is larger than {MAX_TEXT >> 10} KiB")
        return Declared(_AS_DESCRIPTION(tomllib.loads(text)), text)
    except (ValueError, RecursionError, re.error) as e:
        raise ConfigError(f"{source} does not describe an agent: {e}.", hint) from e


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path; None where there is none."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def is_failure(path: str, flag: Any) -> bool:
    """Return whether the flag at a description's `failed` says that the tool failed."""
    return (flag is True) != path.startswith("!")


def dashed(name: str) -> str:
    """Return an option as one writes it."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its values."""
    if isinstance(template, dict):
        return {name: fill(each, values) for name, each in template.items()}
    if isinstance(template, list):
        return [fill(each, values) for each in template]
    if not isinstance(template, str):
        return template
    if template[:1] == "{" and template[1:-1] in values:
        return values[template[1:-1]]
    return re.sub(r"\{(\w+)\}", lambda m: str(values.get(m[1], m[0])), template)


class _File(msgspec.Struct):
    """The records of a main file, and how many lines were junk."""

    lines: list[LineRecord]
    junk: int


class _Call(msgspec.Struct):
    """A call of the file. `ended`: milliseconds, None while it has no result."""

    key: str
    id: str
    same: tuple[str, bytes]
    ended: float | None = None


class Declared:
    """An agent by its description; it implements `Agent`."""

    def __init__(self, about: Description, text: str) -> None:
        self.about, self._text = about, text
        self.name, self.tested, self.also = about.name, about.tested, about.also
        self._variable = f"{about.name.upper()}_WAL_AGENT_HOOKS"  # tells a hook that it is in a run
        self.main_file = about.session.main.replace("{session}", "session")
        self._syntax = Syntax.of(value=about.arguments.value, maybe=about.arguments.maybe, short=about.arguments.short)
        self._says = [(re.compile(each.pattern, re.DOTALL), each) for each in about.says]
        self.locate = Program(about.name, about.package).locate
        self._titles = {event.means: name for name, event in about.hooks.events.items()}
        ends = [event for event in about.hooks.events.values() if event.means == "tool_ended"]
        self.names_failed_end = any(event.failed for event in ends)
        made = {name: on(dict[str, msgspec.Raw], self._reader(name, e)) for name, e in about.hooks.events.items()}  # type: ignore[type-var]
        self.parse = parser(made)
        speaks = about.hooks.say != "none"
        answers = {self._titles["turn_started"]: self._say} if speaks else {}
        self.render = renderer({self._titles["tool_starting"]: self._deny}, answers)
        self.capabilities, self.rehearsal = self._capabilities(), self._rehearsal()

    def _capabilities(self) -> Capabilities:
        about = self.about
        option = about.arguments.session[0]
        return Capabilities(
            boundary="file",
            acp=about.arguments.acp,
            hook_caller=about.hooks.caller,
            speaks=frozenset(() if about.hooks.say == "none" else ("turn_started",)),
            headless=(dashed(about.arguments.prompt),),
            forms=SessionForms((dashed(option), "{session}"), about.fork),
            blank={about.session.about: b"{}"} if about.session.about else {},
            inject_prompt=self.inject_prompt,
            compactions=self.compactions if about.session.compaction else None,
            exit_cause=self._exit_cause(about.errors) if about.errors is not None else None,
            hooks_to_install=self.hooks_to_install,
            rewriting=about.rewriting,
            requested_calls=RequestedCalls(
                self.requested_calls, tuple(m.replace("*", "any") for m in about.session.more if m.endswith(".jsonl"))
            ),
        )

    @staticmethod
    def _exit_cause(errors: Errors) -> Callable[[bytes, float], ExitCause | None]:
        last = re.compile(errors.last.encode(), re.MULTILINE)
        long, waits = (re.compile(p, re.IGNORECASE) for p in (errors.too_long, errors.waits))
        return lambda stderr, now: cause_from_last_error(stderr, now, last=last, waits=waits, too_long=long)

    def _rehearsal(self) -> Rehearsal:
        about = self.about.rehearsal

        def make_home(home: Path, workspace: Path, url: str) -> dict[str, str]:
            wanted = self.hooks_to_install(home_env := {"HOME": str(home)})
            wanted.settings.parent.mkdir(parents=True, exist_ok=True)
            insert = insert_hooks if wanted.form == "json" else insert_entries
            wanted.settings.write_text(insert(fill(about.settings, {"url": url}), wanted.hooks).text)
            if self.name not in PLACES:  # what runs there finds it by itself
                own = added_path(home_env, self.name)
                own.parent.mkdir(parents=True, exist_ok=True)
                own.write_text(self._text)
            return {name: str(fill(value, {"url": url})) for name, value in about.environment.items()}

        def call(made: tuple[str, Json], **values: str) -> tuple[str, Json]:
            return made[0], fill(made[1], values)

        return Rehearsal(
            dialect=Chat() if about.dialect == "chat" else Anthropic(),
            home=make_home,
            args=lambda prompt: tuple(prompt if word == "{prompt}" else word for word in about.args),
            interactive_args=lambda prompt: None,
            shell=lambda command: call(about.shell, command=command),
            write=lambda path, content: call(about.write, path=str(path), content=content),
            hooks_alone={self._variable: "/nonexistent"},
        )

    def traits(self) -> dict[str, Any]:
        """Return what a user gets with it, by the names of traits.toml."""
        about = self.about
        install, option = f"`wal-agent configure-hooks --agent {self.name} --install`", about.arguments.session[0]
        return {
            "start": " ".join(about.rehearsal.args).replace("{prompt}", '"fix the tests"'),
            "hooks": f"lines in its own `{about.hooks.settings}`, put there once ({install})",
            "intent": "before the tool starts",
            "fail_closed": "the hook line refuses by itself; `wal-agent agents --check FILE` tries it",
            "reconcile": "calls in flight and calls that were not written yet are put back, torn lines cut",
            "resume": f"`{dashed(option)} ID`; the notice is the user's last message in the session",
            "interactive": "unknown",
            "subagents": "unknown",
            "limits": about.limits,
        }

    # ---- the command line

    def hooks_off_reason(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        first = next((arg.value for arg in self._syntax.read(args) if not arg.name), "")
        if why := self.about.arguments.refused.get(first):
            return f"{why} Nothing was run."
        wanted = self.hooks_to_install(env)
        if not (missing := missing_hooks(wanted)):
            return None
        return (
            f"{self.about.title} takes hooks from its own settings alone, and wal-agent's are not all in "
            f"{wanted.settings} ({missing[0]} has none), so no tool call could be logged. Nothing was run. Put them in "
            f"once; outside a run they do nothing: wal-agent configure-hooks --agent {self.name} --install"
        )

    def passthrough(self, args: Sequence[str]) -> bool:
        return starts_no_session(
            self._syntax.read(args), self.about.arguments.commands, self.about.arguments.no_session
        )

    def is_interactive(self, args: Sequence[str], tty: bool, env: Env) -> bool:
        return tty and self.prompt_from_args(args) is None

    def session_from_args(self, args: Sequence[str]) -> str | None:
        given, names = self._syntax.read(args), self.about.arguments
        for name in names.session:
            if (chosen := last_value(given, name)) is not None:
                return chosen if SESSION.fullmatch(chosen) else ""
        return "" if any(is_given(given, name) for name in names.last) else None

    def prompt_from_args(self, args: Sequence[str]) -> str | None:
        return first_prompt([a for a in self._syntax.read(args) if a.name], self.about.arguments.prompt)

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        names, given, ours = self.about.arguments, self._syntax.read(args), list[str]()
        more = dict(names.environment)
        prompted = isinstance(session, ResumeSession) and session.acts
        if isinstance(session, ResumeSession):
            gone = {*names.session, *names.last, *names.first, *((names.prompt,) if session.drops_prompt else ())}
            given = [arg for arg in given if arg.name not in gone]
            ours += [dashed(names.session[0]), session.id, *self._chosen(session.id, given, env)]
            more[f"{self._variable}_TOLD"] = "1"
            if prompted and not interactive:  # on a terminal it takes no prompt from its command line
                ours += [dashed(names.prompt), ACT]
        return Command((str(cli.path), *ours, *to_words(given)), more, prompted and not interactive)

    def _chosen(self, session: str, given: Sequence[Any], env: Env) -> list[str]:
        add = self.about.resume
        if add is None or last_value(given, add.option) is not None or not _ID.fullmatch(session):
            return []
        found = list(self._state(env).glob(fill(self.about.session.folder, {**_ANY, "session": session})))
        mains = [main for folder in found if is_file(main := self._file(folder, self.main_file, session))]
        if not mains or contains(map_file(mains[0]), add.unless.encode()):
            return []
        setting = as_object(self._settings(env)).get(add.setting)
        return [dashed(add.option), setting] if isinstance(setting, str) else []

    def _settings(self, env: Env) -> Json | None:
        return read_object(self._state(env) / self.about.hooks.settings, lambda data: tomllib.loads(data.decode()))

    def _state(self, env: Env) -> Path:
        if self.about.state_variable and (named := env.get(self.about.state_variable)):
            if not named.startswith("/"):
                raise ConfigError(
                    f"{self.about.state_variable}={named!a} is no absolute path, so it would be another folder in each "
                    "project. Name an absolute one. Nothing was run."
                )
            return Path(os.path.normpath(named))
        return (home(env) or Path("/nonexistent")) / self.about.state

    # ---- hooks

    def hooks_to_install(self, env: Env) -> HooksToInstall:
        about = self.about.hooks
        lines = {name: [self._standing(name, event)] for name, event in about.events.items()}
        if about.protocol:
            lines[self._titles["turn_started"]].append(self._standing("protocol"))
        table = {
            name: [{"hooks": [{"type": "command", "command": line, "timeout": about.timeout}]} for line in commands]
            for name, commands in lines.items()
        }
        form: Literal["json", "toml"] = "json" if about.settings.endswith(".json") else "toml"
        return HooksToInstall(self.name, self.about.title, self._state(env) / about.settings, table, form)

    def _standing(self, name: str, event: Event | None = None) -> str:
        """Return the line that stands in the user's settings."""
        variable = self._variable
        line = f'l=$(cat "${variable}/{name}" 2>/dev/null) && [ -n "$l" ] && exec sh -c "$l"'
        refuse = event is not None and event.means == "tool_starting"
        last = f"printf '%s\\n' {shlex.quote(GONE)} >&2; exit 2" if refuse else "exit 0"
        return f'[ -n "${variable}" ] {STANDING}{line}; {last}'

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        place = setup.run_dir / "hooks"
        place.mkdir(mode=0o700, exist_ok=True)
        for name, event in self.about.hooks.events.items():
            firm = event.means in ("tool_starting", "tool_ended")
            deny = self._refusal(GONE) if event.means == "tool_starting" else None
            line = sh_line(setup, self.name, name, firm, deny)
            if deny is not None and self.about.hooks.deny == "exit 2":
                line = exit_line(line)
            (place / name).write_text(line)
        told, words = shlex.quote(str(place / "told")), place / "words"
        words.write_text(setup.protocol)
        # Not behind the notice of a recovery: a session that is resumed has it already.
        once = f'[ -n "${self._variable}_TOLD" ] || [ -e {told} ] || {{ : >{told}; '
        (place / "protocol").write_text(f"{once}cat {shlex.quote(str(words))}; }}")
        return Injected(env={self._variable: str(place)})

    def _deny(self, decision: Deny) -> str:
        return self._refusal(decision.reason)

    def _refusal(self, reason: str) -> str:
        form = self.about.hooks.deny
        return json.dumps(fill(REASON if form == "exit 2" else form or _DENY, {"reason": reason}))

    def _say(self, event: str, words: str) -> bytes:
        return refuse_answer(json.dumps(fill(self.about.hooks.say or _SAY, {"words": words, "event": event})))

    def _reader(self, title: str, event: Event) -> Callable[[dict[str, msgspec.Raw]], HookEvent]:
        def raw(payload: dict[str, msgspec.Raw], path: str) -> bytes:
            name, _, inner = path.partition(".")
            found = bytes(payload.get(name, b""))
            if not inner or not found:
                return found
            return raw(_RAW.decode(found), inner) if found.startswith(b"{") else b""

        def text(payload: dict[str, msgspec.Raw], path: str) -> str:
            found = raw(payload, path)
            return plain_text(msgspec.json.decode(found)) if found else ""

        def unread(payload: dict[str, msgspec.Raw], field: str, path: str, wanted: str) -> Unreadable:
            """Return the error for a path that leads nowhere: with the names that are there, and no value."""
            found, at, inner = f"no {wanted}" if raw(payload, path) else "nothing", "the payload", path
            while "." in inner:
                name, _, inner = inner.partition(".")
                if not bytes(payload.get(name, b"")).startswith(b"{"):
                    break
                payload, at = _RAW.decode(bytes(payload[name])), name if at == "the payload" else f"{at}.{name}"
            names = [name for name in payload if _SHOWN.fullmatch(name)][:_MAX_SHOWN]
            there = ", ".join(names) or "no fields"
            return Unreadable(f'{title} of {self.name}: {found} is at {field} = "{path}"; {at} has {there}.')

        def read(payload: dict[str, msgspec.Raw]) -> HookEvent:
            session = text(payload, event.session)
            if not SESSION.fullmatch(session):
                raise unread(payload, "session", event.session, "id of a session")
            about = text(payload, event.about) if event.about else ""
            if event.means in _SIMPLE:
                return _SIMPLE[event.means](session, about)
            if event.means == "turn_started":
                return base.TurnStarted(session, text(payload, event.prompt))
            tool, call = text(payload, event.tool), text(payload, event.call)
            if not tool:
                raise unread(payload, "tool", event.tool, "name of a tool")
            if not (input := raw(payload, event.input)).startswith(b"{"):
                raise unread(payload, "input", event.input, "object")
            tool, input = self._called(tool, input)
            if event.means == "tool_starting":
                return base.ToolStarting(session, tool, input, call, cwd=text(payload, event.cwd) if event.cwd else "")
            result = raw(payload, event.result) or b'""'
            failed = event.failed
            if isinstance(failed, str):
                failed = is_failure(failed, raw(payload, failed.removeprefix("!")) == b"true")
            said = self._meaning(plain_text(msgspec.json.decode(result)))
            how = said[1].how if said else ""
            if how == "refused" and failed:
                return base.OtherEvent("refused")  # it has not run: there is nothing that could end
            runs_on, cut = how == "runs_on", said[1].why if said and how == "cut" else ""
            clean, task = not (failed or runs_on), said[0] if said and runs_on else ""
            return base.ToolEnded(session, tool, input, result, failed, call, clean, cut, runs_on, task)

        return read

    def _meaning(self, text: str) -> tuple[str, Saying] | None:
        for pattern, each in self._says:
            if found := pattern.search(text):
                return found.groupdict().get("task") or "", each
        return None

    # ---- the session's files

    def folder(self, env: Env) -> Path:
        return self._state(env)

    def _place(self, session: str, workspace: Path, env: Env) -> Path | None:
        """Return the session's folder, if this can be a session's id; never one behind a link."""
        if not _ID.fullmatch(session):
            return None
        slug = re.sub(r"[^a-z0-9._-]+", "-", workspace.name.lower()).strip("-")[:40].strip("-")
        hashed = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:12]
        slug = slug if slug not in ("", ".", "..") else "workspace"
        names = {"slug": slug, "hash": hashed, "path": re.sub(r"[^A-Za-z0-9]", "-", str(workspace))}
        place = self._state(env) / fill(self.about.session.folder, {**names, "session": session})
        return None if place.is_symlink() or place.parent.is_symlink() else place

    def _file(self, place: Path, name: str, session: str) -> Path:
        return place / (fill(self.about.session.main, {"session": session}) if name == self.main_file else name)

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        place = self._place(session, workspace, env)
        there = self._there(place, session) if place is not None else {}
        return [SessionFile(*each) for each in there.items()] if self.main_file in there else []

    def _there(self, place: Path, session: str) -> dict[str, Path]:
        """Return the session's files by their logical names, the main file first."""
        first = {name: self._file(place, name, session) for name in self._names()}
        found = {name: path for name, path in first.items() if is_file(path)}
        others = sorted(p for p in walk_files(place) if self.about.session.more and self._is_more(p.relative_to(place)))
        return {**found, **{p.relative_to(place).as_posix(): p for p in others if p not in found.values()}}

    def _names(self) -> list[str]:
        return [name for name in (self.main_file, self.about.session.about) if name]

    def _is_more(self, name: Path) -> bool:
        return any(
            len(name.parts) == pattern.count("/") + 1 and name.match(pattern) for pattern in self.about.session.more
        )

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        place = self._place(session, workspace, env)
        return list(self._there(place, session).values()) if place is not None else []

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        place = self._place(session, workspace, env)
        if place is None:
            raise ValueError(f"{session!r} is no session id")
        parts = name_parts(name)
        if name not in self._names() and not self._is_more(Path(*parts)):
            raise ValueError(f"{name!r} is no file of such a session")
        return self._file(place, name, session)

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        place = self._place(session, workspace, env)
        if not self.about.session.about:
            return place is not None and is_file(self._file(place, self.main_file, session))
        about = read_object(place / self.about.session.about) if place is not None else None
        return about is not None and about.get(self.about.session.workspace) == str(workspace)

    def travels(self, name: str, workspace: Path) -> Travels:
        session, read = self.about.session, dict[str, str]()
        for each in session.reads.values():
            kind = each.where[session.kind]
            read[kind] = f"{read.get(kind, '')} {each.paths} {session.time}"
        kinds = {kind: fields(session.kind, kept) for kind, kept in {**read, **session.travels}.items()}
        if session.about and name == session.about:
            kept = fields(session.about_travels)
            return Records(lambda about: {**keep_fields(about, kept), session.workspace: str(workspace)})
        if not name.endswith(".jsonl"):
            return "text"

        def keep(record: Json) -> Json | None:
            kind = as_text(record.get(session.kind))
            return keep_fields(record, kinds[kind]) if kind in kinds else None

        return Records(keep)

    # ---- what the main file tells

    def _is(self, record: Json, kind: Read | None) -> bool:
        return kind is not None and all(value_at(record, path) == value for path, value in kind.where.items())

    def proves_turn(self, appended: bytes) -> bool:
        kind = self.about.session.prompt
        return any(record is not None and self._is(record, kind) for record, _ in records(appended))

    def requested_calls(self, appended: bytes) -> dict[str, RequestedCall]:
        kind = self.about.session.call
        found = (record for record, _ in records(appended) if record is not None and self._is(record, kind))
        calls = (self._requested(record) for record in found)
        return {call.id: call for call in calls if call.id}

    def _requested(self, record: Json) -> RequestedCall:
        kind = self.about.session.call
        id, tool = as_text(value_at(record, kind.id)), as_text(value_at(record, kind.tool))
        input = encode_json(as_object(value_at(record, kind.input)))
        return RequestedCall(id, *self._called(tool, input))

    def _called(self, tool: str, input: bytes) -> tuple[str, bytes]:
        """Return what wal-agent calls a tool, and its input."""
        others = [each for each in self.about.renamed if each.tool == tool]
        given = as_object(logged_value(input)) if others else {}
        found = next((each for each in others if not each.field or given.get(each.field) == each.value), None)
        if found is None or not found.fields:
            return tool if found is None else found.name, input
        return found.name, encode_json({found.fields.get(field, field): value for field, value in given.items()})

    def _plain(self, call: LoggedCall) -> tuple[str, Json]:
        """Return what the agent calls a tool, and its input."""
        input, found = call_input(call), next((each for each in self.about.renamed if each.name == call.tool), None)
        if found is None:
            return call.tool, input
        own = {named: field for field, named in found.fields.items()}
        return found.tool, {own.get(field, field): value for field, value in input.items()}

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        """A result names its call by id; where the call itself is not in these bytes, its tool is empty."""
        session, calls, found = self.about.session, dict[str, RequestedCall](), list[SeenCall]()
        for record, _ in records(appended):
            if record is None:
                continue
            if self._is(record, session.call):
                call = self._requested(record)
                calls[call.id] = call
            elif session.ended is not None and self._is(record, session.ended):
                how = session.ended.status.get(as_text(value_at(record, session.ended.text)))
                if how is not None:
                    found.append(SeenCall("", b"{}", how, task=as_text(value_at(record, session.ended.id))))
            elif self._is(record, session.result):
                found += self._seen(record, calls)
        return found

    def _seen(self, record: Json, calls: Mapping[str, RequestedCall]) -> list[SeenCall]:
        kind = self.about.session.result
        failed = is_failure(kind.failed, value_at(record, kind.failed.removeprefix("!")))
        id = as_text(value_at(record, kind.id))
        asked = calls.get(id, RequestedCall(id, "", b"{}"))
        said = self._meaning(plain_text(value_at(record, kind.result)))
        how: Status = "failed" if failed else "done"
        if said is not None and (said[1].how == "runs_on" or failed):
            how = {"refused": "refused", "cut": "stopped", "runs_on": "runs_on"}[said[1].how]  # type: ignore[assignment]
        task = said[0] if said is not None and how == "runs_on" else ""
        return [SeenCall(asked.tool, asked.input, how, as_text(value_at(record, kind.key)), id, task)] if id else []

    def times(self, appended: bytes) -> list[tuple[Any, float]]:
        """Return the time of each call and result, as it is written and in seconds since 1970 (0: it has none)."""
        session, found = self.about.session, list[tuple[Any, float]]()
        for record, _ in records(appended):
            if record is not None and (self._is(record, session.call) or self._is(record, session.result)):
                at = value_at(record, session.time) if session.time else None
                found.append((at, _milliseconds(at) / 1000))
        return found

    def compactions(self, appended: bytes) -> list[Compacted]:
        kind = cast(Read, self.about.session.compaction)
        found: list[Compacted] = []
        for record, _ in records(appended):
            if record is not None and self._is(record, kind):
                text, tokens = as_text(value_at(record, kind.text)), value_at(record, kind.tokens)
                key = str(value_at(record, kind.key))
                found.append(Compacted(key, text, text, tokens if isinstance(tokens, int) else 0))
        return found

    # ---- a recovery

    def _load(self, main: Buffer) -> _File:
        read, size = _File([], 0), 0
        for value, line in records(main):
            if value is None or not isinstance(value.get(self.about.session.kind), str):
                read.junk += 1
            else:
                read.lines.append(made := LineRecord(value, line))
                size = made.shelve(size)
        return read

    def reconcile(self, main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        about, file = self.about.session, self._load(main)
        made: list[_Call] = []
        prompts: list[str] = []
        keys = (about.call.key or about.call.id, about.result.key or about.result.id)
        messages, orphans = 0, set[int]()
        time: Any = 0
        for n, each in enumerate(file.lines):
            record = each.value
            time = self._time(record, time)
            if self._is(record, about.call):
                key, id, tool = (as_text(value_at(record, path)) for path in (keys[0], about.call.id, about.call.tool))
                made.append(_Call(key, id, (tool, input_digest(value_at(record, about.call.input)))))
            elif self._is(record, about.result):
                key, id = (as_text(value_at(record, path)) for path in (keys[1], about.result.id))
                found = next((c for c in reversed(made) if c.ended is None and (c.key == key or c.id == id)), None)
                if found is None:
                    orphans.add(n)  # no API takes a result without its call
                else:
                    found.ended = _milliseconds(time) or math.inf  # without a time the id has to do
            elif self._is(record, about.prompt):
                prompts.append(plain_text(value_at(record, about.prompt.text)))
            messages += self._is(record, about.result) or self._is(record, about.prompt)
        file.lines = [each for n, each in enumerate(file.lines) if n not in orphans]
        put = self._put_back(file, session, made, calls, time)
        repairs = (*junk_repair(file.junk), *lost_calls_repair(len(orphans)))
        return Reconciled(FileLines(file.lines), put, messages - len(orphans), repairs, tuple(prompts))

    def _time(self, record: Json, before: Any) -> Any:
        """Return the record's time as it is written there, or the one before."""
        at = value_at(record, self.about.session.time) if self.about.session.time else None
        return at if _milliseconds(at) else before

    def _put_back(self, file: _File, session: str, made: list[_Call], calls: Sequence[LoggedCall], time: Any) -> int:
        lost: list[LoggedCall] = []
        put, about = 0, self.about.session
        for call in calls:
            tool, input = self._plain(call)
            same = (tool, input_digest(input))
            may = [c for c in made if (c.id == call.call_id or not call.call_id) and c.same == same]
            over = [c for c in may if c.ended is not None and c.ended >= call.started * 1000 - 1000]
            found = next(iter([*over, *(c for c in reversed(may) if c.ended is None)]), None)
            if found is None:
                lost.append(call)
                continue
            made.remove(found)
            if found.ended is None:
                file.lines.append(self._line(about.write_result, about.result, _told(call, found.id, found.key, time)))
                put += 1
        if not lost:
            return put
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} put back {[_which(call) for call in lost]}"))
        file.lines += [LineRecord(fill(each, {"batch": name, "time": time})) for each in about.write_batch]
        told = [_told(c, c.call_id or f"call_wal_{c.call}", f"{name[:-4]}{n:04x}", time) for n, c in enumerate(lost)]
        for call, each in zip(lost, told, strict=True):
            tool, input = self._plain(call)
            asked = {**each, "tool": tool, "input": input, "batch": name}
            file.lines.append(self._line(about.write_call, about.call, asked))
        file.lines += [self._line(about.write_result, about.result, each) for each in told]
        file.lines += [LineRecord(fill(each, {"batch": name, "time": time})) for each in about.write_batch_end]
        return put + len(lost)

    def _line(self, template: Json | None, kind: Read, values: Mapping[str, Any]) -> LineRecord:
        if template is None:
            template = {**kind.shape, **({self.about.session.time: "{time}"} if self.about.session.time else {})}
        return LineRecord(fill(template, values))

    def inject_prompt(self, main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
        """Add the prompt at the end, once."""
        time: Any = 0
        for record, _ in records(main):
            time = self._time(record or {}, time)
        about = self.about.session
        values = {"prompt": prompt, "text": prompt, "time": time}
        new = [self._line(each, about.prompt, values) for each in about.write_prompt or (None,)]
        added = b"".join(encode_json(line.value) + b"\n" for line in new)
        return [main] if main[-len(added) :] == added else [main, added]


def _milliseconds(time: Any) -> float:
    """Return a record's time in milliseconds since 1970, 0 for what is none."""
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        return seconds_of(time) * 1000
    return time * 1000.0 if abs(time) < SECONDS_BELOW else float(time)


def _which(call: LoggedCall) -> tuple[int, str, float]:
    return call.call, call.tool, call.started


def _told(call: LoggedCall, id: str, key: str, time: Any) -> dict[str, Any]:
    """Return the values of a call's templates."""
    if call.result is None:
        text, failed = unknown_result(call), True
    else:
        text, failed = noted_result(plain_text(logged_value(call.result)), call), call.failed
    return {"id": id, "key": key, "result": text, "failed": failed, "succeeded": not failed, "time": time}
