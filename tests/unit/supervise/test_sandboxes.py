"""Copies of one sandbox (state folder, run folders, spool), on machines that have its id or another one.

One owner (I2); no acknowledged record is lost (I3); each loser is told so, and by what exit code.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.supervise.crew import short_folder
from tests.unit.supervise.test_machine import Machine
from tests.unit.wal.spooling import call, calls, cut_off, down, up
from tests.unit.wal.world import KEYS, TTL, World, drain, intent
from wal_agent.errors import Fenced, LeaseHeld
from wal_agent.supervise import ancestry, machine
from wal_agent.wal.job import close_job
from wal_agent.wal.reader import replay


@pytest.fixture
def root() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy sees no process of the original."""
    monkeypatch.setattr(ancestry, "is_supervisor", lambda *_: False)


class Sandboxes:
    """The original `vm` and copies of it. Each sees its own folders at the same paths; `enter` changes the view."""

    def __init__(self, root: Path) -> None:
        self.world, self.root, self.inside = World(), root, "vm"
        self.original = Machine(self.world, root, "vm")

    def copy(self, name: str) -> None:
        for folder in ("vm", "r-vm"):
            if (self.root / folder).exists():
                shutil.copytree(self.root / folder, self.root / f"{folder}-{name}")

    def enter(self, name: str, id: str) -> Machine:
        for folder in ("vm", "r-vm"):
            here = self.root / folder
            if here.exists():
                here.rename(self.root / f"{folder}-{self.inside}")
            if (there := self.root / f"{folder}-{name}").exists():
                there.rename(here)
        self.inside = name
        made = Machine(self.world, self.root, "vm")
        made.env["WAL_AGENT_HOST_ID"] = id
        return made


@pytest.mark.parametrize("same_id", [True, False], ids=["same id", "other id"])
def test_copies_of_a_live_sandbox_wait_for_its_ttl_and_one_goes_on(root: Path, same_id: bool) -> None:
    boxes = Sandboxes(root)
    world = boxes.world
    job, _ = boxes.original.start("first")
    job.writer.append(intent(job.writer.next_call(), "one"))
    drain(job)
    names = ["a", "b", "c"]
    for name in names:
        boxes.copy(name)
    ids = {name: "vm" if same_id else name for name in names}
    for name in names:
        with pytest.raises(LeaseHeld) as refused:
            boxes.enter(name, ids[name]).start(f"early-{name}")
        assert refused.value.exit_code == 75
    boxes.enter("vm", "vm")
    job.writer.append(intent(job.writer.next_call(), "two"))
    drain(job)
    world.clock.at += TTL + 1  # the original is frozen
    won, _ = boxes.enter("b", ids["b"]).start("copy")
    with pytest.raises(LeaseHeld):
        boxes.enter("c", ids["c"]).start("late")
    job.writer.append(intent(job.writer.next_call(), "zombie"))
    drain(job)
    assert isinstance(job.writer.ended, Fenced) and job.writer.ended.exit_code == 76
    assert [uid for _, uid in calls(world)] == ["one", "two"] and won.replay.damage is None


@pytest.mark.parametrize("same_id", [True, False], ids=["same id", "other id"])
def test_copies_made_in_an_outage_carry_each_record_in_once(root: Path, same_id: bool) -> None:
    """The original died with a record in its spool, and each copy has it too."""
    boxes = Sandboxes(root)
    world = boxes.world
    job, run_dir = boxes.original.start("first")
    down(world)
    call(job, "one")
    for name in ("a", "b"):
        boxes.copy(name)
    cut_off(job)
    run_dir.end()
    up(world)
    for name in ("a", "vm", "b"):
        world.clock.at += TTL + 1
        opened, at = boxes.enter(name, "vm" if same_id or name == "vm" else name).start(f"next-{name}")
        opened.writer.append(intent(opened.writer.next_call(), f"more {name}"))
        drain(opened)
        assert close_job(opened, "released") == "released"
        at.end()
    assert [uid for _, uid in calls(world)] == ["one", "more a", "more vm", "more b"]
    assert replay(world.inner, KEYS).damage is None


def test_the_lock_of_a_copy_says_nothing_of_the_original(tmp_path: Path) -> None:
    """With the same boot id, process table and path."""
    here, copy, away = (tmp_path / name for name in ("r", "copy", "away"))
    here.mkdir()
    run = machine.RunDir.create(here, "run")
    host = machine.this_host({"WAL_AGENT_HOST_ID": "vm"}, run.lock)
    shutil.copytree(here, copy)
    here.rename(away)
    copy.rename(here)
    assert machine.lock_state(host, host, "run") == "unknown"
    assert machine.lock_state(msgspec.structs.replace(host, file=""), host, "run") == "dead", "as older leases say"
    shutil.rmtree(here)
    away.rename(here)
    assert machine.lock_state(host, host, "run") == "alive"
    run.end()
    assert machine.lock_state(host, host, "run") == "dead"


def test_the_recipes_of_the_page_are_commands() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/sandboxes.md").read_text()
    recipes = [line for block in re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S) for line in block.splitlines()]
    assert len(recipes) == 4
    for line in recipes:
        program, command, *words = shlex.split(line)
        said = subprocess.run(
            [sys.executable, "-m", "wal_agent", command, "--help"], capture_output=True, text=True, check=False
        )
        assert program == "wal-agent" and said.returncode == 0, line
        assert [word for word in words if word.startswith("--") and word not in said.stdout] == [], line
