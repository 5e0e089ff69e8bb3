"""fleet/stats.py: figures of logs with several crashes, counted by hand here."""

from __future__ import annotations

import json
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.shelf import EVIL, payload
from wal_agent.cli.stats import table
from wal_agent.fleet.stats import LogReader, Loss, Stats, merge_stats, quantiles_of, show_stats
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Cause,
    Class,
    Cut,
    End,
    Ending,
    EndSource,
    ExitClass,
    FileDelta,
    Finding,
    Host,
    Intent,
    Opening,
    PhaseChange,
    Recovery,
    RunEnded,
    RunsOn,
    Turn,
    Verdict,
    Workspace,
)

DEPLOY, PUSH, LOOK = {"command": "./deploy.sh"}, {"command": "git push"}, {"command": "ls"}


def opening(epoch: int, time: float, cause: Cause = "dead", host: str = "vm-1", boot: str = "b1") -> Opening:
    return Opening(
        time=time,
        run=f"r{epoch}",
        epoch=epoch,
        cause=cause,
        host=Host(name=host, boot=boot, pidns="1", pid=7, lock="/l"),
        agent="gemini",
        agent_version="1",
        version="1",
        workspace="/w",
    )


def began(time: float, resumed: bool = True) -> AgentStarted:
    return AgentStarted(time=time, pid=7, session="s", resumed=resumed)


def call(n: int, time: float, input: dict[str, str] = DEPLOY, cls: Class = "mutation") -> Intent:
    return Intent(time=time, call=n, tool="sh", input=payload(input), cls=cls, rule="r", session="s")


def end(n: int, time: float, how: Ending = "done", by: EndSource = "hook", finding: Finding | None = None) -> End:
    return End(time=time, call=n, how=how, by=by, finding=finding)


def saved(time: float) -> FileDelta:
    return FileDelta(time=time, path="main", size=1, sha256="0" * 64, edits=(), session="s")


def tree(time: float, holds: int) -> Workspace:
    return Workspace(time=time, holds=holds, commit="0" * 40)


def recovered(time: float, *verdicts: tuple[int, Finding], put_back: int = 0, **seconds: float) -> Recovery:
    given = tuple(Verdict(call=n, finding=found, why="w") for n, found in verdicts)
    return Recovery(time=time, from_epoch=1, verdicts=given, told="", put_back=put_back, seconds=seconds)


def died(time: float, cls: ExitClass, completed: bool = False) -> RunEnded:
    return RunEnded(time=time, code=1, completed=completed, cls=cls)


def turn(time: float, state: str = "started") -> Turn:
    return Turn(time=time, state="started" if state == "started" else "completed", session="s")


def read(*records: AnyRecord, seqs: list[int] | None = None) -> Stats:
    reader = LogReader("shop")
    for seq, record in zip(seqs or range(1, len(records) + 1), records, strict=True):
        reader.add(seq, record)
    return reader.result()


THREE_CRASHES: tuple[AnyRecord, ...] = (
    opening(1, 100.0, "first"),
    began(101.0, resumed=False),
    turn(102.0),
    call(1, 103.0, LOOK, "read_only"),
    end(1, 104.0),
    saved(105.0),
    tree(105.5, holds=1),
    call(2, 106.0, PUSH),
    end(2, 108.0),
    call(3, 109.0, DEPLOY),
    PhaseChange(time=130.0, phase="executing_tools", was="awaiting_model"),
    # vm-1 is lost: 4 s and call 2 behind the captures, call 3 in flight
    opening(2, 190.0, host="vm-2", boot="b2"),
    recovered(192.0, (3, "unknown"), put_back=1, session=0.5, all=2.0),
    began(193.0),
    turn(194.0),
    call(4, 195.0, PUSH),  # which was done before
    end(4, 196.0),
    call(5, 197.0, DEPLOY),  # which may have been done
    end(5, 198.0),
    saved(199.0),
    tree(199.5, holds=5),
    # the wrapper is killed on vm-2; nothing is behind the captures
    opening(3, 230.0, host="vm-2", boot="b2"),
    recovered(231.0, (3, "completed"), session=0.1, all=1.0),
    end(3, 231.5, "verified", "recovery", "completed"),
    began(232.0),
    turn(233.0),
    call(6, 234.0, LOOK, "idempotent"),
    end(6, 240.0),
    died(241.0, "out_of_memory"),
    opening(4, 250.0, "released", host="vm-2", boot="b2"),
    recovered(251.0, all=0.4),
    began(252.0),
    turn(253.0),
    turn(254.0, "completed"),
    call(7, 255.0, PUSH),  # another turn: no repeat
    end(7, 256.0),
    died(257.0, "completed", completed=True),
)


def test_three_crashes_are_counted_and_measured() -> None:
    got = read(*THREE_CRASHES)
    assert (got.starts, got.calls, got.records, got.missing) == (4, 7, len(THREE_CRASHES), 0)
    assert got.crashes == {"cut_off": 2, "out_of_memory": 1} and got.ends == {"out_of_memory": 1, "completed": 1}
    assert (got.recoveries, got.after, got.put_back) == (3, {"dead": 2, "released": 1}, 1)
    assert got.times == {
        "unattended": (60.0, 30.5),
        "session": (0.5, 0.1),
        "all": (2.0, 1.0, 0.4),
        "restart": (3.0, 2.0, 2.0),
    }
    assert got.lost == (
        Loss(epoch=1, time=190.0, cause="cut_off", seconds=4.0, calls=1, files_seconds=3.5, files_calls=1),
        Loss(
            epoch=2,
            time=230.0,
            cause="cut_off",
            seconds=0.0,
            calls=0,
            files_seconds=0.0,
            files_calls=0,
            same_machine=True,
        ),
        Loss(
            epoch=3,
            time=250.0,
            cause="out_of_memory",
            seconds=8.0,
            calls=1,
            files_seconds=8.0,
            files_calls=1,
            same_machine=True,
        ),
    )


def test_verdicts_count_each_call_once_with_its_newest_finding() -> None:
    got = read(*THREE_CRASHES)
    assert (got.verdicts, got.verdicts_given, got.settled) == ({"completed": 1}, 2, {"verified": 1})
    start: list[AnyRecord] = [
        opening(1, 1.0, "first"),
        began(1.0),
        *(call(n, 2.0, {"command": str(n)}) for n in range(1, 5)),
    ]
    asked = recovered(6.0, (1, "unknown"), (2, "unknown"), (3, "partial"), (4, "not_started"))
    ends = (Answer(time=7.0, call=1), end(2, 8.0, "resolved", "person"), end(3, 8.0, "failed", "session"))
    got = read(*start, opening(2, 5.0), asked, *ends)
    assert got.verdicts == {"unknown": 2, "partial": 1, "not_started": 1}
    assert (got.settled, got.answered) == ({"resolved": 1, "failed": 1, "open": 2}, 1)


def test_a_repeat_is_a_changing_call_of_the_turn_that_was_cut_off() -> None:
    assert read(*THREE_CRASHES).repeated == {"completed": 1, "unknown": 1}
    start = (opening(1, 1.0, "first"), began(1.0), turn(1.0), call(1, 2.0))
    again = (opening(2, 5.0), recovered(6.0, (1, "not_started")), began(7.0))
    assert read(*start, *again, call(2, 8.0), end(2, 9.0)).repeated == {"not_started": 1}
    assert read(*start, *again, call(2, 8.0)).repeated == {"not_started": 1}, "in flight: it may run"
    assert read(*start, *again, call(2, 8.0), end(2, 9.0, "refused")).repeated == {}
    assert read(*start, *again, call(2, 8.0, PUSH), end(2, 9.0)).repeated == {}
    assert read(*start, *again, turn(7.5, "completed"), call(2, 8.0), end(2, 9.0)).repeated == {"not_started": 1}
    ended = end(1, 7.4, "verified", "recovery")
    assert read(*start, *again, ended, turn(7.5, "completed"), call(2, 8.0), end(2, 9.0)).repeated == {}
    assert read(*start, end(1, 3.0, "failed"), *again, call(2, 8.0), end(2, 9.0)).repeated == {}, "to be tried again"
    assert read(*start, end(1, 3.0), call(2, 4.0), end(2, 4.0)).repeated == {}, "no crash lies between"
    later = (opening(2, 5.0, "closed"), began(7.0), call(2, 8.0), end(2, 9.0))
    assert read(*start, *later).repeated == {"unknown": 1}, "I8: it is open, in whatever session it is made again"
    assert read(*start, end(1, 3.0), *later).repeated == {}
    cut = Cut(time=3.0, call=1, by="session", why="Esc")
    assert read(*start, cut, call(2, 4.0), end(2, 5.0)).repeated == {"unknown": 1}, "in the same session too"
    serves = RunsOn(time=3.0, call=1, by="hook", why="")
    assert read(*start, serves, end(1, 3.5), call(2, 4.0), end(2, 5.0)).repeated == {}


def test_a_wrapper_that_died_after_its_agent_is_one_crash() -> None:
    got = read(opening(1, 1.0, "first"), began(2.0), died(3.0, "killed"), opening(2, 9.0, "dead"))
    assert got.crashes == {"killed": 1} and len(got.lost) == 1


def test_an_agent_that_died_last_counts_and_a_run_that_may_go_on_does_not() -> None:
    assert read(opening(1, 1.0, "first"), began(2.0), died(3.0, "killed")).crashes == {"killed": 1}
    assert read(opening(1, 1.0, "first"), began(2.0), turn(3.0)).crashes == {}
    ways: tuple[ExitClass, ...] = ("drained", "paused", "quota", "failed", "completed")
    assert all(read(opening(1, 1.0, "first"), died(3.0, cls)).crashes == {} for cls in ways)


def test_what_retention_took_is_said_and_not_guessed() -> None:
    """Openings stay, and so does the record before each (R4)."""
    first = (opening(1, 1.0, "first"), began(2.0), turn(3.0), call(1, 4.0), turn(50.0))
    later = (opening(2, 90.0), began(91.0), turn(92.0), opening(3, 95.0))
    got = read(*first, *later, seqs=[1, 2, 3, 4, 20, 21, 22, 23, 24])
    assert (got.missing, got.loss_unknown, got.crashes) == (15, 1, {"cut_off": 2})
    assert [loss.epoch for loss in got.lost] == [2] and got.times["unattended"] == (40.0, 3.0)
    assert read(*first, *later).loss_unknown == 0


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300))
def test_quantiles_are_samples_and_grow(samples: list[float]) -> None:
    got = quantiles_of(samples)
    assert got is not None and got.count == len(samples)
    assert got.p50 <= got.p95 <= got.p99 <= got.max == max(samples)
    assert {got.p50, got.p95, got.p99} <= set(samples)
    assert sum(each <= got.p50 for each in samples) >= len(samples) / 2
    assert sum(each >= got.p50 for each in samples) >= len(samples) / 2


def test_quantiles_by_the_nearest_rank() -> None:
    assert quantiles_of([]) is None
    got = quantiles_of([float(n) for n in range(100, 0, -1)])
    assert got is not None and (got.p50, got.p95, got.p99, got.max) == (50.0, 95.0, 99.0, 100.0)


times = st.one_of(st.floats(0, 1e4), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0]))
numbers = st.integers(0, 4)
any_record: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(opening, numbers, times, st.sampled_from(["first", "closed", "released", "unlocked", "dead"])),
    st.builds(began, times),
    st.builds(turn, times, st.sampled_from(["started", "completed"])),
    st.builds(call, numbers, times, st.sampled_from([PUSH, DEPLOY]), st.sampled_from(["read_only", "mutation"])),
    st.builds(end, numbers, times, st.sampled_from(["done", "refused"]), st.sampled_from(["hook", "recovery"])),
    st.builds(saved, times),
    st.builds(tree, times, numbers),
    st.builds(lambda time, took, n: recovered(time, (n, "unknown"), all=took, **{EVIL: took}), times, times, numbers),
    st.builds(lambda time, n: Answer(time=time, call=n), times, numbers),
    st.builds(died, times, st.sampled_from(["killed", "completed"])),
)


@given(st.lists(st.tuples(st.integers(-3, 9), any_record), max_size=40))
def test_any_log_gives_finite_figures(log: list[tuple[int, AnyRecord]]) -> None:
    """Whatever a bucket holds, in any order: JSON that can be read, and lines that a terminal only shows."""
    got = read(*(record for _, record in log), seqs=[seq for seq, _ in log])
    json.dumps(msgspec.to_builtins(show_stats(got)), allow_nan=False)
    assert all(line.isprintable() for line in table([got, got], merge_stats([got, got]), "file:///b"))
    assert sum(got.crashes.values()) == len(got.lost) + got.loss_unknown
    assert sum(got.verdicts.values()) == sum(got.settled.values()) <= got.verdicts_given


@given(st.lists(any_record, max_size=25), st.lists(any_record, max_size=25))
def test_jobs_add_up(one: list[AnyRecord], other: list[AnyRecord]) -> None:
    a, b = read(*one), read(*other)
    both = merge_stats([a, b])
    assert both.calls == a.calls + b.calls and both.put_back == a.put_back + b.put_back
    assert both.lost == a.lost + b.lost
    for name in ("crashes", "ends", "after", "verdicts", "settled", "repeated"):
        assert sum(getattr(both, name).values()) == sum((*getattr(a, name).values(), *getattr(b, name).values()))
    assert len(both.times.get("all", ())) == len(a.times.get("all", ())) + len(b.times.get("all", ()))
