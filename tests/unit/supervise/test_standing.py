"""supervise/standing.py: every command sees the same of a spool on this machine (R9)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.supervise.crew import short_folder
from tests.unit.wal.spooling import Disk, call, cut_off, down, up
from tests.unit.wal.world import FIELDS, KEYS, TTL, World
from wal_agent.cli.view import look
from wal_agent.config import Settings
from wal_agent.errors import LeaseHeld
from wal_agent.supervise import machine
from wal_agent.supervise.acknowledge import acknowledge_call
from wal_agent.supervise.acquire import Spooling, acquire_job
from wal_agent.supervise.dry_run import foresee_start
from wal_agent.supervise.unlock import UnlockRequest, unlock
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import Claim

SETTINGS = Settings(bucket="file:///nowhere", job="job")


class Machine:
    """Real folders and locks; each has a kernel of its own."""

    def __init__(self, world: World, root: Path, name: str) -> None:
        self.world = world
        self.env = {
            "HOME": str(root),
            "XDG_STATE_HOME": str(root / name),
            "WAL_AGENT_RUNTIME_DIR": str(root / f"r-{name}"),
            "WAL_AGENT_HOST_ID": name,
        }

    def start(self, run: str) -> tuple[OpenedJob, machine.RunDir]:
        run_dir = machine.RunDir.create(machine.runtime_dir(self.env), run)
        here = machine.this_host(self.env, run_dir.lock)
        claim = Claim(run, here, "gemini", "/w", TTL)
        spooling = Spooling(machine.spools_dir(self.env), True)
        world = self.world
        opened = acquire_job(
            world.bucket, KEYS, here, claim, FIELDS, world.clock, random.Random(1), False, lambda _: None, spooling
        )
        return opened, run_dir

    def cut_off(self) -> None:
        """A run that died in an outage, with call 1 in its spool only."""
        job, run_dir = self.start("dead")
        down(self.world)
        call(job, "one")
        cut_off(job)
        run_dir.end()
        up(self.world)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def world(folder: Path) -> World:
    world = World()
    Machine(world, folder, "vm-1").cut_off()
    return world


def test_on_the_machine_of_the_spool_all_say_that_a_start_carries_it_in(world: World, folder: Path) -> None:
    here = Machine(world, folder, "vm-1")
    seen = foresee_start(world.bucket, KEYS, folder, "gemini", SETTINGS, here.env)
    assert "refused" not in seen.plan and any("first carry in 1 segment of" in row for row in seen.rows)
    done = unlock(world.bucket, KEYS, UnlockRequest(None), here.env)
    assert not done.done and done.said.endswith("The next `wal-agent run` opens it at once.")
    assert "a start here carries them in" in done.notes[0] and "accept-loss" not in done.notes[0]
    assert look(world.bucket, KEYS, here.env).state == "cut_off"
    job, run_dir = here.start("next")
    assert [o.intent.agent_call for o in job.replay.state.open] == ["one"]
    run_dir.end()


def test_a_call_is_not_settled_past_what_the_spool_here_holds(world: World, folder: Path) -> None:
    """R9, I8: opening without it would leave it behind for good."""
    here = Machine(world, folder, "vm-1")
    before = world.inner.get(KEYS.lease).version
    with pytest.raises(LeaseHeld, match="Run it here first: `wal-agent run AGENT` carries in"):
        acknowledge_call(world.bucket, KEYS, TTL, 1, True, here.env)
    assert world.inner.get(KEYS.lease).version == before


def test_elsewhere_the_loss_has_to_be_accepted(world: World, folder: Path) -> None:
    away = Machine(world, folder, "vm-2")
    world.clock.at += TTL + 1
    assert "--accept-loss" in foresee_start(world.bucket, KEYS, folder, "gemini", SETTINGS, away.env).plan
    with pytest.raises(LeaseHeld, match="--accept-loss"):
        acknowledge_call(world.bucket, KEYS, TTL, 1, True, away.env)
    done = unlock(world.bucket, KEYS, UnlockRequest(None), away.env)
    assert "`wal-agent run --accept-loss` opens it at once" in done.said and "one elsewhere needs" in done.notes[0]


def test_behind_a_reboot_the_spool_is_carried_in_when_one_ttl_has_passed(tmp_path: Path) -> None:
    """R9, I2: the owner lives, and its lock looks free from another client of the same file system."""
    world = World()
    disk = Disk(world, tmp_path / "spools")
    first = disk.start("a")
    down(world)
    call(first, "one")
    up(world)
    first.lease.renew()
    cut_off(first)
    disk.reboot()
    with pytest.raises(LeaseHeld, match="can be taken over in 30 s"):
        disk.start("b")
    first.lease.renew()
    world.clock.at += TTL
    assert [o.intent.agent_call for o in disk.start("c").replay.state.open] == ["one"]
