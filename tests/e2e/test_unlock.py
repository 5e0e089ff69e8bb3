"""A person takes a job from an owner that hangs, or whose lease nobody can read."""

from __future__ import annotations

import signal
import subprocess
import threading

from tests.e2e.scene import Machine, Run, Scene, opened, shell, told, until
from tests.processes import gone
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn
from wal_agent.wal.keys import Keys

LONG_TTL = ["--ttl", "600"]  # seconds: that no lease runs out here, unlike in the tests of takeovers by time


def works(scene: Scene, machine: Machine) -> tuple[Run, threading.Event]:
    """A run whose model is being asked for the second time, after its first tool; it answers at the event."""
    scene.script(Turn(text="Starting.", calls=[shell("touch started")]), Turn(calls=[shell("echo zombie >> side")]))
    answer = scene.hold_turn(1)
    run = machine.ask("work", options=LONG_TTL)
    until(lambda: (scene.workspace / "started").exists(), "the first tool ran")
    scene.asked(2)
    return run, answer


def takes_over(scene: Scene, machine: Machine) -> None:
    """It is not waited for: nothing here would run out within the test's patience."""
    scene.model.turns.append(Turn(text="Taken over.", when="[wal-agent recovery]"))
    run = machine.ask("work", options=LONG_TTL, wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert "Recovering" in run.stderr()
    assert "[wal-agent recovery]" in told(scene.model.requests[-1])


def test_a_host_that_hangs_is_unlocked_and_fenced_when_it_wakes(scene: Scene) -> None:
    """R8, I2, I5: the next machine has the job at once; the old one allows nothing, ends its agent, and exits 76."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    old, answer = works(scene, first)
    agent = old.agent_pid()
    scene.stop(old)
    refused = second.ask("work", options=LONG_TTL, wait=True)
    assert refused.process.returncode == 75, refused.stderr()
    epoch = second.status()["epoch"]
    assert second.cli("unlock", "--epoch", str(epoch + 1), "--now").returncode == 64
    unlocked = second.cli("unlock", "--epoch", str(epoch), "--now", "--reason", "vm-1 is gone")
    assert unlocked.returncode == 0 and "opens it at once" in unlocked.stderr, unlocked.stderr
    takes_over(scene, second)
    assert second.status()["epoch"] == epoch + 1
    answer.set()  # the old machine's agent gets its call now, and asks the stopped wrapper
    old.kill(signal.SIGCONT)
    assert old.wait() == 76, old.stderr()
    assert gone(agent)
    assert scene.side() == []


@deep
def test_a_live_owner_that_is_unlocked_stops_by_itself(scene: Scene) -> None:
    """R8: its next heartbeat finds the lease gone; nobody took the job over yet."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    scene.script(Turn(calls=[shell("touch started; sleep 600")]))
    run = first.ask("work")
    until(lambda: (scene.workspace / "started").exists(), "the tool runs")

    def unlocked() -> subprocess.CompletedProcess[str] | None:
        said = second.cli("unlock", "--epoch", "1", "--reason", "enough")
        return None if said.returncode == 75 else said  # a heartbeat came in between: look again

    done = until(unlocked, "it is unlocked between two heartbeats")
    assert done.returncode == 0 and "it may be alive" in done.stderr, done.stderr
    assert run.wait() == 76, run.stderr()
    assert "unlocked by hand (enough)" in run.stderr()


@deep
def test_a_damaged_lease_is_replaced_and_the_job_goes_on(scene: Scene) -> None:
    """R8: 73 with the way out in the line, and the session is there afterwards."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    old, _ = works(scene, first)
    scene.saved(1)
    old.kill()
    old.died()
    with opened(scene.url) as bucket:
        lease = Keys("job").lease
        bucket.put(lease, b"{", if_version=bucket.get(lease).version)
    refused = second.ask("work", options=LONG_TTL, wait=True)
    assert refused.process.returncode == 73 and "wal-agent unlock --job job" in refused.stderr(), refused.stderr()
    assert second.cli("unlock", "--damaged", "--now").returncode == 64
    mended = second.cli("unlock", "--damaged", "--epoch", "1", "--now")
    assert mended.returncode == 0, mended.stderr
    takes_over(scene, second)
    assert second.status()["epoch"] == 2
