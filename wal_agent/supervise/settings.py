"""Load the settings of a run: flags, the environment, the person's own file, the project's wal-agent.toml, defaults.

The project's file is hostile input. What tightens a promise applies; what redirects or loosens applies once the person
has allowed this value for this folder (config.Consents); what names a command or a file of this machine is refused. The
table of settings is config.SETTINGS.

A log inside the workspace is the project's, and the agent's, to write; a workspace inside the bucket captures the log.
So a bucket's folder and a workspace must not be one inside the other, by whatever name the bucket is reached. Names
prove nothing (links, /proc/self/cwd, /dev/fd), so the folders themselves are compared: device and inode of each folder
above, as the kernel walks up, and the place in the file system, which a bind mount does not change.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from wal_agent.bucket import default_url, folder_of
from wal_agent.config import (
    DEFAULTS,
    FILE,
    KEYS,
    SETTINGS,
    ConsentNeeded,
    Consents,
    Origin,
    Settings,
    Source,
    Want,
    check_keys,
    content_digest,
    option_of,
    own_document,
    read_document,
    variable_of,
)
from wal_agent.errors import ConfigError
from wal_agent.paths import config_dir
from wal_agent.safefs import real_path
from wal_agent.supervise.identity import default_job_here
from wal_agent.text import shorten

MOUNTS = Path("/proc/self/mountinfo")
MAX_DEPTH = 4096  # folders; a path has fewer
_OCTAL = re.compile(r"\\([0-7]{3})")
PROMPT_MEANS = "the agent gets this text as wal-agent's own instructions"

Overlap = Literal["bucket in workspace", "workspace in bucket"]


class Mount(msgspec.Struct, frozen=True):
    """A line of mountinfo: which part (`root`) of which file system (`device`) is seen at `point`."""

    device: str
    root: str
    point: str


def find_overlap(bucket: Path, workspace: Path) -> Overlap | None:
    """`bucket` need not exist yet; what exists of its path counts. OSError: the workspace cannot be read."""
    mounts = _mounts()
    named = [bucket, real_path(bucket)]
    for path in named:
        if _within(_existing(path), workspace, mounts):
            return "bucket in workspace"
    if any(path.exists() and _within(workspace, path, mounts) for path in named):
        return "workspace in bucket"
    return None


def _existing(path: Path) -> Path:
    """The folder nearest to `path` that is there."""
    return next(at for at in (path, *path.parents) if at.is_dir())


def _within(inner: Path, outer: Path, mounts: dict[int, Mount]) -> bool:
    wanted = _identity(outer)
    if any(found == wanted for found in _upward(inner)):
        return True
    there, here = _in_file_system(inner, mounts), _in_file_system(outer, mounts)
    if there is None or here is None:
        return there is None and inner.parts[:2] in (("/", "proc"), ("/", "dev"))  # by another process's mounts
    return there[0] == here[0] and there[1].is_relative_to(here[1])


def _upward(path: Path) -> Iterator[tuple[int, int]]:
    """Each folder from `path` to the root, by the kernel's own `..`, which no link misleads."""
    at, last = path, None
    for _ in range(MAX_DEPTH):
        try:
            here = _identity(at)
        except OSError:  # no permission to search it
            return
        if here == last:
            return
        yield here
        at, last = at / "..", here


def _identity(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino


def _in_file_system(path: Path, mounts: dict[int, Mount]) -> tuple[str, PurePosixPath] | None:
    """Device and path inside of it; None where the kernel does not list it (no Linux, or no mount of this process)."""
    if not mounts:
        return None
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        said = Path(f"/proc/self/fdinfo/{fd}").read_text()
        real = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return None
    finally:
        os.close(fd)
    number = re.search(r"^mnt_id:\s*([0-9]+)$", said, re.MULTILINE)
    mount = mounts.get(int(number[1])) if number else None
    if mount is None or not PurePosixPath(real).is_relative_to(mount.point):
        return None
    return mount.device, PurePosixPath(mount.root) / PurePosixPath(real).relative_to(mount.point)


def _mounts() -> dict[int, Mount]:
    try:
        return parse_mounts(MOUNTS.read_text("utf-8", "surrogateescape"))
    except OSError:
        return {}


def parse_mounts(mountinfo: str) -> dict[int, Mount]:
    """The mounts by their ids (proc_pid_mountinfo(5))."""
    found = {}
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) > 4 and words[0].isdecimal():
            found[int(words[0])] = Mount(words[2], _plain(words[3]), _plain(words[4]))
    return found


def _plain(text: str) -> str:
    """Blanks and backslashes are written in octal there."""
    return _OCTAL.sub(lambda m: chr(int(m[1], 8)), text)


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
    own, document = own_document(env), _project_document(path)
    given, wants = Consents(workspace, env).given(), list[Want]()
    values: dict[str, Any] = {"bucket": default_url(env)}
    sources: dict[str, Source] = dict.fromkeys((*SETTINGS, "skip"), "default")
    places: dict[str, str] = {}

    def take(key: str, value: object, origin: Origin) -> None:
        values[key], sources[key] = SETTINGS[key].read(value, origin), origin.source
        places[key] = origin.words if origin.source in ("flag", "environment") else origin.words.partition(" in ")[2]

    for key, setting in SETTINGS.items():
        if (said := _persons_choice(key, flags, env, own, own_path)) is not None:
            take(key, *said)
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
        raise ConfigError(
            f"notify in {path} is not a project's to choose: it would say where your messages go.",
            f"Say it yourself, in {own_path} or in WAL_AGENT_NOTIFY.",
        )
    if "generic" in document:
        from wal_agent.agents.generic.session import generic_want

        table = generic_want(document["generic"], path, env)
        if agent == "generic" and uses is None and given.get("generic") != table.value:
            wants.append(table)
    if sources["job"] == "default":
        values["job"] = default_job_here(agent, workspace, values["bucket"], env)
    if skip := _checked_skip(document, agent, path, why_not_skip):
        values["skip"], sources["skip"] = skip, "file"
    if uses is None:
        wants += [want for want in prompt_wants(workspace) if given.get(want.setting) != want.value]
    if wants:
        raise ConsentNeeded(wants)
    return Settings(**values, sources=sources, places=places)


def _persons_choice(
    key: str, flags: Mapping[str, object], env: Mapping[str, str], own: Mapping[str, object], own_path: Path
) -> tuple[object, Origin] | None:
    """What the person says of a setting: by a flag, else a variable, else their own file."""
    variable = variable_of(key)
    if flags.get(key) is not None:
        return flags[key], Origin("flag", option_of(key))
    if env.get(variable):
        return env[variable], Origin("environment", variable)
    return (own[key], Origin("own", f"{key} in {own_path}")) if key in own else None


def _checked_skip(
    document: Mapping[str, Any], agent: str, path: Path, why_not_skip: Callable[[str], str | None] | None
) -> tuple[str, ...]:
    """The tools that go without a before-hook. ConfigError: one of them cannot."""
    skip = skipped(document, agent, path)
    for tool in skip:
        if why := why_not_skip(tool) if why_not_skip else refuse_skip(tool, agent):
            raise ConfigError(f"skip in {path}: {why}", f"Take it out: wal-agent configure-hooks --unskip {tool}")
    return skip


def wants_of(workspace: Path, env: Mapping[str, str]) -> list[Want]:
    """All that the project in `workspace` may decide only with the person's consent. ConfigError: its file is wrong."""
    path = workspace / FILE
    document = _project_document(path)
    found = [_wanted(key, document[key], path, env) for key in SETTINGS if key in document]
    wants = [want for want in found if want is not None]
    for want in wants:
        if want.setting == "bucket":
            _stay_apart(str(document["bucket"]), workspace, str(path))
    if "generic" in document:
        from wal_agent.agents.generic.session import generic_want

        wants.append(generic_want(document["generic"], path, env))
    return [*wants, *prompt_wants(workspace)]


def _project_document(path: Path) -> dict[str, Any]:
    """The project's file, its keys and rules checked; empty where there is none."""
    document, text = read_document(path)
    check_keys(document, KEYS, "", path)
    if "rules" in document:
        from wal_agent.recovery.project_rules import parse_toml_rules

        parse_toml_rules(document["rules"], path, text)
    return document


def _wanted(key: str, value: object, path: Path, env: Mapping[str, str]) -> Want | None:
    """What a project's file asks the person for; None where it asks for the default or something stricter."""
    setting, origin = SETTINGS[key], Origin("file", f"{key} in {path}")
    if setting.who == "person":
        own = config_dir(env) / FILE
        raise ConfigError(
            f"{origin.words} is not a project's to choose.", f"Use the flag or the variable, or your own {own}."
        )
    read = setting.read(value, origin)
    if setting.tightens(read) or getattr(DEFAULTS, key) == read:
        return None
    return Want(key, json.dumps(read), path, shorten(json.dumps(read), 300), setting.means)


def prompt_wants(workspace: Path) -> list[Want]:
    """The project's own prompts, each with the hash of its text; those that cannot be read are not used anyway."""
    from wal_agent.recovery.prompt import PROMPT_FOLDER, read_project_prompts

    found = read_project_prompts(workspace)
    return [
        Want(f"{PROMPT_FOLDER}/{name}", content_digest(text.encode()), workspace, _begins(text), PROMPT_MEANS)
        for name, text in found.items()
    ]


def _begins(text: str) -> str:
    return f"{len(text.encode())} bytes, {shorten(text, 120)!r}"


def skipped(document: Mapping[str, Any], agent: str, path: Path) -> tuple[str, ...]:
    """The tools in `[hooks.<agent>] skip`, in order, each once."""
    from wal_agent.agents import AGENTS

    hooks = _table(document.get("hooks", {}), "hooks", path)
    if hooks:
        check_keys(hooks, sorted(AGENTS), "hooks.", path)
    table = _table(hooks.get(agent, {}), f"hooks.{agent}", path)
    check_keys(table, ("skip",), f"hooks.{agent}.", path)
    tools = table.get("skip", [])
    origin = Origin("file", f"hooks.{agent}.skip in {path}")
    if not isinstance(tools, list) or not all(isinstance(t, str) and t for t in tools):
        raise origin.refuse(tools, "a list of tool names")
    return tuple(dict.fromkeys(str(t) for t in tools))


def _table(value: object, name: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Origin("file", f"{name} in {path}").refuse(value, f"a table, [{name}]")
    return value


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


def refuse_skip(tool: str, agent: str) -> str | None:
    """Why the before-hook of `tool` cannot be skipped (I1), in one sentence, or None when it only reads.

    By the rules that ship with wal-agent: a project's own cannot loosen it.
    """
    from wal_agent.agents import tools_of
    from wal_agent.calls.rules.table import load_rules

    known = load_rules().of(tools_of(agent)).tools.get(tool)
    if known is None:
        return f"wal-agent does not know what {tool} does, so each call must be logged before it runs."
    if known.cls != "read_only":
        return f"{tool} {known.why}, so each call must be logged before it runs."
    return None
