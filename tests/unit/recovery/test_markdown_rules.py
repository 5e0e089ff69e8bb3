"""Rules in Markdown: what a project wrote is found exactly, whatever stands around it, and no text is an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers import deep
from wal_agent.calls.rules.project import MAX_TEXT, ProjectRule, parse_pattern
from wal_agent.records import Class
from wal_agent.recovery.markdown_rules import parse_answer, section_rules, table_rules
from wal_agent.recovery.project_rules import MAX_FILE_SIZE, MAX_RULE_LINES

# ---- as the prior art writes them ---------------------------------------------------------------------------------

TABLE = """\
# Shop

Build with make.

| Operation Type | Examples | Recovery Action |
|---|---|---|
| **Read-only** | `ls`, `cat` | Safe to retry blindly |

## Project-Specific Tool Classification

| Tool / Operation | Idempotent? | Verify With | On Ambiguity |
|---|---|---|---|
| `run_shell_command` → `make build` | Yes | Check that the artifacts are newer than the sources | Retry |
| `run_shell_command` → `git push` | No | `git log origin/main..HEAD` — empty means push succeeded | Ask operator |
| `write_file` | Yes | Read file and verify contents match | Retry |
| `run_shell_command` → `psql ... INSERT` | No | `SELECT` the inserted row by primary key | Ask operator |
"""

SECTION = """\
---
name: deploy_service
description: deploys
---
# Deploy

## Recovery

- **Idempotent:** No. Deploying twice may create duplicate resources.
- **Verify completion:** Run `get_deployment_status(service_id)` and check for status `RUNNING`.
  If status is `PENDING` or absent, the deploy did not complete.
- **Partial failure risk:** IAM role may have been created even if the deployment failed.
  Run `list_iam_roles()` and check before retrying.

## Other

- **Idempotent:** Yes.
"""


def test_the_table_of_a_context_file() -> None:
    rules, problems = table_rules(TABLE, "GEMINI.md")
    assert problems == ()
    assert rules == (
        ProjectRule(
            "make build",
            "idempotent",
            "GEMINI.md",
            13,
            verify="Check that the artifacts are newer than the sources",
            ambiguous="Retry",
            words=("make", "build"),
        ),
        ProjectRule(
            "git push",
            "mutation",
            "GEMINI.md",
            14,
            verify="`git log origin/main..HEAD` — empty means push succeeded",
            ambiguous="Ask operator",
            words=("git", "push"),
        ),
        ProjectRule(
            "write_file",
            "idempotent",
            "GEMINI.md",
            15,
            verify="Read file and verify contents match",
            ambiguous="Retry",
            words=("write_file",),
            tool="write_file",
        ),
        ProjectRule(
            "psql ... INSERT",
            "mutation",
            "GEMINI.md",
            16,
            verify="`SELECT` the inserted row by primary key",
            ambiguous="Ask operator",
            words=("psql", "...", "INSERT"),
        ),
    )


def test_the_recovery_section_of_a_skill() -> None:
    rules, problems = section_rules(SECTION, "skills/deploy/SKILL.md", "deploy", ("skills/deploy",))
    assert problems == ()
    assert rules == (
        ProjectRule(
            "deploy_service",
            "mutation",
            "skills/deploy/SKILL.md",
            7,
            why="Deploying twice may create duplicate resources.",
            verify="Run `get_deployment_status(service_id)` and check for status `RUNNING`. "
            "If status is `PENDING` or absent, the deploy did not complete.",
            ambiguous="Partial failure risk: IAM role may have been created even if the deployment failed. "
            "Run `list_iam_roles()` and check before retrying.",
            tool="deploy_service",
            folders=("skills/deploy",),
        ),
    )


# ---- whatever way it is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "Idempotent: no\nVerify completion: ./status",
        "* Idempotent? No\n* Verify with: ./status",
        "**Idempotent** - no\n\n**Verify** - ./status",
        "__Idempotency:__ NO\n\n__Verification__: `./status`",
        "1. Idempotent: no.\n2. Verify completion:\n   ./status",
        "##### Idempotent?\n\nNo\n\n##### Verify completion\n\n./status",
        "- **Verify completion:**\n\n  ```bash\n  ./status\n  ```\n- **Idempotent:** `no`",
        "Some words before.\n\n- Owner: me\n- Idempotent: no\n- Verify completion: ./status\n\nAnd after: yes.",
        "> Idempotent: no\n> Verify completion: ./status",
        "- Idempotent: no\r\n- Verify completion: ./status\r\n",
    ],
)
@pytest.mark.parametrize("head", ["# Recovery", "#### **Recovery:**", "Recovery\n--------", "## 3. Recovery ##"])
def test_forms_of_a_section(head: str, body: str) -> None:
    rules, problems = section_rules(f"{head}\n{body}\n", "tools/ship.md", "ship")
    assert problems == ()
    assert [(r.name, r.cls, r.why, r.verify, r.tool) for r in rules] == [("ship", "mutation", "", "./status", "ship")]


def test_each_tool_of_a_text_is_named_by_its_heading() -> None:
    text = "# Our tools\n## `ship_it`\n### Recovery\nIdempotent: no\n## undo\n### Recovery\nIdempotent: yes\n"
    rules, problems = section_rules(text, "docs/tools/README.md", "README")
    assert problems == ()
    assert [(r.name, r.cls, r.line) for r in rules] == [("ship_it", "mutation", 3), ("undo", "idempotent", 6)]


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("`make deploy`", [("make", "deploy")]),
        ("`git push`, `git push --force`", [("git", "push"), ("git", "push", "--force")]),
        ("`deploy.sh <env>`", [("deploy.sh", "*")]),
        ("`kubectl delete …`", [("kubectl", "delete")]),
        ("Bash -> ./go 'a b'", [("./go", "a b")]),
        ("**ship_it**", [("ship_it",)]),
    ],
)
def test_forms_of_an_operation(cell: str, names: list[tuple[str, ...]]) -> None:
    rules, problems = table_rules(f"Tool | Idempotent\n--|:-:\n{cell} | no\n", "AGENTS.md")
    assert problems == ()
    assert [r.words for r in rules] == names


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("| `x` | perhaps | |", 'Idempotent? of "`x`" is "perhaps"; it can be yes, no, read-only, partial or unknown.'),
        ("| `x` | yes/no | |", "it can be"),
        ("| the deployment script | no | |", "is neither a tool's name nor a command in backticks."),
        ("| `a && b` | no | |", '"a && b" is more than the first words of one command.'),
        ("| `a 'b` | no | |", "has a quote that is not closed."),
        ("| `a b*` | no | |", "has a * inside a word; it stands for one whole word."),
        ("| `* b` | no | |", "does not begin with the name of a program."),
        ("| `write_file` → `x.json` | no | |", '"write_file" is no shell'),
        ("| `a | b` | no | | |", r"has more cells than the table's head (a bar inside a cell is written \|)."),
    ],
)
def test_a_row_that_is_no_rule_is_told_with_its_line(row: str, says: str) -> None:
    text = f"\n| Tool | Idempotent? | Verify |\n|---|---|---|\n{row}\n| `ok` | yes | |\n"
    rules, problems = table_rules(text, "CLAUDE.md")
    assert [r.name for r in rules] == ["ok"]
    assert [(p.place, p.line) for p in problems] == [("CLAUDE.md", 4)]
    assert says in str(problems[0])


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("# Recovery\nAsk Bob.\n", 1, "has no field"),
        ("# Recovery\nAsk Bob.\n# Other\nIdempotent: no\n", 1, "has no field"),
        ("\n# Recovery\nIdempotent: perhaps\n", 2, 'Idempotent is "perhaps"; it can be'),
        ("# Recovery\nIdempotent: no\n# Recovery\nIdempotent: yes\n", 3, "a second Recovery section"),
    ],
)
def test_a_section_that_is_no_rule_is_told_with_its_line(text: str, line: int, says: str) -> None:
    _, problems = section_rules(text, "skills/x/SKILL.md", "x", ("skills/x",))
    assert [p.line for p in problems] == [line]
    assert says in problems[0].what


def test_what_a_rule_says_is_one_bounded_line_without_controls() -> None:
    long = "a\x1b[2J\u202e " + "b" * 500
    head = "| Tool | Idempotent? | Verify | On Ambiguity | Why |\n|-|-|-|-|-|\n"
    table = f"{head}| `{'x' * 80}` | no | {long} | {long} | {long} |"
    rules = table_rules(table, "x")[0] + section_rules(f"# Recovery\n- Idempotent: no. {long}\n  {long}", "x", "d")[0]
    said = [text for r in rules for text in (r.why, r.verify, r.ambiguous) if text]
    assert [(len(text), text[:6]) for text in said] == [(MAX_TEXT, "a?[2J?")] * 4
    assert len(rules[0].name) == 60


def test_a_bar_in_a_cell() -> None:
    rules, problems = table_rules("| Tool | Idempotent? | Verify |\n|-|-|-|\n| `x` | no | `ps \\| grep x` |\n", "x")
    assert problems == ()
    assert [r.verify for r in rules] == ["ps | grep x"]


def test_a_table_in_a_quote_or_a_list_and_the_line_behind_it() -> None:
    table = ("| Tool | Idempotent? |", "|-|-|", "| `a b` | no |", "Not a row.")
    for first, rest in (("> ", "> "), ("- ", "  ")):
        text = first + f"\n{rest}".join(table)
        assert [(r.words, r.line) for r in table_rules(text, "x")[0]] == [(("a", "b"), 3)]
        assert table_rules(text, "x")[1] == ()


def test_what_a_reader_does_not_see_as_a_rule_is_none() -> None:
    hidden = f"```markdown\n{TABLE}\n{SECTION}```\n~~~~\n```\n{TABLE}~~~~\n<!--\n{TABLE}\n{SECTION}-->\n"
    assert table_rules(hidden, "x") == ((), ())
    assert section_rules(hidden, "x", "x") == ((), ())
    indented = "".join(f"    {line}\n" for line in f"{TABLE}{SECTION}".split("\n"))
    assert table_rules(indented, "x") == ((), ()) == section_rules(indented, "x", "x")


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        ("Yes", "idempotent"),
        ("**yes** (same id)", "idempotent"),
        ("✅", "idempotent"),
        ("NO!", "mutation"),
        ("not at all", "mutation"),
        ("❌ no", "mutation"),
        ("non-idempotent", "mutation"),
        ("read-only", "read_only"),
        ("`read_only`", "read_only"),
        ("Partially", "unknown"),
        ("It depends", "unknown"),
        ("unknown", "unknown"),
    ],
)
def test_answers(text: str, cls: Class) -> None:
    answer = parse_answer(text)
    assert answer is not None
    assert answer[0] == cls


@pytest.mark.parametrize("text", ["", "   ", "n/a", "yes/no", "It is", "nope", "yesterday", "|"])
def test_no_answers(text: str) -> None:
    assert parse_answer(text) is None


# ---- generated documents ------------------------------------------------------------------------------------------

WORD = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
COMMAND = st.lists(WORD, min_size=2, max_size=4).map(tuple)
ANSWER = st.sampled_from(
    [("yes", "idempotent"), ("No", "mutation"), ("**no**", "mutation"), ("Read-only", "read_only"), ("?", "unknown")]
)
PROSE = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "",
                "Words, and more of them.",
                "# Title",
                "- item",
                "---",
                "```sh\n| Tool | Idempotent? |\n|-|-|\n| a | no |\n## Recovery\nIdempotent: no\n```",
                "<!-- | Tool | Idempotent? | -->",
                "| Name | Colour |\n|---|---|\n| a | no |\n",
                "    ~~~ not closed? yes:\n    ~~~",
            ]
        ),
        st.text(alphabet="abc .,!*_[]()", max_size=30),
    ),
    max_size=6,
).map("\n".join)
PLAIN = st.from_regex(r"[A-Z][a-z0-9 ,]{0,30}[a-z]", fullmatch=True).map(lambda t: " ".join(t.split()))
COLUMNS = {
    "operation": ["Tool / Operation", "tool", "**Operation**", "Command"],
    "idempotent": ["Idempotent?", "idempotent", "Is it idempotent?"],
    "verify": ["Verify With", "`verify`", "Verification"],
    "ambiguous": ["On Ambiguity", "If ambiguous"],
    "other": ["Owner", "Team"],
}
ROW = st.fixed_dictionaries(
    {"operation": COMMAND, "idempotent": ANSWER, "verify": PLAIN, "ambiguous": PLAIN, "other": PLAIN}
)


@given(
    PROSE,
    PROSE,
    st.permutations(list(COLUMNS)),
    st.fixed_dictionaries({name: st.sampled_from(titles) for name, titles in COLUMNS.items()}),
    st.lists(ROW, max_size=5),
    st.booleans(),
)
def test_every_row_of_a_table_is_found_wherever_it_stands(
    before: str, after: str, order: list[str], titles: dict[str, str], rows: list[dict[str, Any]], bars: bool
) -> None:
    edge = "|" if bars else ""

    def line(cells: list[str]) -> str:
        return f"{edge} {' | '.join(cells)} {edge}"

    written = [
        [
            {"operation": f"`{' '.join(row['operation'])}`", "idempotent": row["idempotent"][0]}.get(c, row[c])
            for c in order
        ]
        for row in rows
    ]
    table = [line([titles[c] for c in order]), line(["---"] * len(order)), *map(line, written)]
    found, problems = table_rules("\n".join([before, "", *table, "", after]), "GEMINI.md")
    assert problems == ()
    assert [(r.words, r.cls, r.verify, r.ambiguous) for r in found] == [
        (row["operation"], row["idempotent"][1], row["verify"], row["ambiguous"]) for row in rows
    ]


@given(
    PROSE,
    st.lists(
        st.tuples(WORD, ANSWER, PLAIN, st.sampled_from(["- **{}:** {}", "{}: {}", "* {}: {}", "**{}**: {}\n"])),
        max_size=4,
    ),
    st.integers(2, 6),
)
def test_every_section_of_a_text_is_found(
    prose: str, tools: list[tuple[str, tuple[str, Class], str, str]], level: int
) -> None:
    text = ""
    for name, answer, verify, form in tools:
        fields = "\n".join([form.format("Idempotent", answer[0]), form.format("Verify completion", verify)])
        above = f"{'#' * (level - 1)} {name}\n"
        text += f"\n{above}\n{prose}\n\n{above}{'#' * level} Recovery\n\n{fields}\n"
    found, problems = section_rules(text, "docs/tools/all.md", "all")
    assert problems == ()
    assert [(r.name, r.cls, r.verify) for r in found] == [(n, a[1], v) for n, a, v, _ in tools]


# ---- hostile texts ------------------------------------------------------------------------------------------------

MARKS = st.lists(
    st.sampled_from(
        [
            "|",
            "-",
            "`",
            "```",
            "\n",
            "#",
            "# Recovery\n",
            "Idempotent: ",
            "no",
            "*",
            "\\",
            "\t",
            " ",
            "<!--",
            "-->",
            "---\n",
            "| Tool | Idempotent? |\n|-|-|\n",
            "→",
            "'",
            '"',
            "$(",
            "\u202e",
            "\0",
            "\ud800",
            ">",
            "name: x\n",
            "1. ",
            "é",
        ]
    ),
    max_size=60,
).map("".join)


@given(st.one_of(MARKS, st.text()))
def test_any_text_is_read_and_what_it_says_is_one_bounded_line(text: str) -> None:
    for rules, problems in (
        table_rules(text, "x"),
        section_rules(text, "x", "d"),
        section_rules(text, "x", "d", ("s",)),
    ):
        for told in [t for r in rules for t in (r.name, r.why, r.verify, r.ambiguous)] + [p.what for p in problems]:
            assert len(told) <= 2 * MAX_TEXT
            assert told.isprintable()
        for rule in rules:
            assert rule.words or rule.tool
            assert 0 < rule.line <= text.count("\n") + 1


@given(st.text(alphabet="a*.…'\"\\ |&;<>{}$#`\n\0é", max_size=40), st.booleans())
def test_words_are_words_or_refused(text: str, placeholders: bool) -> None:
    try:
        words = parse_pattern(text, placeholders)
    except ValueError as error:
        assert str(error)
    else:
        assert words
        assert words[0] not in ("*", "...")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece",
    [
        "|",
        "`",
        "``` \n",
        pytest.param("# Recovery\n", marks=deep),
        pytest.param("|-|\n", marks=deep),
        pytest.param("| Tool | Idempotent? |\n|-|-|\n", marks=deep),
        "- ",
        " ",
        "*_",
        "`a``b```c",
        "a\n-\n",
        "Idempotent: ",
        "<!--\n",
        pytest.param("# Recovery\nIdempotent: no\n", marks=deep),
        "#" * 7,
        "\\|",
        "> > ",
        "'\"",
        pytest.param("| a->b | no |\n", marks=deep),
        "1. \n",
        pytest.param("- a\n", marks=deep),
        pytest.param("<a\n", marks=deep),
        pytest.param("[a]: b\n", marks=deep),
        pytest.param("- a\n  > b\n    - c\n", marks=deep),
    ],
)
def test_big_texts_of_one_piece_end(piece: str) -> None:
    """A reader that is not linear takes minutes here; the timeout is far above what a slow machine needs."""
    text = piece * min(MAX_FILE_SIZE // len(piece), MAX_RULE_LINES // max(1, piece.count("\n")))
    for big in (text, "| Tool | Idempotent? |\n|-|-|\n" + text, "# Recovery\nIdempotent: no\n" + text):
        table_rules(big, "x")
        section_rules(big, "x", "d")


def test_each_form_says_how_to_read_a_check() -> None:
    """Decision 063. What cannot be read so is reported, and its rule stays."""
    head = "| Tool | Idempotent? | Verify | Done If |\n|-|-|-|-|\n"
    (one, two), (wrong,) = table_rules(
        f"{head}| `./a` | no | `./b` | `done  *` |\n| `./c` | no | `./d` | exit 2 |\n", "x"
    )
    assert (one.verify, one.done_if, two.done_if, wrong.line) == ("./b", "done *", "", 4)
    (rule,), problems = section_rules("# Recovery\nIdempotent: no\nVerify: run `./b`\nDone if: `exit 0`\n", "x", "d")
    assert (rule.verify, rule.done_if, problems) == ("run `./b`", "exit 0", ())
