"""A new machine with nothing but the bucket: the working tree comes back, with what was never committed or tracked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.e2e.scene import Scene, check_log, notices, results_in, shell, until
from tests.e2e.test_elsewhere import TASK, dirty, tree
from wal_agent.rehearsal.model import Turn


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


SIDE, OUT = ".claude/worktrees/side", ".wal-agent/worktrees/out"


def worktree(name: str) -> str:
    return f"git worktree add -q {name} && echo new > {name}/new"


def files(workspace: Path) -> dict[str, str]:
    """Without git's own: those of a linked worktree name its place."""
    return {
        name: hash
        for name, hash in tree(workspace).items()
        if not name.startswith((".git/", ".wal-agent/")) and "/.git" not in name
    }


def test_a_new_machine_gets_the_working_tree_back(scene: Scene) -> None:
    """I3: uncommitted, staged and untracked work is there again, in a repository like the lost one, and a subagent's in
    its ignored worktree, and in one outside; other ignored files are not. The agent is told so, and which finished
    calls left their changes behind."""
    dirty(scene.workspace)
    (scene.workspace / ".gitignore").write_text("started\n.claude/\n.wal-agent/\n")
    made = "mkdir -p made && echo by the agent > made/file && chmod +x made/file"
    scene.script(
        Turn(text="First.", calls=[shell(f"{made} && {worktree(SIDE)} && {worktree('../out')}")]),
        Turn(text="Now the long one.", calls=[shell("touch started; sleep 600")]),
    )
    hold = scene.hold_turn(1)
    first = scene.machine("vm-1")
    run = first.ask(TASK, options=["--worktrees", "all"])
    scene.asked(2)
    scene.saved(1)

    def saved() -> bool:
        captured = scene.replay().state.workspace
        return captured is not None and captured.holds >= 1

    until(saved, "the working tree is saved with what the first call did")
    hold.set()
    until(lambda: (scene.workspace / "started").exists(), "the second call runs")
    run.kill()
    run.died()
    words = (["status", "--porcelain=v2", "--branch"], ["diff", "--cached"], ["log", "--format=%H"], ["stash", "list"])
    lost = files(scene.workspace)
    said = [git(scene.workspace / at, *each) for at in (".", SIDE, "../out") for each in words]
    first.lost()
    shutil.rmtree(scene.workspace)

    before = scene.records()
    new = scene.root / "new" / "work"
    new.mkdir(parents=True)
    second = scene.machine("vm-2", workspace=new)
    ahead = until(
        lambda: "would resume" in (said := second.cli("recover", "--dry-run").stdout) and said, "its lease ends"
    )
    assert "the saved one would be put back: 5 files" in ahead, ahead
    assert "with a repository like the lost one" in ahead
    assert f"would be put back too: {SIDE}" in ahead
    assert not list(new.iterdir()), "a look changes nothing"

    scene.script(Turn(text="I looked. I stop here."))
    again = second.ask(TASK, options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert files(new) == {name: hash for name, hash in lost.items() if name != "started"}
    assert (new / "made/file").stat().st_mode & 0o100
    assert [git(new / at, *each) for at in (".", SIDE, OUT) for each in words] == said
    assert (new / OUT / "new").read_text() == "new\n" and not (new.parent / "out").exists()
    assert "; working tree: 5 new files" in again.stderr()
    [notice] = notices(scene.model.requests[-1])
    assert "The working tree is as it was saved at" in notice and f"`{SIDE}`" in notice
    assert "not in this workspace" not in str(results_in(scene.model.requests[-1])[0]), "the capture holds call 1"
    log = check_log(scene, before)
    recovery = next(r for r in reversed(log) if r["type"] == "recovery")
    assert {"tree", "session", "all"} <= recovery["seconds"].keys()
