"""supervise/steps.py: what the log keeps of values and steps, what comes next, and that the fence holds for both."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.unit.supervise.crew import Desk, Post
from tests.unit.wal.world import World
from wal_agent.errors import PersonNeeded, UsageError
from wal_agent.records import (
    AnyRecord,
    Payload,
    StateGone,
    StatePut,
    StepBegun,
    StepEnded,
    StepEnding,
    StepPaused,
)
from wal_agent.supervise import steps as module
from wal_agent.supervise.control import STEP
from wal_agent.supervise.steps import ending_of, entry_of, next_move, settled_step
from wal_agent.wal.lease import final_lease_state
from wal_agent.wal.state import MAX_STEP_RECORD, MAX_STEPS, State, StepAt, apply, apply_all, exceeded_limit
from wal_agent.wal.writer import Ticket


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_person_and_a_stranger_read_and_do_not_write(desk: Desk) -> None:
    desk.put(b"1")
    for do in ("put", "delete", "begin", "end"):
        assert desk.ask(do, by_agent=False, command=["x"])["code"] == 64
    assert desk.ask("get", by_agent=False)["entries"][0]["version"] == 1
    assert desk.kinds() == ["StatePut"]


@pytest.mark.parametrize("name", ["", "1", "-x", "a b", "a\n", "a;b", "é", "x" * 101, "../x"])
def test_a_name_can_stand_in_a_command_as_it_is(desk: Desk, name: str) -> None:
    for do in ("put", "get", "begin", "read", "delete", "end"):
        assert desk.ask(do, name, command=["x"])["code"] == 64
    assert desk.kinds() == []


def test_what_is_no_question_is_none(desk: Desk) -> None:
    for question in ({}, {"do": "x"}, {"do": "put", "step": 1}, {"do": "get", "step": "a", "x": 1}):
        with pytest.raises(ValueError):
            desk.keeper.answer(question, True)
    for more in ({"code": 2**70}, {"stdout_size": 2**70}, {"offset": -1}):
        with pytest.raises(ValueError):
            desk.keeper.answer({"do": "end", "step": "a", **more}, True)
    for ttl in (float("nan"), float("inf")):
        assert desk.put(b"", ttl=ttl)["code"] == 64
    with desk.post.committing(), pytest.raises(ValueError):
        desk.keeper.answer({"do": "begin", "step": "a", "command": ["\ud800"]}, True)
    assert desk.ask("put", data="?")["code"] == 64
    assert desk.kinds() == []


def test_number_and_size_are_limited(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 2)
    monkeypatch.setattr(module, "MAX_KEPT", 100)
    desk.put(b"x" * 60)
    assert desk.put(b"x" * 50, "b")["code"] == 75
    assert desk.put(b"x" * 100)["version"] == 2, "what a value replaces makes room"
    desk.put(b"", "b")
    for answer in (desk.put(b"", "c"), desk.begin(step="c")):
        assert answer["code"] == 75 and "state delete" in answer["hint"]
    desk.ask("delete", "b")
    assert desk.begin(step="c")["move"] == "run"
    out = base64.b64encode(b"too much").decode()
    assert desk.ask("end", "c", stdout=out)["how"] == "done", "that it ran is worth more than what it wrote"
    entry = desk.entry("c")
    assert entry is not None and (entry["run"]["stdout"], entry["run"]["stdout_kept"]) == (8, 0)


# ---- the fence


def test_a_zombie_keeps_nothing_and_begins_nothing(desk: Desk) -> None:
    """I2: another host has opened the job; the first one is still alive and does not know."""
    desk.put(b"1")
    other = desk.on(desk.post.world.take_over("b"))
    zombie = Post.__new__(Post)
    zombie.__dict__.update(desk.post.__dict__)
    before = desk.kinds()
    for question in (
        {"do": "put", "step": "a", "data": base64.b64encode(b"zombie").decode()},
        {"do": "begin", "step": "s", "command": ["effect"]},
    ):
        with zombie.committing():
            answer = desk.keeper.answer(question, True)
        assert answer["code"] == 76, answer
    assert desk.kinds() == before
    found = other.answer({"do": "read", "step": "a"}, True)
    assert base64.b64decode(found["data"]) == b"1"


def test_no_command_runs_whose_begin_is_not_durable(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, R7: the bucket is away; the lease is too old; the run goes down. Afterwards it can run."""
    monkeypatch.setattr(module, "APPEND_DEADLINE", 0.05)
    desk.post.world.bucket.dropped = "shop/log/"
    assert desk.begin()["code"] == 69
    desk.post.world.bucket.dropped = ""
    monkeypatch.undo()
    desk.fresh = False
    assert desk.begin()["code"] == 69
    desk.fresh, desk.refusal = True, "going down"
    assert (desk.begin()["code"], desk.begin()["error"]) == (75, "going down")
    desk.refusal = ""
    assert desk.post.state.undecided_steps == {}
    assert desk.begin()["move"] == "run"
    assert [r.how for r in desk.post.log() if isinstance(r, StepEnded)] == ["not_started"] * 2


def test_what_is_only_on_this_machines_disk_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: in an outage with --on-outage spool a step begins, ends, and is known as ended."""
    spooled: list[Ticket] = []

    def append(*records: AnyRecord, defer: bool = False) -> Ticket:
        ticket = Ticket()
        ticket.spool()
        spooled.append(ticket)
        return ticket

    monkeypatch.setattr(desk.post.job.writer, "append", append)
    assert desk.begin()["move"] == "run"
    assert desk.ask("end", code=0)["how"] == "done"
    assert desk.begin()["move"] == "print" and len(spooled) == 2
    assert desk.put(b"1")["version"] == 1 and desk.put(b"2", if_version=1)["version"] == 2


# ---- steps


def begun(time: float = 1.0, verify: str = "", name: str = "a") -> StepBegun:
    return StepBegun(time=time, name=name, command=("cmd",), verify=verify)


def step_ended(how: StepEnding, name: str = "a") -> StepEnded:
    return StepEnded(time=2.0, name=name, how=how)


def at(*records: AnyRecord) -> StepAt | None:
    return apply_all(State(), 1, 1, records).steps.get("a")


MOVES: list[tuple[list[AnyRecord], dict[str, Any], str]] = [
    ([], {}, "run"),
    ([begun(), step_ended("done")], {}, "print"),
    ([begun(), step_ended("done")], {"retries": 9, "verify": "v"}, "print"),
    ([begun(), step_ended("failed")], {}, "print"),
    ([begun(), step_ended("failed")], {"retries": 1}, "run"),
    ([begun(), step_ended("failed"), begun(), step_ended("failed")], {"retries": 1}, "print"),
    ([begun(), step_ended("paused")], {}, "run"),
    ([begun(), step_ended("not_started")], {}, "run"),
    ([begun(), step_ended("not_done")], {}, "run"),
    ([begun()], {"verify": "v"}, "verify"),
    ([begun()], {"found": "done"}, "print"),
    ([begun()], {"found": "not_done"}, "run"),
]


@pytest.mark.parametrize(("records", "more", "move"), MOVES)
def test_what_comes_next(records: list[AnyRecord], more: dict[str, Any], move: str) -> None:
    asked: dict[str, Any] = {"verify": "", "retries": 0, "found": "", **more}
    assert next_move("a", at(*records), ("cmd",), **asked) == move


def test_a_verification_of_the_log_is_shown_and_never_run() -> None:
    """Who can write the bucket names no command that runs here."""
    with pytest.raises(PersonNeeded) as error:
        next_move("a", at(begun(verify="rm -rf /; \x1b[2J")), ("cmd",), "", 0, "")
    assert r"$'rm -rf /; \x1b[2J'" in error.value.hint


def test_a_step_that_was_cut_off_is_a_persons_where_nothing_can_look(desk: Desk) -> None:
    with pytest.raises(PersonNeeded, match=r"ack a --done"):
        next_move("a", at(begun()), ("cmd",), "", 9, "")
    desk.begin()
    assert desk.begin()["code"] == 79
    with desk.post.committing():
        desk.keeper.acknowledge("a", True)
        with pytest.raises(UsageError, match="not one that was cut off"):
            desk.keeper.acknowledge("a", True)
    answer = desk.begin()
    assert (answer["move"], answer["run"]["by"], answer["run"]["code"]) == ("print", "person", 0)


def test_another_command_is_refused_until_it_provably_did_not_run(desk: Desk) -> None:
    with pytest.raises(UsageError, match="another command"):
        next_move("a", at(begun()), ("other",), "", 0, "")
    assert next_move("a", at(begun(), step_ended("not_started")), ("other",), "", 0, "") == "run"
    assert desk.begin("x")["move"] == "run"
    assert desk.begin("y")["code"] == 64
    assert desk.begin("x" * 5000, step="b")["code"] == 64


@pytest.mark.parametrize(
    ("code", "paused", "down", "how"),
    [
        (0, False, False, "done"),
        (0, True, True, "done"),
        (3, False, False, "failed"),
        (3, True, False, "paused"),
        (-15, True, True, "paused"),
        (-9, False, False, None),
        (143, False, True, None),
    ],
)
def test_how_a_command_ended(code: int, paused: bool, down: bool, how: str | None) -> None:
    """One that was killed is cut off: it may have had half of its effect."""
    records: list[AnyRecord] = [begun(time=5.0)]
    records += [StepPaused(time=6.0 if paused else 4.0, name="a", until=9.0)]
    found = at(*records)
    assert found is not None and ending_of(found, code, down) == how


def test_what_a_pause_leaves_is_shown_until_the_step_goes_on(desk: Desk) -> None:
    desk.put(b"1")
    desk.keeper.mark_paused("a", 99.0, "rate limit")
    desk.keeper.mark_paused("no name!", 99.0, "")
    desk.post.commit()
    entry = desk.entry()
    assert entry is not None and entry["paused"] == {
        "time": desk.clock.now(),
        "until": 99.0,
        "reason": "rate limit",
    }
    desk.put(b"2")
    entry = desk.entry()
    assert entry is not None and entry["paused"] is None
    desk.begin(step="s")
    desk.keeper.mark_paused("s", 99.0, "")
    assert desk.ask("end", "s", code=75)["how"] == "paused"
    assert desk.begin(step="s")["move"] == "run"


def test_a_job_with_a_step_that_was_cut_off_is_not_closed() -> None:
    state = apply(State(), 1, 1, begun())
    assert final_lease_state("closed", len(state.unlooked) + len(state.undecided_steps)) == "released"
    from wal_agent.wal.job import close_job

    world = World()
    job = world.open("a")
    job.writer.append(begun())
    assert close_job(job, "closed") == "released"
    again = world.take_over("b")
    again.writer.append(settled_step(again.writer.state, "a", True, 5.0))
    assert close_job(again, "closed") == "closed"


# ---- the reducer

texts = st.text(max_size=12)
names = st.sampled_from(["a", "b", "c"]) | texts
times = st.floats(0, 1e6)
kept = st.builds(lambda data: Payload(size=len(data), data=data), st.binary(max_size=20))
step_records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(StatePut, time=times, step=names, version=st.integers(0, 99), value=kept, expires=times),
    st.builds(StateGone, time=times, step=names),
    st.builds(StepPaused, time=times, name=names, until=times),
    st.builds(StepBegun, time=times, name=names, command=st.tuples(texts)),
    st.builds(
        StepEnded,
        time=times,
        name=names,
        how=st.sampled_from(["done", "failed", "paused", "not_started", "not_done"]),
        stdout=st.none() | kept,
    ),
)


@settings(deadline=None)
@given(st.lists(step_records, max_size=30), st.integers(0, 30))
def test_any_records_in_any_order_with_a_snapshot_anywhere(records: list[AnyRecord], cut: int) -> None:
    whole = apply_all(State(), 1, 1, records)
    part = apply_all(State(), 1, 1, records[:cut])
    stored: State = msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=State)
    assert apply_all(stored, 1, 1, records[cut:]) == whole
    for name, step in whole.steps.items():
        assert step.undecided == (name in whole.undecided_steps)
        entry_of(whole, name, 5.0)


def test_what_no_run_has_written_changes_nothing() -> None:
    state = State()
    for n in range(MAX_STEPS + 5):
        state = apply(state, 1, 1, begun(name=f"s{n}"))
    assert len(state.steps) == MAX_STEPS and exceeded_limit(state) == ""
    long: list[AnyRecord] = [
        begun(name="x" * 101),
        begun(name="x; rm -rf /"),
        begun(name="-x"),
        StepBegun(time=1.0, name="l", command=("x" * MAX_STEP_RECORD,)),
        StatePut(time=1.0, step="p", version=1, value=Payload(size=20_000, data=b"x" * 20_000)),
        step_ended("done", "never"),
    ]
    assert apply_all(State(), 1, 1, long).steps == {}
    over = msgspec.structs.replace(state, steps={**state.steps, "one": StepAt(first=1)})
    assert "steps" in exceeded_limit(over)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from(["type", "lost"]), max_size=12), st.data(), st.booleans())
def test_at_most_once_whatever_is_lost_where(script: list[str], data: st.DataObject, verifies: bool) -> None:
    """A model of the whole: `type` is one `wal-agent step`, which may be killed at each point; the effect is counted in
    the world, and a verification looks there."""
    state, effects, printed = apply(State(), 1, 1, World().open("a").replay.state.openings[0].opening), 0, 0

    def log(record: AnyRecord) -> None:
        nonlocal state
        state = apply(state, 1, 1, record)

    for what in script:
        if what == "lost":
            log(msgspec.structs.replace(state.openings[-1].opening, epoch=state.epoch + 1))
            continue
        dies: Literal[0, 1, 2, 3, 4] = data.draw(st.sampled_from([0, 1, 2, 3, 4]))
        found: Any = ""
        try:
            move = next_move("a", state.steps.get("a"), ("cmd",), "v" if verifies else "", 0, found)
            if move == "verify":
                found = "done" if effects else "not_done"
                move = next_move("a", state.steps.get("a"), ("cmd",), "v", 0, found)
        except PersonNeeded:
            continue
        if move == "print":
            printed += 1
            if state.undecided_steps:
                log(step_ended("done"))
            continue
        if found:
            log(step_ended("not_done"))
        for point, act in ((1, "begin"), (2, "effect"), (3, "end")):
            if dies == point:
                break
            if act == "begin":
                log(begun())
            elif act == "effect":
                effects += 1
            else:
                log(step_ended("done"))
    assert effects <= 1
    assert not printed or effects == 1


def test_its_event_is_a_control_message() -> None:
    assert STEP.startswith("wal-agent.")
