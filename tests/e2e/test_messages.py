"""Issue 16 on the real CLIs: a message in the middle of a turn, at its end, and in a crash."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import nats
import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.faults.talk import talk
from tests.servers.nats import NatsServer
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Returned, Said, Turn

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SPEAKING = sorted(name for name, agent in AGENTS.items() if agent.capabilities.speaks)


def spoken(scene: Scene, n: int) -> str:
    parts = scene.model.history(n)
    return "\n".join(part.text for part in parts if isinstance(part, Said | Returned))


def send(machine: Machine, text: str, id: str) -> None:
    done = machine.cli("send", "--job", "job", "--id", id, "--from", "ann", text)
    assert done.returncode == 0, done.stderr


def noticed(scene: Scene, machine: Machine) -> None:
    until(lambda: '"messages": 1' in machine.cli("status", "--json").stdout, "the run has found the message")


@pytest.mark.parametrize("scene", SPEAKING, indirect=True)
def test_a_message_comes_in_the_middle_of_a_turn_and_at_its_end(scene: Scene) -> None:
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    scene.script(
        Turn(calls=[shell("echo one >> side")]),
        Turn(calls=[shell("echo two >> side")]),
        Turn("I stop here."),
        Turn("All is done."),
    )
    held, last = scene.hold_turn(1), scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("do the work"), PATH=PATH)
    scene.asked(2)
    send(machine, "use the heron branch", "m1")
    noticed(scene, machine)
    held.set()
    scene.asked(3)
    assert "use the heron branch" in spoken(scene, 2) and "[wal-agent message m1]" in spoken(scene, 2)
    ids = ["m1"]
    if "turn_completed" in AGENTS[scene.agent].capabilities.speaks:
        ids.append("m2")
        send(machine, "and say when you are done", "m2")
        noticed(scene, machine)
    last.set()
    assert run.wait() == 0, run.stderr()
    final = spoken(scene, len(scene.model.requests) - 1)
    assert final.count("[wal-agent message m1]") == 1
    assert ("and say when you are done" in final) == ("m2" in ids)
    until(lambda: [r["id"] for r in scene.records() if r["type"] == "message_seen"] == ids, "all are seen")
    assert [r["id"] for r in scene.records() if r["type"] == "message"] == ids


@pytest.mark.parametrize("scene", ["claude", "gemini"], indirect=True)
@pytest.mark.parametrize("saved", [True, False], ids=["in the session", "lost"])
def test_a_message_that_was_given_in_a_crash_is_told_once(scene: Scene, saved: bool) -> None:
    """There in the restored session: it was seen. Not there: the recovery prompt has it."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    scene.script(
        Turn(calls=[shell("echo one >> side")]),
        Turn(calls=[shell("echo two >> side")]),
        Turn("I stop here."),
    )
    held, _ = scene.hold_turn(1), scene.hold_turn(2)
    run = machine.run(*machine.rehearsal.args("do the work"), options=("--autosave", "0.2" if saved else "600"))
    scene.asked(2)
    send(machine, "use the heron branch", "m1")
    noticed(scene, machine)
    if not saved:
        until(lambda: any(r["type"] == "file" for r in scene.records()), "a session is saved")
    held.set()
    scene.asked(3)
    assert "use the heron branch" in spoken(scene, 2)
    if saved:
        scene.saved(2)
    run.kill()
    run.died()
    other = machine
    machine.end()
    if not saved:
        machine.lost()
        other = scene.machine("vm-2")
    asked = len(scene.model.requests)
    scene.script(Turn("All is done."))
    again = other.run(*other.rehearsal.args("do the work"), options=("--wait",), wait=True)
    assert again.process.returncode == 0, again.stderr()
    first = spoken(scene, asked)
    assert first.count("[wal-agent message m1]") == 1 and "use the heron branch" in first
    assert [r["id"] for r in scene.records() if r["type"] == "message_seen"] == ["m1"]


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_a_nats_client_writes_to_an_agent_whose_run_and_server_are_killed(scene: Scene, tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats").start()
    try:
        machine = scene.machine("vm-1")
        shell = machine.rehearsal.shell
        scene.script(
            Turn(calls=[shell("echo one >> side")]),
            Turn(calls=[shell("echo two >> side")]),
            Turn("I stop here."),
        )
        held, _ = scene.hold_turn(1), scene.hold_turn(2)
        options: tuple[str, ...] = ("--autosave", "0.2", "--messages", server.url)
        run = machine.run(*machine.rehearsal.args("do the work"), options=options)
        scene.asked(2)

        async def publish() -> None:
            client = await nats.connect(server.url)
            await client.jetstream().publish("agent.job.inbox", b"use the heron branch")
            await client.close()

        asyncio.run(publish())
        noticed(scene, machine)
        held.set()
        scene.asked(3)
        assert "use the heron branch" in spoken(scene, 2)
        scene.saved(2)
        run.kill()
        run.died()
        server.kill()
        machine.end()
        server.start()
        asked = len(scene.model.requests)
        scene.script(Turn("All is done."))
        options = ("--messages", server.url, "--wait")
        again = machine.run(*machine.rehearsal.args("do the work"), options=options, wait=True)
        assert again.process.returncode == 0, again.stderr()
        assert spoken(scene, asked).count("use the heron branch") == 1
        given, seen = ([r for r in scene.records() if r["type"] == t] for t in ("message", "message_seen"))
        assert [r["id"] for r in given] == [r["id"] for r in seen] and len(seen) == 1
    finally:
        server.kill()


@pytest.mark.parametrize("carrier", ["bucket", "nats"])
def test_two_agents_that_are_killed_act_on_each_message_once_and_in_order(tmp_path: Path, carrier: str) -> None:
    """A short one of `python -m tests.faults.talk`, which plays 100 rounds."""
    found = talk(tmp_path, carrier, 2, 7, ("claude", "gemini"))
    assert found.faults == [] and found.messages == 8 and found.kills.total() == 2


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_a_control_message_stops_the_run_in_good_order(scene: Scene) -> None:
    machine = scene.machine("vm-1")
    scene.script(Turn(calls=[machine.rehearsal.shell("echo one >> side")]), Turn("never"))
    scene.hold_turn(1)
    run = machine.run(*machine.rehearsal.args("do the work"))
    scene.asked(2)
    assert machine.cli("send", "--job", "job", "--control", "drain").returncode == 0
    assert run.wait() == 143, run.stderr()
    assert machine.status()["state"] == "released"
