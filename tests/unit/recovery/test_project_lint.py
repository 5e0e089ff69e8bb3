"""lint: no rules, however odd, stop it; what it warns of in words is tested with the command (cli/test_rules.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal_agent.records import Class
from wal_agent.recovery.declared import Declared, words_of
from wal_agent.recovery.project_lint import lint
from wal_agent.shell.rules import load_rules

BUILTIN = load_rules()
CLASSES: tuple[Class, ...] = ("read_only", "idempotent", "mutation", "unknown")


def words(text: str) -> tuple[str, ...]:
    try:
        return words_of(text)
    except ValueError:
        return ()


TEXT = st.one_of(
    st.sampled_from(["git push", "sudo x", "`ls`, then `rm -r x`", "a 'b", "\udc80", "x ... 'y'"]), st.text()
)
RULE = st.builds(
    Declared,
    name=TEXT,
    cls=st.sampled_from(CLASSES),
    source=st.just("GEMINI.md"),
    verify=TEXT,
    words=TEXT.map(words),
    tool=TEXT,
    folders=st.lists(TEXT, max_size=2).map(tuple),
    files=st.lists(TEXT, max_size=2).map(tuple),
)


@given(st.lists(RULE, max_size=4))
def test_any_rules_are_looked_at(rules: list[Declared]) -> None:
    assert all(w.place == "GEMINI.md" and w.what for w in lint(rules, BUILTIN))


def test_a_rule_for_each_thing_it_can_hold_for_is_in_force() -> None:
    """So that a warning is about the rule, and not about how it was tried."""
    rules = [
        Declared("a", "mutation", "x", words=("./a b.sh", "*", "...", "c'd")),
        Declared("b", "mutation", "x", words=("make", "$HOME")),
        Declared("c", "mutation", "x", folders=("skills/c d",)),
        Declared("d", "mutation", "x", files=("tools/d",)),
        Declared("e", "mutation", "x", tool="mcp__e__f"),
        Declared("f", "mutation", "x", words=("write_file",), tool="write_file"),
        Declared("g", "mutation", "x", words=("git", "push")),
        Declared("h", "mutation", "x", words=("ls",)),
    ]
    assert lint(rules, BUILTIN) == ()
