"""Hooks that stay in Gemini's own settings, for those who start it by other means (I7: taken out byte for byte).

Such a hook leaves at once, and the tool runs, unless the environment has both WAL_AGENT_RUN and WAL_AGENT_SOCKET, as
everything has that `wal-agent run` starts; then it is the hook of that run, and refuses what it cannot log. A Gemini
that loads the run's own extension (inject.py) needs none of it, so it leaves there too: it is for one that a launcher
started with another home, which has these settings but not that extension.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wal_agent.agents.base import Env, HookSetup
from wal_agent.agents.gemini import jsonc
from wal_agent.agents.gemini.inject import gemini_home, hook_table
from wal_agent.agents.gemini.jsonc import Child, Node
from wal_agent.errors import ConfigError
from wal_agent.hookwire import client_command
from wal_agent.textfile import replace_file

_RUN, _FOLDER = "WAL_AGENT_INSTALLED", "/WAL_AGENT_FOLDER"  # stand-ins, which need no quoting in the shell
_GUARD = (
    '[ -n "$WAL_AGENT_RUN" ] && [ -n "$WAL_AGENT_SOCKET" ] || exit 0\n'
    '[ ! -d "${GEMINI_CLI_HOME:-$HOME}/.gemini/extensions/wal-agent-$WAL_AGENT_RUN" ] || exit 0\n'
)
NAME = "wal-agent-installed"  # marks an entry as ours

_BARE = re.compile(r'"(?:[^"\\]|\\.)*"\s*:\s*[\[{][\s,]*[\]}]')

T = TypeVar("T")
Table = dict[str, list[dict[str, object]]]


class Memo(msgspec.Struct, frozen=True):
    """What `uninstall` needs to be exact: the file as it was (None: there was none), and what it became."""

    before: str | None  # base64
    after: str  # sha256
    pieces: tuple[str, ...]


# ---- the hooks ----------------------------------------------------------------------------------------------------


def table() -> Table:
    """Event -> groups, for Gemini's `hooks`: inject.py's own, but the run is what the environment says."""
    found = hook_table(HookSetup(run=_RUN, run_dir=Path(_FOLDER), client=client_command()))
    for groups in found.values():
        for group in groups:
            hooks: Any = group["hooks"]
            for hook in hooks:
                _, _, line = hook["command"].partition("\n")  # the first line asks whose Gemini this is
                line = line.replace(f"{_FOLDER}/hook.sock", '"$WAL_AGENT_SOCKET"').replace(_RUN, '"$WAL_AGENT_RUN"')
                hook["name"], hook["command"] = NAME, _GUARD + line
    return found


# ---- the text, pure -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inserted:
    """The new text, and the pieces that are new in it."""

    text: str
    pieces: tuple[str, ...]


def insert(text: str, hooks: Table) -> Inserted:
    """Settings with our entries at the front of what they belong to. ValueError when the text is not Gemini's form."""
    root = jsonc.parse(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    edits: dict[int, str] = {}

    def put(into: Node, items: list[str], depth: int) -> None:
        indent = newline + "  " * depth
        body = ",".join(indent + item.replace("\n", indent) for item in items)
        edits[into.start + 1] = body + ("," if into.children else newline + "  " * (depth - 1))

    if root.open != "{":
        raise ValueError("it does not hold an object")
    known = root.get("hooks")
    if known is None:
        put(root, [f'"hooks": {_dump(hooks)}'], 1)
    elif known.open != "{":
        raise ValueError("hooks is not an object")
    else:
        for event, groups in hooks.items():
            array = known.get(event)
            if array is not None and array.open != "[":
                raise ValueError(f"hooks.{event} is not a list")
            if array is not None:
                put(array, [_dump(group) for group in groups], 3)
        fresh = [f"{_dump(event)}: {_dump(groups)}" for event, groups in hooks.items() if known.get(event) is None]
        if fresh:
            put(known, fresh, 2)
    for at in sorted(edits, reverse=True):
        text = text[:at] + edits[at] + text[at:]
    return Inserted(text, tuple(edits.values()))


def remove(text: str) -> str:
    """Settings without our entries, wherever they stand now. Lists and objects that hold nothing else go too."""
    root = jsonc.parse(text)
    cuts: list[tuple[int, int]] = []
    empty_hooks = []
    for member in root.children:
        if member.key != "hooks" or member.node.open != "{":
            continue
        empty = []
        for event in member.node.children:
            ours = [group for group in event.node.children if _ours(group.node.value)]
            if ours and len(ours) == len(event.node.children) and _bare(text, event):
                empty.append(event)
            elif ours:
                cuts += jsonc.without(text, event.node, ours)
        if empty and len(empty) == len(member.node.children) and _bare(text, member):
            empty_hooks.append(member)
        else:
            cuts += jsonc.without(text, member.node, empty)
    return jsonc.cut(text, cuts + jsonc.without(text, root, empty_hooks))


def _bare(text: str, member: Child) -> bool:
    """Whether nothing (no comment) stands in a member but its children."""
    inner = [(child.start - member.start, child.node.end - member.start) for child in member.node.children]
    return _BARE.fullmatch(jsonc.cut(text[member.start : member.node.end], inner)) is not None


def restore(text: str, pieces: tuple[str, ...]) -> str:
    """Settings that were edited since `insert`, without our entries: our exact pieces where they still stand alone."""
    safe = remove(text)
    exact = text
    for piece in pieces:
        if exact.count(piece) == 1:
            exact = exact.replace(piece, "")
    try:
        fine = not marked(exact) and _others(exact) == _others(safe)
    except ValueError:
        return safe
    return exact if fine else safe


def _others(text: str) -> Any:
    """All that the text says, but for empty lists of hooks."""
    value = jsonc.parse(text).value
    if isinstance(value, dict) and isinstance(value.get("hooks", {}), dict):
        value["hooks"] = {event: groups for event, groups in value.get("hooks", {}).items() if groups != []}
    return value


def marked(text: str) -> bool:
    """Whether any of our entries stands in it."""
    members = [member.node for member in jsonc.parse(text).children if member.key == "hooks"]
    return any(_ours(g.node.value) for hooks in members for event in hooks.children for g in event.node.children)


def _ours(group: Any) -> bool:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and bool(hooks) and all(isinstance(h, dict) and h.get("name") == NAME for h in hooks)


def _dump(value: object) -> str:
    return json.dumps(value, indent=2)


# ---- the file -----------------------------------------------------------------------------------------------------


def settings_path(env: Env) -> Path:
    """The user's own settings of Gemini; a link is followed, so that what it points to is edited, not replaced."""
    return Path(os.path.realpath(gemini_home(env) / "settings.json"))


def is_installed(env: Env) -> bool:
    """ConfigError when the settings cannot be read."""
    data = _read(settings_path(env))
    return data is not None and _understood(settings_path(env), marked, _text(settings_path(env), data))


def install(env: Env, state: Path) -> Path:
    """Put our hooks into the user's settings; gives the file. `state` is wal-agent's own folder, for the way back.

    Hooks that stand there already are renewed. ConfigError when the file is not as Gemini reads it, or cannot be
    written.
    """
    path = settings_path(env)
    if is_installed(env):
        uninstall(env, state)
    data = _read(path)
    text = "{}\n" if data is None else _text(path, data)
    new = _understood(path, lambda t: insert(t, table()), text)
    after = new.text.encode()
    before = None if data is None else base64.b64encode(data).decode()
    memo = Memo(before, hashlib.sha256(after).hexdigest(), new.pieces)
    _memo(path, state).unlink(missing_ok=True)  # of an installation that someone else took out
    replace_file(_memo(path, state), msgspec.json.encode(memo), None)
    replace_file(path, after, data)
    return path


def uninstall(env: Env, state: Path) -> Path | None:
    """Take our hooks out again; gives the file, or None when there were none. A file that nobody has touched since is
    byte for byte what it was (or gone, if it was not there); else just our entries leave it."""
    path = settings_path(env)
    data, memo_path = _read(path), _memo(path, state)
    if data is None or not is_installed(env):
        memo_path.unlink(missing_ok=True)
        return None
    memo = _recall(memo_path)
    if memo is not None and memo.after == hashlib.sha256(data).hexdigest():
        if memo.before is None:
            path.unlink()
        else:
            replace_file(path, base64.b64decode(memo.before), data)
    else:
        pieces = memo.pieces if memo is not None else ()
        replace_file(path, _understood(path, lambda t: restore(t, pieces), _text(path, data)).encode(), data)
    memo_path.unlink(missing_ok=True)
    return path


def _memo(path: Path, state: Path) -> Path:
    return state / "installed" / f"gemini-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.json"


def _recall(path: Path) -> Memo | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Memo)
    except (OSError, msgspec.MsgspecError):
        return None  # lost or damaged: the entries are found by their name


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, so nothing was changed in it.") from None


def _understood(path: Path, what: Callable[[str], T], text: str) -> T:
    try:
        return what(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not as Gemini reads it ({error}), so nothing was changed in it.") from None
