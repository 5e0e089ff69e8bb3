"""lint: no rules, however odd, stop it; what it warns of in words is tested with the command (cli/test_rules.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal_agent.records import Class
from wal_agent.recovery.declared import ProjectRule, parse_pattern
from wal_agent.recovery.project_lint import lint_rules
from wal_agent.shell.rules import load_rules

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
