"""Several owners, or none: zombies, two starts, killed parts, an unreachable bucket, signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess

from tests.e2e.scene import Scene, shell, told, until
from tests.faulty_bucket import FaultFile, faulty_environment, write_faults
from tests.processes import gone, still_runs
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

LONG = "echo begun >> side; touch started; sleep 600; echo ended >> side"


def running(scene: Scene) -> bool:
    return (scene.workspace / "started").exists()


def test_two_starts_at_once(scene: Scene) -> None:
    """I2: one runs, the other exits 75 with one line that says who and what to do."""
    scene.script(Turn(calls=[shell(LONG)]))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    runs = [first.ask("work"), second.ask("work")]
    loser = until(lambda: next((r for r in runs if r.process.poll() is not None), None), "one of them gives up")
    assert loser.process.returncode == 75, loser.stderr()
    assert "wal-agent status" in loser.stderr() or "--wait" in loser.stderr()
    winner = next(r for r in runs if r is not loser)
    until(lambda: running(scene), "the other one works")
    assert winner.process.poll() is None
    assert scene.side() == ["begun"]


def test_a_second_start_on_the_same_machine_is_refused_at_once(scene: Scene) -> None:
    scene.script(Turn(calls=[shell(LONG)]))
    machine = scene.machine("vm-1")
    machine.ask("work")
    until(lambda: running(scene), "the tool runs")
    second = machine.ask("work", wait=True)
    assert second.process.returncode == 75
    assert "is running on" in second.stderr()
    early = machine.cli("ack", "1", "--not-done")  # I8: a call that runs has its own end before it
    assert early.returncode == 64 and "running now" in early.stderr


def test_zombie_is_fenced(scene: Scene) -> None:
    """I2, I5: a wrapper that slept past its lease can allow nothing, ends its agent, and exits 76."""
    scene.script(Turn(text="Starting.", calls=[shell("touch started")]), Turn(calls=[shell("echo zombie >> side")]))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    hold = scene.hold_turn(1)
    old = first.ask("work")
    until(lambda: running(scene), "the first tool ran")
    scene.asked(2)
    agent = old.agent_pid()
    scene.stop(old)
    scene.model.turns.append(Turn(text="Taken over.", when="[wal-agent recovery]"))
    new = second.ask("work", options=["--wait"], wait=True)
    assert new.process.returncode == 0, new.stderr()
    hold.set()  # the zombie's agent gets its call now, and asks the stopped wrapper
    old.kill(signal.SIGCONT)
    assert old.wait() == 76, old.stderr()
    assert "taken over" in old.stderr()
    assert gone(agent)
    assert scene.side() == []


def test_wrapper_alone_killed(scene: Scene) -> None:
    """I5: the agent dies with its wrapper; nothing further runs."""
    scene.script(Turn(calls=[shell(LONG)]), Turn(calls=[shell("echo after >> side")]))
    machine = scene.machine("vm-1")
    run = machine.ask("work")
    until(lambda: running(scene), "the tool runs")
    agent = run.agent_pid()
    run.kill()
    until(lambda: gone(agent), "the agent is gone")
    assert scene.side() == ["begun"]


@deep
def test_agent_alone_killed(scene: Scene) -> None:
    """I6, I8: the shell's code for SIGKILL is passed on, the tree is gone, the call in flight stays told."""
    scene.script(Turn(calls=[shell(LONG)]))
    machine = scene.machine("vm-1")
    run = machine.ask("work")
    until(lambda: running(scene), "the tool runs")
    os.kill(run.agent_pid(), signal.SIGKILL)
    assert run.wait() == 137, run.stderr()
    status = machine.status()
    assert status["state"] == "released"
    assert [c["tool"] for c in status["unsettled"]] == ["Bash"]
    assert "open: #" in run.stderr()
    assert not still_runs(machine.home, "touch started; sleep 600")


def test_unwritable_bucket_denies_and_loses_nothing(scene: Scene) -> None:
    """I5, I3, I8: no intent, no tool; the agent is told in one sentence; what was queued is in the log afterwards. The
    turn that this ended is not complete: the same command goes on with it."""
    scene.script(
        Turn(calls=[shell("echo one >> side")]),
        Turn(calls=[shell("echo two >> side")]),
        Turn(text="Stopped, as told."),
        Turn(calls=[shell("echo two >> side")]),
        Turn(text="Done."),
    )
    hold = scene.hold_turn(1)
    machine = scene.machine("vm-1")
    faults = scene.root / "faults.json"
    run = machine.ask("work", **faulty_environment(faults), WAL_AGENT_APPEND_DEADLINE="5")
    scene.asked(2)
    write_faults(faults, FaultFile(down=True, ops=("put",), prefixes=("job/log/",)))
    hold.set()
    scene.asked(3)
    assert "did not run this" in told(scene.model.requests[-1])
    faults.unlink()
    assert run.wait() == 74, run.stderr()
    assert scene.side() == ["one"]
    ends = {r["call"]: r["how"] for r in machine.log() if r["type"] == "end"}
    assert ends == {1: "done", 2: "refused"} and machine.status()["state"] == "released"
    again = machine.ask("work", wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert "wal-agent refused these calls before they began" in told(scene.model.requests[3])
    assert scene.side() == ["one", "two"] and machine.status()["state"] == "closed"


@deep
def test_a_disk_that_is_unmounted_in_mid_run_loses_nothing(scene: Scene) -> None:
    """I3, I5: nothing is acknowledged under the mount point; with the disk back the run goes on, and a
    start without it is refused instead of beginning anew."""
    scene.script(
        Turn(calls=[shell("echo one >> side")]),
        Turn(calls=[shell("echo two >> side")]),
        Turn(text="Stopped, as told."),
    )
    hold = scene.hold_turn(1)
    disk, point = scene.root / "disk", scene.bucket
    disk.mkdir()
    point.mkdir()
    mount = ("mount", "--bind", str(disk), str(point))
    mounted = ("unshare", "--mount", "sh", "-c", f'{shlex.join(mount)}; exec "$@"', "sh")
    machine = scene.machine("vm-1", enter=mounted)
    run = machine.ask("work", WAL_AGENT_APPEND_DEADLINE="4")
    scene.asked(2)
    inside = ("nsenter", "--target", str(run.pid), "--mount")
    subprocess.run([*inside, "umount", "--lazy", str(point)], check=True)
    hold.set()
    scene.asked(3)
    assert "did not run this" in told(scene.model.requests[-1])
    assert [*point.iterdir()] == []
    subprocess.run([*inside, *mount], check=True)
    assert run.wait() == 74, run.stderr()
    assert scene.side() == ["one"]
    ends = {r["call"]: r["how"] for r in machine.log() if r["type"] == "end"}
    assert ends == {1: "done", 2: "refused"}
    machine.enter = ()
    for refused in (machine.ask("more", wait=True).process, machine.cli("status")):
        assert refused.returncode == 69
    assert "Is it mounted?" in machine.runs[-1].stderr() and [*point.iterdir()] == []
    assert machine.cli("doctor", "--forget").returncode == 0
    assert "no job" in machine.cli("status").stderr


@deep
def test_sigterm_drains_and_the_next_start_goes_on_at_once(scene: Scene) -> None:
    """ARCHITECTURE.md, preemption: exit 143, the lease is given up, another machine needs no waiting."""
    scene.script(Turn(text="Thinking.", calls=[shell("echo one >> side")]), Turn(text="never said"))
    hold = scene.hold_turn(1)
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    run = first.ask("work")
    scene.asked(2)
    run.kill(signal.SIGTERM)
    assert run.wait() == 143, run.stderr()
    hold.set()
    assert first.status()["state"] == "released"
    scene.script(Turn(text="Going on."))
    seen = len(scene.model.requests)
    again = second.ask("work", wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert "with everything saved, at" in told(scene.model.requests[seen])
    assert "drained (SIGTERM). You are now on" in told(scene.model.requests[seen])
    assert scene.side() == ["one"]


def test_agents_own_exit_code_is_passed_on(scene: Scene) -> None:
    """I6."""
    scene.script(Turn(status=400))
    run = scene.machine("vm-1").ask("work", wait=True)
    assert run.process.returncode == 1
