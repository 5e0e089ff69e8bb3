"""Settings of a run: flags, then the environment, the person's own file, the workspace's wal-agent.toml, defaults.

The workspace's file comes with a project, so it is hostile input, and advice. `SETTINGS` says of each setting who may
decide it: what tightens a promise applies; what redirects or loosens applies once the person has allowed this value for
this folder (consent.py); what names a command or a file of this machine is never a project's to say.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wal_agent.bucket import default_url, folder_of
from wal_agent.bucket.overlap import find_overlap
from wal_agent.consent import ConsentNeeded, Consents, Want, digest
from wal_agent.errors import ConfigError, UsageError
from wal_agent.paths import config_dir

FILE = "wal-agent.toml"
MAX_FILE = 256 * 1024
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
MAX_JOB = 100
MOST_CRASHES = 16  # that can be counted: as many ends the log's state keeps (wal/state.py, KEEP_ENDS)
APPEND_DEADLINE = 20.0  # seconds; below the hook client's own, which is below the hook's timeout (agents/hook_line.py)

Source = Literal["flag", "environment", "own", "file", "default"]  # own: the person's file; file: the project's


@dataclass(frozen=True, slots=True)
class Settings:
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
    preemption: Literal["auto", "off", "gcp", "aws"] = "auto"  # whose notices are listened for
    idle_soft: float = 90.0  # of the watchdog (supervise/watchdog.py), as the next three; 0: never
    approval_soft: float = 300.0
    tool_soft: float = 120.0  # for a tool that only reads; others have several times as long
    hang_timeout: float = 0.0
    restart: Literal["off", "on"] = "off"  # of an agent that died
    restart_limit: int = 5  # crashes in `restart_window` seconds after which nothing is started unattended; 0: none
    restart_window: float = 600.0
    append_deadline: float = APPEND_DEADLINE  # how long a tool call may wait for the bucket before it is denied
    on_ambiguity: Literal["ask", "halt", "resume"] = "ask"
    workspace: Literal["save", "off"] = "save"
    workspace_cap: float = 1024.0  # MiB of the working tree that are saved; of one file, a twentieth
    metrics_addr: str = ""  # host:port, where Prometheus and probes ask
    metrics_file: str = ""
    metrics_job_label: Literal["off", "on"] = "off"
    log_format: Literal["off", "json", "text"] = "off"  # of the structured log
    log_file: str = ""  # "": to stderr
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    skip: tuple[str, ...] = ()
    accept_logged_args: Literal["off", "on"] = "off"  # whoever writes the bucket may choose what the agent runs
    sources: Mapping[str, Source] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Who named the bucket, for people; empty where nobody did."""
        return f"bucket {self.bucket} (from {self.places['bucket']})" if "bucket" in self.places else ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was read, for an error to name: `--ttl`, `WAL_AGENT_TTL`, `ttl in /w/wal-agent.toml`."""

    source: Source
    words: str

    def refuse(self, value: object, allowed: str) -> UsageError | ConfigError:
        kind = ConfigError if self.source in ("own", "file") else UsageError
        return kind(f"{self.words} is {value!r}, which is not possible.", f"Allowed: {allowed}.")


def _number(low: float, high: float, unit: str) -> Callable[[Any, Origin], float]:
    def read(value: Any, origin: Origin) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not low <= number <= high:
            raise origin.refuse(value, f"{unit} from {low:g} to {high:g}")
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


def _one_of(*words: str) -> Callable[[Any, Origin], str]:
    def read(value: Any, origin: Origin) -> str:
        if value not in words:
            raise origin.refuse(value, " or ".join(words))
        return str(value)

    return read


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
        raise origin.refuse(value, "a URL such as file:///folder, or an absolute path")
    return value


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


# ---- who may decide what --------------------------------------------------------------------------------------------


def _never(value: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Setting:
    """`who`: `person`: no project's file may name it; `consent`: one may, where the person has allowed its value for
    the folder, or where `tightens` says that it only makes a promise stricter than the default does. `means`: what
    allowing it does, in one clause."""

    read: Callable[[Any, Origin], Any]
    who: Literal["person", "consent"] = "person"
    means: str = ""
    tightens: Callable[[Any], bool] = _never


def _advice(read: Callable[[Any, Origin], Any], means: str, tightens: Callable[[Any], bool] = _never) -> Setting:
    return Setting(read, "consent", means, tightens)


_DEFAULTS = Settings("", "")
SETTINGS: dict[str, Setting] = {
    "bucket": _advice(
        _bucket, "conversation, commands and files go there with your credentials, and jobs come from there"
    ),
    "job": _advice(_job, "the run goes on with the job of that name, whoever began it"),
    "ttl": _advice(_seconds(1, 3600), "it changes how soon another machine takes the job over"),
    "durability": _advice(_one_of("intent", "sync"), "tools wait less for the log", lambda value: value == "sync"),
    "on_outage": Setting(_one_of("deny", "spool")),
    "encryption_key_file": Setting(_text),
    "encryption_key_command": Setting(_text),
    "autosave": _advice(
        _seconds(0.05, 3600), "more work is lost with the machine", lambda value: value <= _DEFAULTS.autosave
    ),
    "drain": _advice(_seconds(0, 600), "it changes the time to save when the machine goes away"),
    "preemption": Setting(_one_of("auto", "off", "gcp", "aws")),
    "idle_soft": _advice(
        _seconds(0, 86_400), "you hear later that the model is silent", lambda v: 0 < v <= _DEFAULTS.idle_soft
    ),
    "approval_soft": _advice(
        _seconds(0, 86_400), "you hear later that it waits for you", lambda v: 0 < v <= _DEFAULTS.approval_soft
    ),
    "tool_soft": _advice(
        _seconds(0, 86_400), "you hear later that a tool hangs", lambda v: 0 < v <= _DEFAULTS.tool_soft
    ),
    "hang_timeout": _advice(_seconds(0, 86_400), "the agent is ended when its model is silent for that long"),
    "restart": _advice(_one_of("off", "on"), "an agent that died is started again without you"),
    "restart_limit": Setting(_whole(0, MOST_CRASHES)),
    "restart_window": Setting(_seconds(1, 86_400)),
    "append_deadline": _advice(_seconds(0.1, APPEND_DEADLINE), "it changes how long a tool waits for the bucket"),
    "on_ambiguity": _advice(
        _one_of("ask", "halt", "resume"),
        "after a crash the agent decides itself about calls that may have happened",
        lambda value: value == "halt",
    ),
    "workspace": _advice(_one_of("save", "off"), "the working tree is not saved"),
    "workspace_cap": _advice(_number(1, 1 << 20, "MiB"), "it changes how much of the working tree is saved"),
    "metrics_addr": Setting(_address),
    "metrics_file": Setting(_text),
    "metrics_job_label": Setting(_one_of("off", "on")),
    "log_format": Setting(_one_of("off", "json", "text")),
    "log_file": Setting(_text),
    "log_level": Setting(_one_of("debug", "info", "warning", "error")),
    "accept_logged_args": Setting(_one_of("off", "on")),
}
PROMPT_MEANS = "the agent gets this text as wal-agent's own instructions"
GENERIC_MEANS = "these files are saved to the bucket, and written from it at a recovery"


def load(
    agent: str,
    workspace: Path,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    why_not_skip: Callable[[str], str | None] | None = None,
    uses: Collection[str] | None = None,
) -> Settings:
    """Settings for `agent` in `workspace` (an absolute real path). `flags` has None for what was not given; an empty
    variable counts as not set. `why_not_skip(tool)` says why a tool cannot go without its before-hook, or None. `uses`:
    the only settings that the command needs, no agent works here; a project's other wishes are then passed over. None:
    all are needed, and an agent is to work in the workspace.

    UsageError for a flag or a variable, ConfigError for a file; each names the place and what is allowed.
    ConsentNeeded: the project wants what the person has not allowed.
    """
    path, own_path = workspace / FILE, config_dir(env) / FILE
    own, document = own_document(env), _read(path)
    given, wants = Consents(workspace, env).given(), list[Want]()
    values: dict[str, Any] = {"bucket": default_url(env), "job": default_job(agent, workspace)}
    sources: dict[str, Source] = dict.fromkeys((*SETTINGS, "skip"), "default")
    places: dict[str, str] = {}

    def take(key: str, value: object, origin: Origin) -> None:
        values[key], sources[key] = SETTINGS[key].read(value, origin), origin.source
        places[key] = origin.words if origin.source in ("flag", "environment") else origin.words.partition(" in ")[2]

    for key, setting in SETTINGS.items():
        variable = "WAL_AGENT_" + key.upper()
        if flags.get(key) is not None:
            take(key, flags[key], Origin("flag", "--" + key.replace("_", "-")))
        elif env.get(variable):
            take(key, env[variable], Origin("environment", variable))
        elif key in own:
            take(key, own[key], Origin("own", f"{key} in {own_path}"))
        elif key in document:
            want = _wanted(key, document[key], path, env)
            if want is None or given.get(key) == want.value:
                take(key, document[key], Origin("file", f"{key} in {path}"))
            elif uses is None or key in uses:
                if key == "bucket":  # no consent makes that one possible
                    _stay_apart(setting.read(document[key], Origin("file", f"bucket in {path}")), workspace, str(path))
                wants.append(want)
    if uses is None or sources["bucket"] == "file":
        _stay_apart(values["bucket"], workspace, places.get("bucket", "the default"))
    if "notify" in document:
        from wal_agent.notify.targets import refuse_in_project

        raise refuse_in_project(path, env)
    if "generic" in document:
        table = generic_want(document["generic"], path, env)
        if agent == "generic" and uses is None and given.get("generic") != table.value:
            wants.append(table)
    skip = skipped(document, agent, path)
    for tool in skip:
        if why := why_not_skip(tool) if why_not_skip else refuse_skip(tool, agent):
            raise ConfigError(f"skip in {path}: {why}", f"Take it out: wal-agent configure-hooks --unskip {tool}")
    if skip:
        values["skip"], sources["skip"] = skip, "file"
    if uses is None:
        wants += [want for want in prompt_wants(workspace) if given.get(want.setting) != want.value]
    if wants:
        raise ConsentNeeded(wants)
    return Settings(**values, sources=sources, places=places)


def wants_of(workspace: Path, env: Mapping[str, str]) -> list[Want]:
    """All that the project in `workspace` may decide only with the person's consent. ConfigError: its file is wrong."""
    path = workspace / FILE
    document = _read(path)
    found = [_wanted(key, document[key], path, env) for key in SETTINGS if key in document]
    wants = [want for want in found if want is not None]
    for want in wants:
        if want.setting == "bucket":
            _stay_apart(str(document["bucket"]), workspace, str(path))
    if "generic" in document:
        wants.append(generic_want(document["generic"], path, env))
    return [*wants, *prompt_wants(workspace)]


def _wanted(key: str, value: object, path: Path, env: Mapping[str, str]) -> Want | None:
    """What a project's file asks the person for; None where it asks for the default or something stricter."""
    setting, origin = SETTINGS[key], Origin("file", f"{key} in {path}")
    if setting.who == "person":
        own = config_dir(env) / FILE
        raise ConfigError(
            f"{origin.words} is not a project's to choose.", f"Use the flag or the variable, or your own {own}."
        )
    read = setting.read(value, origin)
    if setting.tightens(read) or getattr(_DEFAULTS, key) == read:
        return None
    return Want(key, json.dumps(read), path, _shown(json.dumps(read), 300), setting.means)


def generic_want(table: object, path: Path, env: Mapping[str, str]) -> Want:
    """The `[generic]` table of a project's file, `path`. ConfigError for what is not a project's to say."""
    from wal_agent.agents.generic.settings import project_table

    named = project_table(table, path, env)
    text = json.dumps(table, sort_keys=True)
    return Want("generic", digest(text.encode()), path, _shown(f"session {[*map(str, named)]}", 1000), GENERIC_MEANS)


def prompt_wants(workspace: Path) -> list[Want]:
    """The project's own prompts, each with the hash of its text; those that cannot be read are not used anyway."""
    from wal_agent.recovery.templates import FOLDER, read_project_prompts

    found = read_project_prompts(workspace)
    return [
        Want(f"{FOLDER}/{name}", digest(text.encode()), workspace, _begins(text), PROMPT_MEANS)
        for name, text in found.items()
    ]


def _shown(text: str, most: int) -> str:
    from wal_agent.sanitize import shorten  # redaction is loaded only where something is shown

    return shorten(text, most)


def _begins(text: str) -> str:
    return f"{len(text.encode())} bytes, {_shown(text, 120)!r}"


def default_job(agent: str, workspace: Path) -> str:
    """`<agent>-<workspace folder>`; what a bucket's key cannot hold becomes '-'."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", workspace.name).strip("-.") or "root"
    return f"{agent}-{folder}"[:MAX_JOB]


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
    known_keys(document, OWN_KEYS, "", path)
    return document


def _read(path: Path) -> dict[str, Any]:
    """The file's document, its keys checked; empty when there is no file."""
    text = read_file(path)
    if text is None:
        return {}
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    known_keys(document, KEYS, "", path)
    if "rules" in document:
        from wal_agent.recovery.project_rules import parse_toml_rules

        parse_toml_rules(document["rules"], path, text)
    return document


def read_file(path: Path) -> str | None:
    """The text of a wal-agent.toml, None when there is none. ConfigError for what is no readable plain UTF-8 file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
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


def skipped(document: Mapping[str, Any], agent: str, path: Path) -> tuple[str, ...]:
    """The tools in `[hooks.<agent>] skip`, in order, each once."""
    from wal_agent.agents import AGENTS

    hooks = _table(document.get("hooks", {}), "hooks", path)
    known_keys(hooks, sorted(AGENTS), "hooks.", path)
    table = _table(hooks.get(agent, {}), f"hooks.{agent}", path)
    known_keys(table, ("skip",), f"hooks.{agent}.", path)
    tools = table.get("skip", [])
    origin = Origin("file", f"hooks.{agent}.skip in {path}")
    if not isinstance(tools, list) or not all(isinstance(t, str) and t for t in tools):
        raise origin.refuse(tools, "a list of tool names")
    return tuple(dict.fromkeys(str(t) for t in tools))


def _table(value: object, name: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Origin("file", f"{name} in {path}").refuse(value, f"a table, [{name}]")
    return value


def known_keys(table: Mapping[str, Any], allowed: Iterable[str], prefix: str, path: Path | str) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, list(allowed), 1)
            hint = f"Did you mean {prefix}{near[0]}?" if near else f"Known here: {', '.join(allowed)}."
            raise ConfigError(f"{path}: {prefix}{key} is not a setting.", hint)


def _stay_apart(bucket: str, workspace: Path, named_by: str) -> None:
    """ConfigError: the bucket's folder is in the workspace, or around it, whoever named it."""
    folder = folder_of(bucket)
    try:
        found = find_overlap(folder, workspace) if folder is not None else None
    except OSError as error:
        raise ConfigError(f"{workspace} cannot be looked at: {error.strerror}.") from None
    if found == "bucket in workspace":
        raise ConfigError(
            f"The bucket {bucket} (from {named_by}) is inside the workspace {workspace}, where the project and the "
            "agent could write the log.",
            "Name a folder elsewhere: --bucket file:///folder, or run in a folder of the project.",
        )
    if found is not None:
        raise ConfigError(
            f"The workspace {workspace} is inside the bucket's folder {bucket} (from {named_by}), so the agent would "
            "work in the log.",
            "Name a folder elsewhere: --bucket file:///folder.",
        )


# ---- which tools can go without a before-hook ---------------------------------------------------------------------


def refuse_skip(tool: str, agent: str) -> str | None:
    """Why the before-hook of `tool` cannot be skipped (I1), in one sentence, or None when it only reads.

    By the rules that ship with wal-agent: a project's own cannot loosen it.
    """
    from wal_agent.shell.rules import load_rules

    known = load_rules().of(agent).tools.get(tool)
    if known is None:
        return f"wal-agent does not know what {tool} does, so each call must be logged before it runs."
    if known.cls != "read_only":
        return f"{tool} {known.why}, so each call must be logged before it runs."
    return None
