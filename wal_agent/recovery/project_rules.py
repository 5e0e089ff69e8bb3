"""Load all rules that a project declares, in the order in which they win: `[[rules]]` of wal-agent.toml, the tables of
its context files, the Recovery sections of its skills and tools.

The files are a stranger's: each is bounded, so are they all together, and none is read through a link that leads out of
the workspace. What is wrong in wal-agent.toml is a ConfigError; what is wrong in Markdown is reported (`wal-agent rules
lint`) and is never an error of a run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from wal_agent.agents import places
from wal_agent.calls.checks import parse_done_if
from wal_agent.calls.rules.project import (
    ANY,
    GAP,
    MAX_NAME,
    ProjectRule,
    RuleProblem,
    clean_sentence,
    match_command,
    match_tool,
    parse_pattern,
)
from wal_agent.calls.rules.table import Classified, Rules, load_rules, with_project
from wal_agent.config import FILE, KEYS, Origin, check_keys, read_file
from wal_agent.errors import ConfigError
from wal_agent.records import Class
from wal_agent.safefs import path_in_root, read_in_root, real_path

FIELDS = ("name", "match", "tool", "class", "why", "verify", "done_if", "on_ambiguity")
MAX_RULES = 200  # of a project, all its files together
TOOL_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,127}")

_HEAD = re.compile(r"^[ \t]*\[\[[ \t]*(?:rules|\"rules\"|'rules')[ \t]*\]\]", re.MULTILINE)
MAX_FILE_SIZE = 256 * 1024  # of one file
MAX_TOTAL_SIZE = 8 * 1024 * 1024
MAX_RULE_TEXT = 1024 * 1024  # of the files that may hold a rule
MAX_RULE_LINES = 20_000  # of them; short lines cost the parser most: at worst 100 us each, and 0.5 kB
MAX_ENTRIES = 1000  # entries of a folder that are read
TOOLS = ("docs/tools", "tools")
_SOME = "x-0"  # stands for any word
_UNREAD = ("none", "unreadable", "program", "script", "function", "shell-empty", "shell-unreadable")  # classify.py


def read_toml_rules(workspace: Path) -> tuple[ProjectRule, ...]:
    """Read the rules of the workspace's wal-agent.toml, none where there is no such file. ConfigError."""
    path = workspace / FILE
    text = read_file(path)
    if text is None:
        return ()
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    check_keys(document, KEYS, "", path)
    return parse_toml_rules(document.get("rules", []), path, text)


def parse_toml_rules(value: object, path: Path, text: str) -> tuple[ProjectRule, ...]:
    """Parse `rules` of the file at `path`; `text` is the whole file. ConfigError names the rule, the line where its
    table begins, and what is allowed."""
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
    check_keys(table, FIELDS, "rules.", where)

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
                f'{where}: match "{clean_sentence(match, MAX_NAME)}" {error}.',
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
        name=text("name", MAX_NAME) or clean_sentence(match or tool or "", MAX_NAME),
        cls=table["class"],
        source=FILE,
        line=line,
        why=text("why", 200),
        verify=text("verify", 200),
        done_if=_parse_done_if(text("done_if", 200), text("verify", 200), where),
        ambiguous=text("on_ambiguity", 200),
        words=words,
        tool=tool or "",
    )


def _parse_done_if(text: str, verify: str, where: str) -> str:
    if not text:
        return ""
    if not verify:
        raise ConfigError(f"{where} has done_if and no verify.", "It reads what the command of verify prints.")
    try:
        return parse_done_if(text)
    except ValueError as error:
        raise ConfigError(
            f'{where}: done_if "{clean_sentence(text, MAX_NAME)}" {error}.',
            'It is "exit 0", or a whole line of the output, "*" for anything.',
        ) from None


class ProjectRules(msgspec.Struct, frozen=True):
    """`rules`: the first that holds for a call wins."""

    rules: tuple[ProjectRule, ...] = ()
    problems: tuple[RuleProblem, ...] = ()


def load_project_rules(workspace: Path) -> ProjectRules:
    """Load the rules of the project in `workspace` (an absolute path). ConfigError for its wal-agent.toml only."""
    declared = read_toml_rules(workspace)
    more = load_markdown_rules(workspace, MAX_RULES - len(declared))
    return ProjectRules((*declared, *more.rules), more.problems)


def load_all(workspace: Path) -> Rules:
    """Load all rules for `workspace`: the project's, then the built-in ones. ConfigError for its wal-agent.toml
    only."""
    return with_project(load_rules(), load_project_rules(workspace).rules)


def load_later(workspace: Path, agent: str, mcp: bool) -> Callable[[], Rules]:
    """As `load_all`, for an agent. The project's files are read now, before the agent can change them; the built-in
    rules at the first call of what is returned. `mcp`: it has the run's own MCP server. ConfigError for its
    wal-agent.toml only."""
    extra = load_project_rules(workspace).rules

    @cache
    def load() -> Rules:
        rules = with_project(load_rules(), extra).of(agent)
        return rules if mcp else rules.without_own_tools()

    return load


def load_markdown_rules(workspace: Path, most: int = MAX_RULES) -> ProjectRules:
    """Load the rules of its Markdown files, `most` of them."""
    rules: list[ProjectRule] = []
    problems: list[RuleProblem] = []
    for text in _read_texts(workspace, problems):
        # Imported here: the Markdown parser costs a start 40 ms, and most projects have no such file.
        from wal_agent.recovery.markdown_rules import section_rules, table_rules

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
        what = f"a project has {MAX_RULES} rules at most; from here on they are left out."
        problems.append(RuleProblem(first.source, first.line, what))
    return ProjectRules(tuple(rules[:most]), tuple(problems))


# ---- the files --------------------------------------------------------------------------------------------------


class _Text(msgspec.Struct, frozen=True):
    """`name`: in the workspace, with slashes. `folders`: under which names its folder can be reached."""

    kind: str
    name: str
    text: str
    folders: tuple[str, ...] = ()


def _read_texts(workspace: Path, problems: list[RuleProblem]) -> Iterator[_Text]:
    """Read each file once, though several names lead to it."""
    root = real_path(workspace)
    seen: dict[str, _Text | None] = {}
    left, rule_text, rule_lines = MAX_TOTAL_SIZE, MAX_RULE_TEXT, MAX_RULE_LINES
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
        left -= len(text)
        if seen[real]:
            rule_text, rule_lines = rule_text - len(text), rule_lines - text.count("\n")
        if min(left, rule_text, rule_lines) < 0:
            most = f"{MAX_RULE_TEXT >> 20} MiB and {MAX_RULE_LINES} lines of files with rules, "
            most += f"{MAX_TOTAL_SIZE >> 20} MiB in all, are the most"
            problems.append(RuleProblem(name, 0, f"is not read, nor is what comes after it: {most}."))
            del seen[real]
            break
    yield from (text for text in seen.values() if text)


def _candidate_files(root: Path, problems: list[RuleProblem]) -> Iterator[tuple[str, str]]:
    for name in places.MEMORY:
        yield "table", name
    for folder in places.SKILLS:
        for entry in _list_folder(root, folder, problems):
            yield "skill", f"{folder}/{entry}/SKILL.md"
    for folder in TOOLS:
        for entry in _list_folder(root, folder, problems):
            if entry.endswith(".md"):
                yield "tool", f"{folder}/{entry}"


def _list_folder(root: Path, folder: str, problems: list[RuleProblem]) -> list[str]:
    """List the names in a folder, in order; of a very big one, some."""
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


# ---- lint ------------------------------------------------------------------------------------------------------------


def lint_rules(declared: Sequence[ProjectRule], builtin: Rules) -> tuple[RuleProblem, ...]:
    """Return warnings in the order of the rules. A rule with a warning still applies. Pure."""
    found = []
    for n, rule in enumerate(declared):
        warnings = (*_reach(rule, declared[:n], builtin), *_mild(rule, builtin), *_verification(rule, builtin))
        found += [RuleProblem(rule.source, rule.line, what) for what in warnings]
    return tuple(found)


def _reach(rule: ProjectRule, before: Sequence[ProjectRule], builtin: Rules) -> Iterator[str]:
    """Warn where it can never win."""
    alone = with_project(builtin, [rule])
    if all(_classify(call, alone).project is None for call in _calls(rule, builtin)):
        yield f'rule "{rule.name}" can never hold: no command that wal-agent reads begins with these words.'
        return
    winners = [match_command(before, words) for words in _commands_of(rule)]
    if rule.tool:
        winners.append(match_tool(before, rule.tool, {}))
    if all(winners) and (first := winners[0]):
        place = f"{first.source}:{first.line}" if first.line else first.source
        yield f'rule "{rule.name}" never wins: rule "{first.name}" ({place}) comes first.'


def _mild(rule: ProjectRule, builtin: Rules) -> Iterator[str]:
    """Warn where it rates a call milder than the built-in rules do."""
    claims = rule.cls in ("read_only", "idempotent")
    known = [_classify(call, builtin) for call in _calls(rule, builtin)] if claims else []
    if worst := next((k for k in known if k.cls in ("mutation", "idempotent") and k.cls != rule.cls), None):
        what = f'rule "{rule.name}" says {rule.cls} of a known {worst.cls} (it {worst.why})'
        yield f"{what}; a project's rule can only make a class worse, so it stays {worst.cls}."


def _verification(rule: ProjectRule, builtin: Rules) -> Iterator[str]:
    """Warn where a command that verifies it does not plainly read: running it does not resolve the call then."""
    from wal_agent.recovery.markdown_rules import code_spans  # late, as above

    spans = code_spans(rule.verify)
    for text in spans or (rule.verify,):
        known = _classify(shell_call(text, builtin), builtin)
        if known.cls == "read_only" or not _is_command(text, bool(spans), known):
            continue
        what = f'rule "{rule.name}": its verification `{text}` is {known.cls}, not read_only (it {known.why})'
        yield f"{what}. The agent is shown it, and running it does not settle the call."


def _is_command(text: str, marked: bool, known: Classified) -> bool:
    """Whether a text is a command, and not a name or a sentence. `marked`: it is in backticks."""
    try:
        words = parse_pattern(text)
    except ValueError:
        return False
    return "/" in words[0] or (marked and len(words) > 1) or known.rule not in _UNREAD


def shell_call(command: str, rules: Rules) -> tuple[str, bytes]:
    """Return tool and input of a call that runs shell text."""
    return rules.shell_tool, json.dumps({rules.shell_field: command}).encode()


def _commands_of(rule: ProjectRule) -> list[list[str]]:
    """Return a command for each thing that the rule applies to."""
    found = [[_SOME if w == ANY else w for w in rule.words if w != GAP]] if rule.words else []
    return found + [[f"./{path}"] for path in (*(f"{folder}/{_SOME}" for folder in rule.folders), *rule.files)]


def _calls(rule: ProjectRule, rules: Rules) -> list[tuple[str, bytes]]:
    """Return a call for each thing that the rule applies to."""
    found = [shell_call(" ".join(map(_quoted, words)), rules) for words in _commands_of(rule)]
    return [*found, (rule.tool, b"{}")] if rule.tool else found


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=@%+-]+", word) else shlex.quote(word)


def _classify(call: tuple[str, bytes], rules: Rules) -> Classified:
    # Imported here: configuration is read with `[[rules]]` alone, and the shell's parser costs 80 ms.
    from wal_agent.calls.call import ReadCall
    from wal_agent.calls.classify import classify

    return classify(ReadCall(*call), rules)
