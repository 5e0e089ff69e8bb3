"""On the real CLIs: an agent that loses its conversation to an empty summary still knows what it must, and
what could not be saved is not compacted where that was asked for.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.scene import Scene, until
from tests.e2e.test_compaction import FORCED, PATH, PHRASE, SEEN, bulk, force
from tests.e2e.test_spool import Outage
from tests.tiers import deep, once
from wal_agent.rehearsal.model import HistoryText, Json, Reply, Returned, Turn


class Speechless:
    """A dialect whose model has no words for a summary."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def other(self, method: str, path: str, body: Json) -> Reply:
        if method == "POST" and "summar" in str(body):
            reply: Reply = self._plain.turn(Turn(), path, body)
        else:
            reply = self._plain.other(method, path, body)
        return reply


def heard(scene: Scene) -> list[str]:
    """All words of each request, in order."""
    return [
        "\n".join(part.text for part in scene.model.history(n) if isinstance(part, HistoryText | Returned))
        for n in range(len(scene.model.requests))
    ]


@pytest.mark.parametrize("scene", once(["opencode", "pi", "copilot"], "copilot"), indirect=True)
def test_behind_an_empty_summary_the_agent_knows_its_task_and_its_open_calls(scene: Scene) -> None:
    """A call was cut off, and the turn that is asked about it loses its conversation: the next request has both, and
    the person is informed."""
    machine = scene.machine("vm-1")
    shell, late = machine.rehearsal.shell, scene.agent == "pi"  # which compacts in front of a prompt
    scene.model.dialect = Speechless(scene.model.dialect)
    force(machine)
    (scene.workspace / "charge.sh").write_text("echo charge >> side; touch started; sleep 600\n")
    scene.script(
        Turn(f"{PHRASE} {bulk(0)}", calls=[shell("echo begin >> side")]),
        *(Turn(bulk(n + 1), calls=[shell(f"echo {n} >> side")]) for n in range(3)),
        Turn(bulk(4), calls=[shell("sh charge.sh")], tokens=190_000 if late else 100),
    )
    run = machine.run(*machine.rehearsal.args("move the shop to v2"), wait=False, PATH=PATH)
    until(lambda: (scene.workspace / "started").exists(), "the call runs")
    scene.saved(4)
    run.kill()
    run.died()
    machine.end()
    before = len(scene.model.requests)
    scene.script(
        *([] if late else [Turn(calls=[shell("echo work >> side")], tokens=190_000)]),
        Turn("<summary></summary>", when="Please create a detailed summary"),  # Copilot's, which is a turn
        *(Turn(calls=[shell(SEEN)]) for _ in range(4)),
        Turn("All is done."),
    )
    log = scene.root / "events"
    options = ("--log-file", str(log))
    run = machine.run(*machine.rehearsal.args("move the shop to v2"), options=options, wait=True, PATH=PATH)
    assert run.process.returncode == 0, run.stderr()
    lost = [c.lost for c in scene.replay().state.compactions]
    assert lost and all(lost)  # pi does it again behind the turn
    behind = next(text for text in heard(scene)[before:] if "its summary is empty" in text)
    assert "wal-agent recall" in behind and "move the shop to v2" in behind and PHRASE not in behind
    assert "[wal-agent recovery]" in behind and "sh charge.sh" in behind
    assert "compaction.lost" in [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert "wal-agent recall WORDS --job job" in run.stderr()
    assert scene.side().count("charge") == 1


SAID = "The scripted summary says little of what there was."
SYNC = ("--durability", "sync")


def summaries(scene: Scene) -> int:
    """How often the model was asked for one."""
    asked = [*scene.model.requests, *scene.model.asides]
    return sum("Keep in the summary, word for word" in json.dumps(body) for body in asked)


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_claude_does_not_compact_what_the_bucket_does_not_have(scene: Scene) -> None:
    """With --durability sync. The tool in front of the compaction takes the bucket away; when it is back, the next one
    is let pass."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    shell = machine.rehearsal.shell
    args, env = FORCED["claude"]
    outage.begin()
    away = outage.file.rename(scene.root / "away")
    scene.script(
        Turn(PHRASE, calls=[shell("echo begin >> side")]),
        *(Turn(calls=[shell(f"echo {n} >> side")]) for n in range(4)),
        Turn(calls=[shell(f"cp '{away}' '{outage.file}'; echo away >> side")], tokens=190_000),
        Turn(calls=[shell("echo work >> side")], tokens=190_000),
        Turn(f"<summary>{SAID}</summary>"),
        Turn("All is done."),
    )
    held = scene.hold_turn(6)
    run = machine.run(
        *args, *machine.rehearsal.args("move the shop to v2"), options=SYNC, wait=False, **env, **outage.env
    )
    scene.asked(7)
    assert PHRASE in heard(scene)[6] and summaries(scene) == 0
    outage.end()
    until(lambda: any("away" in str(r) for r in scene.records() if r["type"] == "end"), "the bucket is back")
    held.set()
    assert run.wait() == 0, run.stderr()
    assert PHRASE not in heard(scene)[-1] and summaries(scene) == 1
    assert scene.side()[-1] == "work"


@deep
@pytest.mark.parametrize("scene", ["pi"], indirect=True)
def test_pi_does_not_compact_what_the_bucket_does_not_have(scene: Scene) -> None:
    """With --durability sync. pi would compact in front of the prompt; behind the turn the bucket is back."""
    machine, outage = scene.machine("vm-1"), Outage(scene)
    shell = machine.rehearsal.shell
    force(machine)
    scene.script(
        Turn(f"{PHRASE} {bulk(0)}", calls=[shell("echo begin >> side")]),
        *(Turn(bulk(n + 1), calls=[shell(f"echo {n} >> side")]) for n in range(3)),
        Turn(bulk(4), calls=[shell("touch started; sleep 600")], tokens=190_000),
    )
    run = machine.run(*machine.rehearsal.args("move the shop to v2"), wait=False, PATH=PATH)
    until(lambda: (scene.workspace / "started").exists(), "the call runs")
    scene.saved(4)
    run.kill()
    run.died()
    machine.end()
    outage.begin()
    away = outage.file.rename(scene.root / "away")
    program = scene.root / "pi"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *-p*) cp "{away}" "{outage.file}";; esac\nexec "{scene.program}" "$@"\n'
    )
    program.chmod(0o755)
    machine.program = program
    before = len(scene.model.requests)
    scene.script(Turn("All is done.", tokens=190_000))
    held = scene.hold_turn(0)
    run = machine.run(*machine.rehearsal.args("move the shop to v2"), options=SYNC, wait=False, **outage.env)
    scene.asked(before + 1)
    assert PHRASE in heard(scene)[before] and summaries(scene) == 0
    outage.end()
    held.set()
    assert run.wait() == 0, run.stderr()
    assert summaries(scene) > 0 and any(c.done for c in scene.replay().state.compactions)
