"""wal/state.py: the reducer takes any records in any order, and its memory is bounded (I8, I9)."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.unit.wal.test_codec import some_records
from tests.unit.wal.world import World, end, intent
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Compaction,
    CompactionDone,
    End,
    FileDelta,
    FileGone,
    Handoff,
    Intent,
    Payload,
    Recovery,
    RunsOn,
    Turn,
    Workspace,
)
from wal_agent.wal.state import (
    MAX_BRIEF,
    MAX_COMPACTIONS,
    MAX_OPENINGS,
    MAX_PAST,
    MAX_SHELVED,
    MAX_UNHELD,
    MAX_UNLOGGED,
    MAX_UNSETTLED,
    State,
    apply,
    apply_all,
)

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


def test_recoveries_are_counted_and_the_last_is_kept() -> None:
    made = [Recovery(time=float(n), from_epoch=n, verdicts=(), told="") for n in (1, 2)]
    state = apply_all(State(), 1, 1, made)
    assert (state.recoveries, state.recovery) == (2, made[-1])


def test_a_call_ends_once() -> None:
    state = apply_all(State(), 1, 1, [intent(1), end(1, 5.0), end(1, 6.0), end(9)])
    assert state.open == () and [c.end.time for c in state.unsettled] == [5.0]


def test_what_is_open_is_asked_about_until_something_has_looked() -> None:
    """I8. What is meant to serve is never asked about."""
    server = RunsOn(time=1.0, call=4, by="hook", why="serves", serves=True)
    look = msgspec.structs.replace(intent(3), cls="read_only")
    looked = [Answer(time=1.0, call=n, looked=(9,)) for n in (2, 3, 4)]
    state = apply_all(State(), 1, 1, [*map(intent, (1, 2)), look, *map(intent, (4, 5)), server, *looked])
    state = apply(state, 1, 1, Answer(time=1.0, call=5))
    assert [[c.intent.call for c in found] for found in (state.unanswered, state.unlooked, state.unproven)] == [
        [1],
        [1, 5],
        [2],
    ]


def captured(settled: int) -> FileDelta:
    return FileDelta(time=1.0, path="f", size=0, sha256="", edits=(), session="s", settled=settled)


def test_a_captured_file_settles_what_it_tells() -> None:
    state = apply_all(State(), 1, 1, [*map(intent, (1, 2, 3, 4)), end(1), end(2), end(3), captured(2)])
    assert [c.intent.call for c in state.unsettled] == [3]
    assert [c.intent.call for c in state.open] == [4]


def tree(holds: int, also: tuple[int, ...] = ()) -> Workspace:
    return Workspace(time=1.0, holds=holds, commit="1" * 40, also=also)


def unheld(state: State) -> list[int]:
    return [e.intent.call for e in state.unheld]


def test_calls_whose_changes_no_capture_has() -> None:
    """Whether or not the session has told them."""
    state = apply_all(State(), 1, 1, [*map(intent, range(1, 7)), *map(end, (1, 2, 4, 5)), captured(5)])
    assert unheld(state) == [1, 2, 4, 5]
    assert state.unsettled == ()
    assert unheld(apply(state, 1, 1, tree(2))) == [4, 5]
    assert unheld(apply(state, 1, 1, tree(2, (5,)))) == [4]
    later = apply_all(state, 1, 1, [tree(5, (6,)), end(6), end(3)])
    assert unheld(later) == [], "a call that the capture has; one that was settled behind it"
    reads: list[AnyRecord] = [msgspec.structs.replace(intent(9), cls="read_only"), end(9)]
    assert unheld(apply_all(later, 1, 1, [*reads, intent(10), msgspec.structs.replace(end(10), how="refused")])) == []


def test_what_is_kept_of_such_calls_is_bounded() -> None:
    state = State()
    data = b"x" * 60_000
    for n in range(1, MAX_UNHELD + 11):
        begun = msgspec.structs.replace(intent(n), input=Payload(size=len(data), data=data))
        state = apply_all(state, n, 1, [begun, end(n)])
    assert unheld(state) == list(range(11, MAX_UNHELD + 11))
    assert state.unheld_more == 10
    assert sum(e.intent.input.size for e in state.unheld) == MAX_UNHELD * MAX_BRIEF
    assert apply(state, 1, 1, tree(20)).unheld_more == 0


def test_a_file_begun_anew_has_nothing_of_the_old_one() -> None:
    state = apply_all(State(), 1, 1, [captured(0), captured(0), FileGone(time=1.0, path="f"), captured(0)])
    assert len(state.files["f"].layers) == 1


def test_it_does_not_grow_with_the_session() -> None:
    state = State()
    for n in range(1, MAX_UNSETTLED + 50):
        state = apply_all(state, n, 1, [intent(n), end(n)])
    assert len(state.unsettled) == MAX_UNSETTLED
    assert state.unsettled[-1].intent.call == MAX_UNSETTLED + 49
    opening = World().open("a").replay.state.openings[0].opening
    for n in range(MAX_OPENINGS + 9):
        state = apply(state, n, n, opening)
    assert (len(state.openings), state.opened) == (MAX_OPENINGS, MAX_OPENINGS + 9)


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


# ---- the turn and the prompt are those of the newest session

OUTER = ("s1", "s2", "s3")


def began(session: str, resumed: bool = False) -> AgentStarted:
    return AgentStarted(time=1.0, pid=1, session=session, resumed=resumed)


def turned(session: str, state: str = "started", words: str = "") -> Turn:
    asked = Payload(size=len(words), data=words.encode()) if words else None
    return Turn(time=1.0, state=state, session=session, prompt=asked)  # type: ignore[arg-type]


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, AnyRecord]]:
    """Runs (epochs) in any order of what they write: starts, switches by /clear and /resume, turns, calls (subagents'
    too), captures of any session's files, recoveries that go on in the session or begin another."""
    records: list[tuple[int, AnyRecord]] = []
    epoch, now, words, call = 0, "", 0, 0
    for what in draw(
        st.lists(st.sampled_from(["run", "recovery", "switch", "turn", "over", "call", "file"]), max_size=25)
    ):
        if what in ("run", "recovery") or not epoch:
            epoch += 1
            resumed = what == "recovery" and bool(now)
            now = draw(st.sampled_from(OUTER))  # also an old one: chosen by arguments, or begun by a recovery
            records.append((epoch, began(now, resumed)))
        elif what == "switch":
            now = draw(st.sampled_from(OUTER))
            records.append((epoch, began(now)))
        elif what == "turn":
            words += 1
            records.append((epoch, turned(now, words=draw(st.sampled_from(["", f"task {words}"])))))
        elif what == "over":
            records.append((epoch, turned(now, "completed")))
        elif what == "call":
            call += 1
            inner = draw(st.sampled_from([now, f"{now}/sub", "child"]))
            records.append((epoch, msgspec.structs.replace(intent(call), session=inner)))
            records.append((epoch, end(call)))
        else:
            owner = draw(st.sampled_from([*OUTER, "child"]))
            records.append((epoch, msgspec.structs.replace(captured(0), session=owner, path=owner)))
    return records


def as_a_person_would_say(records: list[tuple[int, AnyRecord]]) -> tuple[str, str, str, bool]:
    """The oracle looks back from the end: session, turn, the words that began it, whether the run's agent was asked."""
    starts = [n for n, (_, r) in enumerate(records) if isinstance(r, AgentStarted)]
    fresh = max((n for n in starts if not records[n][1].resumed), default=-1)  # type: ignore[union-attr]
    since = [r for _, r in records[fresh + 1 :]]
    turns = [r for r in since if isinstance(r, Turn)]
    calls = any(isinstance(r, Intent) for r in since)
    words = [r.prompt.data.decode() for r in turns if r.prompt is not None and r.prompt.data is not None]
    session = records[starts[-1]][1].session if starts else ""  # type: ignore[union-attr]
    last = turns[-1].state if turns else "started" if calls else "none"
    home = records[starts[-1]][0] if starts else 0
    asked = any(e == home and isinstance(r, Turn | Intent) for e, r in records)
    return session, last, words[-1] if words else "", asked


@settings(deadline=None, max_examples=examples(500))
@given(conversations())
def test_turn_and_prompt_are_the_newest_sessions(records: list[tuple[int, AnyRecord]]) -> None:
    """In any order of starts, switches, turns, calls and captures. A subagent's call or file resets
    nothing, and what a recovery begins or goes on with keeps the words of before."""
    state = State()
    for seq, (epoch, record) in enumerate(records, 1):
        state = apply(state, seq, epoch, record)
    data = state.prompt.prompt.data if state.prompt is not None and state.prompt.prompt is not None else b""
    session, last, words, asked = as_a_person_would_say(records)
    assert (state.session, state.turn, (data or b"").decode()) == (session, last, words)
    assert (0 < state.home == state.turned) == asked
    assert state.ran == (asked or last != "none")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


def test_calls_that_ran_unlogged_are_kept_until_a_later_run_has_completed_a_turn() -> None:
    """A recovery that is cut off before its turn is over reports them again. Bounded (I9)."""
    late = [msgspec.structs.replace(intent(n), unlogged=True) for n in range(1, MAX_UNLOGGED + 3)]
    ends = [End(time=1.0, call=i.call, how="done", by="session") for i in late]
    completed = Turn(time=2.0, state="completed", session="s")
    state = apply_all(State(), 1, 1, [intent(90), end(90), *late, *ends, completed])
    assert [c.intent.call for c in state.unlogged] == list(range(3, MAX_UNLOGGED + 3))
    assert {c.how for c in state.unlogged} == {"done"}
    state = apply_all(state, 2, 2, [Turn(time=3.0, state="started", session="s")])
    assert len(state.unlogged) == MAX_UNLOGGED
    assert apply(state, 3, 2, completed).unlogged == ()


def test_an_unlogged_call_that_evidence_or_a_person_settled_is_reported_as_in_flight_only() -> None:
    """It was open, so a recovery has told of it."""
    late = msgspec.structs.replace(intent(1), unlogged=True)
    assert apply_all(State(), 1, 1, [late, End(time=1.0, call=1, how="verified", by="recovery")]).unlogged == ()


def test_a_compaction_names_the_conversation_as_it_was_before() -> None:
    saved = FileDelta(time=1.0, path="f", size=7, sha256="ab", edits=(), session="s")
    other = FileDelta(time=1.0, path="g", size=9, sha256="cd", edits=(), session="old")
    state = apply_all(State(), 4, 2, [other, saved, intent(1), Compaction(time=2.0, n=1, session="s", trigger="auto")])
    (found,) = state.compactions
    assert (found.n, found.seq, found.epoch, found.files) == (1, 4, 2, (("f", 7, "ab"),))
    assert (found.call, found.open, state.compacted) == (1, (1,), 1)
    again = [CompactionDone(time=2.5, n=1, session="another"), CompactionDone(time=2.5, n=1, session="s", lost=True)]
    assert [(c.done, c.lost) for c in apply_all(state, 5, 2, again).compactions] == [(True, True)]
    many = apply_all(state, 5, 2, [Compaction(time=3.0, n=n, session="s") for n in range(2, MAX_COMPACTIONS + 9)])
    assert len(many.compactions) == MAX_COMPACTIONS and many.compacted == MAX_COMPACTIONS + 8


def test_a_handoff_puts_the_session_aside_and_the_way_back_brings_it_again() -> None:
    """Files of one name belong to two agents, and neither loses its own."""
    mine = FileDelta(time=1.0, path="f", size=7, sha256="ab", edits=(), session="s1")
    started = AgentStarted(time=1.0, pid=1, session="s1", resumed=False)
    before = apply_all(State(), 1, 1, [started, mine, intent(1), end(1), intent(2)])
    there = apply(before, 2, 2, Handoff(time=2.0, before="gemini", agent="claude"))
    assert (there.files, there.session, there.unsettled, there.agent) == ({}, "", (), "claude")
    assert [o.intent.call for o in there.open] == [2], "I8"
    assert there.shelf["gemini"].call == 2
    other = FileDelta(time=3.0, path="f", size=9, sha256="cd", edits=(), session="s2")
    worked = apply_all(there, 3, 2, [AgentStarted(time=3.0, pid=2, session="s2", resumed=True), other])
    back = apply(worked, 4, 3, Handoff(time=4.0, before="claude", agent="gemini", since=2))
    assert (back.files, back.session, back.unsettled) == (before.files, "s1", before.unsettled)
    assert back.shelf.keys() == {"claude"} and back.shelf["claude"].files["f"].sha256 == "cd"
    completed = Turn(time=5.0, state="completed", session="s1")
    assert back.handoff is not None and apply(back, 5, 3, completed).handoff is None


def test_sessions_aside_are_bounded() -> None:
    state = State()
    for n in range(MAX_SHELVED + 5):
        state = apply(state, n, n, Handoff(time=1.0, before=f"a{n}", agent=f"a{n + 1}"))
    assert len(state.shelf) == MAX_SHELVED and f"a{MAX_SHELVED + 4}" in state.shelf


def test_a_transcript_that_the_job_leaves_is_kept() -> None:
    """/clear, a second task, and a session of the same name; `recall` reads them."""

    def saved(session: str, size: int = 7, path: str = "f.jsonl") -> FileDelta:
        return FileDelta(time=1.0, path=path, size=size, sha256=session, edits=(), session=session)

    gone = FileGone(time=2.0, path="f.jsonl")
    state = apply_all(State(), 1, 1, [saved("a"), gone, saved("b"), saved("c"), saved("c", 9)])
    assert [(p.name, p.file.sha256) for p in state.past] == [("f.jsonl", "a"), ("f.jsonl", "b")]
    assert state.files["f.jsonl"].sha256 == "c"
    again = apply_all(state, 2, 1, [gone, saved("a", 8), gone])
    assert [(p.file.session, p.file.size) for p in again.past] == [("b", 7), ("c", 9), ("a", 8)]
    other = apply_all(
        State(), 1, 1, [saved("a", path="todo.json"), FileGone(time=2.0, path="todo.json"), saved("e", 0)]
    )
    assert apply(other, 2, 1, gone).past == ()
    for n in range(MAX_PAST + 5):
        state = apply_all(state, 3, 1, [saved(f"s{n}"), gone])
    assert len(state.past) == MAX_PAST and state.past[-1].file.session == f"s{MAX_PAST + 4}"
