"""On the real CLIs: a message in the middle of a turn, at its end, and in a crash."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import nats
import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.faults.talk import talk
from tests.servers.nats import NatsServer
from tests.tiers import SAME_CODE, deep, once
from tests.unit.recovery.test_prompt_tokens import tokenizer
from wal_agent.agents import AGENTS
from wal_agent.recovery.prompt import MAX_TOKENS
from wal_agent.rehearsal.model import HistoryText, Returned, Turn

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SPEAKING = sorted(
    name for name, agent in AGENTS.items() if agent.capabilities.speaks - {"turn_started"} and name not in SAME_CODE
)


def spoken(scene: Scene, n: int) -> str:
    parts = scene.model.history(n)
    return "\n".join(part.text for part in parts if isinstance(part, HistoryText | Returned))


def send(machine: Machine, text: str, id: str) -> None:
    done = machine.cli("send", "--job", "job", "--id", id, "--from", "ann", text)
    assert done.returncode == 0, done.stderr


def noticed(scene: Scene, machine: Machine) -> None:
    until(lambda: '"messages": 1' in machine.cli("status", "--json").stdout, "the run has found the message")


@pytest.mark.parametrize("scene", once(SPEAKING, "claude"), indirect=True)
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


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_a_run_on_another_machine_is_stopped_through_the_bucket(scene: Scene) -> None:
    """It is saved and stopped there, closed from here, and the next start is a new session."""
    there, here = scene.machine("vm-1"), scene.machine("vm-2")
    scene.script(Turn(calls=[there.rehearsal.shell("echo one >> side")]), Turn("never said"))
    hold = scene.hold_turn(1)
    run = there.run(*there.rehearsal.args("do the work"))
    scene.asked(2)
    stopped = here.cli("stop", "--done")
    assert stopped.returncode == 0, stopped.stderr
    assert "asked to save and stop" in stopped.stderr and "is closed" in stopped.stderr.splitlines()[-1]
    assert run.wait() == 143, run.stderr()
    hold.set()
    assert here.status()["state"] == "closed" and scene.side() == ["one"]
    assert [r["verb"] for r in scene.records() if r["type"] == "message"] == ["drain"]


@pytest.mark.parametrize("scene", once(["claude", "gemini"], "claude"), indirect=True)
@pytest.mark.parametrize("saved", once([True, False], False), ids=["in the session", "lost"])
def test_a_message_that_was_given_in_a_crash_is_told_once(scene: Scene, saved: bool) -> None:
    """There in the restored session: it was seen. Not there: the recovery prompt has it, and stays below 4,000 tokens
    with it, however long it is."""
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
    send(machine, "use the heron branch" + " and test each part of it" * 1000, "m1")
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
    if not saved:
        prompt = first[first.index("[wal-agent recovery]") :]
        assert "use the heron branch" in prompt
        assert len(tokenizer().encode(prompt, disallowed_special=())) <= MAX_TOKENS
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
        asked = len(scene.model.requests)
        scene.script(Turn(calls=[shell("echo three >> side")]), Turn("All is done."))
        last = scene.hold_turn(0)
        options = ("--messages", server.url, "--wait")
        again = machine.run(*machine.rehearsal.args("do the work"), options=options)
        scene.asked(asked + 1)
        server.start()  # not before: the restored session says that the message was seen, the server cannot

        async def left() -> int:
            client = await nats.connect(server.url)
            found = (await client.jetstream().stream_info("WALAGENT_INBOX")).state.messages
            await client.close()
            return found

        def looked() -> bool:
            return asyncio.run(left()) == 0 or '"messages": 1' in machine.cli("status", "--json").stdout

        until(looked, "the run has read the server's stream")
        last.set()
        assert again.wait() == 0, again.stderr()
        assert spoken(scene, len(scene.model.requests) - 1).count("use the heron branch") == 1
        given, seen = ([r for r in scene.records() if r["type"] == t] for t in ("message", "message_seen"))
        assert [r["id"] for r in given] == [r["id"] for r in seen] and len(seen) == 1
    finally:
        server.kill()


@deep
@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_a_client_of_the_synadia_protocol_prompts_a_running_agent(scene: Scene, tmp_path: Path) -> None:
    """The reply that the agent types, without a variable that names the server, is the answer. Beside it a checkpoint
    is made and read by requests."""
    server = NatsServer(tmp_path / "nats").start()
    machine = scene.machine("vm-1")
    newest = "wal-agent inbox --json | tr '{,' '\\n\\n' | sed -n 's/.*\"id\": \"\\(.*\\)\"/\\1/p'"
    answer = f'wal-agent reply "$({newest})" fine'
    scene.script(
        Turn(calls=[machine.rehearsal.shell("echo one >> side")]),
        Turn(calls=[machine.rehearsal.shell("echo two >> side")]),
        Turn(calls=[machine.rehearsal.shell(answer)]),
        Turn("All is done."),
    )
    held = scene.hold_turn(1)
    options = ("--messages", server.url, "--synadia", "--control", "checkpoint,restore")
    parts: list[str] = []

    async def talk_to_it() -> None:
        client = await nats.connect(server.url)
        found = json.loads((await client.request("$SRV.INFO.agents", timeout=30)).data)
        assert found["metadata"]["session"] == "job" and found["metadata"]["agent"] == "claude"
        made = json.loads((await client.request("agent.job.checkpoint.create", b"so far", timeout=60)).data)
        kept = json.loads((await client.request("agent.job.checkpoint.restore", timeout=60)).data)
        assert made["answer"] == "checkpoint 1" and kept["active_task"] is not None, (made, kept)
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        prompt = next(end["subject"] for end in found["endpoints"] if end["name"] == "prompt")
        await client.publish(prompt, b"how is it?", reply=inbox)
        while data := (await answers.next_msg(120)).data:
            parts.append(json.loads(data)["data"])
            if len(parts) == 1:
                await asyncio.to_thread(noticed, scene, machine)
                held.set()
        await client.close()

    try:
        run = machine.run(*machine.rehearsal.args("do the work"), options=options, PATH=PATH)
        scene.asked(2)
        asyncio.run(talk_to_it())
        assert run.wait() == 0, run.stderr()
    finally:
        server.kill()
    assert parts[0] == "ack" and parts[-1] == "fine", parts
    assert "how is it?" in spoken(scene, 2)


@deep
@pytest.mark.parametrize("carrier", ["bucket", "nats"])
def test_two_agents_that_are_killed_act_on_each_message_once_and_in_order(tmp_path: Path, carrier: str) -> None:
    """A short one of `python -m tests.faults.talk`, which plays 100 rounds."""
    found = talk(tmp_path, carrier, 2, 7, ("claude", "gemini"))
    assert found.faults == [] and found.messages == 8 and found.kills.total() == 2


@deep
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
