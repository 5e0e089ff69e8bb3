"""supervise/innerrun.py and recovery/evidence/runs.py: what became of a run that a call started (issue 12.11)."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.supervise.crew import short_folder
from wal_agent import __version__
from wal_agent.bucket.file import FileBucket
from wal_agent.clock import SystemClock
from wal_agent.config import load
from wal_agent.records import Intent, Payload, Turn
from wal_agent.recovery.evidence import verdicts
from wal_agent.recovery.evidence.runs import found
from wal_agent.recovery.step import InnerRun, Step
from wal_agent.supervise import machine
from wal_agent.supervise.innerrun import InnerCommand, InnerRuns, parse_inner_command
from wal_agent.wal import lease as leases
from wal_agent.wal.job import Fields, OpenedJob, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Claim
from wal_agent.wal.state import OpenCall, State

OUTER = "00000000000000aa"
WORDS = "wal-agent run gemini --job inner -- -p 'do it'"

NAMED = {
    WORDS: InnerCommand("gemini", "inner"),
    "wal-agent run --job=x claude": InnerCommand("claude", "x"),
    "wal-agent run --job gemini codex --bucket file:///b": InnerCommand("codex", "gemini", "file:///b"),
    "wal-agent run gemini -- --job no --bucket no": InnerCommand("gemini"),
    "wal-agent run --job": None,
    "wal-agent run nothing": None,
    "wal-agent run -- gemini": None,
}


@pytest.mark.parametrize(("words", "said"), NAMED.items())
def test_what_the_words_name(words: str, said: InnerCommand | None) -> None:
    assert parse_inner_command(shlex.split(words)) == said


JUDGED: list[tuple[InnerRun | None, bool, str]] = [
    (None, True, "unknown"),
    (InnerRun("j", False), True, "not_started"),
    (InnerRun("j", False), False, "unknown"),
    (InnerRun("j", True, "closed"), True, "completed"),
    (InnerRun("j", True, "closed"), False, "completed"),
    (InnerRun("j", True, "cut_off"), True, "partial"),
    (InnerRun("j", True, "released"), True, "partial"),
    (InnerRun("j", True, "held"), True, "unknown"),
]


@pytest.mark.parametrize(("inner", "gone", "finding"), JUDGED)
def test_the_finding(inner: InnerRun | None, gone: bool, finding: str) -> None:
    assert found(inner, gone).finding == finding


class Stage:
    """A folder bucket that the person's settings name, and inner jobs in it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.env = {
            "HOME": str(folder),
            "WAL_AGENT_BUCKET": f"file://{folder}/bucket",
            "WAL_AGENT_RUNTIME_DIR": str(folder / "r"),
        }
        self.bucket = FileBucket(folder / "bucket")
        self.run_dir = machine.RunDir.create(machine.runtime_dir(self.env), "00000000000000bb")
        self.here = machine.this_host(self.env, self.run_dir.lock)

    def open(self, *parents: str, version: str = __version__) -> OpenedJob:
        claim = Claim(run=self.run_dir.run, host=self.here, agent="gemini", workspace=str(self.work), ttl=30.0)
        seen = leases.read(self.bucket, Keys("inner"))
        fields = Fields(agent_version="", version=version, parents=parents)
        clock, rng = SystemClock(), random.Random(7)
        return open_job(
            self.bucket, Keys("inner"), clock, rng, claim=claim, fields=fields, seen=seen, cause="first", parallel=1
        )

    def look(self, words: str = WORDS, since: float = 1.0) -> InnerRun | None:
        settings = load("gemini", self.work, self.env, {"job": "outer"})
        looks = InnerRuns(settings, self.env, self.here)
        return looks(Step("run_shell_command", tuple(shlex.split(words)), (), self.work), OUTER, since)


@pytest.fixture
def stage() -> object:
    with short_folder() as folder:
        made = Stage(folder)
        yield made
        made.run_dir.end()


def test_its_job_was_never_opened(stage: Stage) -> None:
    assert stage.look() == InnerRun("inner", began=False)
    stage.open("00000000000000cc")
    assert stage.look() == InnerRun("inner", began=False), "another run began it"


def test_a_version_that_does_not_say_where_it_was_started(stage: Stage) -> None:
    stage.open(version="0.0.1")
    assert stage.look() is None


def test_it_runs_is_cut_off_or_has_ended(stage: Stage) -> None:
    job = stage.open("00000000000000cc", OUTER)
    assert stage.look() == InnerRun("inner", True, "held")
    assert stage.look(since=9e12) is None, "an earlier call's, or the clock was changed"
    job.writer.append(Turn(time=1.0, state="completed", session="s"))
    while job.writer.commit_once() == "acked":
        pass
    close_job(job, "closed", "")
    assert stage.look() == InnerRun("inner", True, "closed")


def test_its_supervisor_is_dead(stage: Stage) -> None:
    stage.open(OUTER)
    stage.run_dir.end()
    assert stage.look() == InnerRun("inner", True, "cut_off")
    stage.run_dir = replace(stage.run_dir, lock_fd=machine.RunDir.create(stage.run_dir.path.parent, "x").lock_fd)


def test_somebody_else_had_the_job_behind_it(stage: Stage) -> None:
    close_job(stage.open(OUTER), "released", "")
    stage.open()
    assert stage.look() is None


def test_a_bucket_that_only_the_command_names_is_not_asked(stage: Stage) -> None:
    """The agent wrote the command; whom this machine talks to is the person's."""
    stage.open(OUTER)
    assert stage.look(f"wal-agent run gemini --job inner --bucket {stage.env['WAL_AGENT_BUCKET']}") is not None
    assert stage.look("wal-agent run gemini --job inner --bucket file:///tmp/elsewhere") is None
    assert stage.look("wal-agent run gemini --job inner --bucket s3://attacker/loot") is None


def test_a_look_that_fails_says_nothing(stage: Stage) -> None:
    stage.bucket.put("inner/lease.json", b"junk")
    assert stage.look() is None
    assert stage.look("wal-agent run gemini --job ../x") is None


@pytest.mark.parametrize("text", [WORDS, f"{WORDS} </dev/null >>out 2>&1; echo over", f"/usr/bin/{WORDS}"])
def test_a_verdict_asks_it(tmp_path: Path, text: str) -> None:
    """Also where its output goes into a file, and with the run and the time of the call."""
    asked: list[tuple[str, float]] = []

    def inner(step: Step, run: str, since: float) -> InnerRun:
        asked.append((run, since))
        return InnerRun("inner", True, "closed")

    with short_folder() as folder:
        on = Stage(folder)
        opening = on.open().replay.state.openings[-1]
        on.run_dir.end()
        data = json.dumps({"command": text}).encode()
        empty = Payload(size=1, data=b"")
        intent = Intent(time=5.0, call=1, tool="run_shell_command", input=empty, cls="idempotent", rule="", session="s")
        state = State(open=(OpenCall(2, opening.opening.epoch, intent),), openings=(opening,), next_call=2)
        (said,) = verdicts(state, {1: data}, on.here, tmp_path, [], True, inner=inner)
    assert (said.finding, asked) == ("completed", [(opening.opening.run, 5.0)])
