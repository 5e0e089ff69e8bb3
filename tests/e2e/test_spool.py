"""--on-outage spool on the real CLI: the bucket goes away, tools go on, the machine dies, and nothing is done twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import Machine, Run, Scene, calls_in, check_log, notices, shell, until
from tests.faulty_bucket import FaultFile, faulty_environment, write_faults
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

TASK = "please do the work"
SPOOL = ("--on-outage", "spool")
LONG = "echo two >> side; touch runs; sleep 600; echo ended >> side"


class Outage:
    """Switches one machine's bucket off and on."""

    def __init__(self, scene: Scene, name: str = "faults") -> None:
        self.file: Path = scene.root / name

    @property
    def env(self) -> dict[str, Any]:
        return {**faulty_environment(self.file), "WAL_AGENT_APPEND_DEADLINE": "10"}

    def begin(self) -> None:
        write_faults(self.file, FaultFile(down=True))

    def end(self) -> None:
        self.file.unlink(missing_ok=True)


def spools(machine: Machine) -> list[Path]:
    return sorted((machine.home / ".local/state/wal-agent/spools").glob("*"))


def segments(machine: Machine) -> list[Path]:
    return [p for folder in spools(machine) for p in folder.glob("0*/*") if re.fullmatch(r"\d{20}", p.name)]


def exists(scene: Scene, name: str) -> Callable[[], bool]:
    return lambda: (scene.workspace / name).exists()


def cut_off_in_an_outage(scene: Scene, machine: Machine, outage: Outage) -> Run:
    """A call is saved, the bucket goes away, one call is done and one runs, and the run is killed."""
    scene.script(
        Turn(text="First.", calls=[shell("echo saved >> side")]),
        Turn(text="Then.", calls=[shell("echo one >> side")]),
        Turn(text="Last.", calls=[shell(LONG)]),
    )
    hold = scene.hold_turn(1)
    run = machine.ask(TASK, options=SPOOL, **outage.env)
    scene.asked(2)
    scene.saved(1)
    outage.begin()
    hold.set()
    until(exists(scene, "runs"), "the third call runs on the spool")
    assert run.process.poll() is None
    run.kill()
    run.died()
    return run


def intents(records: list[dict[str, Any]]) -> list[str]:
    """The input of each call that was announced, in order."""
    return [r["input"]["data"] for r in records if r["type"] == "intent"]


def test_an_outage_does_not_stop_the_work_and_its_end_saves_it(scene: Scene) -> None:
    """R9, R7: for longer than the lease's ttl; the job is closed with all of it in the log, and the folder is gone."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    scene.script(
        Turn(text="First.", calls=[shell("echo one >> side")]),
        Turn(text="Then.", calls=[shell("echo two >> side; sleep 4; echo three >> side")]),
        Turn(text="Last.", calls=[shell("echo four >> side")]),
        Turn(text="All done."),
    )
    hold, last = scene.hold_turn(1), scene.hold_turn(3)
    run = machine.ask(TASK, options=SPOOL, **outage.env)
    scene.asked(2)
    outage.begin()
    hold.set()
    until(lambda: scene.side() == ["one", "two", "three", "four"], "the work goes on")
    scene.asked(4)
    assert segments(machine) and "on this machine's disk" in run.stderr()
    assert "spooling: " in machine.cli("status").stdout
    outage.end()
    last.set()
    assert run.wait() == 0, run.stderr()
    log = check_log(scene, [])
    assert [r["how"] for r in log if r["type"] == "end"] == ["done"] * 3
    assert machine.status()["state"] == "closed" and spools(machine) == []


@deep
def test_without_it_the_same_outage_denies(scene: Scene) -> None:
    """I1, I5: also when the lease runs out while the hook waits for its answer: the hook must not be ended as a tool
    (Gemini runs a tool whose hook was killed)."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    scene.script(
        Turn(text="First.", calls=[shell("echo one >> side")]),
        Turn(text="Then.", calls=[shell("echo two >> side")]),
        Turn(text="I stop here."),
    )
    hold = scene.hold_turn(1)
    run = machine.ask(TASK, **outage.env)
    scene.asked(2)
    outage.begin()
    hold.set()
    scene.asked(3)
    outage.end()
    run.wait()
    assert scene.side() == ["one"] and spools(machine) == []


@deep
def test_killed_in_an_outage_the_same_machine_has_it_all(scene: Scene) -> None:
    """R9, I8: the spooled call and its end come into the log in their order, what ran is told, nothing runs twice."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    cut_off_in_an_outage(scene, machine, outage)
    assert segments(machine)
    before = scene.records()
    outage.end()
    scene.script(Turn(text="I verified: it began. I stop here."))
    seen = len(scene.model.requests)
    again = machine.ask(TASK, wait=True)
    assert again.process.returncode == 0, again.stderr()
    log = check_log(scene, before)
    found = [(r["type"], r["call"]) for r in log if r["type"] in ("intent", "end")]
    assert found[:5] == [("intent", 1), ("end", 1), ("intent", 2), ("end", 2), ("intent", 3)]
    assert scene.side() == ["saved", "one", "two"]
    told = notices(scene.model.requests[seen])[-1]
    assert "echo two >> side" in told and "in flight" in told
    assert len(calls_in(scene.model.requests[seen])) == 3
    assert spools(machine) == [] and "sleep 600" in again.stderr()


@deep
def test_another_machine_needs_a_persons_word(scene: Scene) -> None:
    """R9: 75 whatever time has passed; with --accept-loss it goes on without the spool, which the first one keeps."""
    first, outage = scene.machine("vm-1"), Outage(scene)
    cut_off_in_an_outage(scene, first, outage)
    second = scene.machine("vm-2")
    folder = spools(first)[0]

    def refused() -> str:
        run = second.ask(TASK, wait=True)
        assert run.process.returncode == 75, run.stderr()
        return run.stderr() if "--accept-loss" in run.stderr() else ""  # before its ttl is over it may be alive

    assert str(folder) in until(refused, "the owner counts as dead")
    kept = segments(first)
    scene.script(Turn(text="Going on."), Turn(text="And on."))
    scene.hold_turn(1)
    hold = scene.hold_turn(0)
    taken = second.ask(TASK, options=["--accept-loss", "--wait"])
    until(lambda: "without what only" in taken.stderr(), "the loss is told")
    until(lambda: second.status()["state"] == "running", "it runs there")
    outage.end()
    late = first.ask(TASK, options=SPOOL, wait=True)
    assert late.process.returncode == 75, late.stderr()
    assert segments(first) == kept
    hold.set()
    assert taken.wait() == 0, taken.stderr()
    assert "echo one >> side" not in str(intents(scene.records()))
    scene.script(Turn(text="Nothing to do."))
    later = first.ask("anything", wait=True)
    assert f"never came into the log: {folder}" in later.stderr()
    assert segments(first) == kept


@deep
@pytest.mark.parametrize("point", ["spool.before_store", "spool.after_store", "spool.before_drop"])
def test_killed_while_it_spools(scene: Scene, point: str) -> None:
    """R9: what ran has its intent in the log behind the next start; what was not answered did not run."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    scene.script(
        Turn(text="First.", calls=[shell("echo saved >> side")]),
        Turn(text="Then.", calls=[shell("echo one >> side")]),
        Turn(text="Last.", calls=[shell("echo two >> side")]),
        Turn(text="Done."),
    )
    hold = scene.hold_turn(1)
    scene.hold_turn(3)
    run = machine.ask(TASK, options=SPOOL, WAL_AGENT_FAILPOINT=point, **outage.env)
    scene.asked(2)
    scene.saved(1)
    outage.begin()
    hold.set()
    if point == "spool.before_drop":
        scene.asked(4)
        outage.end()
    run.died()
    outage.end()
    came_back(scene, machine)


@deep
@pytest.mark.parametrize("point", ["spool.before_begin", "spool.before_rename", "spool.after_rename"])
def test_killed_while_it_carries_in(scene: Scene, point: str) -> None:
    """R9: twice in a row; each record comes in once."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    cut_off_in_an_outage(scene, machine, outage)
    outage.end()
    for _ in range(2):
        machine.ask(TASK, options=SPOOL, WAL_AGENT_FAILPOINT=point).died()
    came_back(scene, machine)
    assert scene.side() == ["saved", "one", "two"]
    assert len(intents(scene.records())) == 3


def came_back(scene: Scene, machine: Machine) -> None:
    """The next start has every call that ran, once."""
    before = scene.records()
    scene.script(Turn(text="I looked. I stop here."))
    again = machine.ask(TASK, wait=True)
    assert again.process.returncode == 0, again.stderr()
    check_log(scene, before)
    logged = str(intents(scene.records()))
    assert all(f"echo {line} >> side" in logged for line in scene.side())
    assert len(set(scene.side())) == len(scene.side()) and spools(machine) == []
