"""Define the settings of a run, and read wal-agent.toml.

`SETTINGS` is the one table of them: how each is read, and who may decide it. supervise/settings.py loads them.

A person allows a project to decide something for one folder, and each setting with exactly one value. The notes of that
are in the person's state folder (0600 in 0700), never in the project. A folder is known by its real path, device and
inode: another one that is put in its place is not trusted. A prompt or a table is known by its bytes' hash.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from wal_agent import msgspec_compat
from wal_agent.errors import ConfigError, UsageError
from wal_agent.paths import config_dir, state_dir
from wal_agent.safefs import open_plain, replace_file

FILE = "wal-agent.toml"
MAX_FILE = 256 * 1024
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
MAX_JOB = 100
MAX_CRASHES = 16  # that can be counted: as many ends the log's state keeps (wal/state.py, MAX_ENDS)
APPEND_DEADLINE = 20.0  # seconds; below the hook client's own, which is below the hook's timeout (agents/hook_line.py)

Verb = Literal["checkpoint", "pause", "resume", "drain", "status", "ack"]  # of a control message
GIVES: Literal["restore"] = "restore"  # in `control`: requests for the newest checkpoint are answered; not by default
Source = Literal["flag", "environment", "own", "file", "default"]  # own: the person's file; file: the project's
MAX_NOTE = 256 << 10  # bytes of a note


class Settings(msgspec.Struct, frozen=True):
    """What a run goes by. Times are in seconds. `sources` says of each field's name where its value comes from,
    `places` the same in words for those that are not the default."""

    bucket: str
    job: str
    ttl: float = 30.0
    durability: Literal["intent", "sync"] = "intent"
    on_outage: Literal["deny", "spool"] = "deny"
    encryption_key_file: str = ""
    encryption_key_command: str = ""
    autosave: float = 10.0
    drain: float = 20.0
    preemption: Literal["auto", "off", "gcp", "aws", "azure"] = "auto"  # whose notices are listened for
    idle_soft: float = 90.0  # of the watchdog (supervise/watchdog.py), as the next three; 0: never
    approval_soft: float = 300.0
    tool_soft: float = 120.0  # for a tool that only reads; others have several times as long
    hang_timeout: float = 0.0
    restart: Literal["off", "on"] = "off"  # of an agent that died
    inbox: float = 30.0  # seconds between two looks for messages to the job; 0: never
    control: str = "checkpoint,pause,resume,drain,status,ack"  # verbs of control messages that are carried out
    on_quota: str = "wait"  # under `restart`: wait, or "handoff:" and the agents that carry on, in their order
    restart_limit: int = 5  # crashes in `restart_window` seconds after which nothing is started unattended; 0: none
    restart_window: float = 600.0
    checkpoint: float = 300.0  # seconds of work between two checkpoints; 0: none but those that are asked for
    checkpoint_ttl_days: int = 7
    compact: str = "off"  # before a resume: when old turns of the conversation are compacted (docs/COMPACTION.md)
    append_deadline: float = APPEND_DEADLINE  # how long a tool call may wait for the bucket before it is denied
    on_ambiguity: Literal["ask", "halt", "resume"] = "ask"
    unverified: Literal["fail", "allow"] = "fail"  # a run without a person that leaves a call that nothing looked at
    loop_limit: int = 20  # equal calls with equal results in a row, in a run without a person; 0: any
    workspace: Literal["save", "off"] = "save"
    worktrees: Literal["inside", "all"] = "inside"  # which linked worktrees are saved with the folder
    workspace_cap: float = 1024.0  # MiB of the working tree that are saved; of one file, a twentieth
    metrics_addr: str = ""  # host:port, where Prometheus and probes ask
    metrics_file: str = ""
    metrics_job_label: Literal["off", "on"] = "off"
    log_format: Literal["off", "json", "text"] = "off"  # of the structured log
    log_file: str = ""  # "": to stderr
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    messages: str = ""  # NATS servers, for messages and the run's status
    mcp: Literal["off", "on"] = "off"  # give the agent wal-agent's own tools by a server of the run (cli/mcp.py)
    synadia: Literal["off", "on"] = "off"  # answer the Synadia Agent Protocol there
    state: Literal["log", "nats"] = "log"  # where values of steps are kept; nats: on the servers of `messages`
    skip: tuple[str, ...] = ()
    accept_logged_args: Literal["off", "on"] = "off"  # whoever writes the bucket may choose what the agent runs
    sources: Mapping[str, Source] = msgspec.field(default_factory=dict)
    places: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def job_options(self) -> str:
        """The options that name this job in a command that is typed in any folder: all that is no default, and never a
        secret."""
        return f"--job {self.job} {self.bucket_options}".rstrip()

    @property
    def bucket_options(self) -> str:
        """As `job_options`, for a command that names the job itself."""
        from wal_agent.text import bucket_words, quote_word

        words = bucket_words(self.bucket) if self.sources.get("bucket") != "default" else []
        for name in ("encryption_key_file", "encryption_key_command"):
            value = getattr(self, name)
            if value and _is_shown(value):
                words += [f"--{name.replace('_', '-')}", value]
        return " ".join(map(quote_word, words))

    @property
    def origin(self) -> str:
        """Who named the bucket, for people; empty where nobody did."""
        return f"bucket {self.bucket} (from {self.places['bucket']})" if "bucket" in self.places else ""


def _is_shown(value: str) -> bool:
    from wal_agent.redact import redact  # late: few commands name a key

    return redact(value) == value


class Origin(msgspec.Struct, frozen=True):
    """Where a value was read, for an error to name: `--ttl`, `WAL_AGENT_TTL`, `ttl in /w/wal-agent.toml`."""

    source: Source
    words: str

    def refuse(self, value: object, allowed: str) -> UsageError | ConfigError:
        from wal_agent.text import shorten  # with redaction, which not every start needs

        kind = ConfigError if self.source in ("own", "file") else UsageError
        got = f"{value:g}" if isinstance(value, float) else shorten(repr(value))
        return kind(f"{self.words} must be {allowed} (got {got}).")


def _number(low: float, high: float, unit: str) -> Callable[[Any, Origin], float]:
    def read(value: Any, origin: Origin) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not low <= number <= high:
            raise origin.refuse(value, f"{low:g} to {high:g} {unit}")
        return number

    return read


def _whole(low: int, high: int) -> Callable[[Any, Origin], int]:
    def read(value: Any, origin: Origin) -> int:
        allowed = f"a whole number from {low} to {high}"
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not low <= number <= high or number != int(number):
            raise origin.refuse(value, allowed)
        return int(number)

    return read


def _seconds(low: float, high: float) -> Callable[[Any, Origin], float]:
    return _number(low, high, "seconds")


class OneOf(msgspec.Struct, frozen=True):
    """Reads one of some words."""

    words: tuple[str, ...]

    def __call__(self, value: Any, origin: Origin) -> str:
        if value not in self.words:
            raise origin.refuse(value, " or ".join(self.words))
        return str(value)


def _one_of(*words: str) -> OneOf:
    return OneOf(words)


def _text(value: Any, origin: Origin) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise origin.refuse(value, "text")
    return value


def _job(value: Any, origin: Origin) -> str:
    if not isinstance(value, str) or len(value) > MAX_JOB or not JOB.fullmatch(value):
        raise origin.refuse(value, f"letters, digits, '_', '-' and (not first) '.', at most {MAX_JOB} in all")
    return value


def _bucket(value: Any, origin: Origin) -> str:
    if not isinstance(value, str) or not re.match(r"/|[a-z][a-z0-9+.-]*://", value):
        raise ConfigError(  # as what the buckets themselves refuse, whoever named it
            f"{origin.words} is {value!r}, which is not a bucket.",
            "Give gs://NAME, s3://NAME, az://ACCOUNT.blob.core.windows.net/NAME, file:///folder or an absolute path.",
        )
    from wal_agent.text import is_utf8  # with redaction, which not every start needs

    if is_utf8(value):
        return value
    if value.startswith("/"):
        return Path(value).as_uri()  # text, as the log needs it
    raise ConfigError(
        f"{origin.words} is {value!r}, which is not UTF-8 text.", "In file:// URLs write such bytes as %FF."
    )


def _address(value: Any, origin: Origin) -> str:
    """`host:port`; the host is 127.0.0.1 where only a port is given."""
    allowed = "PORT, HOST:PORT or [IPv6]:PORT"
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise origin.refuse(value, allowed)
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise origin.refuse(value, allowed)
    if (":" in host) != (host.startswith("[") and host.endswith("]")) or not host.isprintable() or " " in host:
        raise origin.refuse(value, allowed)
    return f"{host or '127.0.0.1'}:{int(port)}"


def _verbs(value: Any, origin: Origin) -> str:
    """Some of the verbs, separated by commas; "" for none."""
    allowed = (*get_args(Verb), GIVES)
    if isinstance(value, str) and (value == "none" or all(verb in allowed for verb in value.split(","))):
        return "" if value == "none" else value
    raise origin.refuse(value, f"{', '.join(allowed)}, several with commas between them, or none")


def _servers(value: Any, origin: Origin) -> str:
    """Servers of messages, between commas, all with one scheme; empty for none."""
    server = r"[^\s,/?#]+"
    if isinstance(value, str) and (not value or re.fullmatch(rf"([a-z][a-z0-9]*)://{server}(,\1://{server})*", value)):
        return value
    raise origin.refuse(value, "nats://HOST:PORT or tls://HOST:PORT, several of one cluster with commas between them")


def _quota_rule(value: Any, origin: Origin) -> str:
    """`wait`, or `handoff:` and names of agents."""
    if isinstance(value, str) and re.fullmatch(r"wait|handoff:[a-z]+(,[a-z]+){0,7}", value):
        return value
    raise origin.refuse(value, "wait, or handoff:AGENT,AGENT")


def _compaction_policy(value: Any, origin: Origin) -> str:
    """`off`, or limits between commas (conversation/rewrite.py)."""
    part = r"((turns|tokens|keep)=[1-9][0-9]{0,8}|age=[1-9][0-9]{0,8}[smhd])"
    limited = isinstance(value, str) and re.search(r"turns|tokens|age", value)
    if value == "off" or (limited and re.fullmatch(rf"{part}(,{part})*", value)):
        return str(value)
    raise origin.refuse(value, "limits such as turns=40,tokens=120000,age=2d,keep=10, or off")


# ---- who may decide what --------------------------------------------------------------------------------------------


def _never(value: Any) -> bool:
    return False


class Setting(msgspec.Struct, frozen=True):
    """One row of the table: from it come the option of `run`, the variable, the TOML key, and the reference page.

    `help`: what it does, for a person. `option`: how `run` has it: with a value, as `--x/--no-x`, as `--x` for "on", or
    not at all. `metavar`: of the option's value, where its type says too little. `shows`: whether the help shows the
    default. `who`: `person`: no project's file may name it; `consent`: one may, where the person has allowed its value
    for the folder, or where `tightens` says that the value only makes a promise stricter than the default does.
    `means`: what allowing it does, in one clause.
    """

    read: Callable[[Any, Origin], Any]
    help: str
    option: Literal["value", "switch", "on", ""] = "value"
    metavar: str | None = None
    shows: bool = True
    who: Literal["person", "consent"] = "person"
    means: str = ""
    tightens: Callable[[Any], bool] = _never


def _advice(
    read: Callable[[Any, Origin], Any],
    help: str,
    means: str,
    tightens: Callable[[Any], bool] = _never,
    option: Literal["value", "switch", "on", ""] = "value",
    metavar: str | None = None,
    shows: bool = True,
) -> Setting:
    return Setting(read, help, option, metavar, shows, "consent", means, tightens)


DEFAULTS = Settings("", "")
SETTINGS: dict[str, Setting] = {  # in the order of `run --help`
    "bucket": _advice(
        _bucket,
        "Where to save the job: gs://, s3://, az:// or file:///folder (env WAL_AGENT_BUCKET; default: a local folder).",
        "conversation, commands and files go there with your credentials, and jobs come from there",
        metavar="URL",
        shows=False,
    ),
    "job": _advice(
        _job,
        "Name of the job (env WAL_AGENT_JOB; default: <agent>-<folder>-<id>; <id> stands for you and this folder).",
        "the run goes on with the job of that name, whoever began it",
        metavar="NAME",
        shows=False,
    ),
    "ttl": _advice(
        _seconds(1, 3600),
        "Seconds before another machine may take over from a silent one.",
        "it changes how soon another machine takes the job over",
    ),
    "autosave": _advice(
        _seconds(0.05, 3600),
        "Maximum seconds between session saves.",
        "more work is lost with the machine",
        lambda value: value <= DEFAULTS.autosave,
    ),
    "drain": _advice(
        _seconds(0, 600),
        "Seconds to save and stop after SIGTERM.",
        "it changes the time to save when the machine goes away",
    ),
    "preemption": Setting(
        _one_of("auto", "off", "gcp", "aws", "azure"),
        "Watch the cloud metadata service for preemption notices: gcp, aws, azure, off, or auto (detect the provider).",
    ),
    "idle_soft": _advice(
        _seconds(0, 86_400),
        "Report a model that has not answered for this many seconds (0 = never).",
        "you hear later that the model is silent",
        lambda v: 0 < v <= DEFAULTS.idle_soft,
        option="",
    ),
    "approval_soft": _advice(
        _seconds(0, 86_400),
        "Report an agent that has waited for a person for this many seconds (0 = never).",
        "you hear later that it waits for you",
        lambda v: 0 < v <= DEFAULTS.approval_soft,
        option="",
    ),
    "tool_soft": _advice(
        _seconds(0, 86_400),
        "Report a reading tool that has run for this many seconds, other tools after several times as long "
        "(0 = never).",
        "you hear later that a tool hangs",
        lambda v: 0 < v <= DEFAULTS.tool_soft,
        option="",
    ),
    "hang_timeout": _advice(
        _seconds(0, 86_400),
        "End the agent when the model has not answered for this many seconds.",
        "the agent is ended when its model is silent for that long",
    ),
    "restart": _advice(
        _one_of("off", "on"),
        "Restart an agent that died; wait for its quota.",
        "an agent that died is started again without you",
        option="switch",
    ),
    "inbox": Setting(
        _seconds(0, 86_400),
        "Seconds between two checks for messages (0 = never; at most 2 with a local bucket).",
    ),
    "control": _advice(
        _verbs,
        "Control messages to accept, or none. restore: give the newest checkpoint to who requests it over NATS.",
        "who may send requests over NATS can read the job's newest checkpoint",
        lambda value: GIVES not in value.split(","),  # the default is all others
        metavar="VERB,...|none",
    ),
    "on_quota": Setting(
        _quota_rule,
        "With --restart, when a quota is used up: wait, or hand the job over (handoff:codex,claude).",
        metavar="wait|handoff:AGENT,...",
    ),
    "restart_limit": Setting(
        _whole(0, MAX_CRASHES), "Exit 80 after this many crashes within --restart-window (0 = no limit)."
    ),
    "restart_window": Setting(_seconds(1, 86_400), "Time window of --restart-limit in seconds."),
    "checkpoint": _advice(
        _seconds(0, 86_400),
        "Seconds of work between two checkpoints (0 = only on request).",
        "it changes how often the job's state is noted for other agents",
        lambda value: 0 < value <= DEFAULTS.checkpoint,
    ),
    "checkpoint_ttl_days": Setting(_whole(1, 3650), "Days to keep a checkpoint in the list."),
    "compact": Setting(
        _compaction_policy,
        "Before a resume, compact old turns: beyond a number of turns or tokens, or older than an age.",
        metavar="turns=N,tokens=N,age=2d,keep=N|off",
    ),
    "append_deadline": _advice(
        _seconds(0.1, APPEND_DEADLINE),
        "Maximum seconds that a tool call waits for the bucket before it is denied.",
        "it changes how long a tool waits for the bucket",
        option="",
    ),
    "on_ambiguity": _advice(
        _one_of("ask", "halt", "resume"),
        "What follows a crash that left a call with an unknown outcome: the agent verifies it and then asks a person "
        "(ask) or decides by itself (resume); or nothing is started, exit 79 (halt).",
        "after a crash the agent decides itself about calls that may have happened",
        lambda value: value == "halt",
    ),
    "unverified": _advice(
        _one_of("fail", "allow"),
        "When a turn without a person ends with a call that may have happened and that nothing has looked at: ask the "
        "agent once to look, then exit 79 (fail), or let it end (allow).",
        "a run that leaves a call unverified looks like a completed one",
        lambda value: value == "fail",
    ),
    "loop_limit": Setting(
        _whole(0, 10_000),
        "Without a person, tell a model that made the same call with the same result so many times in a row, and "
        "exit 79 after twice as many (0 = never).",
    ),
    "durability": _advice(
        _one_of("intent", "sync"),
        "Wait for the bucket: intent (before calls that change something) or sync (before every call).",
        "tools wait less for the log",
        lambda value: value == "sync",
    ),
    "on_outage": Setting(
        _one_of("deny", "spool"),
        "While the bucket is unreachable: deny calls that change something, or spool their records on this disk.",
    ),
    "encryption_key_file": Setting(_text, "File with the encryption key of the job.", metavar="FILE", shows=False),
    "encryption_key_command": Setting(_text, "Command that prints the encryption key.", metavar="COMMAND", shows=False),
    "workspace": _advice(
        _one_of("save", "off"),
        "Whether the working tree is saved: save or off.",
        "the working tree is not saved",
        option="",
    ),
    "worktrees": Setting(
        _one_of("inside", "all"),
        "Which git worktrees of this folder's repository are saved with it: those inside, or all.",
    ),
    "workspace_cap": _advice(
        _number(1, 1 << 20, "MiB"),
        "Maximum MiB of the working tree that are saved; of one file, a twentieth.",
        "it changes how much of the working tree is saved",
        option="",
    ),
    "metrics_addr": Setting(
        _address,
        "Serve /metrics (Prometheus), /healthz and /readyz at this address; a bare port listens on 127.0.0.1.",
        metavar="HOST:PORT",
    ),
    "metrics_file": Setting(_text, "Write metrics to this .prom file (node_exporter).", metavar="FILE"),
    "metrics_job_label": Setting(_one_of("off", "on"), "Add the job's name to each metric.", option="on"),
    "log_format": Setting(
        _one_of("off", "json", "text"), "Structured log on stderr: json or text, one line per event."
    ),
    "log_file": Setting(
        _text,
        "Write the structured log to this file (json unless --log-format says text).",
        metavar="FILE",
        shows=False,
    ),
    "log_level": Setting(
        _one_of("debug", "info", "warning", "error"),
        "Lowest level in the structured log: debug, info, warning or error.",
    ),
    "messages": Setting(
        _servers,
        "Carry messages over this NATS server (nats://HOST:4222), and publish the run's status, checkpoints and a "
        "heartbeat there.",
        metavar="URL",
        shows=False,
    ),
    "synadia": Setting(
        _one_of("off", "on"),
        "With --messages nats://, answer prompts and status requests of the Synadia Agent Protocol.",
        option="on",
        shows=False,
    ),
    "state": Setting(
        _one_of("log", "nats"),
        "Where `wal-agent state` keeps values: log, or nats (a JetStream KV bucket on the servers of --messages).",
        shows=False,
    ),
    "mcp": Setting(
        _one_of("off", "on"),
        "Give the agent recall, settle, checkpoint, status and inbox as MCP tools, which it may call without asking: "
        "for an agent whose shell is closed.",
        option="on",
        shows=False,
    ),
    "accept_logged_args": Setting(
        _one_of("off", "on"),
        "If no ARGS are typed, take them from the log, even if another machine wrote them. Whoever can write to the "
        "bucket then chooses what the agent runs here.",
        option="on",
        shows=False,
    ),
}


def variable_of(key: str) -> str:
    """Name the environment variable of a setting: WAL_AGENT_TTL."""
    return f"WAL_AGENT_{key.upper()}"


def option_of(key: str) -> str:
    """Name the option of a setting: --ttl. `Setting.option` says whether `run` has one."""
    return f"--{key.replace('_', '-')}"


def default_text(key: str) -> str:
    """The default of a setting for people; "" where it depends, or there is none to show."""
    value, setting = getattr(DEFAULTS, key), SETTINGS[key]
    if not setting.shows:
        return ""
    if setting.option in ("switch", "on"):
        return "yes" if value == "on" else "no"
    return "off" if value in ("", 0) else f"{value:g}" if isinstance(value, float) else str(value)


# ---- the file -----------------------------------------------------------------------------------------------------

KEYS = (*SETTINGS, "hooks", "rules", "generic", "notify")
OWN_KEYS = (*(key for key in SETTINGS if key != "job"), "generic", "notify")  # of the person's own file


def own_document(env: Mapping[str, str]) -> dict[str, Any]:
    """The person's own file, in places.config_dir: settings for all folders, [generic] and [[notify]]. ConfigError, in
    words that show nothing of it, since its URLs are secrets."""
    path = config_dir(env) / FILE
    text = read_file(path)
    try:
        document = {} if text is None else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        raise ConfigError(f"{path} is not valid TOML.", "Its URLs are secrets, so no more is shown.") from None
    if "job" in document:
        raise ConfigError(f"{path} names a job, which would be that of every folder.", "Use --job or WAL_AGENT_JOB.")
    check_keys(document, OWN_KEYS, "", path)
    return document


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """A project's file as TOML and as text; both empty where there is none. ConfigError: it cannot be read."""
    text = read_file(path)
    if text is None:
        return {}, ""
    try:
        return tomllib.loads(text), text
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def read_file(path: Path) -> str | None:
    """The text of a wal-agent.toml, None when there is none. ConfigError for what is no readable plain UTF-8 file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        hint = "Set HOME, or XDG_CONFIG_HOME, to a folder."
        raise ConfigError(f"{path} cannot be read: a part of it is a file.", hint) from None
    except OSError as error:
        from wal_agent.text import quote_word

        raise ConfigError(f"{path} cannot be read: {error.strerror}.", f"See: ls -l {quote_word(str(path))}") from None
    try:
        plain = stat.S_ISREG(os.fstat(fd).st_mode)
        data = os.read(fd, MAX_FILE + 1) if plain else b""
    finally:
        os.close(fd)
    if not plain:
        raise ConfigError(f"{path} is not a file.")
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path} is larger than {MAX_FILE // 1024} KiB.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None


def check_keys(table: Mapping[str, Any], allowed: Iterable[str], prefix: str, path: Path | str) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, list(allowed), 1)
            hint = f"Did you mean {prefix}{near[0]}?" if near else f"Known here: {', '.join(allowed)}."
            raise ConfigError(f"{path}: {prefix}{key} is not a setting.", hint)


class Want(msgspec.Struct, frozen=True):
    """Something that a project's file decides if a person lets it. `value` is kept and compared, `shown` is for people;
    `means`: what it does, in one clause."""

    setting: str
    value: str
    place: Path
    shown: str
    means: str


class ConsentNeeded(ConfigError):
    """A project's files want what nobody has allowed for this folder."""

    def __init__(self, wants: Iterable[Want]) -> None:
        self.wants = tuple(wants)
        first, more = self.wants[0], len(self.wants) - 1
        beside = f" (and {more} more such setting{'s' * (more > 1)})" if more else ""
        super().__init__(
            f"{first.setting} in {first.place} is {first.shown}, which you have not allowed this folder to "
            f"choose{beside}: {first.means}.",
            "To see it and allow it: wal-agent trust. A flag, a variable or your own file goes before it.",
        )


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str  # for people; the file's name says which one it is
    settings: dict[str, str]


_NOTE = msgspec_compat.of_json(_Note)


class Consents(msgspec.Struct, frozen=True):
    """Those of one folder, `workspace` (a real path)."""

    workspace: Path
    env: Mapping[str, str]

    def given(self) -> dict[str, str]:
        """Setting and value; none where the note is missing, is not this folder's, or could be somebody else's."""
        try:
            path = self._path()
            folder = path.parent.lstat()
            if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
                return {}
            with open_plain(path) as file:
                about = os.fstat(file.fileno())
                if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                    return {}
                return dict(_NOTE.decode(file.read(MAX_NOTE)).settings)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}

    def allows(self, want: Want) -> bool:
        return self.given().get(want.setting) == want.value

    def allow(self, wants: Iterable[Want]) -> None:
        """Durable. ConfigError: the state folder cannot be written."""
        path = self._path()
        settings = {**self.given(), **{want.setting: want.value for want in wants}}
        note = _Note(str(self.workspace), settings)
        try:
            path.unlink(missing_ok=True)  # its mode would be kept
            if path.parent.exists():
                path.parent.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"{path.parent} cannot be written: {error.strerror}.") from None
        replace_file(path, msgspec.json.encode(note), None)

    def revoke(self) -> bool:
        """Forget all of it; whether there was anything."""
        had = bool(self.given())
        with suppress(FileNotFoundError):
            self._path().unlink()
        return had

    def _path(self) -> Path:
        info = self.workspace.stat()
        name = hashlib.sha256(os.fsencode(f"{info.st_dev}\0{info.st_ino}\0{self.workspace}")).hexdigest()[:32]
        return state_dir(self.env) / "trusted" / f"{name}.json"


def content_digest(data: bytes) -> str:
    """What is kept of a text: consent is for these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
