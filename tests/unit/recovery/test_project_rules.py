"""Check a project's own rules: where they are read, which one holds for a call, and what lint reports of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wal_agent.calls.rules.project import ProjectRule, match_command, match_tool, parse_pattern
from wal_agent.calls.rules.table import load_rules
from wal_agent.errors import ConfigError
from wal_agent.records import Class
from wal_agent.recovery.project_rules import MAX_FILE_SIZE, lint_rules, load_project_rules, parse_toml_rules
from wal_agent.supervise.settings import load

TABLE = "| Tool | Idempotent? |\n|---|---|\n"
NO = "## Recovery\n- **Idempotent:** no\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "shop"
    folder.mkdir()
    return folder


def write(workspace: Path, name: str, text: str | bytes) -> Path:
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def names(workspace: Path) -> list[tuple[str, str]]:
    found = load_project_rules(workspace)
    assert found.problems == ()
    return [(r.name, r.source) for r in found.rules]


def told(workspace: Path) -> list[str]:
    return [str(p) for p in load_project_rules(workspace).problems]


# ---- where they are read, and which wins --------------------------------------------------------------------------


def test_a_project_without_rules(shop: Path) -> None:
    assert load_project_rules(shop).rules == ()
    assert told(shop) == []


def test_wal_agent_toml_then_tables_then_sections(shop: Path) -> None:
    for name in (".gemini/skills/a", ".claude/skills/b", ".agents/skills/c", "skills/d"):
        write(shop, f"{name}/SKILL.md", NO)
    for name in ("docs/tools/e.md", "tools/f.md"):
        write(shop, name, NO)
    for name in ("GEMINI.md", ".gemini/GEMINI.md", "CLAUDE.md", "AGENTS.md"):
        write(shop, name, f"{TABLE}| `make {name}` | yes |\n")
    write(shop, "wal-agent.toml", '[[rules]]\nmatch = "make deploy"\nclass = "mutation"\n')
    write(shop, "skills/readme/NOTES.md", NO)
    assert names(shop) == [
        ("make deploy", "wal-agent.toml"),
        ("make GEMINI.md", "GEMINI.md"),
        ("make .gemini/GEMINI.md", ".gemini/GEMINI.md"),
        ("make CLAUDE.md", "CLAUDE.md"),
        ("make AGENTS.md", "AGENTS.md"),
        ("a", ".gemini/skills/a/SKILL.md"),
        ("b", ".claude/skills/b/SKILL.md"),
        ("c", ".agents/skills/c/SKILL.md"),
        ("d", "skills/d/SKILL.md"),
        ("e", "docs/tools/e.md"),
        ("f", "tools/f.md"),
    ]


def test_the_first_that_holds_wins(shop: Path) -> None:
    write(shop, "wal-agent.toml", '[[rules]]\nname = "one"\nmatch = "make deploy"\nclass = "mutation"\n')
    write(shop, "AGENTS.md", f"{TABLE}| `make deploy` | yes |\n| `make` | unknown |\n")
    rules = load_project_rules(shop).rules
    found = [match_command(rules, words) for words in (["make", "deploy", "x"], ["make"], ["cmake"])]
    assert [(r.name, r.source) if r else None for r in found] == [
        ("one", "wal-agent.toml"),
        ("make", "AGENTS.md"),
        None,
    ]


def test_one_file_under_two_names_is_read_once(shop: Path) -> None:
    write(shop, "CLAUDE.md", f"{TABLE}| `make deploy` | no |\n")
    (shop / "AGENTS.md").symlink_to("CLAUDE.md")
    write(shop, ".agents/skills/ship/SKILL.md", NO)
    (shop / ".claude").mkdir()
    (shop / ".claude/skills").symlink_to("../.agents/skills")
    rules = load_project_rules(shop).rules
    assert [(r.name, r.source) for r in rules] == [
        ("make deploy", "CLAUDE.md"),
        ("ship", ".claude/skills/ship/SKILL.md"),
    ]
    for folder in (".claude", ".agents"):
        found = match_command(rules, [f"{folder}/skills/ship/run.sh"])
        assert found is not None and found.name == "ship"


# ---- what they hold for -------------------------------------------------------------------------------------------


def command(words: str, rule: ProjectRule, folder: str = "") -> bool:
    return match_command([rule], [None if w == "?" else w for w in words.split()], folder) is not None


@pytest.mark.parametrize(
    ("match", "holds", "not_for"),
    [
        (
            "./deploy.sh",
            ["./deploy.sh", "./deploy.sh now", "bash -x ./deploy.sh", "/w/shop/deploy.sh", "sh deploy.sh"],
            ["./x/deploy.sh", "deploy.sh", "cat ./deploy.sh", "bash -c ./deploy.sh", "?"],
        ),
        (
            "make deploy",
            ["make deploy", "/usr/bin/make deploy now"],
            ["make", "make -n deploy", "make ?", "remake deploy"],
        ),
        ("kubectl * pod", ["kubectl delete pod x", "kubectl ? pod"], ["kubectl pod", "kubectl delete deploy pod"]),
        ("psql ... insert", ["psql -c INSERT", "psql -h db -c insert"], ["psql", "psql -c inserted", "psql ?"]),
        ("npm ... publish", ["npm publish", "npm --tag x publish ?"], ["npm", "npm republish"]),
        ("python tools/x.py", ["python tools/x.py"], ["python tools/y.py"]),
    ],
)
def test_a_match_is_the_first_words_of_a_command(match: str, holds: list[str], not_for: list[str]) -> None:
    text = f'[[rules]]\nmatch = "{match}"\nclass = "mutation"\n'
    rule = parse_toml_rules([{"match": match, "class": "mutation"}], Path("wal-agent.toml"), text)[0]
    assert [words for words in holds if not command(words, rule)] == []
    assert [words for words in not_for if command(words, rule)] == []


def test_text_after_a_gap_may_stand_inside_a_word() -> None:
    rule = ProjectRule("sql", "mutation", "GEMINI.md", words=("psql", "...", "INSERT"))
    assert match_command([rule], ["psql", "-c", "insert into t values (1)"]) is rule
    assert match_command([rule], ["psql", "-c", "select reinsert"]) is None


def test_a_section_holds_for_the_files_of_its_skill(shop: Path) -> None:
    write(shop, "skills/ship/SKILL.md", f"---\nname: ship_it\n---\n{NO}")
    rule = load_project_rules(shop).rules[0]
    for words in (
        "skills/ship/run.sh now",
        "./skills/ship/scripts/x.py",
        "bash skills/ship/run.sh",
        "python3 -u skills/ship/scripts/x.py",
        "node skills/ship/x.js",
        "uv run skills/ship/x.py",
        "uv run python skills/ship/x.py",
        "/home/else/shop/skills/ship/run.sh",
        ". skills/other/../ship/run.sh",
    ):
        assert command(words, rule), words
    for words in (
        "skills/shipping/run.sh",
        "cat skills/ship/run.sh",
        "ship_it",
        "python -m skills/ship/x",
        "skills/ship",
    ):
        assert not command(words, rule), words
    assert command("./run.sh", rule, "skills/ship")
    assert not command("ls", rule, "skills/shop")
    assert command("skills/ship/run.sh", rule, "skills")  # a cd that was not followed right loses no rule


def test_and_for_the_tool_and_the_skill_of_that_name(shop: Path) -> None:
    write(shop, "skills/ship/SKILL.md", f"---\nname: ship_it\n---\n{NO}")
    write(shop, "docs/tools/undo.md", NO)
    rules = load_project_rules(shop).rules
    for tool in ("ship_it", "mcp__our-shop__ship_it", "mcp_our-shop_ship_it"):
        assert match_tool(rules, tool, {}) is rules[0], tool
    for tool in ("ship", "mcp__x__y__ship_it", "mcp_x_y_ship_it", "xship_it", "mcp__ship_it"):
        assert match_tool(rules, tool, {}) is None, tool
    assert match_tool(rules, "activate_skill", {"name": "ship_it"}) is rules[0]
    assert match_tool(rules, "Skill", {"skill": "ship_it"}) is rules[0]
    assert match_tool(rules, "activate_skill", {"name": "undo"}) is None
    assert match_tool(rules, "activate_skill", {"name": ["ship_it"]}) is None


def test_a_tools_text_holds_for_the_script_beside_it(shop: Path) -> None:
    write(shop, "tools/ship.md", NO)
    rule = load_project_rules(shop).rules[0]
    assert all(command(words, rule) for words in ("tools/ship", "./tools/ship.sh x", "python tools/ship.py"))
    assert not any(command(words, rule) for words in ("tools/ship/x.sh", "tools/shipping.sh", "ship.sh"))


# ---- wal-agent.toml is strict, at every start ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules = 3", "rules in {file} must be tables, [[rules]] (got 3)."),
        ("rules = [1]", "rules in {file} must be tables, [[rules]] (got [1])."),
        ("[rules]\nclass = 'mutation'", "must be tables, [[rules]]"),
        (
            '[[rules]]\nmatch = "x"',
            "rule 1 (line 1) has no class. Allowed: read_only, idempotent, mutation, unknown.",
        ),
        (
            'job = "x"\n[[rules]]\nmatch = "x"\nclass = "mutation"\n\n [[ rules ]]\nmatch = "x"\nclass = "no"',
            "class in {file}, rule 2 (line 6) must be read_only, idempotent,",
        ),
        ('rules = [{match = "x", class = 3}]', "class in {file}, rule 1 must be read_only"),
        ('[[rules]]\nclas = "x"', "{file}, rule 1 (line 1): rules.clas is not a setting. Did you mean rules.class?"),
        (
            '[[rules]]\nzzz = "x"',
            "rules.zzz is not a setting. Known here: name, match, tool, class, why, verify, done_if, on_ambi",
        ),
        ('[[rules]]\nclass = "mutation"', "rule 1 (line 1) has neither match nor tool. It is for a command, match = "),
        ('[[rules]]\nmatch = "x"\ntool = "y"\nclass = "mutation"', "rule 1 (line 1) has both match and tool."),
        ('[[rules]]\nmatch = 3\nclass = "mutation"', "rule 1 (line 1) must be the first words of a command"),
        ('[[rules]]\nmatch = ""\nclass = "mutation"', 'match "" names no command.'),
        (
            '[[rules]]\nmatch = "a | b"\nclass = "mutation"',
            'match "a | b" is more than the first words of one command.',
        ),
        ('[[rules]]\nmatch = "* x"\nclass = "mutation"', "does not begin with the name of a program"),
        ('[[rules]]\nmatch = "a b*"\nclass = "mutation"', "it stands for one whole word"),
        ('[[rules]]\ntool = "a b"\nclass = "mutation"', "tool in {file}, rule 1 (line 1) must be the name of a tool"),
        ('[[rules]]\ntool = "a"\nclass = "mutation"\nwhy = 3', "why in {file}, rule 1 (line 1) must be text"),
        (
            f'[[rules]]\ntool = "a"\nclass = "mutation"\nverify = "{"x" * 201}"',
            "must be text of at most 200 characters",
        ),
        (
            '[[rules]]\nmatch = "x"\nclass = "mutation"\ndone_if = "exit 0"',
            "rule 1 (line 1) has done_if and no verify.",
        ),
        (
            '[[rules]]\nmatch = "x"\nclass = "mutation"\nverify = "y"\ndone_if = "exit 3"',
            'rule 1 (line 1): done_if "exit 3" is no exit code that can be seen; it can be "exit 0".',
        ),
        ('[[rules]]\ntool = "a"\nclass = "mutation"\n' * 201, "{file} has 201 rules; 200 are the most."),
    ],
)
def test_a_wrong_rule_of_the_file_is_refused_with_its_place(shop: Path, text: str, says: str) -> None:
    path = write(shop, "wal-agent.toml", text)
    for read in (lambda: load("gemini", shop, {"HOME": "/h"}, {}), lambda: load_project_rules(shop)):
        with pytest.raises(ConfigError) as caught:
            read()
        assert says.replace("{file}", str(path)) in str(caught.value)


def test_the_settings_take_right_rules(shop: Path) -> None:
    write(
        shop,
        "wal-agent.toml",
        'durability = "sync"\n\n'
        '[[rules]]\nname = "deploy"\nmatch = "./deploy.sh"\nclass = "mutation"\nwhy = "ships\\n it"'
        "\n"
        'verify = "./deploy.sh --status"\non_ambiguity = "ask Eve"\n'
        '[[rules]]\ntool = "mcp__a__b"\nclass = "read_only"\n',
    )
    assert load("gemini", shop, {"HOME": "/h"}, {}).durability == "sync"
    assert load_project_rules(shop).rules == (
        ProjectRule(
            "deploy",
            "mutation",
            "wal-agent.toml",
            3,
            why="ships it",
            verify="./deploy.sh --status",
            ambiguous="ask Eve",
            words=("./deploy.sh",),
        ),
        ProjectRule("mcp__a__b", "read_only", "wal-agent.toml", 10, tool="mcp__a__b"),
    )


# ---- hostile files ------------------------------------------------------------------------------------------------


def test_no_link_out_of_the_workspace_is_followed(shop: Path) -> None:
    outside = shop.parent / "outside"
    write(outside, "x/SKILL.md", NO)
    write(outside, "GEMINI.md", f"{TABLE}| `make` | no |\n")
    (shop / "GEMINI.md").symlink_to(outside / "GEMINI.md")
    (shop / "skills").symlink_to("../outside")
    (shop / ".gemini").mkdir()
    (shop / ".gemini/skills").mkdir()
    (shop / ".gemini/skills/x").symlink_to(outside / "x")
    (shop / "CLAUDE.md").symlink_to("CLAUDE.md")
    (shop / "AGENTS.md").symlink_to("nowhere.md")
    assert load_project_rules(shop).rules == ()
    says = "is a link that leads out of the workspace, and is not followed."
    assert told(shop) == [f"{name}: {says}" for name in ("GEMINI.md", ".gemini/skills/x/SKILL.md", "skills")]


def test_files_that_are_none_or_too_big_are_told(shop: Path) -> None:
    os.mkfifo(shop / "GEMINI.md")
    (shop / "AGENTS.md").mkdir()
    write(shop, "CLAUDE.md", b" " * (MAX_FILE_SIZE + 1))
    write(shop, "tools/a.md", b"\xff")
    write(shop, "tools/b.md", NO)
    found = load_project_rules(shop)
    assert [r.name for r in found.rules] == ["b"]
    assert told(shop) == [
        "GEMINI.md: is not a file.",
        "CLAUDE.md: is larger than 256 KiB, and is not read.",
        "AGENTS.md: is not a file.",
        "tools/a.md: is not UTF-8 text.",
    ]


def test_files_without_rules_are_many_before_they_are_too_many(shop: Path) -> None:
    for n in range(34):
        write(shop, f"docs/tools/{n:02}.md", " " * (255 * 1024))
    write(shop, "docs/tools/00.md", NO)
    assert [r.name for r in load_project_rules(shop).rules] == ["00"]
    assert [line.partition(",")[0] for line in told(shop)] == ["docs/tools/33.md: is not read"]


def test_rules_and_bytes_are_bounded_in_all(shop: Path) -> None:
    write(shop, "wal-agent.toml", '[[rules]]\ntool = "a"\nclass = "mutation"\n' * 150)
    write(shop, "GEMINI.md", TABLE + "| `make` | no |\n" * 60)
    for n in range(20):
        write(shop, f"tools/{n:02}.md", NO + " " * (200 * 1024))
    found = load_project_rules(shop)
    assert len(found.rules) == 200
    assert told(shop) == [
        "tools/05.md: is not read, nor is what comes after it: 1 MiB and 20000 lines of files with rules, "
        "8 MiB in all, are the most.",
        "GEMINI.md:53: a project has 200 rules at most; from here on they are left out.",
    ]


def test_lines_are_bounded_in_all(shop: Path) -> None:
    for n in range(3):
        write(shop, f"tools/{n}.md", NO + "\n" * 9_000)
    assert [r.name for r in load_project_rules(shop).rules] == ["0", "1"]
    assert [line.partition(",")[0] for line in told(shop)] == ["tools/2.md: is not read"]


def test_only_markdown_rules_import_the_parser(shop: Path) -> None:
    script = (
        "import pathlib, sys; from wal_agent.recovery.project_rules import load_all\n"
        "load_all(pathlib.Path(sys.argv[1])); print('markdown_it' in sys.modules)"
    )
    for text, imported in (("Build with make.", "False"), (TABLE, "True")):
        write(shop, "GEMINI.md", text)
        done = subprocess.run([sys.executable, "-c", script, str(shop)], capture_output=True, check=True, timeout=60)
        assert done.stdout.decode().strip() == imported


@given(st.binary(max_size=300))
def test_any_bytes_in_any_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    shop = tmp_path_factory.getbasetemp() / "any"
    for name in ("GEMINI.md", "skills/x/SKILL.md", "tools/x.md"):
        write(shop, name, data)
    load_project_rules(shop)


WORD = st.one_of(st.none(), st.sampled_from(["make", "bash", "uv", "run", "-c", "..", "/", "", "*", "..."]), st.text())


@example(["uv", "run"], ["make"], "")
@given(st.lists(WORD, max_size=6), st.lists(WORD.filter(bool), min_size=1, max_size=4), st.text(max_size=5))
def test_any_words_are_compared(words: list[str | None], rule: list[str], folder: str) -> None:
    rules = [ProjectRule("x", "mutation", "y", words=tuple(rule), folders=(rule[0],), files=(rule[-1],))]
    match_command(rules, words, folder)
    match_tool(rules, words[0] if words and words[0] else "mcp__", {"name": 3})


BUILTIN = load_rules()
CLASSES: tuple[Class, ...] = ("read_only", "idempotent", "mutation", "unknown")


def quoted_words(text: str) -> tuple[str, ...]:
    try:
        return parse_pattern(text)
    except ValueError:
        return ()


TEXT = st.one_of(
    st.sampled_from(["git push", "sudo x", "`ls`, then `rm -r x`", "a 'b", "\udc80", "x ... 'y'"]), st.text()
)
RULE = st.builds(
    ProjectRule,
    name=TEXT,
    cls=st.sampled_from(CLASSES),
    source=st.just("GEMINI.md"),
    verify=TEXT,
    words=TEXT.map(quoted_words),
    tool=TEXT,
    folders=st.lists(TEXT, max_size=2).map(tuple),
    files=st.lists(TEXT, max_size=2).map(tuple),
)


@given(st.lists(RULE, max_size=4))
def test_any_rules_are_looked_at(rules: list[ProjectRule]) -> None:
    assert all(w.place == "GEMINI.md" and w.what for w in lint_rules(rules, BUILTIN))


def test_a_rule_for_each_thing_it_can_hold_for_is_in_force() -> None:
    """So that a warning is about the rule, and not about how it was tried."""
    rules = [
        ProjectRule("a", "mutation", "x", words=("./a b.sh", "*", "...", "c'd")),
        ProjectRule("b", "mutation", "x", words=("make", "$HOME")),
        ProjectRule("c", "mutation", "x", folders=("skills/c d",)),
        ProjectRule("d", "mutation", "x", files=("tools/d",)),
        ProjectRule("e", "mutation", "x", tool="mcp__e__f"),
        ProjectRule("f", "mutation", "x", words=("write_file",), tool="write_file"),
        ProjectRule("g", "mutation", "x", words=("git", "push")),
        ProjectRule("h", "mutation", "x", words=("ls",)),
    ]
    assert lint_rules(rules, BUILTIN) == ()
