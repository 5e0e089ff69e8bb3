"""I7: what a run adds to the user's home disturbs nobody beside it, and does not outlive it for long."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.scene import Machine, Scene, shell, told, until
from tests.mocks.gemini_model import Turn

LONG = "touch started; sleep 600"


def extensions(machine: Machine) -> list[Path]:
    return sorted((machine.home / ".gemini" / "extensions").glob("wal-agent-*"))


def plain(machine: Machine, prompt: str) -> subprocess.CompletedProcess[str]:
    """The bare CLI, as the user starts it beside us."""
    return subprocess.run(
        [str(machine.gemini), "-y", "-p", prompt],
        cwd=machine.workspace,
        env=machine.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer_by_prompt(scene: Scene) -> None:
    """Each conversation is known by its prompt, whatever order they ask in."""
    scene.script(
        Turn(when="job one", calls=[shell(LONG)]),
        Turn(when="job two", calls=[shell("echo two >> side")]),
        Turn(when="plain beside", calls=[shell("echo beside >> side")]),
        Turn(when="plain after", calls=[shell("echo after >> side")]),
        *(Turn(text="Done.") for _ in range(6)),
    )


def test_other_geminis_of_the_same_home(scene: Scene) -> None:
    """A plain Gemini and another job's run work beside a run, and after its wrapper was killed; then it is swept."""
    answer_by_prompt(scene)
    machine = scene.machine("vm-1")
    settings = machine.settings.read_bytes()
    one = machine.run("-y", "-p", "job one", WAL_AGENT_JOB="one")
    until(lambda: (scene.workspace / "started").exists(), "job one's tool runs")

    two = machine.run("-y", "-p", "job two", WAL_AGENT_JOB="two", wait=True)
    assert two.process.returncode == 0, two.stderr()
    beside = plain(machine, "plain beside")
    assert beside.returncode == 0, beside.stderr
    assert scene.side() == ["two", "beside"]
    assert one.process.poll() is None and len(extensions(machine)) == 1

    one.kill()
    one.wait()
    assert len(extensions(machine)) == 1, "SIGKILL leaves it behind"
    after = plain(machine, "plain after")
    assert after.returncode == 0, after.stderr
    assert scene.side() == ["two", "beside", "after"]
    foreign = [told(request) for request in scene.model.requests if '"plain ' in told(request)]
    assert len(foreign) == 4 and not any("wal-agent did not" in text or "under wal-agent" in text for text in foreign)

    logged = [r for r in machine.log() if r["type"] == "intent"]
    assert logged == [], "nobody's call went into a job that is not theirs"
    assert machine.run("--list-sessions", WAL_AGENT_JOB="two", wait=True).process.returncode == 0
    scene.script(Turn(text="Hello."))
    machine.run("-y", "-p", "hello", WAL_AGENT_JOB="three", wait=True)
    assert extensions(machine) == []
    assert machine.settings.read_bytes() == settings
