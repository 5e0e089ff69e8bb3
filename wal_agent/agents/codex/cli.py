"""Would our hooks fire here, in the folder that is saved? From Codex's settings and arguments, before the start (I5).

What only a running Codex knows (cloud policies, a device's management) is left to the handshake.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env
from wal_agent.agents.codex import options
from wal_agent.agents.codex.home import codex_home
from wal_agent.agents.codex.hooks import SOURCE

ETC = Path("/etc/codex")
_NAMES = ("hooks", "codex_hooks")  # the feature, and its older name
_LIMIT = 1 << 22
_NOTHING = "Nothing was run."
_UNLOGGED = f"so no tool call could be logged. {_NOTHING}"

Found = tuple[str, bool]
"""Who said it, and what."""


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = options.parse_args(args)
    return _elsewhere(given, workspace) or _in_the_way(given) or _switched_off(given, workspace, env) or _managed()


def _elsewhere(given: options.ParsedArgs, workspace: Path) -> str | None:
    if given.command in options.SERVES:
        return f"`codex {given.command}` serves sessions that wal-agent does not save. {_NOTHING}"
    if options.last_value(given.options, "remote") is not None:
        return f"--remote runs the session in another process, where wal-agent's hooks do not reach. {_NOTHING}"
    if options.is_given(given.options, "ephemeral"):
        return f"--ephemeral keeps no session, so there would be nothing to go on with. {_NOTHING}"
    if options.is_given(given.options, "worktree"):
        return (
            "--worktree makes Codex work in another folder than the one that wal-agent saves. Make the worktree first "
            f"and start wal-agent in it. {_NOTHING}"
        )
    folder = options.last_value(given.options, "cd")
    if folder is not None and (workspace / folder).resolve() != workspace.resolve():
        return f"--cd {folder} is not the folder that wal-agent saves. Start wal-agent in it instead. {_NOTHING}"
    return None


def _in_the_way(given: options.ParsedArgs) -> str | None:
    for key, _ in _settings(given):
        if key.partition(".")[0].strip("\"' ") == "hooks":
            return (
                f"-c {key} stands where wal-agent's own hooks of this run must stand. Put your hooks into "
                f"~/.codex/hooks.json or config.toml: those run beside them. {_NOTHING}"
            )
    return None


def _switched_off(given: options.ParsedArgs, workspace: Path, env: Env) -> str | None:
    found: Found | None = None
    for shown, values in _settings_files(given, workspace, env):
        found = _said(shown, values.get("features"), found)
    for key, value in _settings(given):
        group, _, name = key.partition(".")
        if group.strip() == "features":
            found = _said(f"-c {key}", {name.strip("\"' "): value} if name else value, found)
    for word, on in (("enable", True), ("disable", False)):  # in this order, wherever they stand
        for name in (arg.value for arg in given.options if arg.name == word):
            found = (f"--{word} {name}", on) if name in _NAMES else found
    for name in ("managed_config.toml", "requirements.toml"):
        found = _said(str(ETC / name), (_read_toml(ETC / name) or {}).get("features"), found)
    if found is None or found[1]:
        return None
    return f"Codex's hooks are off ({found[0]}: features.hooks is false), {_UNLOGGED}"


def _managed() -> str | None:
    path = ETC / "requirements.toml"
    managed = ETC / "managed_config.toml"  # its words stand over those of the command line
    if _ours_disabled((_read_toml(managed) or {}).get("hooks")):
        return f"A hook of wal-agent's own is off ({managed}: hooks.state), {_UNLOGGED}"
    if (_read_toml(path) or {}).get("allow_managed_hooks_only") is True:
        return f"Codex runs no hooks but its administrator's ({path}: allow_managed_hooks_only is true), {_UNLOGGED}"
    return None


def _ours_disabled(hooks: Any) -> bool:
    state = hooks.get("state") if isinstance(hooks, dict) else None
    return isinstance(state, dict) and any(
        key.startswith(f"{SOURCE}:") and isinstance(about, dict) and about.get("enabled") is False
        for key, about in state.items()
    )


def _said(shown: str, features: Any, before: Found | None) -> Found | None:
    for name in _NAMES if isinstance(features, dict) else ():
        value = features.get(name)
        if isinstance(value, bool):
            before = (shown, value)
    return before


def _settings(given: options.ParsedArgs) -> Iterator[tuple[str, Any]]:
    """`-c key=value`, in order; a value that is no TOML is text."""
    for arg in given.options:
        if arg.name == "config":
            key, _, text = arg.value.partition("=")
            try:
                yield key.strip(), tomllib.loads(f"value = {text}")["value"]
            except (ValueError, RecursionError, LookupError):
                yield key.strip(), text


def _settings_files(given: options.ParsedArgs, workspace: Path, env: Env) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lowest first: the machine's, the user's, the profile's, the project's. A project that is known as not trusted
    has no say; one that is not known yet may be trusted by the time that it counts."""
    home = codex_home(env)
    user = {} if options.is_given(given.options, "ignore-user-config") else _read_toml(home / "config.toml") or {}
    yield str(ETC / "config.toml"), _read_toml(ETC / "config.toml") or {}
    yield "~/.codex/config.toml", user
    profile = options.last_value(given.options, "profile")
    if profile and "/" not in profile:
        yield f"~/.codex/{profile}.config.toml", _read_toml(home / f"{profile}.config.toml") or {}
    root = next((p for p in (workspace, *workspace.parents) if (p / ".git").exists()), workspace)
    if any(_untrusted(user, p) for p in (workspace, root)):
        return
    for folder in reversed([p for p in (workspace, *workspace.parents) if p == root or root in p.parents]):
        if folder != home.parent:
            shown = ".codex/config.toml" if folder == workspace else str(folder / ".codex/config.toml")
            yield shown, _read_toml(folder / ".codex" / "config.toml") or {}


def _untrusted(user: dict[str, Any], folder: Path) -> bool:
    projects = user.get("projects")
    about = projects.get(str(folder)) if isinstance(projects, dict) else None
    return isinstance(about, dict) and about.get("trust_level") == "untrusted"


def _read_toml(path: Path) -> dict[str, Any] | None:
    """None: absent; or damaged, and Codex itself refuses to start."""
    try:
        with path.open("rb") as f:
            return tomllib.loads(f.read(_LIMIT).decode())
    except (OSError, ValueError, RecursionError):
        return None
