"""Real copies of one sandbox (state folder, sessions, run folders, workspace), each at the same paths, with mounts
and processes of its own: docs/how-to/sandboxes.md, with its recipes as they stand there."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from tests.e2e.scene import PATIENCE, TASK, Machine, Run, Scene, check_log, notices, shell, until
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/sandboxes.md"
CHECKPOINT, RESUME, FORK = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
APART = ["unshare", *(["--map-root-user"] if os.geteuid() else []), "--mount", "--pid", "--kill-child", "--mount-proc"]


def copies(original: Machine, count: int, same_id: bool) -> list[Machine]:
    """As a sandbox service makes them of a disk, while the original may live."""
    folders = (original.home, original.workspace, original.runtime)
    made = []
    for n in range(count):
        each = copy.copy(original)
        each.name, each.runs, each.kernel = f"copy-{n}", [], "vm-1" if same_id else ""
        binds = []
        for folder in folders:
            own = original.root / each.name / folder.name
            shutil.copytree(folder, own, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
            own.chmod(folder.stat().st_mode)
            binds.append(shlex.join(["mount", "--bind", str(own), str(folder)]))
        script = " && ".join([*binds, shlex.join(["cd", str(original.workspace)]), 'exec "$@"'])
        each.enter = (*APART, "sh", "-c", script, "sh")
        made.append(each)
    return made


def side(machine: Machine) -> list[str]:
    """What tools appended in a copy's own workspace."""
    return (machine.root / machine.name / machine.workspace.name / "side").read_text().split()


def recipe(machine: Machine, block: str, **named: str) -> subprocess.Popen[str]:
    """A block of the page with this test's names."""
    for old, new in {"shop": "job", "claude": machine.agent, **named}.items():
        block = re.sub(rf"\b{old}\b", new, block)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [*machine.enter, "sh", "-ec", block]
    pipe = subprocess.PIPE
    env, null = machine.env(PATH=path), subprocess.DEVNULL
    return subprocess.Popen(words, cwd=machine.workspace, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True)


def done(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out + err


def at_work(scene: Scene, machine: Machine) -> tuple[Run, Event]:
    """A run whose first call is saved, and which waits for the model, until the event is set."""
    scene.script(Turn("First.", calls=[shell("echo one >> side")]), Turn(calls=[shell("echo zombie >> side")]))
    hold = scene.hold_turn(1)
    run = machine.ask(TASK)
    scene.asked(2)
    scene.saved(1)
    until(lambda: (tree := scene.replay().state.workspace) is not None and tree.holds >= 1, "the files are saved")
    return run, hold


@deep
def test_the_recipes_around_a_snapshot_lose_nothing(scene: Scene) -> None:
    """I2, I3: of three copies that run the recipe one goes on with the turn, and its words and files are there; the
    others are refused with 75, and one begins a job of its own from the same record."""
    original = scene.machine("vm-1")
    run, _ = at_work(scene, original)
    code, said = done(recipe(original, CHECKPOINT))
    assert code == 0, said
    assert run.wait() == 128 + signal.SIGTERM, run.stderr()
    before = scene.records()
    assert [r["type"] for r in before if r["type"] == "checkpoint"]
    boxes = copies(original, 3, same_id=True)

    scene.script(Turn("More.", calls=[shell("echo two >> side")]), Turn("finished"))
    hold, asked = scene.hold_turn(1), len(scene.model.requests)
    started = [recipe(box, RESUME) for box in boxes]
    scene.asked(asked + 2)
    until(lambda: sum(process.poll() is not None for process in started) == 2, "two of them give up")
    for process in started:
        if process.poll() is not None:
            code, said = done(process)
            assert code == 75 and ("is running on" in said or "was taken by" in said), said
    hold.set()
    [winner] = [n for n, process in enumerate(started) if process.poll() is None]
    code, said = done(started[winner])
    assert code == 0, said
    log = check_log(scene, before)
    assert side(boxes[winner]) == ["one", "two"] and len(notices(scene.model.requests[-1])) == 1
    assert [r["call"] for r in log if r["type"] == "intent"] == [1, 2]

    scene.script(Turn("Another.", calls=[shell("echo three >> side")]), Turn("finished"))
    other = boxes[winner - 1]
    words = shlex.join(["--", *other.rehearsal.args("Try another way.")])
    code, said = done(recipe(other, f"{FORK.strip()} {words}", **{"412": str(before[-1]["record"])}))
    assert code == 0, said
    assert side(other) == ["one", "three"] and check_log(scene, log) == log


@deep
@pytest.mark.parametrize("same_id", [True, False], ids=["same id", "other id"])
def test_copies_of_a_run_at_work_are_refused_until_it_is_frozen(scene: Scene, same_id: bool) -> None:
    """I2, I3: while it lives, and then all but one; the original ends with 76 when it wakes, and starts no call."""
    original = scene.machine("vm-1")
    run, zombie = at_work(scene, original)
    before = scene.records()
    boxes = copies(original, 3, same_id)
    for box in boxes:
        early = box.ask(TASK, wait=True)
        assert early.process.returncode == 75 and "is running on" in early.stderr(), early.stderr()
    assert run.process.poll() is None and scene.records()[: len(before)] == before

    scene.stop(run)
    scene.script(Turn("I looked.", calls=[shell("echo two >> side")]), Turn("finished"))
    hold, asked = scene.hold_turn(1), len(scene.model.requests)

    def works() -> bool:
        return len(scene.model.requests) >= asked + 2

    def race() -> list[Run]:
        """Starts of all three, once one of them works."""
        started = [box.ask(TASK) for box in boxes]
        until(lambda: sum(each.process.poll() is not None for each in started) >= 2, "two of them give up")
        until(lambda: works() or all(each.process.poll() is not None for each in started), "one works, or none")
        codes = {each.process.poll() for each in started}
        assert codes <= {75, None}, [each.stderr() for each in started]
        return started if None in codes else []

    started = until(race, "the lease ends")
    run.kill(signal.SIGCONT)
    assert run.wait() == 76, run.stderr()
    zombie.set()
    hold.set()
    [winner] = [n for n, each in enumerate(started) if each.process.returncode is None]
    assert started[winner].wait() == 0, started[winner].stderr()
    log = check_log(scene, before)
    assert [r["call"] for r in log if r["type"] == "intent"] == [1, 2]
    assert (side(boxes[winner]), scene.side()) == (["one", "two"], ["one"])
