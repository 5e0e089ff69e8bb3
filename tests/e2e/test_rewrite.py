"""Issue 17 on the real CLIs: a conversation that rests is rewound, compacted, brought back (docs/COMPACTION.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import Machine, Scene
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Called, Model, Returned, Said, Turn

AGENTS_THAT_CAN = ("claude", "codex", "gemini", "pi")
CONTINUE = {"claude": ("--continue",), "gemini": ("--resume", "latest"), "pi": ("--continue",)}


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Scene]:
    name: str = request.param
    rehearsal = rehearsal_of(AGENTS[name])
    assert rehearsal is not None
    with Model(rehearsal.dialect) as model:
        made = Scene(tmp_path, agent_cli(name), model, name)
        yield made
        made.close()


def ask(scene: Scene, machine: Machine, prompt: str, first: bool = False) -> list[str]:
    """One turn of the job, which looks for a heron; what its first request to the model held."""
    n = prompt.split()[-1]
    args: tuple[str, ...] = machine.rehearsal.args(prompt)
    if not first:
        args = ("exec", "resume", "--last", *args[1:]) if scene.agent == "codex" else (*CONTINUE[scene.agent], *args)
    scene.script(
        Turn(f"heron {n}", calls=[machine.rehearsal.shell(f"echo {n} >> side")]),
        Turn(f"finished {n}"),
    )
    asked = len(scene.model.requests)
    run = machine.run(*args, wait=True)
    assert run.process.returncode == 0, run.stderr()
    return texts(scene, asked)


def texts(scene: Scene, n: int) -> list[str]:
    history = scene.model.history(n)
    assert len([p for p in history if isinstance(p, Called)]) <= len([p for p in history if isinstance(p, Returned)])
    return [part.text for part in history if isinstance(part, Said)]


def holds(found: list[str], *words: str) -> bool:
    return all(any(word in text for text in found) for word in words)


def session_file(scene: Scene, machine: Machine) -> Path:
    agent = AGENTS[scene.agent]
    env = {**os.environ, **machine.env()}
    found = agent.session_files(scene.replay().state.session, scene.workspace, env)
    return next(f.path for f in found if f.name == agent.main_file)


def command(machine: Machine, *args: str) -> str:
    done = machine.cli(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("scene", AGENTS_THAT_CAN, indirect=True)
def test_a_conversation_is_rewound_compacted_and_brought_back(scene: Scene) -> None:
    """The next request holds the compact form, and no line of what it stands for; the trace is the file as it was."""
    machine = scene.machine("vm-1")
    ask(scene, machine, "ask number one", first=True)
    command(machine, "mark", "begun")
    ask(scene, machine, "ask number two")
    before = session_file(scene, machine).read_bytes()

    done = json.loads(command(machine, "rewind", "--to", "begun", "--json"))
    assert (done["n"], done["turns"]) == (1, 1)
    assert machine.cli("trace", "show", "1", "--raw").stdout.encode() == before
    lines = json.loads(command(machine, "trace", "show", "1", "--json"))["lines"]
    assert holds([line["text"] for line in lines], "ask number two", "heron two", "finished two")
    assert not holds([line["text"] for line in lines], "ask number one")
    found = ask(scene, machine, "ask number three")
    assert holds(found, "ask number one", "heron one", "wal-agent trace show 1", "ask number three")
    assert not any("heron two" in text or "finished two" in text for text in found)

    ask(scene, machine, "ask number four")
    done = json.loads(command(machine, "compact", "--policy", "turns=1", "--keep", "1", "--json"))
    assert done["n"] == 2 and done["turns"] >= 2
    nothing = json.loads(command(machine, "compact", "--policy", "turns=1", "--keep", "1", "--json"))
    assert (nothing["n"], nothing["turns"]) == (0, 0), "it is idempotent"
    compacted = session_file(scene, machine).read_bytes()
    found = ask(scene, machine, "ask number five")
    assert holds(
        found, "Asked: ask number one", "echo three", "wal-agent trace show 2", "heron four", "ask number five"
    )
    assert not holds(found, "heron one") and not holds(found, "heron three")

    refused = machine.cli("rewind", "--undo")
    assert refused.returncode == 64, "the conversation went on behind the compaction"
    command(machine, "rewind", "--last", "1")
    rewound = session_file(scene, machine).read_bytes()
    command(machine, "rewind", "--undo")
    assert session_file(scene, machine).read_bytes() != rewound
    found = ask(scene, machine, "ask number six")
    assert holds(found, "Asked: ask number one", "heron four", "heron five", "ask number six")
    assert compacted and scene.side() == ["one", "two", "three", "four", "five", "six"]
    assert machine.status()["state"] == "closed"
