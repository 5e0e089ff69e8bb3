"""operate/pause.py: how long a pause lasts, what a live run makes of it, and a job that nobody runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.shelf import Shelf
from tests.unit.supervise.crew import short_folder
from tests.unit.wal.world import KEYS, FakeClock, World, claim
from wal_agent.errors import LeaseHeld, UsageError
from wal_agent.operate.pause import PauseRequest, ask_this_run, parse_time, pause_job
from wal_agent.recovery.lease_policy import MAX_PAUSE, pause_left, pause_text, paused_until
from wal_agent.supervise import control
from wal_agent.supervise.control import PAUSE
from wal_agent.supervise.exits import ShutdownPlan, may_end_paused
from wal_agent.supervise.hook_server import HookRequest, HookServer
from wal_agent.supervise.pausing import check_length, clean_reason, parse_duration, pause_plan
from wal_agent.supervise.processes import MARKER, SOCKET
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.lease import StoredLease, reschedule_pause
from wal_agent.wal.store import JobStore

NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC).timestamp()


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400), ("1.5H", 5400), (" 7s ", 7)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-5s", "1e3s", "5 m", "5w", "٣s", "1h30m", "nan", "9" * 40 + "d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("14:30", "2026-11-22 14:30:00"),
        ("9:05", "2026-11-23 09:05:00"),
        ("12:00", "2026-11-23 12:00:00"),
        ("12:00:01", "2026-11-22 12:00:01"),
        ("2026-11-22T14:30:05Z", "2026-11-22 14:30:05"),
        ("2026-11-22 14:30", "2026-11-22 14:30:00"),
        ("2026-11-22T16:30+02:00", "2026-11-22 14:30:00"),
    ],
)
def test_times_are_the_next_ones(text: str, when: str) -> None:
    assert utc(parse_time(text, NOON)) == when


@pytest.mark.parametrize("text", ["", "24:00", "14:60", "tomorrow", "1", "2026-13-01", "9999999-01-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        PauseRequest(None, text).seconds(NOON)


@pytest.mark.parametrize("seconds", [0.0, 0.99, -1.0, MAX_PAUSE + 1, float("inf"), float("nan")])
def test_a_pause_is_bounded(seconds: float) -> None:
    with pytest.raises(UsageError):
        check_length(seconds)


@given(st.text(max_size=12))
def test_any_text_gives_a_bounded_pause_or_a_sentence(text: str) -> None:
    for lasts, until in (text, None), (None, text):
        try:
            assert 1.0 <= PauseRequest(lasts, until).seconds(NOON) <= MAX_PAUSE
        except UsageError:
            pass


def test_one_of_the_two_must_be_said_and_a_reason_is_short() -> None:
    for lasts, until in (None, None), ("5m", "14:30"):
        with pytest.raises(UsageError, match="For how long"):
            PauseRequest(lasts, until)
    with pytest.raises(UsageError, match="501 characters"):
        PauseRequest("5m", None, "x" * 501)
    with pytest.raises(UsageError, match="over already"):
        PauseRequest(None, "2026-11-22T11:00").seconds(NOON)


# ---- a live run


def test_a_live_run_goes_down_with_time_for_its_tools() -> None:
    down = pause_plan({"seconds": 600, "reason": "rate\nlimit"}, FakeClock(1000.0), drain=5.0)
    assert (down.kind, down.reason, down.resume_at, down.began, down.until) == ("pause", "rate limit", 1600, 1000, 1060)
    assert pause_plan({"seconds": 600, "reason": ""}, FakeClock(1000.0), drain=300.0).until == 1300
    assert "paused" in down.sentence


@pytest.mark.parametrize(
    "question", [{}, {"seconds": "x", "reason": ""}, {"seconds": 0, "reason": ""}, {"seconds": 1e9, "reason": ""}]
)
def test_what_a_live_run_refuses(question: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        pause_plan(question, FakeClock(), 20.0)


@pytest.mark.parametrize(
    ("now", "busy", "free", "expected"),
    [
        (100.0, 0.0, False, False),
        (109.9, 0.0, False, False),
        (110.0, 0.0, False, True),
        (100.1, 0.0, True, True),
        (120.0, 120.0, True, False),
        (120.0, 119.9, True, True),
        (120.0, 119.9, False, False),
        (129.9, 119.9, False, True),
    ],
)
def test_a_paused_agent_has_its_last_word(now: float, busy: float, free: bool, expected: bool) -> None:
    """It hears what its last call gave and says where it is; a tool that only reads comes to its end as well."""
    assert may_end_paused(now, 100.0, busy, free) is expected


def test_a_drain_overrules_a_pause_and_the_job_stays_paused() -> None:
    pause = pause_plan({"seconds": 600, "reason": "rate limit"}, FakeClock(1000.0), drain=20.0)
    drain = ShutdownPlan("drain", "sigterm", 1001.0, 1021.0, "going")
    assert pause.after(None) is pause and drain.after(drain) is None and pause.after(drain) is None
    stands = drain.after(pause)
    assert stands is not None and (stands.kind, stands.until) == ("drain", 1021.0)
    assert (stands.resume_at, stands.reason) == (1600.0, "rate limit")


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.mark.parametrize("answer", [{"job": "shop"}, {"error": "This run is ending already."}])
def test_a_tool_reaches_its_own_run_by_the_environment_alone(folder: Path, answer: dict[str, Any]) -> None:
    asked: list[Any] = []

    def handle(call: HookRequest) -> bytes:
        asked.append((call.event, json.loads(call.payload)))
        return json.dumps(answer).encode()

    server = HookServer(folder / "hook.sock", "run-1", handle, asked.append)
    server.start()
    env = {SOCKET: str(folder / "hook.sock"), MARKER: "run-1"}
    wanted = PauseRequest(None, "2026-11-22T12:10", "rate limit")
    try:
        if "error" in answer:
            with pytest.raises(UsageError, match="ending already"):
                ask_this_run(env, wanted, FakeClock(NOON))
        else:
            said = ask_this_run(env, wanted, FakeClock(NOON))
            assert said is not None and (said.job, said.state, said.until) == ("shop", "pausing", NOON + 600)
            assert "until 12:10 UTC (in 10 min)" in said.said and "Start nothing new" in said.said
            assert "counts once the run is saved" in said.said
        assert ask_this_run({**env, MARKER: "another"}, wanted, FakeClock(NOON)) is None
    finally:
        server.close()
    assert asked == [(PAUSE, {"seconds": 600.0, "reason": "rate limit"})]
    assert ask_this_run(env, wanted, FakeClock(NOON)) is None
    assert ask_this_run({SOCKET: env[SOCKET]}, wanted, FakeClock(NOON)) is None


@pytest.mark.parametrize("tool", [True, False])
def test_a_person_is_not_told_what_is_meant_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: bool
) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open(run="run-1")
    monkeypatch.setattr(control, "ask_run", lambda *_: {"job": "shop"})
    env = {MARKER: "run-1" if tool else "of another job", "HOME": str(tmp_path)}
    said = pause_job(shelf.bucket, KEYS, PauseRequest("10m", None), env)
    assert said.state == "pausing" and "job shop is being paused until" in said.said
    assert ("Start nothing new" in said.said) is tool
    assert ("ended with: wal-agent pause --job shop" in said.said) is not tool


# ---- a job that nobody runs


def released(world: World, lasts: float = 0.0) -> StoredLease:
    close_job(world.open("a"), "released", "first", until=world.clock.now() + lasts if lasts else 0.0)
    return seen(world)


def seen(world: World) -> StoredLease:
    found = leases.read_lease(world.inner, KEYS)
    assert found is not None
    return found


def off(world: World, at: StoredLease, lasts: float = 600.0) -> None:
    reschedule_pause(
        JobStore(world.bucket, KEYS, world.clock, random.Random(3)), seen=at, lasts=lasts, reason="rate limit"
    )


@pytest.mark.parametrize("fate", ["", "lost", "dropped"])
def test_a_released_lease_is_put_off_whatever_becomes_of_the_reply(fate: str) -> None:
    world = World()
    at = released(world)
    world.bucket.fates = [fate] if fate else []
    off(world, at)
    found = seen(world)
    assert pause_left(found) == pytest.approx(600, abs=30) and "(rate limit)" in pause_text(found)
    assert (found.doc.state, found.doc.epoch, found.doc.run) == ("released", at.doc.epoch, at.doc.run)
    off(world, found, lasts=0.0)
    ended = seen(world)
    assert pause_left(ended) == 0.0 and paused_until(ended) > 0, "it is due, and no job that a person has stopped"
    assert world.open("b").lease.epoch == 2


def test_a_pause_never_overwrites_who_was_faster() -> None:
    world, opened = World(), list[OpenedJob]()
    at = released(world)
    world.bucket.before_put = lambda _: opened.append(world.open("b"))
    with pytest.raises(LeaseHeld, match="changed at the same moment"):
        off(world, at)
    assert seen(world).doc.run == "b" and seen(world).doc.state == "held"
    world.take_over("c")
    assert claim("c").run == seen(world).doc.run


def test_a_run_that_needs_longer_than_its_pause_leaves_a_job_that_is_due() -> None:
    world = World()
    job, until = world.open("a"), world.clock.now() + 2
    world.clock.sleep(3)
    close_job(job, "released", "rate limit", until=until)
    assert pause_left(seen(world)) == 0.0 and paused_until(seen(world)) > 0
    assert world.open("b").lease.epoch == 2


def test_what_was_asked_is_what_is_told_however_long_the_answer_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--until 12:00:05` would mean tomorrow when it has come meanwhile."""
    clock = FakeClock(NOON)

    def slow(path: Path, run: str, event: str, question: dict[str, Any]) -> dict[str, Any]:
        assert question["seconds"] == 5.0
        clock.sleep(6)
        return {"job": "shop"}

    monkeypatch.setattr("wal_agent.supervise.control.ask_socket", slow)
    said = ask_this_run({SOCKET: "/s", MARKER: "r"}, PauseRequest(None, "12:00:05", "rate\nlimit"), clock)
    assert said is not None and (said.until, said.reason) == (NOON + 5, "rate limit")
    assert "until 12:00:05 UTC (in 5 s)" in said.said


def test_a_reason_is_one_line_of_text() -> None:
    assert clean_reason("a\n\udcff b\x00") == "a ? b\x00"
