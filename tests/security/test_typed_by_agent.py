"""On a real CLI: a person's commands, typed by the agent (I8)."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import Scene, agent_scene, shell, until
from wal_agent.rehearsal.model import Turn
from wal_agent.safefs import flock_state
from wal_agent.supervise.ancestry import outer_runs

PERSONS = {  # each also where the tool has stripped its environment or left its parent's session
    "ack": "ack 1 --done",
    "unlock": "unlock --epoch 1 --now",
    "gc": "gc",
    "rename": "rename shop other",
    "rm": "rm shop --yes",
    "skip": "configure-hooks --skip read_file",
    "install": "configure-hooks --install",
    "uninstall": "configure-hooks --uninstall",
    "notify": "notify --ack",
    "claim": "fleet claim",
    "watch": "fleet watch --on-crash true --once",
    "restore": "restore --to ./restored",
    "replace": "restore --to ../anywhere --force",
    "trust": "trust --yes",
    "stop": "stop",
    "rewind": "rewind --to 1",
    "compact": "compact",
    "leave": "uninstall",
    "import": "key import </dev/null",
    "forget": "doctor --forget",
    "loss": "run gemini --accept-loss --job shop",
    "take over": "run gemini --take-over --job shop",
    "key": "status --encryption-key-command 'touch ran'",
    "log key": "log -n 5 --encryption-key-command 'touch ran'",
}
ANYBODYS = {
    "status": "status",
    "log": "log -n 5",
    "dry gc": "gc --dry-run",
    "show": "configure-hooks --show",
    "fleet": "fleet ls",
}


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Scene]:
    with agent_scene(tmp_path, agent_cli, request.param) as made:
        yield made


@pytest.mark.parametrize("scene", ["gemini"], indirect=True)  # Codex lets no command hold it for so long
def test_an_agent_types_a_persons_commands(scene: Scene) -> None:
    """79 each, and nothing is changed; what only looks is allowed. An empty environment and another session do not
    help, and a run that is over is in nobody's way."""
    machine = scene.machine("vm-1")
    program = shlex.join([sys.executable, "-m", "wal_agent"])
    kept = ["HOME", "WAL_AGENT_BUCKET", "WAL_AGENT_JOB", "WAL_AGENT_HOST_ID", "PYTHONPATH", "PATH"]
    bare = " ".join(["env", "-i", *(f'{name}="${name}"' for name in kept)])
    ways = {name: f"{program} {words}" for name, words in {**PERSONS, **ANYBODYS}.items()}
    ways |= {f"bare {name}": f"{bare} {program} {PERSONS[name]}" for name in ("ack", "unlock", "trust")}
    away = f"{program} {PERSONS['ack']}; touch gone"
    ways["away"] = f"(setsid sh -c {shlex.quote(away)} </dev/null &); while ! [ -e gone ]; do sleep 0.1; done"
    lines = [f'{{ {words}; }} >>said 2>&1; echo "{name}=$?" >>codes' for name, words in ways.items()]
    (scene.workspace / "type.sh").write_text("\n".join(lines) + "\n")
    scene.script(Turn(calls=[shell("sh type.sh", scene.agent)]), Turn("That was it."))
    settings = machine.settings.read_bytes()
    run = machine.ask("please do the work", wait=True)
    assert run.process.returncode == 0, run.stderr()

    codes = dict(line.split("=") for line in (scene.workspace / "codes").read_text().splitlines())
    said = (scene.workspace / "said").read_text()
    assert {name: codes[name] for name in PERSONS} == dict.fromkeys(PERSONS, "79"), said
    assert {name: codes[name] for name in ANYBODYS} == dict.fromkeys(ANYBODYS, "0"), said
    assert (codes["bare ack"], codes["bare unlock"], codes["bare trust"]) == ("79", "79", "79"), said
    assert said.count("is for a person, and this was typed by the agent of run") == len(PERSONS) + 4, said
    assert "in a terminal of their own" in said

    ends = [(r["call"], r["how"], r["by"]) for r in scene.records() if r["type"] == "end"]
    assert ends == [(1, "done", "hook")] and not (scene.workspace / "restored").exists()
    assert not (scene.workspace / "wal-agent.toml").exists()
    assert machine.settings.read_bytes() == settings
    assert machine.status()["state"] == "closed"
    assert machine.cli("gc").returncode == 0, "a person's own"


@pytest.mark.parametrize("scene", ["codex"], indirect=True)
def test_a_shell_beside_a_run_is_no_agents(scene: Scene) -> None:
    """The variables of a run alone prove nothing: a person may have them in a terminal of their own."""
    machine = scene.machine("vm-1")
    scene.script(Turn(calls=[shell("env > seen; touch started; sleep 600")]))
    run = machine.ask("please do the work")
    until((scene.workspace / "started").exists, "its tool runs")
    seen = dict(line.partition("=")[::2] for line in (scene.workspace / "seen").read_text().splitlines())
    extra = {name: seen[name] for name in ("WAL_AGENT_RUN", "WAL_AGENT_SOCKET")}
    assert flock_state(Path(seen["WAL_AGENT_SOCKET"]).with_name("lock")) == "held" and outer_runs() == ()
    answer = machine.cli("gc", "--json", **extra)
    assert answer.returncode == 0 and json.loads(answer.stdout)["job"] == "job", answer.stderr
    run.kill()
    run.died()
