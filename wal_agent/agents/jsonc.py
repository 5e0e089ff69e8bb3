"""JSON with comments and trailing commas, as a tree that knows where each value stands in the text.

For textual edits of a person's settings: what is not edited keeps its bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_GAP = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null')
_LINE_END = re.compile(r"[ \t]*\r?\n")
_CLOSE = {"{": "}", "[": "]"}


@dataclass(slots=True)
class Child:
    """One member (`key`) or element (`key` None). It stands from `start` to `node.end`; `comma` is behind it, or -1."""

    start: int
    key: str | None
    node: Node
    comma: int = -1


@dataclass(slots=True)
class Node:
    """A value from `start` to `end`. A container has `open` "{" or "[", a scalar has none."""

    start: int
    end: int
    open: str = ""
    scalar: Any = None
    children: list[Child] = field(default_factory=list)

    def get(self, key: str) -> Node | None:
        """The member of that name; the last one, as JSON.parse has it."""
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
    """The tree; ValueError (with line and column) when the text is not JSON, RecursionError when it is too deep."""
    node, at = _value(text, _gap(text, 0))
    if (at := _gap(text, at)) != len(text):
        raise _error(text, at)
    return node


def ranges_without(text: str, container: Node, gone: Iterable[Child]) -> list[tuple[int, int]]:
    """The ranges to cut so that `gone` leave `container`, with their commas and lines of their own. Comments stay."""
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
    """From `start` to `end`, or whole lines where nothing else is on them (the newline before may end a comment)."""
    while text[start - 1] in " \t":
        start -= 1
    rest = _LINE_END.match(text, comma + 1 if not text[end : max(end, comma)].strip() and comma >= end else end)
    return start, rest.end() if rest and text[start - 1] == "\n" else end


def cut_ranges(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    """The text without these ranges, which may overlap."""
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
