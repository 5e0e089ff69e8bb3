"""Check the built-in rules: what a change of rules.d can get wrong without failing to load.

`wal-agent rules lint --builtin` and `make lint` run it. A wrong read_only rule lets a changing call start before its
intent is safe (I1), so a rule that says read_only is a whitelist, and a whitelist names no option that acts.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from wal_agent.calls.classify import classify_command
from wal_agent.calls.rules.match import ACTING_OPTIONS
from wal_agent.calls.rules.table import (
    NOTHING,
    Command,
    CommandRow,
    Rules,
    RulesFile,
    ToolRow,
    compile_rules,
    expand_programs,
    join,
    parse_file,
)

# Options of ACTING_OPTIONS that whitelists may name, each for the reason beside it.
HARMLESS: Mapping[str, frozenset[str]] = {
    "git.remote-get-url": frozenset({"--push"}),  # shows the address for pushes
    "go.doc": frozenset({"-cmd"}),  # shows the symbols of a command
    "psql.describe": frozenset({"--command"}),  # `operands` and `sql` bound what its value is
    "psql.constant": frozenset({"--command"}),
    "mysql.show": frozenset({"--execute", "--execute="}),
}
# Options that write a file or run a program in these programs, whatever they do in others.
WRITERS = frozenset({"git", "find", "fd", "rg", "sort", "tree", "curl", "wget", "shuf", "go"})
WRITING = frozenset({"--output", "--output=", "--ext-diff", "--exec", "-exec", "-delete", "-fls"})
TO_NULL = frozenset({"curl.get-status"})  # its `value` allows /dev/null alone
ADVICE = frozenset({"look", "read", "if", "the"})  # first words of a `verify` that is no command


def lint_builtin(texts: Mapping[str, str]) -> list[str]:
    """What is wrong with the files of rules.d, by file name: one line for each problem."""
    problems: list[str] = []
    parsed: dict[str, RulesFile] = {}
    for name, text in texts.items():
        try:
            parsed[name] = parse_file(text)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        return problems
    try:
        rules = compile_rules(list(parsed.values()))
    except (ValueError, re.error) as error:
        return [str(error)]
    for name, file in parsed.items():
        problems += [f"{name}: {problem}" for problem in _file_problems(file)]
    problems += _loading_problems(parsed.values())
    return [*problems, *_tool_problems(parsed.values()), *_verify_problems(parsed.values(), rules), *_shadowed(rules)]


def check_examples(lines: Iterable[bytes], rules: Rules) -> list[str]:
    """Commands that do not have the class that a table gives them: JSON Lines of {"cmd", "class", "also", "note"}."""
    problems = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            command, wanted = str(row["cmd"]), (row["class"], *row.get("also", ()))
        except (ValueError, TypeError, KeyError):
            problems.append(f'line {number} is no {{"cmd": "...", "class": "..."}}')
            continue
        found = classify_command(command, rules)
        if found.cls not in wanted:
            problems.append(
                f"line {number}: {command!r} is {found.cls} by rule {found.rule}, not {' or '.join(wanted)}"
            )
    return problems


def _file_problems(file: RulesFile) -> Iterator[str]:
    for row in _rows(file):
        yield from (f"{row.id}: {problem}" for problem in _text_problems(row))
    for rule in file.command:
        yield from (f"{rule.id}: {problem}" for problem in _whitelist_problems(rule, file))
    used = {w[1:] for text in _word_texts(file) for w in join(text).split() if w[0] == "@"}
    yield from (f"words.{name} is used by no rule" for name in file.words if name not in used)


def _rows(file: RulesFile) -> list[CommandRow | ToolRow]:
    return [*file.command, *file.tool]


def _word_texts(file: RulesFile) -> Iterator[str | list[str]]:
    for p in file.program:
        yield from (p.flags, p.values)
    for c in file.command:
        yield from (c.alone or "", c.long or "", c.values, c.any, c.none)


def _text_problems(row: CommandRow | ToolRow) -> Iterator[str]:
    if not re.fullmatch(r"[a-z](?:.*[^.\s])?", join(row.why)):
        yield 'why does not complete the sentence "It ..."'
    loads = isinstance(row, CommandRow) and row.loads == "cwd"  # what verifies it need not be said
    if (row.cls == "read_only" or loads) == bool(row.verify):
        yield "read_only needs no verify" if row.verify else "verify is missing"
    if row.ambiguous and not re.fullmatch(r"[A-Z`].*\.", join(row.ambiguous)):
        yield "ambiguous is not a sentence"


def _whitelist_problems(row: CommandRow, file: RulesFile) -> Iterator[str]:
    listed = any(x is not None for x in (row.alone, row.short, row.long, row.first, row.operands))
    if row.cls == "read_only" and not listed and row.options != "any":
        yield 'read_only without a whitelist (alone, short, long, first, operands) or options = "any"'
    if row.options and row.cls in ("mutation", "unknown"):
        yield "options is for rules that change nothing"
    if row.cls != "read_only":
        return
    words = file.words_of(row.long or "") | file.words_of(row.alone or "")
    acting = {w for w in words if w.strip("-=") in ACTING_OPTIONS} - HARMLESS.get(row.id, frozenset())
    if row.id not in TO_NULL and WRITERS & {p.split()[0] for p in expand_programs(row.program)}:
        acting |= words & WRITING
    if acting:
        yield f"its whitelist names options that may act: {' '.join(sorted(acting))}"


def _loading_problems(parsed: Iterable[RulesFile]) -> Iterator[str]:
    """A clone's code runs where a program loads it: each read_only rule of such a program says that it does not."""
    rows = [row for file in parsed for row in file.command]
    loaders = {_program(name) for row in rows if row.loads == "cwd" for name in expand_programs(row.program)}
    for row in rows:
        if row.cls == "read_only" and row.loads == "cwd":
            yield f"{row.id}: read_only, and it loads code of the folder"
        named = {_program(name) for name in expand_programs(row.program)}
        if row.cls == "read_only" and not row.loads and (both := loaders & named):
            yield f'{row.id}: {" ".join(sorted(both))} loads code of the folder; is `loads` "nothing" here?'


def _program(name: str) -> str:
    return name.split()[0]


def _tool_problems(parsed: Iterable[RulesFile]) -> Iterator[str]:
    named: list[str] = []
    for file in parsed:
        for tool in file.tool:
            named += {w for words in (tool.names, *tool.agents.values()) for w in file.words_of(words)}
    yield from (f"tool {name} has more than one rule" for name, times in Counter(named).items() if times > 1)


def _verify_problems(parsed: Iterable[RulesFile], rules: Rules) -> Iterator[str]:
    programs = {p.split()[0] for p in rules.commands}
    for row in (row for file in parsed for row in _rows(file)):
        verify = join(row.verify)
        commands = re.findall(r"`([^`]+)`", verify)
        first = verify.split()[:1]
        if first and first[0] in programs:
            commands.append(verify)
        elif first and first[0] not in ADVICE:
            yield f"{row.id}: verify begins neither with a program of a rule nor with {', '.join(sorted(ADVICE))}"
        for command in commands:
            for place, words in {
                "{operands}": "alpha beta",
                "{first}": "alpha",
                "{last}": "beta",
                "{refs}": "alpha beta",
            }.items():
                command = command.replace(place, words)
            known = classify_command(command, rules)
            if known.cls != "read_only" and not known.looks:
                yield f"{row.id}: verify is a command that does not only read: {command}"


# ---- rules that can never win -------------------------------------------------------------------------------------


def _shadowed(rules: Rules) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for program, candidates in rules.commands.items():
        for n, late in enumerate(candidates):
            if _never_holds(late):
                found.setdefault((late.rule, ""), []).append(program)
            elif early := next((r for r in candidates[:n] if covers(r, late)), None):
                found.setdefault((late.rule, early.rule), []).append(program)
    for (late_id, early_id), programs in found.items():
        reason = f"rule {early_id} comes first" if early_id else "no command can fulfil it"
        yield f"{late_id}: never wins for {', '.join(programs)}: {reason}"


def _never_holds(rule: Command) -> bool:
    """Whether `any` asks for an operand where `operands` allows none."""
    no_operand = rule.operands is not None and rule.operands.pattern == NOTHING and rule.first is None
    return no_operand and bool(rule.any) and not any(w.startswith(("-", "+")) for w in rule.any)


def covers(early: Command, late: Command) -> bool:
    """Whether `early` surely holds for each command of the same program that `late` holds for (`match._holds`)."""
    bare = early == Command(early.rule, early.cls, early.why, early.verify, early.ambiguous)
    if bare and not _is_mild(early):
        return True
    return (
        early.values == late.values
        and (_is_mild(late) or not _is_mild(early))
        and (not early.any or (bool(late.any) and late.any <= early.any))
        and early.none <= late.none
        and (not _refuses_unknown_words(early) or _refuses_unknown_words(late))
        and (early.cls != "read_only" or late.cls == "read_only")
        and (not _refuses_acting(early) or (_refuses_acting(late) and late.any <= early.any))
        and _lists_all_of(early, late)
        and early.value in ({}, late.value)
        and early.sql in ("", late.sql)
        and early.line in (None, late.line)
    )


def _is_mild(rule: Command) -> bool:
    return rule.cls in ("read_only", "idempotent")


def _refuses_unknown_words(rule: Command) -> bool:
    listed = rule.listed or bool(rule.none)
    return not rule.free and (rule.cls == "read_only" or (_is_mild(rule) and listed))


def _refuses_acting(rule: Command) -> bool:
    return rule.cls == "idempotent" and not rule.listed


def _lists_all_of(early: Command, late: Command) -> bool:
    if early.listed and not (late.listed and early.short >= late.short and early.long >= late.long):
        return False
    same_place = (early.first is None) == (late.first is None)
    return early.first in (None, late.first) and (
        early.operands is None or (same_place and early.operands == late.operands)
    )
