"""Another HOME, another folder, a torn or longer local copy: the session is back, and nothing of the user changes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.scene import (
    Scene,
    calls_in,
    check_exact,
    check_log,
    notices,
    results_in,
    texts_in,
    until,
)
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell
TASK = "please do the work"


def tree(folder: Path) -> dict[str, str]:
    """Every file below, `.git` with all of its refs and its index too, by hash."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def dirty(workspace: Path) -> None:
    """What a person may have in a repository: a stash, something staged, something changed, something untracked."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    (workspace / "README.md").write_text("stashed\n")
    subprocess.run([*git, "stash", "-q"], cwd=workspace, check=True)
    (workspace / "staged").write_text("staged\n")
    subprocess.run([*git, "add", "staged"], cwd=workspace, check=True)
    (workspace / "README.md").write_text("changed\n")
    (workspace / "untracked").write_text("untracked\n")


def test_another_machine_and_another_folder(scene: Scene) -> None:
    """I4, I7: a clone elsewhere resumes, with a tool output of its own file, and its working tree is the one that was
    lost, with what was not committed, staged or stashed. The run changes no byte of the workspace that it began in, and
    the recovery adds only the stash and what was staged to the clone's repository. The user's settings stay."""
    dirty(scene.workspace)
    out = scene.root / "out"
    out.mkdir()
    scene.script(
        Turn(text="Much to read.", calls=[shell("seq 1 20000")]),
        Turn(text="Now the long one.", calls=[shell(f"echo begun >> {out}/side; touch {out}/started; sleep 600")]),
    )
    hold = scene.hold_turn(1)
    first = scene.machine("vm-1")
    user = [tree(scene.workspace), first.settings.read_bytes()]
    run = first.ask(TASK)
    scene.asked(2)
    scene.saved(1)
    until(lambda: scene.replay().state.workspace, "the working tree is saved")
    hold.set()
    until(lambda: (out / "started").exists(), "the second call runs")
    run.kill()
    run.died()
    assert [tree(scene.workspace), first.settings.read_bytes()] == user
    outputs = [p.read_bytes() for p in (first.home / ".gemini/tmp").glob("*/tool-outputs/session-*/*")]
    assert len(outputs) == 1
    assert len(outputs[0]) > 40_000
    lost = {name: hash for name, hash in tree(scene.workspace).items() if not name.startswith(".git/")}

    clone = scene.root / "elsewhere" / "project"
    subprocess.run(["git", "clone", "-q", scene.workspace, clone], check=True, capture_output=True)
    second = scene.machine("vm-2", workspace=clone)
    cloned, settings = tree(clone / ".git"), second.settings.read_bytes()
    refused = second.ask(TASK, options=["--wait"], wait=True)
    assert refused.process.returncode == 78, refused.stderr()
    assert f"belongs to the folder {scene.workspace}" in refused.stderr()
    shutil.rmtree(scene.workspace)
    first.lost()

    before = scene.records()
    scene.script(Turn(text="I looked. I stop here."))
    again = second.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[2]
    assert [args["command"][:4] for _, args in calls_in(request)] == ["seq ", "echo"]
    assert sum(TASK in text for text in texts_in(request)) == 1
    assert f"The working folder is now `{clone}` (it was `{scene.workspace}`)." in notices(request)[0]
    assert "20000" in str(results_in(request)[0])
    assert [p.read_bytes() for p in (second.home / ".gemini/tmp").glob("*/tool-outputs/session-*/*")] == outputs
    check_log(scene, before)
    check_exact(scene, second)
    repository = tree(clone / ".git")
    assert git(clone, "diff", "--cached", "--name-only") == "staged\n"
    assert git(clone, "show", "stash@{0}:README.md") == "stashed\n"
    added = {name for name in repository.keys() - cloned.keys() if not name.startswith("objects/")}
    assert added == {"refs/stash", "logs/refs/stash"}
    assert {name for name, hash in cloned.items() if repository.get(name) != hash} == {"index"}
    assert second.settings.read_bytes() == settings
    assert {name: hash for name, hash in tree(clone).items() if not name.startswith(".git/")} == lost
    assert set(lost) == {"README.md", "staged", "untracked"}
    assert "; working tree: 1 changed, 2 new files" in again.stderr()
    assert "The working tree is as it was saved at" in notices(request)[0]
    assert (out / "side").read_text() == "begun\n"
    assert not list((second.home / ".gemini/extensions").glob("*"))


@deep
def test_a_local_copy_that_is_longer_and_torn(scene: Scene) -> None:
    """I3, I4: what this machine has beyond the log's copy is resumed, but for a line that was cut in two; what is
    replaced is kept byte for byte."""
    scene.script(Turn(text="First.", calls=[shell("echo one >> side")]), Turn(text="never said"))
    scene.hold_turn(1)
    machine = scene.machine("vm-1")
    run = machine.ask(TASK)
    scene.asked(2)
    scene.saved(1)
    file = machine.session_file()

    def saved_whole() -> bool:
        state = scene.replay().state.files["session.jsonl"]
        return state.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()

    until(saved_whole, "the log has all of the session")
    run.kill()
    run.died()
    by_hand = {
        "id": "5f4cf7e2-26a5-4c86-9a0c-8ed0c3a0b1a1",
        "timestamp": "2030-01-01T00:00:00.000Z",
        "type": "gemini",
        "content": "written after the last save",
        "thoughts": [],
    }
    with file.open("a") as f:
        f.write(json.dumps(by_hand) + '\n{"id":"torn","type":"user","content":[{"te')
    local = file.read_bytes()

    scene.script(Turn(text="Going on."))
    again = machine.ask(TASK, wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert "this machine had more of the session than the log" in again.stderr()
    assert "1 damaged line(s) of the session file were left out" in again.stderr()
    request = scene.model.requests[2]
    assert sum("written after the last save" in text for text in texts_in(request, "model")) == 1
    assert calls_in(request) == [shell("echo one >> side")]
    assert sum(TASK in text for text in texts_in(request)) == 1
    assert "torn" not in json.dumps(request["contents"])
    check_exact(scene, machine)
    kept = [p.read_bytes() for p in (machine.kept()[-1] / "replaced").rglob("*.jsonl")]
    assert kept == [local]
    assert scene.side() == ["one"]
