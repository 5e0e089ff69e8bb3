"""What a person decides: looking first, halting, settling, asking for something new. One crash, told to its end."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.e2e.scene import Scene, shell, told, until
from tests.mocks.gemini_model import Turn

LONG = "echo begun >> side; touch started; sleep 600; echo ended >> side"


def fingerprint(folder: Path) -> str:
    """All bytes and names below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and ".locks" not in p.parts):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def test_a_crash_that_a_person_settles(scene: Scene) -> None:
    """I8: only a person settles what evidence cannot; until then nothing forgets it. I2: a dry run writes nothing."""
    scene.script(Turn(calls=[shell(LONG)]))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    run = first.run("-y", "-p", "the task")
    until(lambda: (scene.workspace / "started").exists(), "the tool runs")
    run.kill()
    until(lambda: second.status()["state"] == "cut_off", "its lease runs out for the other machine")

    before = fingerprint(scene.bucket)
    foreseen = second.cli("recover", "--dry-run")
    assert foreseen.returncode == 0, foreseen.stderr
    assert "would resume session" in foreseen.stderr and "[wal-agent recovery]" in foreseen.stderr
    assert LONG in foreseen.stderr and foreseen.stdout == ""
    assert fingerprint(scene.bucket) == before

    seen = len(scene.model.requests)
    halted = second.run("-y", "-p", "the task", options=["--on-unknown", "halt"], wait=True)
    assert halted.process.returncode == 79 and "wal-agent ack" in halted.stderr()
    fresh = second.run("-y", "-p", "the task", options=["--fresh"], wait=True)
    assert fresh.process.returncode == 79 and "#1 run_shell_command" in fresh.stderr()
    assert len(scene.model.requests) == seen, "neither may start the agent"

    scene.script(Turn(text="Looked."))
    asked = second.run("-y", "-p", "and something new", wait=True)
    assert asked.process.returncode == 0, asked.stderr()
    text = told(scene.model.requests[-1])
    assert text.index("[wal-agent recovery] The machine") < text.index("and something new")
    status = second.status()
    assert status["state"] == "released" and [c["call"] for c in status["unsettled"]] == [1]

    wrong = second.cli("ack", "7", "--done")
    assert wrong.returncode == 64 and "not open" in wrong.stderr
    settled = second.cli("ack", "1", "--not-done")
    assert settled.returncode == 0, settled.stderr
    status = second.status()
    assert status["state"] == "closed" and status["unsettled"] == []
    ends = [r for r in second.log() if r["type"] == "end"]
    assert [(e["call"], e["how"], e["by"]) for e in ends] == [(1, "acknowledged", "person")]

    scene.script(Turn(text="Gone on."))
    more = second.run("-y", "-p", "one more thing", options=["--continue"], wait=True)
    assert more.process.returncode == 0, more.stderr()
    text = told(scene.model.requests[-1])
    assert "the task" in text and "one more thing" in text
    assert scene.side() == ["begun"]


def test_a_call_is_settled_while_the_job_runs(scene: Scene) -> None:
    """I8, I2: the owner writes a person's word itself; nobody opens the job beside it."""
    scene.script(Turn(calls=[shell(LONG)]))
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    run = first.run("-y", "-p", "the task")
    until(lambda: (scene.workspace / "started").exists(), "the tool runs")
    run.kill()
    scene.script(Turn(text="Looking."))
    hold = scene.hold_turn(0)
    seen = len(scene.model.requests)
    again = second.run("-y", "-p", "the task", options=["--wait"])
    scene.model.wait_for(seen + 1, 60)
    settled = second.cli("ack", "1", "--done")
    assert settled.returncode == 0, settled.stderr
    assert second.status()["unsettled"] == []
    hold.set()
    assert again.wait() == 0, again.stderr()
    assert second.status()["state"] == "closed"


def test_what_starts_no_session_passes_through(scene: Scene) -> None:
    """I6: `--version` is the agent's own, and no job is made for it."""
    machine = scene.machine("vm-1")
    run = machine.run("--version", wait=True)
    assert (run.process.returncode, run.stdout().strip(), run.stderr()) == (0, "0.61.0", "")
    assert machine.status()["state"] == "none"


def test_a_bucket_that_cannot_be_used(scene: Scene) -> None:
    """One line: what, why, what to do; nothing was started."""
    scene.bucket.write_text("in the way")
    run = scene.machine("vm-1").run("-y", "-p", "x", wait=True)
    assert run.process.returncode in (69, 77), run.stderr()
    assert str(scene.bucket) in run.stderr() and len(run.stderr().splitlines()) == 1
    assert scene.model.requests == []
