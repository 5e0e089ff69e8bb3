"""cli/view.py and status.py: a job as people and scripts see it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.unit.cli.shelf import EVIL, KEYS, LAST, SECRET, Shelf, commit, full, intent, payload
from tests.unit.supervise.crew import short_folder
from wal_agent.bucket.base import MemoryBucket
from wal_agent.cli.fleet import job_cells
from wal_agent.cli.log import as_line, read_entries
from wal_agent.cli.status import describe_call, describe_state, status_rows
from wal_agent.cli.view import (
    Call,
    JobState,
    Late,
    Unsaved,
    View,
    files_view,
    make_view,
    overdue_waits,
    phase_age,
    preview,
    read_view,
    unsettled_calls,
)
from wal_agent.fleet.jobs import Job, OpenWork
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Class,
    Cut,
    End,
    ExitClass,
    Intent,
    Opening,
    Payload,
    Pending,
    RunEnded,
    RunsOn,
    Workspace,
)
from wal_agent.supervise import machine
from wal_agent.supervise.control import STATUS
from wal_agent.supervise.hook_server import HookServer
from wal_agent.text import unheard
from wal_agent.wal import lease
from wal_agent.wal import lease as leases
from wal_agent.wal.job import close_job
from wal_agent.wal.reader import replay
from wal_agent.wal.state import OpenCall, State


def shown(found: View) -> str:
    return "\n".join(status_rows(found))


def test_a_job_that_nobody_began() -> None:
    assert read_view(MemoryBucket(), KEYS, {}) == View(job="shop", bucket="memory://", state="none")


def test_a_run_elsewhere_is_running_and_what_waits_there_is_not_known(tmp_path: Path) -> None:
    found = read_view(full(tmp_path).bucket, KEYS, {})
    assert (found.state, found.host, found.pid, found.epoch, found.waiting) == ("running", "vm-1", 7, 1, None)
    assert (found.calls, found.recoveries, found.record) == (2, 1, LAST)
    assert [(c.call, c.finding, c.asks) for c in found.unsettled] == [(2, "unknown", True)]
    text = shown(found)
    assert "known on its own machine only" in text and "gemini 0.61.0, 2 tool calls" in text


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """RECOVERY.md: what leaves the machine for people is redacted, in the table and in the JSON."""
    shelf = full(tmp_path)
    bucket = shelf.bucket
    seen = leases.read_lease(bucket, KEYS)
    assert seen is not None
    doc = msgspec.structs.replace(seen.doc, reason=f"not started: token={SECRET}")
    found = make_view("shop", shelf.url, msgspec.structs.replace(seen, doc=doc), False, replay(bucket, KEYS), None)
    host = msgspec.structs.replace(doc.host, name=SECRET)
    doc = msgspec.structs.replace(doc, host=host, tool=SECRET, spool=f"/s/{SECRET}", workspace=f"/w/{SECRET}")
    url = "s3://me:hunter2hunter2@store/b"
    other = make_view("shop", url, msgspec.structs.replace(seen, doc=doc), False, replay(bucket, KEYS), None)
    assert other.bucket == "s3://me:[redacted]@store/b"
    assert SECRET not in shown(other) and SECRET not in json.dumps(msgspec.to_builtins(other))
    assert found.reason.startswith("not started: ") and found.unsettled[0].input
    assert SECRET not in shown(found) and SECRET not in json.dumps(msgspec.to_builtins(found))


@pytest.mark.parametrize("state", ["closed", "released"])
def test_a_job_that_was_given_up_says_how_and_why(tmp_path: Path, state: JobState) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    close_job(job, "closed" if state == "closed" else "released", "completed")
    found = read_view(shelf.bucket, KEYS, {})
    assert (found.state, found.reason) == (state, "completed")
    assert "completed" not in shown(found) and "heartbeat" not in shown(found)


@pytest.mark.parametrize(
    ("state", "reason", "row", "also"),
    [
        ("closed", "completed", "state       closed, nothing is unfinished", False),
        ("closed", "the agent ended with 41", "state       closed, the agent failed with 41", False),
        ("released", "the agent ended with 41", "released, the agent failed with 41; the next start cont", False),
        ("released", "killed: out of memory", "released, the agent failed: killed: out of memory; the next", False),
        ("released", "stopped: 5 crashes in 10 min", "released, a person is needed; see wal-agent log --crashes", True),
        ("released", "stopped (80): 5 crashes", "released, a person is needed; see wal-agent log --crashes", True),
        ("released", "stopped (69): no bucket", "released, everything is saved; the next start continues it", True),
        ("released", "drained (SIGTERM)", "released, everything is saved; the next start continues it", True),
    ],
)
def test_how_a_job_was_settled_is_read_from_its_reason(
    tmp_path: Path, state: Literal["closed", "released"], reason: str, row: str, also: bool
) -> None:
    """At 3 a.m. a halt and a failure must not look like a job that is well; nor is one told twice."""
    shelf = Shelf(tmp_path)
    close_job(shelf.open(), state, reason)
    text = shown(read_view(shelf.bucket, KEYS, {}))
    assert row in text and (f"reason      {reason}" in text) is also


def test_times_of_the_log_are_compared_with_its_owners_clock(tmp_path: Path) -> None:
    """Where this machine's clock is another hour, a run of 7 s is not up for one."""
    bucket = full(tmp_path).bucket
    found = read_view(bucket, KEYS, {})
    assert abs(found.owner_now - time.time()) < 600
    early = time.time() - 3600
    off = msgspec.structs.replace(found, state="running", owner_now=early, started=early - 7, last_record=early - 3)
    rows = shown(off)
    assert "up 7 s" in rows and "last record 3 s ago" in rows
    empty = shown(msgspec.structs.replace(found, last_record=0.0, owner_now=0.0, files=None))
    assert "no record yet" in empty and "days ago" not in empty


@pytest.mark.parametrize(
    ("cls", "row"),
    [
        ("context", "released, a person is needed"),
        ("stopped", "released, stopped by wal-agent; the next"),
        ("failed", "the agent failed: no such model; the next"),
    ],
)
def test_what_the_agent_said_itself_is_judged_by_how_it_ended(tmp_path: Path, cls: ExitClass, row: str) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    job.writer.append(AgentStarted(time=1.0, pid=7, session="s", resumed=False))
    job.writer.append(RunEnded(time=2.0, code=1, completed=False, why="no such model", cls=cls))
    commit(job)
    close_job(job, "released", "no such model")
    assert row in shown(read_view(shelf.bucket, KEYS, {}))


def saved_as(tmp_path: Path, *records: AnyRecord) -> Shelf:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    job.writer.append(AgentStarted(time=1.0, pid=7, session="s", resumed=False), *records)
    commit(job)
    return shelf


def test_what_of_the_files_is_saved_and_what_is_not(tmp_path: Path) -> None:
    """As of when, what is to go, what is left out; 12.9: which calls ended since."""
    saved = Workspace(
        time=time.time() - 100,
        holds=1,
        commit="1" * 40,
        files=12,
        size=5000,
        left_out=("big: bigger than 51.2 MiB", "node_modules: ignored"),
        left_out_more=7,
        pending=Pending(files=3, size=400 << 20, names=("a", f"key={SECRET}")),
    )
    shelf = saved_as(
        tmp_path,
        intent(1),
        End(time=2.0, call=1, how="done", by="hook"),
        saved,
        intent(2),
        End(time=3.0, call=2, how="done", by="hook"),
    )
    found = read_view(shelf.bucket, KEYS, {}).files
    assert found is not None
    assert (found.files, found.holds, found.behind, found.to_go, found.to_go_bytes) == (12, 1, (2,), 3, 400 << 20)
    text = shown(read_view(shelf.bucket, KEYS, {}))
    assert "files       saved 1" in text
    assert "not saved yet: 3 files (" in text
    assert "left out: big: bigger than 51.2 MiB\n" in text
    assert "ignored" not in text
    assert "calls up to #1; 1 call ended since, the newest is #2" in text
    assert SECRET not in text and SECRET not in json.dumps(msgspec.to_builtins(read_view(shelf.bucket, KEYS, {})))


def test_a_tree_that_was_never_saved(tmp_path: Path) -> None:
    shelf = saved_as(tmp_path)
    assert "files       not saved yet" in shown(read_view(shelf.bucket, KEYS, {}))
    state = replay(shelf.bucket, KEYS).state
    asked = files_view(state, {"tree": "no git"})
    assert asked is not None
    assert (asked.problem, asked.off) == ("no git", False)
    off = files_view(state, {"tree": None})
    assert off is not None
    assert off.off
    assert files_view(State(), None) is None


def test_a_session_that_is_not_found_is_never_nothing_waiting() -> None:
    """I3."""
    for lost in ("", "no file of the session is found"):
        view = View(job="shop", bucket="b", state="running", waiting=Unsaved(0, 0.0, lost=lost))
        (row,) = [line for line in status_rows(view) if line.startswith("log ")]
        assert ("nothing waiting" in row) == (not lost) and lost in row


JOB_RUNS = View(job="shop", bucket="b", state="running")
JOB_GONE = View(job="shop", bucket="b", state="crashed")


def test_what_the_agent_is_done_with_and_runs_on_has_a_row_of_its_own() -> None:
    """I8."""
    intents = [
        Intent(time=1.0, call=n, tool="sh", input=Payload(1, b"x"), cls="mutation", rule="r", session="s")
        for n in (1, 2, 3, 4)
    ]
    held = (
        Cut(time=2.0, call=2, by="hook", why="it reached its time limit"),
        RunsOn(time=2.0, call=3, by="hook", why="w", task="b1"),
        RunsOn(time=2.0, call=4, by="hook", why="w", task="b2", serves=True),
    )
    state = State(open=tuple(OpenCall(1, 1, i, h) for i, h in zip(intents, (None, *held), strict=True)))
    calls = unsettled_calls(state)
    assert [call.held for call in calls] == ["", "cut", "runs_on", "serves"]
    for live in (JOB_RUNS, JOB_GONE):
        assert [describe_call(call, live)[0] for call in calls] == ["open", "cut", "runs on", "runs on"]
    assert describe_call(calls[2], JOB_RUNS) != describe_call(calls[2], JOB_GONE)


def test_a_person_is_asked_only_of_what_a_recovery_looked_at_in_vain() -> None:
    def row(state: JobState, phase: str = "", finding: str = "", cls: str = "mutation") -> tuple[str, str]:
        call = Call(3, "sh", "git push", cls, 1.0, finding)
        name, text = describe_call(call, View(job="shop", bucket="b", state=state, phase=phase))
        return name, text.removeprefix("#3 sh `git push`").strip()

    assert row("running", "executing_tools") == ("open", "")
    for state in ("crashed", "released", "paused", "unlocked"):
        assert row(state) == ("open", "the next start will check whether it happened")
    ask = ("open", "resolve: wal-agent ack 3 --done (or --not-done)")
    assert row("released", finding="unknown") == row("running", "awaiting_user", "unknown") == ask
    assert row("crashed", finding="unknown", cls="unknown") == ask
    assert row("running", "awaiting_model", "unknown") == ("open", "the agent was asked to check")
    for cls in ("read_only", "idempotent"):
        assert row("released", finding="unknown", cls=cls) == ("open", "harmless to repeat")
    assert row("released", finding="partial") == ("open", "checked: partial")


def test_a_closed_job_says_what_was_answered_and_not_proven() -> None:
    """I8: the agent has looked, and nothing shows what became of the call. In the words of `list`."""
    kinds: tuple[Class, ...] = ("mutation", "unknown", "read_only", "mutation")
    calls = [
        OpenCall(1, 1, Intent(time=1.0, call=n, tool="sh", input=payload("{}"), cls=c, rule="r", session="s"))
        for n, c in enumerate(kinds)
    ]
    state = State(open=tuple(calls), answers=tuple(Answer(time=2.0, call=n, looked=(9,)) for n in range(3)))
    assert [o.intent.call for o in state.unproven] == [0, 1], "nobody has looked at the last one"
    for unproven in (0, 2):
        text = "; 2 calls answered, not proven" if unproven else ""
        view = View("shop", "file:///b", "closed", reason="completed", unproven=unproven)
        row = job_cells(Job(job="shop", state="closed", reason="completed"), OpenWork(2, "", unproven))
        assert describe_state(view) == f"closed, nothing is unfinished{text}"
        assert row[-1].endswith(f": completed{text}")


def test_the_tool_of_before_is_not_that_of_a_start(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    job.writer.append(intent(1, command="ls"))
    commit(job)
    for phase, tool in (("starting", ""), ("executing_tools", "run_shell_command"), ("awaiting_model", "")):
        version = shelf.bucket.get(KEYS.lease).version
        doc = msgspec.structs.replace(job.lease.doc, phase=phase)
        shelf.bucket.put(KEYS.lease, lease.encode_lease(doc), if_version=version)
        seen = read_view(shelf.bucket, KEYS, {})
        assert seen.tool == tool
        assert (unheard("starting") in shown(seen)) == (phase == "starting")
    seen = msgspec.structs.replace(read_view(shelf.bucket, KEYS, {}), session="s")
    assert "1 tool call," in shown(seen)
    assert "tool call" not in shown(msgspec.structs.replace(seen, agent="generic")), "of a command none is known"


def test_an_owner_whose_lease_ran_out_was_cut_off_and_its_calls_were_in_flight(tmp_path: Path) -> None:
    """The next step stands beside each call (UX): nobody has looked yet, so no person is asked."""
    shelf = Shelf(tmp_path)
    job = shelf.open(ttl=0.001)
    job.writer.append(intent(1, command="git push"))
    commit(job)
    found = read_view(shelf.bucket, KEYS, {})
    assert found.state == "crashed"
    assert "open        #1 run_shell_command `git push`   the next start will check whether it happened" in shown(found)
    assert "ack" not in shown(found)


def test_each_crash_is_an_opening_from_the_dead_with_its_owner(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.open("a", host="vm-1")
    second = shelf.open("b", host="vm-2")
    close_job(second, "released")
    third = shelf.open("c", host="vm-3")
    assert isinstance(third.replay.state.openings[-1].opening, Opening)
    found = read_view(shelf.bucket, KEYS, {})
    assert [(c.host, c.epoch) for c in found.crashes] == [("vm-1", 1)]
    assert "vm-1 lost (epoch 1)" in shown(found)


@pytest.mark.parametrize(("run", "says"), [("a", "wal-agent died on vm-1 (epoch 1)"), ("b", "vm-1 lost (epoch 1)")])
def test_a_machine_that_lives_was_not_lost(tmp_path: Path, run: str, says: str) -> None:
    """One of the same name that was started anew (another boot id) was."""
    shelf = Shelf(tmp_path)
    shelf.open("a")
    shelf.open(run)
    found = read_view(shelf.bucket, KEYS, {})
    assert [c.same_host for c in found.crashes] == [run == "a"] and f"{says}, taken over then" in shown(found)


def test_an_agent_that_died_is_a_crash_with_its_class(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open("a", host="vm-1")
    died = RunEnded(time=time.time(), code=-9, completed=False, why="killed: out of memory", cls="out_of_memory")
    job.writer.append(died)
    commit(job)
    close_job(job, "released")
    found = read_view(shelf.bucket, KEYS, {})
    assert [(c.host, c.epoch, c.cls) for c in found.crashes] == [("vm-1", 1, "out_of_memory")]
    assert "agent died on vm-1 (epoch 1): killed: out of memory" in shown(found)
    newest = list(read_entries(shelf.bucket, KEYS))[-1]
    assert "code -9 out of memory " in as_line(newest) and "killed: out of memory" in as_line(newest)


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    shelf = full(tmp_path)
    shelf.bucket.delete(KEYS.segment(3))
    found = read_view(shelf.bucket, KEYS, {})
    assert found.record == 2 and "record 3" in found.damage and "record 2 " in shown(found)


def test_a_live_run_on_this_machine_is_asked() -> None:
    with short_folder() as folder:
        run_dir = machine.RunDir.create(folder, "live")
        answer = {STATUS: json.dumps({"phase": "awaiting_user", "bytes": 2500, "age": 65.0}).encode()}
        server = HookServer(run_dir.socket, "live", lambda call: answer[call.event], lambda _: None)
        server.start()
        try:
            shelf = Shelf(folder / "bucket")
            job = shelf.open("live")
            here = machine.this_host({}, run_dir.lock)
            doc = msgspec.structs.replace(job.lease.doc, host=here)
            version = shelf.bucket.get(KEYS.lease).version
            shelf.bucket.put(KEYS.lease, lease.encode_lease(doc), if_version=version)
            found = read_view(shelf.bucket, KEYS, {})
            assert (found.state, found.phase) == ("running", "awaiting_user")
            assert found.waiting == Unsaved(2500, 65.0)
            assert "2.5 kB not saved yet, the oldest for" in shown(found)
            assert doc.started - 1 < found.last_record < doc.started + 60  # also when the opening is all there is
            server.close()
            assert read_view(shelf.bucket, KEYS, {}).waiting is None
        finally:
            run_dir.end()
        assert read_view(shelf.bucket, KEYS, {}).state == "crashed"


def held(tmp_path: Path, phase: str, lasted: float) -> tuple[Shelf, float]:
    """A run elsewhere whose phase had lasted so long at its last heartbeat, by its own clock, which is an hour off."""
    shelf = Shelf(tmp_path)
    job = shelf.open("far")
    now = job.lease.doc.time + 3600
    doc = msgspec.structs.replace(job.lease.doc, phase=phase, time=now, since=now - lasted)
    shelf.bucket.put(KEYS.lease, lease.encode_lease(doc), if_version=shelf.bucket.get(KEYS.lease).version)
    return shelf, lasted


@pytest.mark.parametrize(
    ("phase", "lasted", "row"),
    [
        ("awaiting_model", 60, ""),
        ("awaiting_model", 200, "waiting for the model since 3 min"),
        ("awaiting_approval", 200, ""),
        ("awaiting_approval", 400, "the agent waits for you, or runs what you allowed, since 6 min"),
        ("compacting", 200, "waiting for the model since 3 min"),
        ("awaiting_user", 9000, ""),
        ("executing_tools", 9000, ""),
    ],
)
def test_how_long_a_phase_lasts_is_told_by_no_clock_of_this_machine(
    tmp_path: Path, phase: str, lasted: float, row: str
) -> None:
    shelf, lasted = held(tmp_path, phase, lasted)
    found = read_view(shelf.bucket, KEYS, {})
    assert lasted <= found.phase_age < lasted + 60
    assert f"{phase}, " in shown(found)
    assert bool(found.late) is bool(row) and row in shown(found)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([{"what": "model", "seconds": 7.0, "tool": ""}], (Late("model", 7.0),)),
        ([{"what": "tool", "seconds": 7.0, "tool": "a\x1b[2Jb"}], (Late("tool", 7.0, "a?[2Jb"),)),
        ([{"what": "exit", "seconds": 7.0}], (Late("exit", 7.0),)),
        ([{"what": "moon", "seconds": 7.0, "tool": ""}], ()),
        ([{"what": "tool", "seconds": "7"}], ()),
        ("no list", ()),
        ([], ()),
    ],
)
def test_what_takes_long_is_what_the_run_says_itself(tmp_path: Path, told: object, expected: tuple[Late, ...]) -> None:
    """By its own settings, on this machine; an older version says nothing of it."""
    shelf, _ = held(tmp_path, "awaiting_model", 1e4)
    seen = leases.read_lease(shelf.bucket, KEYS)
    assert seen is not None
    found = overdue_waits(seen, {"phase": "awaiting_model", "late": told})
    assert found == expected
    assert overdue_waits(seen, {"phase": "awaiting_model"}) == ()
    assert phase_age(seen, {"phase_age": 3}) == 3


# ---- a tool's input in one line


@pytest.mark.parametrize(
    ("input", "line"),
    [
        ({"command": "git  push\norigin"}, "git push origin"),
        ({"file_path": "/a/b", "content": "x"}, "/a/b"),
        ({"other": 1}, '{"other": 1}'),
        (["a"], '["a"]'),
        (b"\xff{", "\ufffd{"),
        ({"command": f"a{EVIL}b"}, "a?[2J?31m?b"),
        ({"command": ["not", "text"], "path": "p"}, "p"),
    ],
)
def test_an_input_is_told_by_its_command_or_path(input: object, line: str) -> None:
    assert preview(payload(input)) == line


def test_an_input_is_cut_behind_the_redaction() -> None:
    """A secret that is cut in two would not be recognised."""
    text = preview(payload({"command": "x" * 185 + f" {SECRET}"}))
    assert text == "x" * 185 + " [redacted]"
    assert preview(payload({"command": "y" * 300}), 60) == "y" * 59 + "…"


def test_an_input_in_a_blob_is_told_by_its_size() -> None:
    assert preview(Payload(size=70_000, blob="0" * 64)) == "(70000 bytes)"


def test_an_input_that_nests_without_end_is_shown_as_it_is() -> None:
    assert preview(payload(b"[" * 60_000)) == "[" * 199 + "…"
