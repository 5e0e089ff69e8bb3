"""Hooks that stay in an agent's own settings, for those who start it by other means (I7: taken out byte for byte).

Such a hook leaves at once, and the tool runs, unless the environment has both WAL_AGENT_RUN and WAL_AGENT_SOCKET, as
everything has that `wal-agent run` starts; then it is the hook of that run, and refuses what it cannot log. An agent
that has the run's own hooks needs none of it, so it leaves there too: it is for one that a launcher started without
them, with another home or another command line.
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

from wal_agent import decoders
from wal_agent.agents import jsonc
from wal_agent.agents.base import HookSetup, HooksToInstall, HookTable
from wal_agent.agents.jsonc import Child, Node
from wal_agent.errors import ConfigError
from wal_agent.hookwire import client_command
from wal_agent.textfile import replace_file

_RUN, _FOLDER = "WAL_AGENT_INSTALLED", "/WAL_AGENT_FOLDER"  # stand-ins, which need no quoting in the shell
LIVE = '[ -n "$WAL_AGENT_RUN" ] && [ -n "$WAL_AGENT_SOCKET" ] || exit 0\n'  # marks a line as ours
NAME = "wal-agent-installed"  # marks an entry as ours too, where the agent takes a name

_BARE = re.compile(r'"(?:[^"\\]|\\.)*"\s*:\s*[\[{][\s,]*[\]}]')

T = TypeVar("T")


class InstallMemo(msgspec.Struct, frozen=True):
    """What `uninstall` needs to be exact: the file as it was (None: there was none), and what it became."""

    before: str | None  # base64
    after: str  # sha256
    pieces: tuple[str, ...]


_MEMO = decoders.of_json(InstallMemo)


# ---- the hooks ----------------------------------------------------------------------------------------------------


def hooks_for_settings(table: Callable[[HookSetup], HookTable], first: bool, has_ours: str, named: bool) -> HookTable:
    """An agent's `table` of one run's hooks, but the run is what the environment says. `first`: its lines begin with
    one that asks whose process this is. `has_ours`: a shell test that holds in a process that has the run's own hooks.
    `named`: the agent takes a name of a hook."""
    found = table(HookSetup(run=_RUN, run_dir=Path(_FOLDER), client=client_command()))
    for groups in found.values():
        for group in groups:
            for hook in group["hooks"]:
                line = hook["command"].partition("\n")[2] if first else hook["command"]
                line = line.replace(f"{_FOLDER}/hook.sock", '"$WAL_AGENT_SOCKET"').replace(_RUN, '"$WAL_AGENT_RUN"')
                hook["command"] = f"{LIVE}! {has_ours} || exit 0\n{line}"
                if named:
                    hook["name"] = NAME
    return found


# ---- the text, pure -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inserted:
    """The new text, and the pieces that are new in it."""

    text: str
    pieces: tuple[str, ...]


def insert_hooks(text: str, hooks: HookTable) -> Inserted:
    """Settings with our entries at the front of what they belong to. ValueError when the text is no settings."""
    root = jsonc.parse_jsonc(text)
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


def remove_hooks(text: str) -> str:
    """Settings without our entries, wherever they stand now. Lists and objects that hold nothing else go too."""
    root = jsonc.parse_jsonc(text)
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
                cuts += jsonc.ranges_without(text, event.node, ours)
        if empty and len(empty) == len(member.node.children) and _bare(text, member):
            empty_hooks.append(member)
        else:
            cuts += jsonc.ranges_without(text, member.node, empty)
    return jsonc.cut_ranges(text, cuts + jsonc.ranges_without(text, root, empty_hooks))


def _bare(text: str, member: Child) -> bool:
    """Whether nothing (no comment) stands in a member but its children."""
    inner = [(child.start - member.start, child.node.end - member.start) for child in member.node.children]
    return _BARE.fullmatch(jsonc.cut_ranges(text[member.start : member.node.end], inner)) is not None


def restore_text(text: str, pieces: tuple[str, ...]) -> str:
    """Settings that were edited since `insert`, without our entries: our exact pieces where they still stand alone."""
    safe = remove_hooks(text)
    exact = text
    for piece in pieces:
        if exact.count(piece) == 1:
            exact = exact.replace(piece, "")
    try:
        fine = not has_our_hooks(exact) and _others(exact) == _others(safe)
    except ValueError:
        return safe
    return exact if fine else safe


def _others(text: str) -> Any:
    """All that the text says, but for empty lists of hooks."""
    value = jsonc.parse_jsonc(text).value
    if isinstance(value, dict) and isinstance(value.get("hooks", {}), dict):
        value["hooks"] = {event: groups for event, groups in value.get("hooks", {}).items() if groups != []}
    return value


def has_our_hooks(text: str) -> bool:
    """Whether any of our entries stands in it."""
    members = [member.node for member in jsonc.parse_jsonc(text).children if member.key == "hooks"]
    return any(_ours(g.node.value) for hooks in members for event in hooks.children for g in event.node.children)


def _ours(group: Any) -> bool:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and bool(hooks) and all(isinstance(h, dict) and _our_hook(h) for h in hooks)


def _our_hook(hook: dict[str, Any]) -> bool:
    return hook.get("name") == NAME or str(hook.get("command", "")).startswith(LIVE)


def _dump(value: object) -> str:
    return json.dumps(value, indent=2)


# ---- the file -----------------------------------------------------------------------------------------------------


def settings_path(wanted: HooksToInstall) -> Path:
    """A link is followed, so that what it points to is edited, not replaced."""
    return Path(os.path.realpath(wanted.settings))


def is_installed(wanted: HooksToInstall) -> bool:
    """ConfigError when the settings cannot be read."""
    path = settings_path(wanted)
    data = _read(path)
    return data is not None and _understood(wanted, has_our_hooks, _text(path, data))


def install_hooks(wanted: HooksToInstall, state: Path) -> Path:
    """Put our hooks into the user's settings; gives the file. `state` is wal-agent's own folder, for the way back.

    Hooks that stand there already are renewed. ConfigError when the file is not as the agent reads it, or cannot be
    written.
    """
    path = settings_path(wanted)
    if is_installed(wanted):
        uninstall_hooks(wanted, state)
    data = _read(path)
    text = "{}\n" if data is None else _text(path, data)
    new = _understood(wanted, lambda t: insert_hooks(t, wanted.hooks), text)
    after = new.text.encode()
    before = None if data is None else base64.b64encode(data).decode()
    memo = InstallMemo(before, hashlib.sha256(after).hexdigest(), new.pieces)
    memo_path = _memo(wanted, state)
    memo_path.unlink(missing_ok=True)  # of an installation that someone else took out
    replace_file(memo_path, msgspec.json.encode(memo), None)
    replace_file(path, after, data)
    return path


def uninstall_hooks(wanted: HooksToInstall, state: Path) -> Path | None:
    """Take our hooks out again; gives the file, or None when there were none. A file that nobody has touched since is
    byte for byte what it was (or gone, if it was not there); else just our entries leave it."""
    path = settings_path(wanted)
    data, memo_path = _read(path), _memo(wanted, state)
    if data is None or not is_installed(wanted):
        memo_path.unlink(missing_ok=True)
        return None
    memo = _read_memo(memo_path)
    if memo is not None and memo.after == hashlib.sha256(data).hexdigest():
        if memo.before is None:
            path.unlink()
        else:
            replace_file(path, base64.b64decode(memo.before), data)
    else:
        pieces = memo.pieces if memo is not None else ()
        replace_file(path, _understood(wanted, lambda t: restore_text(t, pieces), _text(path, data)).encode(), data)
    memo_path.unlink(missing_ok=True)
    return path


def _memo(wanted: HooksToInstall, state: Path) -> Path:
    name = hashlib.sha256(os.fsencode(settings_path(wanted))).hexdigest()[:16]
    return state / "installed" / f"{wanted.agent}-{name}.json"


def _read_memo(path: Path) -> InstallMemo | None:
    try:
        return _MEMO.decode(path.read_bytes())
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


def _understood(wanted: HooksToInstall, what: Callable[[str], T], text: str) -> T:
    try:
        return what(text)
    except (ValueError, RecursionError) as error:
        path = settings_path(wanted)
        raise ConfigError(
            f"{path} is not as {wanted.title} reads it ({error}), so nothing was changed in it."
        ) from None
