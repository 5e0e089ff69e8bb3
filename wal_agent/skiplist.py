"""Edits `[hooks.<agent>] skip` in the text of a wal-agent.toml; the rest keeps its bytes, comments too. Pure.

A table that is ours is appended whole and marked, so that it can leave without a trace.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

import tomlkit
from tomlkit.items import InlineTable

MADE = (
    "# Made by `wal-agent configure-hooks`; --reset takes it out again.\n"  # alone at the head of a file that is ours
)
MARK = "# wal-agent configure-hooks"


def with_skip(text: str | None, agent: str, tools: Sequence[str]) -> str:
    """The text with just these tools in the list; `text` None is a file that does not exist. ValueError when it is no
    TOML, or when the list cannot be put in."""
    if not tools:
        return _checked(_set(text or "", agent, ()), agent, ())
    old = MADE if text is None else text
    if _ours(agent).search(old):
        old = _cut(old, agent)
    if "skip" in _table(old, agent):
        return _checked(_set(old, agent, tools), agent, tools)
    newline = "\r\n" if "\r\n" in old else "\n"
    start = newline if old else ""
    block = f"{start}[hooks.{agent}] {MARK}{newline}skip = {tomlkit.item(list(tools)).as_string()}{newline}"
    try:
        return _checked(old + block, agent, tools)
    except ValueError:  # the table is there already, or in another form
        return _checked(_set(old, agent, tools), agent, tools)


def without_skip(text: str, agent: str) -> str | None:
    """The text without the list; None when the file is ours and holds nothing else."""
    left = _cut(text, agent) if _ours(agent).search(text) else text
    if "skip" in _table(left, agent):
        document = tomlkit.parse(left)
        hooks: Any = document["hooks"]
        del hooks[agent]["skip"]
        left = tomlkit.dumps(document)
    if "skip" in _table(left, agent):
        raise ValueError("the list could not be taken out")
    return None if left == MADE else left


def _set(text: str, agent: str, tools: Sequence[str]) -> str:
    """Through tomlkit: what stands in the list and stays keeps its place and its comment."""
    document = tomlkit.parse(text)
    hooks = _sub(document, "hooks")
    table = _sub(hooks, agent)
    if not isinstance(table.get("skip"), list):
        table["skip"] = list(tools)
    for tool in [t for t in table["skip"] if t not in tools]:
        table["skip"].remove(tool)
    for tool in tools:
        if tool not in table["skip"]:
            table["skip"].append(tool)
    return tomlkit.dumps(document)


def _sub(parent: Any, key: str) -> Any:
    """The table under `key`, made in the parent's own form where there is none."""
    if key not in parent:
        parent[key] = tomlkit.inline_table() if isinstance(parent, InlineTable) else tomlkit.table()
    if not isinstance(parent[key], dict):
        raise ValueError(f"{key} is not a table")
    return parent[key]


def _checked(text: str, agent: str, tools: Sequence[str]) -> str:
    if sorted(set(_table(text, agent).get("skip", []))) != sorted(set(tools)):
        raise ValueError(f"hooks.{agent} stands there in a form that cannot be edited")
    return text


def _table(text: str, agent: str) -> dict[str, Any]:
    try:
        hooks = tomllib.loads(text).get("hooks", {})
        table = hooks.get(agent, {}) if isinstance(hooks, dict) else {}
    except RecursionError:
        raise ValueError("it is too deep") from None
    return table if isinstance(table, dict) else {}


def _ours(agent: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\r?\n|\A)\[hooks\.{re.escape(agent)}\] {MARK}\r?\nskip = \[[^\r\n]*\]\r?\n")


def _cut(text: str, agent: str) -> str:
    found = _ours(agent).search(text)
    return text[: found.start()] + text[found.end() :] if found else text
