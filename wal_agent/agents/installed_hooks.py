"""Install hooks in an agent's own settings and take them out again byte for byte (I7).

They are for users who start the agent by other means than `wal-agent run`. Such a hook exits at once, and the tool
runs, unless the environment has both WAL_AGENT_RUN and WAL_AGENT_SOCKET, as every process below `wal-agent run` has:
then it is the hook of that run, and refuses what it cannot log. An agent that has the run's own hooks needs none of
them, so they exit there too: they are for an agent that a launcher started without the run's hooks, with another home
or another command line.

The settings are JSON with comments and trailing commas. They are parsed into a tree that knows the position of each
value in the text, so that text which is not edited keeps its bytes. Or they are TOML with a list `[[hooks]]`:
wal-agent's entries stand behind the rest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import HookSetup, HooksToInstall, HookTable
from wal_agent.agents.hook_line import STANDING, client_command
from wal_agent.errors import ConfigError
from wal_agent.safefs import open_plain, real_path, replace_file

_GAP = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null')
_LINE_END = re.compile(r"[ \t]*\r?\n")
_CLOSE = {"{": "}", "[": "]"}

_RUN, _FOLDER = "WAL_AGENT_INSTALLED", "/WAL_AGENT_FOLDER"  # stand-ins, which need no quoting in the shell
LIVE = '[ -n "$WAL_AGENT_RUN" ] && [ -n "$WAL_AGENT_SOCKET" ] || exit 0\n'  # marks a line as wal-agent's
NAME = "wal-agent-installed"  # marks an entry too, where the agent accepts a name
_BARE = re.compile(r'"(?:[^"\\]|\\.)*"\s*:\s*[\[{][\s,]*[\]}]')
T = TypeVar("T")
_ENTRY = re.compile(r"^[ \t]*\[\[[ \t]*hooks[ \t]*\]\][^\n]*\n(?:(?![ \t]*\[)[^\n]*(?:\n|\Z))*", re.MULTILINE)


class Child(msgspec.Struct):
    """One member (`key`) or element (`key` None), from `start` to `node.end`. `comma`: the position of one behind it,
    or -1."""

    start: int
    key: str | None
    node: Node
    comma: int = -1


class Node(msgspec.Struct):
    """A value from `start` to `end`. A container has `open` "{" or "[", a scalar has none."""

    start: int
    end: int
    open: str = ""
    scalar: Any = None
    children: list[Child] = msgspec.field(default_factory=list)

    def get(self, key: str) -> Node | None:
        """Return the member of that name; the last one, as JSON.parse does."""
        found = [child.node for child in self.children if child.key == key]
        return found[-1] if found else None

    @property
    def value(self) -> Any:
        if self.open == "{":
            return {child.key: child.node.value for child in self.children}
        if self.open == "[":
            return [child.node.value for child in self.children]
        return self.scalar


def parse_jsonc(text: str) -> Node:
    """Parse the text into a tree. ValueError (with line and column) when it is not JSON, RecursionError when it is too
    deep."""
    node, at = _value(text, _gap(text, 0))
    if (at := _gap(text, at)) != len(text):
        raise _error(text, at)
    return node


def ranges_without(text: str, container: Node, gone: Iterable[Child]) -> list[tuple[int, int]]:
    """Return the ranges to cut so that `gone` leave `container`, with their commas and own lines. Comments stay."""
    names = {id(child) for child in gone}
    cuts: list[tuple[int, int]] = []
    kept: Child | None = None
    for child in container.children:
        if id(child) not in names:
            kept = child
            continue
        comma = child.comma
        if comma < 0 and kept is not None:  # it was the last: the comma before it goes
            comma = kept.comma
        if comma >= 0:
            cuts.append((comma, comma + 1))
        cuts.append(_whole_lines(text, child.start, child.node.end, comma))
    return cuts


def _whole_lines(text: str, start: int, end: int, comma: int) -> tuple[int, int]:
    """Return the range, extended to whole lines where nothing else is on them (the newline before may end a
    comment)."""
    while text[start - 1] in " \t":
        start -= 1
    rest = _LINE_END.match(text, comma + 1 if not text[end : max(end, comma)].strip() and comma >= end else end)
    return start, rest.end() if rest and text[start - 1] == "\n" else end


def cut_ranges(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    """Return the text without these ranges, which may overlap."""
    kept, at = [], 0
    for start, end in sorted(ranges):
        kept.append(text[at : max(start, at)])
        at = max(at, end)
    return "".join(kept) + text[at:]


def _value(text: str, at: int) -> tuple[Node, int]:
    if text[at : at + 1] in _CLOSE:
        return _container(text, at)
    if not (found := _SCALAR.match(text, at)):
        raise _error(text, at)
    try:
        return Node(at, found.end(), scalar=json.loads(found.group())), found.end()
    except ValueError:  # an escape that does not exist, a zero in front
        raise _error(text, at) from None


def _container(text: str, start: int) -> tuple[Node, int]:
    node = Node(start, start, open=text[start])
    at = _gap(text, start + 1)
    while text[at : at + 1] != _CLOSE[node.open]:
        if node.children and node.children[-1].comma < 0:
            raise _error(text, at)
        child_start, key = at, None
        if node.open == "{":
            name, at = _value(text, at)
            if not isinstance(name.scalar, str) or text[(at := _gap(text, at)) : at + 1] != ":":
                raise _error(text, at)
            key, at = name.scalar, _gap(text, at + 1)
        value, at = _value(text, at)
        child = Child(child_start, key, value)
        node.children.append(child)
        at = _gap(text, at)
        if text[at : at + 1] == ",":
            child.comma, at = at, _gap(text, at + 1)
    node.end = at + 1
    return node, at + 1


def _gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at


def _error(text: str, at: int) -> ValueError:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return ValueError(f"line {line}, column {column}")


class InstallMemo(msgspec.Struct, frozen=True):
    """What `uninstall_hooks` needs to be exact: the file before (None: there was none), and after."""

    before: str | None  # base64
    after: str  # sha256
    pieces: tuple[str, ...]


_MEMO = msgspec_compat.of_json(InstallMemo)


def hooks_for_settings(table: Callable[[HookSetup], HookTable], first: bool, has_ours: str, named: bool) -> HookTable:
    """Return an agent's `table` of one run's hooks, but for the run that the environment names. `first`: the table's
    lines begin with a guard. `has_ours`: a shell test that holds in a process that has the run's own hooks. `named`:
    the agent accepts a name of a hook."""
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


class Inserted(msgspec.Struct, frozen=True):
    """The new text, and the pieces that are new in it."""

    text: str
    pieces: tuple[str, ...]


def insert_hooks(text: str, hooks: HookTable) -> Inserted:
    """Add the entries at the front of their lists. ValueError when the text is no settings."""
    root = parse_jsonc(text)
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
    """Remove wal-agent's entries, wherever they are now, and lists and objects that hold nothing else."""
    root = parse_jsonc(text)
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
                cuts += ranges_without(text, event.node, ours)
        if empty and len(empty) == len(member.node.children) and _bare(text, member):
            empty_hooks.append(member)
        else:
            cuts += ranges_without(text, member.node, empty)
    return cut_ranges(text, cuts + ranges_without(text, root, empty_hooks))


def _bare(text: str, member: Child) -> bool:
    """Return whether a member holds nothing (no comment) but its children."""
    inner = [(child.start - member.start, child.node.end - member.start) for child in member.node.children]
    return _BARE.fullmatch(cut_ranges(text[member.start : member.node.end], inner)) is not None


def restore_text(text: str, pieces: tuple[str, ...]) -> str:
    """Remove wal-agent's entries from settings that were edited since: the exact pieces where each is still there
    once."""
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
    """Return the value of the text without empty lists of hooks."""
    value = parse_jsonc(text).value
    if isinstance(value, dict) and isinstance(value.get("hooks", {}), dict):
        value["hooks"] = {event: groups for event, groups in value.get("hooks", {}).items() if groups != []}
    return value


def has_our_hooks(text: str) -> bool:
    """Return whether it holds any of wal-agent's entries."""
    members = [member.node for member in parse_jsonc(text).children if member.key == "hooks"]
    return any(_ours(g.node.value) for hooks in members for event in hooks.children for g in event.node.children)


def _ours(group: Any) -> bool:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    if not isinstance(hooks, list) or not hooks or not all(isinstance(hook, dict) for hook in hooks):
        return False
    return all(h.get("name") == NAME or str(h.get("command", "")).startswith(LIVE) or _standing(h) for h in hooks)


def _dump(value: object) -> str:
    return json.dumps(value, indent=2)


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the hooks of TOML settings. ValueError where it is none."""
    found = tomllib.loads(text).get("hooks", [])
    if not isinstance(found, list):
        raise ValueError("hooks is not a list")
    return [hook for hook in found if isinstance(hook, dict)]


def _standing(hook: dict[str, Any]) -> bool:
    return STANDING in str(hook.get("command", ""))


def insert_entries(text: str, hooks: HookTable) -> Inserted:
    """Add the entries behind all others. ValueError when the text is no TOML settings to which a list of hooks can be
    added."""
    added = "" if not text or text.endswith("\n") else "\n"
    for event, groups in hooks.items():
        for hook in (hook for group in groups for hook in group["hooks"]):
            command = json.dumps(hook["command"], ensure_ascii=False)
            added += f"\n[[hooks]]\nevent = {json.dumps(event)}\ncommand = {command}\ntimeout = {hook['timeout']}\n"
    before = len(_entries(text))
    if len(_entries(text + added)) <= before:
        raise ValueError("hooks is not a list of tables")
    return Inserted(text + added, (added,))


def remove_entries(text: str) -> str:
    """Remove wal-agent's entries, wherever they are now."""

    def kept(entry: re.Match[str]) -> str:
        return "" if any(map(_standing, _entries(entry[0]))) else entry[0]

    return _ENTRY.sub(kept, text)


def _listed(text: str) -> list[dict[str, Any]]:
    """Return the hooks of JSON settings in the form of TOML ones. ValueError where it is none."""
    root = parse_jsonc(text).value
    events = root.get("hooks") if isinstance(root, dict) else None
    return [
        {"event": event, "matcher": str(group.get("matcher") or "").removeprefix("*"), **hook}
        for event, groups in (events.items() if isinstance(events, dict) else ())
        for group in (groups if isinstance(groups, list) else ())
        if isinstance(group, dict)
        for hook in group.get("hooks") or ()
        if isinstance(hook, dict)
    ]


def missing_hooks(wanted: HooksToInstall) -> list[str]:
    """Return the events of which one of the hooks is not in the settings as it is wanted now, for every tool."""
    try:
        data = _read(settings_path(wanted))
        there = [] if data is None else (_listed if wanted.form == "json" else _entries)(data.decode())
    except (ConfigError, ValueError, RecursionError):
        there = []  # the agent itself reports it
    whole = {(hook.get("event"), hook.get("command")) for hook in there if not hook.get("matcher")}
    return [
        event
        for event, groups in wanted.hooks.items()
        if not all((event, hook["command"]) in whole for group in groups for hook in group["hooks"])
    ]


def settings_path(wanted: HooksToInstall) -> Path:
    """Return the file to edit: a link is followed, so that its target is edited, not replaced."""
    return real_path(wanted.settings)


def is_installed(wanted: HooksToInstall) -> bool:
    """Return whether the hooks are installed. ConfigError when the settings cannot be read."""
    path = settings_path(wanted)
    data = _read(path)
    has = has_our_hooks if wanted.form == "json" else lambda text: any(map(_standing, _entries(text)))
    return data is not None and _understood(wanted, has, _text(path, data))


def install_hooks(wanted: HooksToInstall, state: Path) -> Path:
    """Install the hooks in the user's settings; return the file. `state`: wal-agent's own folder, for what an exact
    removal needs. Hooks that are there already are renewed. ConfigError when the file is not as the agent reads it, or
    cannot be written."""
    path = settings_path(wanted)
    if is_installed(wanted):
        uninstall_hooks(wanted, state)
    data = _read(path)
    insert, empty = (insert_hooks, "{}\n") if wanted.form == "json" else (insert_entries, "")
    new = _understood(wanted, lambda t: insert(t, wanted.hooks), empty if data is None else _text(path, data))
    after = new.text.encode()
    before = None if data is None else base64.b64encode(data).decode()
    memo = InstallMemo(before, hashlib.sha256(after).hexdigest(), new.pieces)
    memo_path = _memo(wanted, state)
    memo_path.unlink(missing_ok=True)  # of an installation that was removed by other means
    replace_file(memo_path, msgspec.json.encode(memo), None)
    replace_file(path, after, data)
    return path


def uninstall_hooks(wanted: HooksToInstall, state: Path) -> Path | None:
    """Remove the hooks again; return the file, or None when there were none. A file that nobody has edited since
    becomes byte for byte what it was (or is removed, if there was none); else only wal-agent's entries are cut."""
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
        restore = (lambda t: restore_text(t, pieces)) if wanted.form == "json" else remove_entries
        replace_file(path, _understood(wanted, restore, _text(path, data)).encode(), data)
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
        with open_plain(path, follow=True) as file:
            return file.read()
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
