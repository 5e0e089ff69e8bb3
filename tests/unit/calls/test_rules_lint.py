"""What the check of the built-in rules finds."""

from __future__ import annotations

import pytest

from wal_agent.calls.rules.table import compile_rules, parse_file
from wal_agent.calls.rules_lint import check_examples, lint_builtin

GOOD = """
words.common = "--all -x"
command = [
  { id = "vc.list", class = "read_only", program = "vc {list,ls}", why = "only lists", long = "@common" },
  { id = "vc", class = "mutation", program = "vc", why = "changes things", verify = "vc list {operands}" },
]
[[tool]]
id = "tool.read"
class = "read_only"
why = "only reads"
agents = { a = "look_at" }
"""
SECOND_TOOL = """
[[tool]]
id = "tool.b"
class = "unknown"
why = "acts"
verify = "vc ls"
names = "look_at"
"""


def problems(text: str) -> list[str]:
    return lint_builtin({"10-x.toml": text})


def row(more: str, cls: str = "read_only", program: str = "git", verify: str = "") -> str:
    end = f', verify = "{verify}"' if verify else ""
    return f'  {{ id = "new", class = "{cls}", program = "{program}", why = "acts", {more}{end} }},\n'


def with_row(text: str) -> str:
    return GOOD.replace("command = [\n", f"command = [\n{text}")


def test_good_rules_have_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("command = [", "10-x.toml: "),
        (GOOD.replace('class = "mutation"', 'class = "harmless"'), "10-x.toml: Invalid enum value 'harmless'"),
        (GOOD.replace('id = "vc.list"', 'id = "VC list"'), "10-x.toml: Expected `str` matching regex"),
        (GOOD.replace("long =", "longs ="), "10-x.toml: Object contains unknown field `longs`"),
        (GOOD.replace('"vc.list"', '"vc"'), "rules with the same id: vc"),
        (GOOD.replace("@common", "@others"), "words.others is not in this file"),
        (GOOD.replace('"@common"', '"--all"'), "10-x.toml: words.common is used by no rule"),
        (GOOD.replace('"only lists"', '"Only lists."'), "vc.list: why does not complete the sentence"),
        (GOOD.replace(', verify = "vc list {operands}"', ""), "10-x.toml: vc: verify is missing"),
        (GOOD.replace('long = "@common"', 'long = "@common", verify = "vc ls"'), "vc.list: read_only needs no verify"),
        (GOOD.replace("vc list {operands}", "vc add {operands}"), "vc: verify is a command that does not only read"),
        (GOOD.replace("vc list {operands}", "ask somebody"), "vc: verify begins neither with a program"),
        (with_row(row('any = "--list"')), "new: read_only without a whitelist"),
        (with_row(row('long = "--exec"')), "new: its whitelist names options that may act: --exec"),
        (with_row(row('alone = "--output="')), "new: its whitelist names options that may act: --output="),
        (with_row(row('options = "any"', "unknown", verify="vc ls")), "new: options is for rules that change nothing"),
        (with_row(row('alone = "--a", long = "--b"')), "new: alone stands for any, long and operands = false"),
        (with_row(row("operands = true")), "new: operands is a regular expression or false"),
        (with_row(row('alone = "version"', program="x")), "new: never wins for x: no command can fulfil it"),
        (with_row(row('long = "--all -x --new"', program="vc list")), "vc.list: never wins for vc list: rule new"),
        (with_row(row('ambiguous = "it depends"', "unknown", "x", "vc ls")), "new: ambiguous is not a sentence"),
        (GOOD + SECOND_TOOL, "tool look_at has more than one rule"),
    ],
)
def test_each_mistake_is_reported(text: str, problem: str) -> None:
    assert text != GOOD
    assert [p for p in problems(text) if problem in p], problems(text)


@pytest.mark.parametrize(
    "late",
    [
        'long = "--other", class = "read_only"',  # the earlier whitelist does not hold for --other
        'any = "--all", class = "mutation", verify = "vc ls"',
        'long = "--all -x", none = "-x", operands = "[a-z]+", values = "-n", class = "read_only"',
    ],
)
def test_a_rule_that_may_still_win_is_not_reported(late: str) -> None:
    text = GOOD.replace(
        '  { id = "vc",', f'  {{ id = "late", program = "vc ls", why = "acts", {late} }},\n  {{ id = "vc",'
    )
    assert problems(text) == []


def test_examples_are_classified() -> None:
    rules = compile_rules([parse_file(GOOD)])
    good = [
        b'{"cmd": "vc list --all", "class": "read_only"}',
        b'{"cmd": "vc x", "class": "unknown", "also": ["mutation"]}',
    ]
    assert check_examples(good, rules) == []
    assert check_examples([*good, b'{"cmd": "vc ls --new", "class": "read_only"}', b"{}", b"x"], rules) == [
        "line 3: 'vc ls --new' is mutation by rule vc, not read_only",
        'line 4 is no {"cmd": "...", "class": "..."}',
        'line 5 is no {"cmd": "...", "class": "..."}',
    ]
