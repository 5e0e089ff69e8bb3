"""Back to a place in the log of a real job: looked at in a folder of its own, or gone on from as a new job."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.scene import Machine, Scene, calls_in, notices, texts_in, until
from tests.e2e.test_elsewhere import TASK, dirty, tree
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Turn

WAY = "rather the other way"


def files(folder: Path) -> dict[str, str]:
    """Of the working tree, by hash."""
    return {name: hash for name, hash in tree(folder).items() if not name.startswith(".git/")}


def write(scene: Scene, content: str) -> tuple[str, dict[str, Any]]:
    return scene.machines[0].rehearsal.write(scene.workspace / "way", content)


def job_with_two_writes(scene: Scene, machine: Machine) -> tuple[int, dict[str, str]]:
    """A job that came to its end; the number of a record between its two writes, and the files as they were then."""
    dirty(scene.workspace)
    scene.script(
        Turn(text="This way.", calls=[write(scene, "one way\n")]),
        Turn(text="No, that way.", calls=[write(scene, "no way\n")]),
        Turn(text="Done."),
    )
    hold = scene.hold_turn(1)
    run = machine.ask(TASK)
    scene.asked(2)
    scene.saved(1)

    def saved() -> bool:
        captured = scene.replay().state.workspace
        return captured is not None and captured.holds >= 1

    until(saved, "the working tree is saved with the first write")
    between, then = scene.records()[-1]["record"], files(scene.workspace)
    hold.set()
    assert run.wait() == 0, run.stderr()
    assert (scene.workspace / "way").read_text() == "no way\n"
    return between, then


def test_a_look_back_and_a_new_job_from_there(scene: Scene) -> None:
    """I3, I4, I7: session and tree are as they were before a write, in a folder beside, and then in the folder itself
    under a new job. What the folder held is kept and can be had again; the first job keeps every object as it was."""
    machine = scene.machine("vm-1")
    between, then = job_with_two_writes(scene, machine)
    (scene.workspace / "way").write_text("my own way\n")
    (scene.workspace / "mine").write_text("never seen by the agent\n")
    local, repository = files(scene.workspace), tree(scene.workspace / ".git")
    objects = tree(scene.bucket / "job")

    beside = scene.root / "beside"
    done = machine.cli("restore", "--at", str(between), "--to", str(beside))
    assert done.returncode == 0, done.stderr
    assert files(beside / "workspace") == then
    main = AGENTS[scene.agent].main_file
    session = scene.replay(between).state.files[main]
    assert hashlib.sha256((beside / "session" / main).read_bytes()).hexdigest() == session.sha256
    assert f"as of record {between}" in done.stderr and "with the effects of calls up to #1" in done.stderr
    assert (files(scene.workspace), tree(scene.workspace / ".git")) == (local, repository)

    again = Turn(text="The other way.", calls=[write(scene, "the other way\n")])
    scene.script(again, Turn(text="Done again."))
    hold = scene.hold_turn(0)
    seen = len(scene.model.requests)
    run = machine.ask(WAY, options=["--from", str(between)])
    scene.asked(seen + 1)
    assert files(scene.workspace) == then, "as before the second write, when the model is asked"
    hold.set()
    assert run.wait() == 0, run.stderr()
    request = scene.model.requests[seen]
    assert calls_in(request) == [write(scene, "one way\n")]
    [notice] = notices(request)
    assert "The working tree is as it was saved at" in notice and "What was in this folder before is kept" in notice
    assert sum(TASK in text for text in texts_in(request)) == 1
    assert WAY in notice
    assert f"job job-from-{between} begins where job job was at record {between}" in run.stderr()
    assert files(scene.workspace) == then | {"way": hashlib.sha256(b"the other way\n").hexdigest()}
    assert (tree(scene.workspace / ".git"), tree(scene.bucket / "job")) == (repository, objects)

    said = re.search(r"kept +what was here: (mkdir before && .*)", run.stderr())
    assert said, run.stderr()
    (away := scene.root / "away").mkdir()
    subprocess.run(said[1], shell=True, cwd=away, check=True)
    assert files(away / "before") == local

    fork = machine.cli("status", "--job", f"job-from-{between}", "--json")
    assert '"state": "closed"' in fork.stdout, fork.stdout
    assert machine.status()["state"] == "closed"
