"""Killed in a batch: Gemini had saved none of its calls, so all that is known of them comes from the log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import (
    Machine,
    Run,
    Scene,
    calls_in,
    check_exact,
    check_log,
    notices,
    results_in,
    until,
)
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell
TASK = "please do the work"
TWIN = "mkdir once 2>/dev/null && echo twin-won | tee -a side || { echo waiting >> twins; sleep 600; }"


def ended(scene: Scene) -> int:
    return sum(r["type"] == "end" for r in scene.records())


def recovered(scene: Scene, machine: Machine) -> tuple[Run, dict[str, Any]]:
    """The next start's run, at its end, and the first request that the model got from it."""
    scene.script(Turn(text="I looked. I stop here."))
    seen = len(scene.model.requests)
    run = machine.ask(TASK, options=["--wait"], wait=True)
    assert run.process.returncode == 0, run.stderr()
    return run, scene.model.requests[seen]


@deep
def test_parallel_shells_some_of_them_done(scene: Scene) -> None:
    """I3, I4, I8: each finished call is in the history once with its own result, each dangling one once with an
    unknown outcome; of identical ones it is told how many are open, not which."""
    a, b = shell("echo a-done | tee -a side"), shell("echo b-done | tee -a side")
    hang, twin = shell("echo hang >> side; touch hangs; sleep 600"), shell(TWIN)
    batch = [a, twin, hang, twin, b, twin]
    scene.script(Turn(text="All at once.", calls=batch))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    run = first.ask(TASK)
    until(lambda: ended(scene) == 3 and len(scene.side("twins")) == 2, "three are done, two twins and one other hang")
    until(lambda: (scene.workspace / "hangs").exists(), "the other one hangs")
    before = scene.records()
    run.kill()
    run.died()
    assert "b-done" not in first.session_file().read_text(), "Gemini itself has saved nothing of the batch"

    again, request = recovered(scene, second)
    assert Counter(map(str, calls_in(request))) == Counter(map(str, batch))
    results = [r.text for r in results_in(request)]
    assert len(results) == len(batch)
    for word in ("a-done", "b-done", "twin-won"):
        assert sum(f"Output: {word}" in result for result in results) == 1, word
    assert sum("outcome unknown" in result for result in results) == 3
    notice = notices(request)[0]
    assert "3 tool calls were in flight" in notice
    assert "2 of 3 identical calls; which of them is not known" in notice
    assert "3 calls that it had not saved yet" in notice
    assert "Output: a-done" not in notice, "their results are in the history"
    assert "3 finished calls that gemini had not written" in again.stderr()
    log = check_log(scene, before)
    check_exact(scene, second)
    assert sum(r["type"] == "intent" for r in log) == len(batch)
    assert len(second.status()["unsettled"]) == 3
    assert sorted(scene.side()) == ["a-done", "b-done", "hang", "twin-won"]


@deep
def test_a_write_that_happened_is_told_as_completed(scene: Scene) -> None:
    """I8: its end was never logged, but the file holds what it was to write: settled by evidence, on any machine."""
    target = scene.workspace / "made"
    write = ("write_file", {"file_path": str(target), "content": "what was asked for\n"})
    scene.script(Turn(text="Two things.", calls=[shell("echo one >> side"), write]))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    # The first record after the file is there: the end of the write, or of the session, whichever comes.
    first.ask(TASK, WAL_AGENT_FAILPOINT=f"append.before_put@{target}").died()
    assert ended(scene) == 1
    written = target.stat()

    _, request = recovered(scene, second)
    assert calls_in(request) == [shell("echo one >> side"), write]
    notice = notices(request)[0]
    assert "Finding: completed." in notice
    assert "holds exactly what the call was to write" in notice
    check_settled(scene, second, "completed")
    assert target.stat().st_mtime_ns == written.st_mtime_ns
    assert scene.side() == ["one"]


@deep
def test_a_write_that_did_not_begin_is_told_as_not_started(scene: Scene) -> None:
    """I8: allowed by us, held by a hook of the user's own: on the same machine the untouched file proves it."""
    target = scene.workspace / "made"
    target.write_text("as it was\n")
    write = ("write_file", {"file_path": str(target), "content": "what was asked for\n"})
    scene.script(Turn(text="Two things.", calls=[shell("echo one >> side"), write]))
    first, second = scene.machine("vm-1", kernel="k"), scene.machine("vm-2", kernel="k")
    hold_by_a_hook(first.settings, scene.workspace / "held")
    run = first.ask(TASK)
    until(lambda: (scene.workspace / "held").exists(), "the user's hook holds the write")
    until(lambda: sum(r["type"] == "intent" for r in scene.records()) == 2, "its intent is logged")
    run.kill()
    run.died()

    _, request = recovered(scene, second)
    assert calls_in(request) == [shell("echo one >> side"), write]
    notice = notices(request)[0]
    assert "Finding: not started." in notice
    assert "is as it was before the call" in notice
    check_settled(scene, second, "not_started")
    assert target.read_text() == "as it was\n"


def hold_by_a_hook(settings: Path, sign: Path) -> None:
    hook = {"name": "mine", "type": "command", "command": f"touch {sign}; sleep 600", "timeout": 600_000}
    wanted = json.loads(settings.read_text()) | {
        "hooks": {"BeforeTool": [{"matcher": "write_file", "hooks": [hook]}]},
    }
    settings.write_text(json.dumps(wanted))


def check_settled(scene: Scene, machine: Machine, finding: str) -> None:
    """The call got its one end from the evidence, when the agent's turn had come to its end; the job is closed."""
    log = check_log(scene, [])
    end = [r for r in log if r["type"] == "end"][-1]
    assert (end["call"], end["how"], end["by"], end["finding"]) == (2, "verified", "recovery", finding)
    status = machine.status()
    assert (status["state"], status["unsettled"]) == ("closed", [])
