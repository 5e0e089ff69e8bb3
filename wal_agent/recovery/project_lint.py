"""What a project should be told of its own rules: those that can never win, and those that say what is not so. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from wal_agent.recovery.markdown_rules import code_spans
from wal_agent.shell.classify import classify
from wal_agent.shell.project_rules import ANY, GAP, ProjectRule, RuleProblem, match_command, match_tool, parse_pattern
from wal_agent.shell.rules import Classified, Rules, with_project

_SOME = "x-0"  # stands for any word
_UNREAD = ("none", "unreadable", "program", "script", "function", "shell-empty", "shell-unreadable")  # classify.py


def lint_rules(declared: Sequence[ProjectRule], builtin: Rules) -> tuple[RuleProblem, ...]:
    """Warnings, in the order of the rules; none of them keeps a rule from being in force."""
    found = []
    for n, rule in enumerate(declared):
        warnings = (
            *_reach(rule, declared[:n], builtin),
            *_mild(rule, builtin),
            *_verification(rule, builtin),
        )
        found += [RuleProblem(rule.source, rule.line, what) for what in warnings]
    return tuple(found)


def _reach(rule: ProjectRule, before: Sequence[ProjectRule], builtin: Rules) -> Iterator[str]:
    """Whether it can win at all."""
    alone = with_project(builtin, [rule])
    if all(classify(*call, alone).project is None for call in _calls(rule, builtin)):
        yield f'rule "{rule.name}" can never hold: no command that wal-agent reads begins with these words.'
        return
    winners = [match_command(before, words) for words in _commands_of(rule)]
    if rule.tool:
        winners.append(match_tool(before, rule.tool, {}))
    if all(winners) and (first := winners[0]):
        place = f"{first.source}:{first.line}" if first.line else first.source
        yield f'rule "{rule.name}" never wins: rule "{first.name}" ({place}) comes first.'


def _mild(rule: ProjectRule, builtin: Rules) -> Iterator[str]:
    """Whether it says something milder than what is known of the call."""
    known = (
        [classify(*call, builtin) for call in _calls(rule, builtin)] if rule.cls in ("read_only", "idempotent") else []
    )
    if worst := next((k for k in known if k.cls in ("mutation", "idempotent") and k.cls != rule.cls), None):
        what = f'rule "{rule.name}" says {rule.cls} of a known {worst.cls} (it {worst.why})'
        yield f"{what}; a project's rule can only make a class worse, so it stays {worst.cls}."


def _verification(rule: ProjectRule, builtin: Rules) -> Iterator[str]:
    """Whether the commands that verify it plainly read, by the built-in rules: only then running one counts."""
    spans = code_spans(rule.verify)
    for text in spans or (rule.verify,):
        known = classify(*shell_call(text, builtin), builtin)
        if known.cls == "read_only" or not _is_command(text, bool(spans), known):
            continue
        what = f'rule "{rule.name}": its verification `{text}` is {known.cls}, not read_only (it {known.why})'
        yield f"{what}. The agent is shown it, and running it does not settle the call."


def _is_command(text: str, marked: bool, known: Classified) -> bool:
    """Whether it is meant to be run, and not a name or a sentence. `marked`: it stands in backticks."""
    try:
        words = parse_pattern(text)
    except ValueError:
        return False
    return "/" in words[0] or (marked and len(words) > 1) or known.rule not in _UNREAD


def shell_call(command: str, rules: Rules) -> tuple[str, bytes]:
    """(tool, input) of a call that runs shell text."""
    return rules.shell_tool, json.dumps({rules.shell_field: command}).encode()


def _commands_of(rule: ProjectRule) -> list[list[str]]:
    """A command for each thing that the rule holds for."""
    found = [[_SOME if w == ANY else w for w in rule.words if w != GAP]] if rule.words else []
    return found + [[f"./{path}"] for path in (*(f"{folder}/{_SOME}" for folder in rule.folders), *rule.files)]


def _calls(rule: ProjectRule, rules: Rules) -> list[tuple[str, bytes]]:
    """A call for each thing that the rule holds for."""
    found = [shell_call(" ".join(map(_quoted, words)), rules) for words in _commands_of(rule)]
    return [*found, (rule.tool, b"{}")] if rule.tool else found


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./:=@%+-]+", word) else shlex.quote(word)
