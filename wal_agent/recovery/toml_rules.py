"""`[[rules]]` of a wal-agent.toml: a project's rules in their strict form. What is wrong there is a ConfigError."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from wal_agent.config import FILE, KEYS, Origin, known_keys, read_file
from wal_agent.errors import ConfigError
from wal_agent.records import Class
from wal_agent.recovery.declared import MOST_NAME, ProjectRule, clean_sentence, parse_pattern

FIELDS = ("name", "match", "tool", "class", "why", "verify", "on_ambiguity")
MAX_RULES = 200  # of a project, all its files together
TOOL_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,127}")

_HEAD = re.compile(r"^[ \t]*\[\[[ \t]*(?:rules|\"rules\"|'rules')[ \t]*\]\]", re.MULTILINE)


def read_toml_rules(workspace: Path) -> tuple[ProjectRule, ...]:
    """The rules of the workspace's wal-agent.toml, none where there is no such file. ConfigError."""
    path = workspace / FILE
    text = read_file(path)
    if text is None:
        return ()
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    known_keys(document, KEYS, "", path)
    return parse_toml_rules(document.get("rules", []), path, text)


def parse_toml_rules(value: object, path: Path, text: str) -> tuple[ProjectRule, ...]:
    """The rules that `rules` in the file at `path` holds; `text` is the whole file. ConfigError names the rule, the
    line where its table begins, and what is allowed."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise Origin("file", f"rules in {path}").refuse(value, "tables, [[rules]]")
    if len(value) > MAX_RULES:
        raise ConfigError(f"{path} has {len(value)} rules; {MAX_RULES} are the most.")
    lines = [text.count("\n", 0, head.start()) + 1 for head in _HEAD.finditer(text)]
    if len(lines) != len(value):  # another notation, or such a line inside a text
        lines = [0] * len(value)
    return tuple(
        _parse_toml_rule(item, n, line, path) for n, (item, line) in enumerate(zip(value, lines, strict=True), start=1)
    )


def _parse_toml_rule(table: Mapping[str, Any], n: int, line: int, path: Path) -> ProjectRule:
    where = f"{path}, rule {n} (line {line})" if line else f"{path}, rule {n}"
    known_keys(table, FIELDS, "rules.", where)

    def text(key: str, most: int) -> str:
        value = table.get(key, "")
        if not isinstance(value, str) or len(value) > most:
            raise Origin("file", f"{key} in {where}").refuse(value, f"text of at most {most} characters")
        return clean_sentence(value, most)

    match, tool = table.get("match"), table.get("tool")
    if (match is None) == (tool is None):
        both = "has both match and tool" if match is not None else "has neither match nor tool"
        raise ConfigError(
            f"{where} {both}.",
            'It is for a command, match = "make deploy", or for a tool, tool = "mcp__shop__deploy".',
        )
    words: tuple[str, ...] = ()
    if match is not None:
        origin = Origin("file", f"match in {where}")
        if not isinstance(match, str):
            raise origin.refuse(match, 'the first words of a command, such as "make deploy"')
        try:
            words = parse_pattern(match)
        except ValueError as error:
            raise ConfigError(
                f'{where}: match "{clean_sentence(match, MOST_NAME)}" {error}.',
                'It is the first words of one command, "*" for any word.',
            ) from None
    elif not isinstance(tool, str) or not TOOL_NAME.fullmatch(tool):
        raise Origin("file", f"tool in {where}").refuse(tool, "the name of a tool")
    classes = get_args(Class)
    if table.get("class") not in classes:
        allowed = ", ".join(classes)
        if "class" not in table:
            raise ConfigError(f"{where} has no class.", f"Allowed: {allowed}.")
        raise Origin("file", f"class in {where}").refuse(table["class"], allowed)
    return ProjectRule(
        name=text("name", MOST_NAME) or clean_sentence(match or tool or "", MOST_NAME),
        cls=table["class"],
        source=FILE,
        line=line,
        why=text("why", 200),
        verify=text("verify", 200),
        ambiguous=text("on_ambiguity", 200),
        words=words,
        tool=tool or "",
    )
