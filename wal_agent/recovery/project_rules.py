"""All rules that a project declares, in the order in which they win: wal-agent.toml, the tables of its context files,
the Recovery sections of its skills and tools.

The files are a stranger's: each is bounded, so are they all together, and none is read through a link that leads out of
the workspace. What is wrong in Markdown is told (`wal-agent rules lint`) and is never an error of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from wal_agent.recovery.declared import ProjectRule, RuleProblem
from wal_agent.recovery.markdown_rules import section_rules, table_rules
from wal_agent.recovery.toml_rules import MAX_RULES, read_toml_rules
from wal_agent.safefs import path_in_root, read_in_root
from wal_agent.shell.rules import Rules, load_rules, with_project

__all__ = ["ProjectRule", "RuleProblem", "ProjectRules", "load_project_rules", "load_markdown_rules", "load_all"]

MAX_FILE_SIZE = 256 * 1024  # of one file
MAX_TOTAL_SIZE = 8 * 1024 * 1024
MAX_RULE_TEXT = 1024 * 1024  # of the files that may hold a rule
MAX_ENTRIES = 1000  # entries of a folder that are looked at

TABLES = ("GEMINI.md", ".gemini/GEMINI.md", "CLAUDE.md", ".claude/CLAUDE.md", "AGENTS.md")
SKILLS = (".gemini/skills", ".claude/skills", ".agents/skills", "skills")
TOOLS = ("docs/tools", "tools")


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """`rules`: the first that holds for a call wins."""

    rules: tuple[ProjectRule, ...] = ()
    problems: tuple[RuleProblem, ...] = ()


def load_project_rules(workspace: Path) -> ProjectRules:
    """The rules of the project in `workspace` (an absolute path). ConfigError for its wal-agent.toml only."""
    declared = read_toml_rules(workspace)
    more = load_markdown_rules(workspace, MAX_RULES - len(declared))
    return ProjectRules((*declared, *more.rules), more.problems)


def load_all(workspace: Path) -> Rules:
    """All rules that hold in `workspace`: the project's, then ours. ConfigError for its wal-agent.toml only."""
    return with_project(load_rules(), load_project_rules(workspace).rules)


def load_markdown_rules(workspace: Path, most: int = MAX_RULES) -> ProjectRules:
    """Those of its Markdown files, `most` of them."""
    rules: list[ProjectRule] = []
    problems: list[RuleProblem] = []
    for text in _read_texts(workspace, problems):
        folder, _, file = text.name.rpartition("/")
        if text.kind == "table":
            found, wrong = table_rules(text.text, text.name)
        elif text.kind == "skill":
            found, wrong = section_rules(text.text, text.name, folder.rpartition("/")[2], text.folders)
        else:
            stem = file.removesuffix(".md")
            beside = (f"{folder}/{stem}",) if folder == "tools" else ()
            found, wrong = section_rules(text.text, text.name, stem, files=beside)
        rules += found
        problems += wrong
    if len(rules) > most:
        first = rules[most]
        problems.append(
            RuleProblem(
                first.source, first.line, f"a project has {MAX_RULES} rules at most; from here on they are left out."
            )
        )
    return ProjectRules(tuple(rules[:most]), tuple(problems))


# ---- the files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """`name`: in the workspace, with slashes. `folders`: under which names its folder can be reached."""

    kind: str
    name: str
    text: str
    folders: tuple[str, ...] = ()


def _read_texts(workspace: Path, problems: list[RuleProblem]) -> Iterator[_Text]:
    """Each file once, though several names lead to it."""
    root = workspace.resolve()
    seen: dict[str, _Text | None] = {}
    left, told = MAX_TOTAL_SIZE, MAX_RULE_TEXT
    for kind, name in _candidate_files(root, problems):
        try:
            real = path_in_root(root, name)
            if real is None:
                continue
            folder = name.rpartition("/")[0]
            if real in seen:
                if (known := seen[real]) and kind == known.kind == "skill":
                    seen[real] = replace(known, folders=(*known.folders, folder))
                continue
            text = read_in_root(root, real, MAX_FILE_SIZE)
        except ValueError as error:
            problems.append(RuleProblem(name, 0, f"{error}."))
            continue
        except OSError as error:
            problems.append(RuleProblem(name, 0, f"cannot be read: {error.strerror}."))
            continue
        mark = "idempoten" if kind == "table" else "recovery"
        seen[real] = _Text(kind, name, text, (folder,) if kind == "skill" else ()) if mark in text.lower() else None
        left, told = left - len(text), told - (len(text) if seen[real] else 0)
        if left < 0 or told < 0:
            most = f"{MAX_RULE_TEXT >> 20} MiB of files with rules, {MAX_TOTAL_SIZE >> 20} MiB in all, are the most"
            problems.append(RuleProblem(name, 0, f"is not read, nor is what comes after it: {most}."))
            del seen[real]
            break
    yield from (text for text in seen.values() if text)


def _candidate_files(root: Path, problems: list[RuleProblem]) -> Iterator[tuple[str, str]]:
    for name in TABLES:
        yield "table", name
    for folder in SKILLS:
        for entry in _list_folder(root, folder, problems):
            yield "skill", f"{folder}/{entry}/SKILL.md"
    for folder in TOOLS:
        for entry in _list_folder(root, folder, problems):
            if entry.endswith(".md"):
                yield "tool", f"{folder}/{entry}"


def _list_folder(root: Path, folder: str, problems: list[RuleProblem]) -> list[str]:
    """The names in a folder, in order; of a very big one, some."""
    found: list[str] = []
    try:
        real = path_in_root(root, folder)
        if real is None or not (root / real).is_dir():
            return []
        with os.scandir(root / real) as entries:
            for entry in entries:
                if len(found) == MAX_ENTRIES:
                    problems.append(RuleProblem(folder, 0, f"has more than {MAX_ENTRIES} entries; not all are read."))
                    break
                found.append(entry.name)
    except ValueError as error:
        problems.append(RuleProblem(folder, 0, f"{error}."))
    except OSError as error:
        problems.append(RuleProblem(folder, 0, f"cannot be read: {error.strerror}."))
    return sorted(found)
