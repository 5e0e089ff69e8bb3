"""wal/state.py: the reducer takes any records in any order, and its memory is bounded (I8, I9)."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.test_segment import some_records
from tests.unit.wal.world import World, end, intent
from wal_agent.records import AgentStarted, AnyRecord, FileDelta, FileGone, Intent
from wal_agent.wal.state import KEEP_OPENINGS, KEEP_UNSETTLED, State, apply, apply_all

session = st.builds(intent, st.integers(1, 6)) | st.builds(end, st.integers(1, 6)) | some_records


@settings(deadline=None)
@given(st.lists(session, max_size=30))
def test_any_records_in_any_order(records: list[AnyRecord]) -> None:
    state = apply_all(State(), 1, 1, records)
    open_calls = {c.intent.call for c in state.open}
    ended = {c.end.call for c in state.unsettled}
    assert all(c.end.call == c.intent.call for c in state.unsettled)
    assert state.calls == sum(isinstance(r, Intent) for r in records)
    assert state.next_call > max([*open_calls, *ended, 0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


def test_a_call_ends_once() -> None:
    state = apply_all(State(), 1, 1, [intent(1), end(1, 5.0), end(1, 6.0), end(9)])
    assert state.open == () and [c.end.time for c in state.unsettled] == [5.0]


def captured(settled: int) -> FileDelta:
    return FileDelta(time=1.0, path="f", size=0, sha256="", edits=(), session="s", settled=settled)


def test_a_captured_file_settles_what_it_tells() -> None:
    state = apply_all(State(), 1, 1, [*map(intent, (1, 2, 3, 4)), end(1), end(2), end(3), captured(2)])
    assert [c.intent.call for c in state.unsettled] == [3]
    assert [c.intent.call for c in state.open] == [4]


def test_a_file_begun_anew_has_nothing_of_the_old_one() -> None:
    state = apply_all(State(), 1, 1, [captured(0), captured(0), FileGone(time=1.0, path="f"), captured(0)])
    assert len(state.files["f"].layers) == 1


def test_it_does_not_grow_with_the_session() -> None:
    state = State()
    for n in range(1, KEEP_UNSETTLED + 50):
        state = apply_all(state, n, 1, [intent(n), end(n)])
    assert len(state.unsettled) == KEEP_UNSETTLED
    assert state.unsettled[-1].intent.call == KEEP_UNSETTLED + 49
    opening = World().open("a").replay.state.openings[0].opening
    for n in range(KEEP_OPENINGS + 9):
        state = apply(state, n, n, opening)
    assert (len(state.openings), state.opened) == (KEEP_OPENINGS, KEEP_OPENINGS + 9)


def test_the_home_is_the_newest_opening_under_which_the_agent_was_started() -> None:
    opening = World().open("a").replay.state.openings[0].opening
    state = State()
    assert state.home_opening is None
    for epoch in (1, 2, 3):
        state = apply(state, epoch, epoch, msgspec.structs.replace(opening, epoch=epoch))
        if epoch < 3:  # the third run was refused
            state = apply(state, epoch, epoch, AgentStarted(time=1.0, pid=1, session="s", resumed=False))
    assert state.home_opening == msgspec.structs.replace(opening, epoch=2)
    assert msgspec.structs.replace(state, openings=state.openings[2:]).home_opening is None
