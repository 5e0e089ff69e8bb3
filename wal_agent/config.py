"""Settings of a run: flags, then the environment, then the workspace's wal-agent.toml, then defaults.

wal-agent.toml comes with a project, so it is hostile input: it can name no command and no folder outside the workspace,
it cannot switch the before-hook of a changing tool off (I1), and what it says of the bucket is told at the start
(`Settings.sources`).
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from wal_agent.bucket import default_url
from wal_agent.errors import ConfigError, UsageError

FILE = "wal-agent.toml"
MAX_FILE = 256 * 1024
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
MAX_JOB = 100
MOST_CRASHES = 16  # that can be counted: as many ends the log's state keeps (wal/state.py, KEEP_ENDS)
APPEND_DEADLINE = 20.0  # seconds; below the hook client's own, which is below the hook's timeout (agents/line.py)

Source = Literal["flag", "environment", "file", "default"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run goes by. Times are in seconds. `sources` says of each field's name where its value comes from."""

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
    sources: Mapping[str, Source] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was read, for an error to name: `--ttl`, `WAL_AGENT_TTL`, `ttl in /w/wal-agent.toml`."""

    source: Source
    words: str

    def refuse(self, value: object, allowed: str) -> UsageError | ConfigError:
        kind = ConfigError if self.source == "file" else UsageError
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


def _persons(read: Callable[[Any, Origin], Any]) -> Callable[[Any, Origin], Any]:
    """What only a person may decide: it loosens a promise, or names a command or a file of this machine."""

    def guarded(value: Any, origin: Origin) -> Any:
        if origin.source == "file":
            raise ConfigError(f"{origin.words} is not a project's to choose.", "Use the flag or the variable.")
        return read(value, origin)

    return guarded


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


READERS: dict[str, Callable[[Any, Origin], Any]] = {
    "bucket": _bucket,
    "job": _job,
    "ttl": _seconds(1, 3600),
    "durability": _one_of("intent", "sync"),
    "on_outage": _persons(_one_of("deny", "spool")),
    "encryption_key_file": _persons(_text),
    "encryption_key_command": _persons(_text),
    "autosave": _seconds(0.05, 3600),
    "drain": _seconds(0, 600),
    "preemption": _persons(_one_of("auto", "off", "gcp", "aws")),
    "idle_soft": _seconds(0, 86_400),
    "approval_soft": _seconds(0, 86_400),
    "tool_soft": _seconds(0, 86_400),
    "hang_timeout": _seconds(0, 86_400),
    "restart": _one_of("off", "on"),
    "restart_limit": _persons(_whole(0, MOST_CRASHES)),
    "restart_window": _persons(_seconds(1, 86_400)),
    "append_deadline": _seconds(0.1, APPEND_DEADLINE),
    "on_ambiguity": _one_of("ask", "halt", "resume"),
    "workspace": _one_of("save", "off"),
    "workspace_cap": _number(1, 1 << 20, "MiB"),
    "metrics_addr": _persons(_address),
    "metrics_file": _persons(_text),
    "metrics_job_label": _persons(_one_of("off", "on")),
    "log_format": _persons(_one_of("off", "json", "text")),
    "log_file": _persons(_text),
    "log_level": _persons(_one_of("debug", "info", "warning", "error")),
}


def load(
    agent: str,
    workspace: Path,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    why_not_skip: Callable[[str], str | None] | None = None,
) -> Settings:
    """Settings for `agent` in `workspace` (an absolute real path). `flags` has None for what was not given; an empty
    variable counts as not set. `why_not_skip(tool)` says why a tool cannot go without its before-hook, or None.

    UsageError for a flag or a variable, ConfigError for the file; each names the place and what is allowed.
    """
    path = workspace / FILE
    document = _read(path)
    values: dict[str, Any] = {"bucket": default_url(env), "job": default_job(agent, workspace)}
    sources: dict[str, Source] = dict.fromkeys((*READERS, "skip"), "default")

    def take(key: str, value: object, origin: Origin) -> None:
        values[key], sources[key] = READERS[key](value, origin), origin.source

    for key in READERS:
        variable = "WAL_AGENT_" + key.upper()
        if flags.get(key) is not None:
            take(key, flags[key], Origin("flag", "--" + key.replace("_", "-")))
        elif env.get(variable):
            take(key, env[variable], Origin("environment", variable))
        elif key in document:
            take(key, document[key], Origin("file", f"{key} in {path}"))
    if sources["bucket"] == "file":
        _stay_inside(values["bucket"], workspace, path)
    if "notify" in document:
        from wal_agent.notify.targets import refuse_in_project

        raise refuse_in_project(path, env)
    if "generic" in document:
        from wal_agent.agents.generic.settings import project_table

        project_table(document["generic"], path, env)
    skip = skipped(document, agent, path)
    for tool in skip:
        if why := why_not_skip(tool) if why_not_skip else refuse_skip(tool, agent):
            raise ConfigError(f"skip in {path}: {why}", f"Take it out: wal-agent configure-hooks --unskip {tool}")
    if skip:
        values["skip"], sources["skip"] = skip, "file"
    return Settings(**values, sources=sources)


def default_job(agent: str, workspace: Path) -> str:
    """`<agent>-<workspace folder>`; what a bucket's key cannot hold becomes '-'."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", workspace.name).strip("-.") or "root"
    return f"{agent}-{folder}"[:MAX_JOB]


# ---- the file -----------------------------------------------------------------------------------------------------

KEYS = (*READERS, "hooks", "rules", "generic", "notify")
OWN_KEYS = ("generic", "notify")  # of the person's own file, in places.config_dir


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
        from wal_agent.recovery.toml_rules import toml_rules

        toml_rules(document["rules"], path, text)
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


def _stay_inside(bucket: str, workspace: Path, path: Path) -> None:
    """A project's file may not choose a folder of the machine to write into."""
    url = urlsplit(bucket)
    if url.scheme in ("gs", "s3"):
        return
    named = bucket if bucket.startswith("/") else unquote(url.path)
    if not Path(os.path.realpath(named or "/")).is_relative_to(workspace.resolve()):
        raise ConfigError(
            f"bucket in {path} is a folder outside the workspace, which a project's file may not choose.",
            "If you want it, say so yourself: --bucket or WAL_AGENT_BUCKET.",
        )


# ---- which tools can go without a before-hook ---------------------------------------------------------------------


def refuse_skip(tool: str, agent: str) -> str | None:
    """Why the before-hook of `tool` cannot be skipped (I1), in one sentence, or None when it only reads.

    By the rules that ship with wal-agent: a project's own cannot loosen it.
    """
    from wal_agent.recovery.rules import load_rules

    known = load_rules().of(agent).tools.get(tool)
    if known is None:
        return f"wal-agent does not know what {tool} does, so each call must be logged before it runs."
    if known.cls != "read_only":
        return f"{tool} {known.why}, so each call must be logged before it runs."
    return None
