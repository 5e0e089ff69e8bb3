"""recovery/lease_policy.py, and the rows of the plan that rest on it: crash loops, and dying twice at one place."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.recovery.cases import MAIN, captured, end, intent, opening, started, state_of, turn, with_home
from wal_agent.errors import CrashLoop, PersonNeeded
from wal_agent.records import AnyRecord, Cause, ExitClass, Opening, Payload, RunEnded
from wal_agent.recovery import lease_policy
from wal_agent.recovery.plan import LocalFacts, Plan, Policy, Refuse, Resume, decide
from wal_agent.wal.state import State

E2E = b'{"command":"make e2e"}'


def ended(state: State, cls: ExitClass, time: float = 1001.0) -> RunEnded:
    """As a run writes it, of its own epoch."""
    return RunEnded(time=time, code=1, completed=False, cls=cls, place=lease_policy.crash_place(state, state.epoch))


class Job:
    """Records as runs write them, one after the other; every run lives for a second."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.now = 1000.0
        self.epoch = 0
        self.call = 0

    @property
    def state(self) -> State:
        return state_of(*self.records)

    def run(self, cause: Cause, *calls: bytes, dies: ExitClass | None = None, inside: bool = True) -> Job:
        """A run that makes `calls` and dies, `inside` the last one; `dies` None: as a whole, without a word."""
        self.epoch += 1
        self.now += 1
        self.records += [opening(self.epoch, cause, time=self.now), started(), turn(), captured()]
        for n, input in enumerate(calls, 1):
            self.call += 1
            self.records.append(intent(self.call, input=input))
            if n < len(calls) or not inside:
                self.records.append(end(self.call))
        if dies is not None:
            self.records.append(ended(self.state, dies, self.now))
        return self

    def next(self, cause: Cause = "released", policy: Policy = Policy(), later: float = 1.0) -> Plan:  # noqa: B008
        ours = opening(self.epoch + 1, cause, time=self.now + later, args=())
        home = next((r for r in reversed(self.records) if isinstance(r, Opening)), None)
        return decide(with_home(self.state, home), ours, LocalFacts(main_file=MAIN), policy)


def refused(got: Plan) -> str:
    assert isinstance(got, Refuse) and got.kind is CrashLoop, got
    return got.what


# ---- the crash loop


def test_agents_that_died_and_runs_that_were_cut_off_count_alike() -> None:
    job = Job().run("first", b"1", dies="killed", inside=False).run("released", b"2", dies="heap", inside=False)
    job.run("released", b"3").run("dead", b"4", dies="out_of_memory", inside=False)
    assert [c.cls for c in lease_policy.recent(job.state, opening(5, "released", time=job.now + 1), 600.0)] == [
        "killed",
        "heap",
        "",
        "out_of_memory",
    ]
    assert isinstance(job.next(), Resume)
    what = refused(job.run("released", b"5", dies="killed", inside=False).next())
    assert what.startswith("5 crashes in 10 minutes, the last one in run_shell_command `3` (killed; cut off with")
    assert isinstance(job.next(later=700.0), Resume), "they are over"
    assert isinstance(job.next(policy=Policy(crash_limit=0)), Resume), "a person is there"
    assert refused(job.next(policy=Policy(crash_limit=3)))


def test_a_clock_that_is_far_ahead_halts_nothing_until_that_time_comes() -> None:
    job = Job()
    for n in range(5):
        job.run("released" if n else "first", b"%d" % n, dies="killed", inside=False)
    assert isinstance(job.next(later=-10_000.0), Resume)
    assert refused(job.next(later=-100.0)), "within what clocks may differ by"


def test_a_death_behind_a_completed_turn_is_gone_on_with_whoever_was_there_between() -> None:
    """Another start took the job and died before its opening."""
    for died_of in (
        RunEnded(time=1001.0, code=-9, completed=True, cls="out_of_memory"),
        RunEnded(time=1001.0, code=1, completed=True, cls="quota", until=1002.0),
    ):
        records = (opening(1), started(), turn(), captured(), turn("completed"), died_of)
        ours = opening(3, "dead", args=())
        assert isinstance(decide(with_home(state_of(*records), opening(1)), ours, LocalFacts(MAIN), Policy()), Resume)


@pytest.mark.parametrize("cls", ["completed", "failed", "interrupted", "stopped", "drained", "paused", "quota"])
def test_ends_that_somebody_wanted_are_no_crashes(cls: ExitClass) -> None:
    job = Job()
    for n in range(6):
        job.run("released" if n else "first", b"x", dies=cls, inside=False)
    assert lease_policy.recent(job.state, opening(7, "released", time=job.now), 600.0) == ()
    assert isinstance(job.next(), Resume)


def test_the_message_says_where_all_of_them_were() -> None:
    job = Job()
    for n in range(5):
        job.run("released" if n else "first", b'{"command":"ls"}', E2E, dies="out_of_memory")
    assert refused(job.next()) == (
        "5 crashes in 10 minutes, all in run_shell_command `make e2e` (killed: out of memory). "
        "Stopped; a person is needed."
    )


def test_what_it_names_is_made_safe() -> None:
    job = Job()
    nasty = b'{"command":"a `b` \\u001b[2J API_KEY=sk-ant-api03-' + b"x" * 60 + b'"}'
    for n in range(5):
        job.run("released" if n else "first", nasty, dies="killed")
    what = refused(job.next())
    assert "\x1b" not in what and "x" * 20 not in what


# ---- the same place twice


def test_the_same_call_twice_is_not_tried_a_third_time() -> None:
    job = Job().run("first", E2E, dies="out_of_memory")
    assert isinstance(job.next(), Resume), "once is no reason"
    got = job.run("released", b'{"command":"git status"}', E2E, dies="out_of_memory").next()
    assert refused(got) == (
        "It died twice in a row in run_shell_command `make e2e` (killed: out of memory). "
        "Not tried a third time; a person is needed."
    )
    assert isinstance(got, Refuse) and "wal-agent ack 3 --done (or --not-done)" in got.hint
    assert isinstance(job.next(policy=Policy(crash_limit=0)), Resume), "a person is there"
    assert isinstance(job.next(later=1e6), Refuse), "time alone mends nothing"
    job.records.append(end(3))
    assert isinstance(job.next(), Resume), "a person has settled it"


@pytest.mark.parametrize(
    ("second", "calls"),
    [
        ("heap", (E2E,)),  # another way
        ("out_of_memory", (b'{"command":"make unit"}',)),  # another call
        ("out_of_memory", ()),  # before any call
    ],
)
def test_another_way_or_place_is_tried_again(second: ExitClass, calls: tuple[bytes, ...]) -> None:
    job = Job().run("first", E2E, dies="out_of_memory").run("released", *calls, dies=second)
    assert isinstance(job.next(), Resume)


def test_between_calls_it_is_the_same_place_if_none_was_made() -> None:
    job = Job().run("first", E2E, dies="heap", inside=False).run("released", dies="heap")
    got = job.next()
    assert "no tool call in between (JavaScript heap out of memory)" in refused(got)
    assert isinstance(got, Refuse) and "--fresh" in got.hint
    assert not isinstance(job.next(policy=Policy(fresh=True)), Refuse)
    assert isinstance(Job().run("first", dies="heap").run("released", b"1", dies="heap", inside=False).next(), Resume)


def test_begun_anew_with_a_call_in_flight_the_call_is_settled_first() -> None:
    job = Job().run("first", E2E, dies="killed").run("released", E2E, dies="killed")
    got = job.next(policy=Policy(fresh=True))
    assert isinstance(got, Refuse) and got.kind is PersonNeeded


def test_machines_that_were_lost_in_the_same_call() -> None:
    """Nobody was left to say a word: the calls in flight tell."""
    job = Job().run("first", E2E)
    assert isinstance(job.next("dead"), Resume)
    job.run("dead", b'{"command":"git status"}', E2E)
    assert "cut off" in refused(job.next("dead"))
    assert isinstance(job.next("released"), Resume), "the second was stopped and saved"
    assert isinstance(job.next("dead", later=2 * lease_policy.STUCK_WINDOW), Resume), (
        "a long call on machines that come and go"
    )
    assert isinstance(Job().run("first", E2E).run("dead", b"{}").next("dead"), Resume)


def test_a_call_is_known_by_tool_and_input_also_where_that_is_a_blob() -> None:
    one = intent(1, input=E2E)
    assert lease_policy.call_key(one) == lease_policy.call_key(intent(7, input=E2E))
    assert lease_policy.call_key(one) != lease_policy.call_key(intent(1, tool="Bash", input=E2E))
    blobs = [msgspec.structs.replace(one, input=Payload(size=9, blob=f"{'a' * 64}-{epoch}")) for epoch in ("1", "2")]
    assert lease_policy.call_key(blobs[0]) == lease_policy.call_key(blobs[1]) != lease_policy.call_key(one)


def test_an_older_log_says_nothing_of_classes() -> None:
    old = RunEnded(time=1001.0, code=-9, completed=False)
    state = state_of(opening(), started(), turn(), captured(), old, opening(2, "released"), started(), old)
    assert lease_policy.find_stuck(state, None, opening(3, "released")) is None
    assert lease_policy.recent(state, opening(3, "released", time=1002.0), 600.0) == ()


# ---- how it goes on


def test_an_agent_that_died_was_not_given_up_in_good_order() -> None:
    job = Job().run("first", E2E, dies="out_of_memory")
    got = job.next()
    assert isinstance(got, Resume) and got.alert == "crash"
    assert got.why == "died on vm-17 (killed: out of memory) with 1 open call"
    between = Job().run("first", E2E, dies="incomplete", inside=False).next()
    assert isinstance(between, Resume) and between.alert == "cut_off"
    assert between.why == "died on vm-17 (ended in the middle of a turn); no call was open"
    drained = Job().run("first", E2E, dies="drained").next()
    assert isinstance(drained, Resume) and drained.alert == "preempted"
