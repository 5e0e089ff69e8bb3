"""Which turns are compacted, where a rewind ends, what a compact form says (docs/COMPACTION.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.recovery.cases import intent
from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.config import SETTINGS, Origin
from wal_agent.conversation.json_schema import find_fault, read_schema
from wal_agent.conversation.rewrite import (
    MAX_FORM,
    CompactionPolicy,
    aged,
    ask_for_summaries,
    compact_form,
    kept_units,
    number_calls,
    parse_policy,
    resting_place,
    rewound_note,
    summary_schema,
    tokens_of,
    turns_of,
)
from wal_agent.errors import UsageError

DAY = 86_400.0
SECRET = "ghp_" + "a1B2c3D4e5" * 4


def said(n: int, text: str, role: str, **more: Any) -> Unit:
    data = json.dumps({"type": role, "message": {"role": role, "content": text}}).encode() + b"\n"
    return replace(Unit(f"{role}{n}", data), **more)


def turn(n: int, calls: int = 1, time: float = 0.0, answered: bool = True) -> list[Unit]:
    asked = tuple(
        RequestedCall(f"c{n}.{i}", "Bash", json.dumps({"command": f"make {n}.{i}"}).encode()) for i in range(calls)
    )
    results = [said(n, f"result {n}.{i}", "tool", answers=(c.id,)) for i, c in enumerate(asked) if answered]
    return [
        said(n, f"ask {n}", "user", prompt=f"ask {n}", time=time),
        said(n, f"look {n}", "assistant", asks=asked),
        *results,
        said(n, f"done {n}", "assistant"),
    ]


def conversation(turns: int, time: float = 0.0) -> list[Unit]:
    return [unit for n in range(1, turns + 1) for unit in turn(n, time=time)]


policies = st.builds(
    CompactionPolicy, st.integers(0, 6), st.integers(0, 400), st.sampled_from([0.0, 3.0]), st.integers(1, 5)
)
lengths = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8)


def built(spec: Sequence[tuple[int, bool]]) -> list[Unit]:
    found = [said(0, "context", "system")]
    for n, (calls, answered) in enumerate(spec, 1):
        found += turn(n, calls, float(n), answered)
    return found


@given(lengths, policies)
def test_aging_takes_whole_turns_from_the_front_and_never_the_newest(
    spec: Sequence[tuple[int, bool]], policy: CompactionPolicy
) -> None:
    """Never one with a call that has no result (I8), nor the newest `keep`; nothing where no limit is passed."""
    units = built(spec)
    turns, found = turns_of(units), aged(units, policy, 10.0)
    assert found == turns[: len(found)] and len(found) <= max(0, len(turns) - policy.keep)
    assert all(answered or not calls for calls, answered in spec[: len(found)])
    many = policy.turns and len(turns) > policy.turns
    if not many and not (policy.tokens and tokens_of(units) > policy.tokens):
        assert all(10.0 - t.time > policy.age > 0 for t in found)


@given(lengths, st.integers(0, 40))
def test_a_return_ends_behind_the_results_of_all_calls(spec: Sequence[tuple[int, bool]], keep: int) -> None:
    units = built([(calls, True) for calls, _ in spec])
    keep = min(keep, len(units))
    at = resting_place(units, keep)
    asked = {c.id for unit in units[:at] for c in unit.asks}
    assert at >= keep and asked == {id for unit in units[:at] for id in unit.answers}
    between = [resting_place(units, n) for n in range(keep, at + 1)]
    assert set(between) <= {at}, "the first such place"


def test_a_return_into_a_call_without_a_result_is_refused() -> None:
    with pytest.raises(UsageError):
        resting_place(turn(1, answered=False), 2)


def test_a_place_is_known_by_its_newest_message() -> None:
    units = conversation(2)
    assert kept_units("", units) == 0
    assert kept_units(units[2].key, units[:4] + conversation(3)[8:]) == 3
    with pytest.raises(UsageError):
        kept_units("gone", units)


@given(lengths)
def test_turns_cover_all_but_what_stands_in_front(spec: Sequence[tuple[int, bool]]) -> None:
    units = built(spec)
    turns = turns_of(units)
    assert [t.prompt for t in turns] == [f"ask {n}" for n in range(1, len(spec) + 1)]
    assert [u for t in turns for u in units[t.first : t.last]] == (units[1:] if spec else [])


def test_each_limit_counts_alone() -> None:
    units = conversation(4, time=DAY)
    assert [t.number for t in aged(units, CompactionPolicy(turns=4, keep=1), 3 * DAY)] == []
    assert [t.number for t in aged(units, CompactionPolicy(turns=3, keep=1), 3 * DAY)] == [1, 2, 3]
    assert [t.number for t in aged(units, CompactionPolicy(tokens=tokens_of(units), keep=1), 3 * DAY)] == []
    assert [t.number for t in aged(units, CompactionPolicy(tokens=tokens_of(units) - 1, keep=2), 3 * DAY)] == [1, 2]
    assert [t.number for t in aged(units, CompactionPolicy(age=2 * DAY, keep=1), 3 * DAY)] == []
    assert [t.number for t in aged(units, CompactionPolicy(age=DAY, keep=3), 3 * DAY)] == [1]


def test_a_compaction_is_done_once() -> None:
    """A compact form is compacted again only together with a later turn."""
    form = said(9, "old", "user", summary="[wal-agent] 3 earlier turns of it.\n\n## Turn 1\nAsked: a")
    units = [form, *turn(2)]
    assert aged(units, CompactionPolicy(turns=1, keep=1), 0.0) == []
    both = aged([*units, *turn(3)], CompactionPolicy(turns=1, keep=1), 0.0)
    assert [t.prompt for t in both] == ["", "ask 2"]
    text = compact_form([*units, *turn(3)], both, 7)
    assert text.count("[wal-agent]") == 1 and "## Turn 1\nAsked: a" in text and "trace show 7" in text


def test_a_compact_form_says_what_was_asked_done_and_answered_and_no_secret() -> None:
    units = [
        said(1, f"deploy with {SECRET}", "user", prompt=f"deploy with {SECRET}"),
        said(1, "", "assistant", asks=(RequestedCall("a", "Bash", b'{"command": "make deploy"}'),)),
        said(1, "failed", "tool", answers=("a",), failed=("a",)),
        said(1, "", "assistant", asks=(RequestedCall("b", "Bash", b'{"command": "make undo"}'),)),
        said(1, "ok", "tool", answers=("b",)),
        said(1, f"It did not work. {SECRET}", "assistant"),
    ]
    text = compact_form(units, turns_of(units), 1)
    assert SECRET not in text
    assert "make deploy (failed)" in text and "make undo (done)" in text and "Answered: It did not work." in text


def test_a_compact_form_names_the_logs_calls_and_the_files_that_it_rests_on() -> None:
    """By the agent's id; without one only where the log has as many calls of these words: no number is a guess."""
    asks = [
        RequestedCall("a", "Bash", b'{"command": "make > out.txt"}'),
        RequestedCall("b", "Edit", b'{"file_path": "src/a.py"}'),
        RequestedCall("c", "Bash", b'{"command":"make"}'),
    ]
    logged = [
        replace(intent(4, "Bash", b'{"command":"make > out.txt"}'), agent_call="a"),
        intent(5, "Edit", b'{"file_path":"src/a.py"}'),
        intent(6, "Bash", b'{"command":"make"}'),
        intent(9, "Bash", b'{"command":"make"}'),
    ]
    numbers = number_calls(asks, logged)
    assert numbers == {"a": 4, "b": 5}
    assert number_calls(asks, logged[:3]) == {"a": 4, "b": 5, "c": 6}
    units = [
        said(1, "ask", "user", prompt="ask"),
        said(1, "", "assistant", asks=tuple(asks)),
        said(1, "ok", "tool", answers=("a", "b", "c")),
    ]
    text = compact_form(units, turns_of(units), 1, numbers=numbers)
    assert "- #4 Bash: make > out.txt (done)" in text and "- Bash: make (done)" in text
    assert "calls #4 to #5 of the log" in text and "out.txt, src/a.py" in text
    text = compact_form(units, turns_of(units), 1, {"user1": "Made it."}, numbers)
    assert "Summary: Made it.\nFrom: calls #4 to #5" in text


def test_a_compact_form_is_bounded_and_keeps_the_newest_turns() -> None:
    units = [u for n in range(400) for u in [said(n, "x", "user", prompt="p" * 900), said(n, "y " * 900, "assistant")]]
    text = compact_form(units, turns_of(units), 1)
    assert len(text) < MAX_FORM + 1000 and "## Turn 400" in text and "## Turn 1\n" not in text
    summary = "[wal-agent] head\n\n" + "word " * MAX_FORM  # which names no turn
    both = [said(0, "old", "user", summary=summary), *turn(2)]
    text = compact_form(both[:1], turns_of(both[:1]), 1)
    assert MAX_FORM < len(text) < MAX_FORM + 1000 and text.endswith("word ")
    many = turn(1, calls=40)
    assert "(28 more)" in compact_form(many, turns_of(many), 1)


def test_a_note_says_whether_the_files_went_back() -> None:
    notes = {files: rewound_note(2, 3, 4, "KEPT", files=files) for files in (False, True)}
    assert notes[False] != notes[True]
    assert all("2 turns" in note and "3 calls" in note and note.endswith("KEPT") for note in notes.values())


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("turns=40", CompactionPolicy(turns=40, keep=10)),
        ("turns=40,tokens=9,age=2d", CompactionPolicy(40, 9, 2 * DAY, 10)),
        (" age=90m , keep=3", CompactionPolicy(age=5400, keep=3)),
    ],
)
def test_a_policy_is_read(text: str, policy: CompactionPolicy) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize("text", ["", "keep=3", "turns", "turns=-1", "age=2", "turns=2d", "size=3", "turns=4=4"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_policy(text)


limits = st.from_regex(r"(turns|tokens|keep|age)=[0-9]{1,3}[smhd]?", fullmatch=True)


@given(st.lists(limits, min_size=1, max_size=3).map(",".join))
def test_a_setting_that_is_accepted_can_be_carried_out(text: str) -> None:
    """Else a resume would end at it, with the job opened."""
    try:
        accepted = SETTINGS["compact"].read(text, Origin("flag", "--compact"))
    except UsageError:
        return
    parse_policy(accepted)


@pytest.mark.parametrize("year", [-62_135_600_000.0, 253_402_400_000.0, 1e15])
def test_a_time_outside_the_calendar_ends_nothing(year: float) -> None:
    units = turn(1, time=year)
    assert "Asked: ask 1" in compact_form(units, turns_of(units), 1)


def test_the_agents_own_words_stand_for_a_turn_and_the_others_have_the_form_of_their_lines() -> None:
    units = conversation(3)
    turns = turns_of(units)
    form = compact_form(units, turns, 1, {"user1": f"Found it; {SECRET}.", "user9": "of no turn"})
    first, second = form.split("## Turn ")[1:3]
    assert "Asked: ask 1" in first and "Summary: Found it" in first and "make 1.0" not in first
    assert "make 2.0" in second and "Summary" not in second
    assert SECRET not in form and "of no turn" not in form
    assert "3. ask 3" in ask_for_summaries(turns)


@pytest.mark.parametrize("answer", [None, {}, {"turns": ["one"]}, {"turns": ["one", ""]}, {"turns": ["a", "b", "c"]}])
def test_an_answer_that_has_not_one_text_for_each_turn_is_refused(answer: Any) -> None:
    schema = read_schema(json.dumps(summary_schema(2)).encode())
    assert find_fault(answer, schema)
    assert not find_fault({"turns": ["one", "two"]}, schema)
