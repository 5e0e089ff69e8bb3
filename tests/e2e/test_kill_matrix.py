"""SIGKILL at every named place: the process dies there, and the same command, started again, keeps the invariants.

Each test kills the real program at its failpoint (one that is never reached is a failure), then starts it again and
looks at the log, at the restored session, at what the model was told, and at what the tools did to the workspace.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wal_agent
from tests.e2e.housekeeper import CALLS
from tests.e2e.scene import (
    Scene,
    agent_scene,
    calls_in,
    check_exact,
    check_log,
    command_of,
    commands_in,
    notices,
    opened,
    results_in,
    shell,
    texts_in,
    until,
)
from tests.faulty_bucket import FaultFile, faulty_environment, write_faults
from tests.tiers import once
from wal_agent.failpoints import NAMES
from wal_agent.rehearsal.model import Turn
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

BEFORE_THE_AGENT = (
    "run.before_lease",
    "opening.before_put",
    "opening.after_put",
    "run.after_lease",
    "run.before_agent",
    "run.after_agent_start",
)
IN_A_CALL = ("append.before_put", "append.after_put", "append.after_ack", "blob.after_put")
AT_THE_END = ("run.before_seal", "run.after_seal")
IN_A_RESTORE = ("restore.before_stage", "restore.staged", "restore.between_moves", "restore.after_moves")
IN_A_TREE = ("restore.before_tree", "restore.after_tree")  # tests/unit/recovery/test_restore_workspace_killed.py does
IN_A_RECOVERY = ("recovery.before_record", "recovery.after_record")
IN_A_HANDOFF = ("handoff.after_record",)  # tests/e2e/test_handoff.py visits this
IN_AN_OUTAGE = ("spool.before_store", "spool.after_store", "spool.before_drop")  # tests/e2e/test_spool.py visits these,
IN_A_CARRYING_IN = ("spool.before_begin", "spool.before_rename", "spool.after_rename")  # and these
IN_A_STEP = ("step.begun", "step.ran", "step.ended")  # tests/unit/test_steps.py visits these
IN_A_TASK = ("task.before_child", "task.after_child")  # tests/e2e/test_task.py does
IN_A_REWRITE = ("rewrite.before_record", "rewrite.before_place", "rewrite.staged", "rewrite.placed")  # test_rewrite.py
IN_HOUSEKEEPING = ("snapshot.before_put", "snapshot.after_put", "retention.between_deletes")

TASK = "please do the work"
BIG = "x" * 100_000


def test_every_failpoint_is_visited_and_stands_in_the_code() -> None:
    visited = (
        *BEFORE_THE_AGENT,
        *IN_A_CALL,
        *AT_THE_END,
        *IN_A_RESTORE,
        *IN_A_TREE,
        *IN_A_RECOVERY,
        *IN_A_HANDOFF,
        *IN_HOUSEKEEPING,
        *IN_AN_OUTAGE,
        *IN_A_CARRYING_IN,
        *IN_A_STEP,
        *IN_A_TASK,
        *IN_A_REWRITE,
    )
    assert sorted(visited) == sorted(NAMES)
    package = Path(wal_agent.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    assert set(re.findall(r'\bfailpoint\("([^"]+)"\)', code)) == set(NAMES)


def told_once(request: dict[str, Any]) -> None:
    """I4: the whole history once, whatever was restored how often."""
    texts = texts_in(request)
    assert sum(TASK in text for text in texts) == 1, texts
    calls = calls_in(request)
    assert len({str(c) for c in calls}) == len(calls), "a call is in the history twice"
    ids = [r.id for r in results_in(request)]
    assert len(set(ids)) == len(ids) == len(calls), "each call has one result"


@pytest.mark.parametrize("point", once(BEFORE_THE_AGENT, "opening.after_put"))
def test_killed_before_the_agent_did_anything(scene: Scene, point: str) -> None:
    """I1, I2, I3: nothing ran and nothing is lost; the next machine begins the task, once."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    scene.script(Turn(text="All done."))
    first.ask(TASK, WAL_AGENT_FAILPOINT=point).died()
    before = scene.records()
    assert [r["type"] for r in before if r["type"] != "agent_started"] in ([], ["opening"])
    again = second.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert "All done." in again.stdout()
    assert len(scene.model.requests) == 1, "the killed run's agent asked nothing"
    told_once(scene.model.requests[0])
    assert notices(scene.model.requests[0]) == []
    check_log(scene, before)
    assert second.status()["state"] == "closed"


@pytest.mark.parametrize("point", once(IN_A_CALL, "append.after_ack"))
def test_killed_in_a_call(scene: Scene, point: str) -> None:
    """I1, I3, I4, I8: the call ran only if its intent is in the log, and then it is told; the finished one stays."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    armed, faults = scene.root / "armed", scene.root / "faults.json"
    big = scene.workspace / "big"
    call = scene.machines[0].rehearsal.write(big, BIG) if point.startswith("blob") else shell("echo two >> side")
    scene.script(Turn(text="First.", calls=[shell("echo one >> side")]), Turn(text="Then.", calls=[call]))
    hold = scene.hold_turn(1)
    run = first.ask(TASK, WAL_AGENT_FAILPOINT=f"{point}@{armed}", **faulty_environment(faults))
    scene.asked(2)
    scene.saved(1)
    # A slow bucket: a hook that does not wait for the answer lets the tool run before the kill.
    write_faults(faults, FaultFile(latency=(0.7, 0.7), ops=("put",), prefixes=("job/log/",)))
    armed.write_text("x")
    hold.set()
    run.died()
    before = scene.records()
    logged = [r["call"] for r in before if r["type"] == "intent"]
    assert logged in ([1], [1, 2])
    first.end()  # the tool's shell outlives its agent
    ran = "two" in scene.side() or big.exists()
    assert not ran or point == "append.after_ack", "I1: it ran before its intent was acknowledged"

    scene.script(Turn(text="I looked. I stop here."))
    again = second.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[2]
    told_once(request)
    made = [shell("echo one >> side"), call][: len(logged)]
    assert [c[0] for c in calls_in(request)] == [c[0] for c in made]
    assert commands_in(request) == [command_of(c) for c in made]
    assert len(notices(request)) == 1
    assert ("outcome unknown" in str(results_in(request)[-1])) is (2 in logged)
    log = check_log(scene, before)
    check_exact(scene, second)
    assert [r["call"] for r in log if r["type"] == "intent"] == logged
    assert scene.side() == (["one", "two"] if ran else ["one"])


@pytest.mark.parametrize("point", once(AT_THE_END, "run.before_seal"))
def test_killed_at_the_end(scene: Scene, point: str) -> None:
    """I3, I8: before the seal the next start says that it is back; after it, the job had ended and begins anew."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    scene.script(Turn(text="First.", calls=[shell("echo one >> side")]), Turn(text="All done."))
    first.ask(TASK, WAL_AGENT_FAILPOINT=point).died()
    before = scene.records()
    sealed = point == "run.after_seal"
    assert any(r["type"] == "run_ended" for r in before) is sealed
    assert first.status()["state"] == ("closed" if sealed else "crashed")

    scene.script(Turn(text="Nothing to do."))
    again = second.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[2]
    told_once(request)
    assert len(notices(request)) == (0 if sealed else 1)
    assert calls_in(request) == ([] if sealed else [shell("echo one >> side")])
    if not sealed:
        known = any(r["type"] == "turn" and r["state"] == "completed" for r in before)
        assert ("Your last turn had come to its end" in notices(request)[0]) is known
        check_exact(scene, second)
    check_log(scene, before)
    assert second.status()["state"] == "closed"
    assert scene.side() == ["one"]


class Lost:
    """A job whose machine was lost in a call, as it was then; `again` brings bucket and workspace back to that."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.machines = 0
        self.seen = 0
        scene.script(
            Turn(text="Much to read.", calls=[shell("seq 1 20000", "gemini")]),
            Turn(
                text="Then.",
                calls=[shell("echo begun >> side; touch started; sleep 600; echo ended >> side", "gemini")],
            ),
        )
        hold = scene.hold_turn(1)
        machine = scene.machine("vm-lost")
        run = machine.ask(TASK)
        scene.asked(2)
        scene.saved(1)
        hold.set()
        until(lambda: (scene.workspace / "started").exists(), "the second call runs")
        run.kill()
        run.died()
        machine.end()
        for folder in (scene.bucket, scene.workspace):
            shutil.copytree(folder, self._copy(folder))

    def _copy(self, folder: Path) -> Path:
        return folder.with_name(folder.name + ".as-lost")

    def again(self) -> None:
        for folder in (self.scene.bucket, self.scene.workspace):
            shutil.rmtree(folder)
            shutil.copytree(self._copy(folder), folder)
        self.scene.script(Turn(text="I looked. I stop here."))
        self.seen = len(self.scene.model.requests)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, agent_cli: Callable[[str], Path]) -> Iterator[Lost]:
    """On Gemini, whose session is of several files."""
    with agent_scene(tmp_path_factory.mktemp("lost"), agent_cli, "gemini") as scene:
        yield Lost(scene)


@pytest.mark.xdist_group("kill-in-recovery")
@pytest.mark.parametrize("point", once(IN_A_RESTORE + IN_A_RECOVERY, "restore.between_moves"))
def test_killed_in_a_recovery(lost: Lost, point: str) -> None:
    """I3, I4, I8: a half restored machine is no hindrance to itself, nor is a half recovered job to another one."""
    lost.again()
    scene = lost.scene
    second = scene.machine(f"{point}-2")
    second.ask(TASK, options=["--wait"], WAL_AGENT_FAILPOINT=point).died()
    assert len(scene.model.requests) == lost.seen, "no agent was started"
    before = scene.records()
    assert [r["type"] for r in before].count("recovery") == (1 if point == "recovery.after_record" else 0)

    third = second if point in IN_A_RESTORE else scene.machine(f"{point}-3")
    again = third.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert len(scene.model.requests) == lost.seen + 1
    request = scene.model.requests[-1]
    told_once(request)
    assert [c[1]["command"][:10] for c in calls_in(request)] == ["seq 1 2000", "echo begun"]
    assert len(notices(request)) == 1
    assert "outcome unknown" in str(results_in(request)[-1])
    log = check_log(scene, before)
    assert [r["call"] for r in log if r["type"] == "end"] == [1]
    check_exact(scene, third)
    outputs = [*(third.home / ".gemini" / "tmp").glob("*/tool-outputs/session-*/*")]
    assert ["\n20000\n" in path.read_text() for path in outputs] == [True]
    assert not [*third.home.rglob("*wal-agent-staged*")]
    assert scene.side() == ["begun"]


@pytest.mark.parametrize("point", IN_HOUSEKEEPING)
def test_killed_in_housekeeping(tmp_path: Path, point: str) -> None:
    """I2, I3, R4, R5: whatever was stored or deleted by then, replay gives the whole state, and the job goes on."""
    url = f"file://{tmp_path / 'bucket'}"
    argv = [sys.executable, "-m", "tests.e2e.housekeeper", url]
    root = Path(wal_agent.__file__).parents[1]

    def keep_house(folder: str, **env: str) -> int:
        path = tmp_path / folder
        path.mkdir()
        return subprocess.run([*argv, str(path)], cwd=root, env={**os.environ, **env}, check=False).returncode

    assert keep_house("mirror-1", WAL_AGENT_FAILPOINT=f"{point}:2") == -signal.SIGKILL
    with opened(f"file://{tmp_path}/bucket") as bucket:
        found = replay(bucket, Keys("job"))
        assert found.damage is None
        killed = found.state.calls
        assert 0 < killed <= CALLS
        assert keep_house("mirror-2") == 0
        found = replay(bucket, Keys("job"))
        assert found.damage is None
        assert found.state.calls == killed + CALLS
        assert [o.opening.epoch for o in found.state.openings] == [1, 2]
        assert len(found.state.open) <= 1
        left = [e.key for e in bucket.list("job/log/")]
        assert len(left) < found.seq, "retention has done its work after all"
