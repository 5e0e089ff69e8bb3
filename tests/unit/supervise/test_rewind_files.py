"""`rewind --files`: the working tree goes back together with the repositories in it, and what is replaced is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.recovery.lab import Lab, Machine, files, git, repository, write
from wal_agent.capture.candidates import BROUGHT_IN
from wal_agent.capture.inside import MAX_INSIDE
from wal_agent.paths import state_dir
from wal_agent.supervise.rewrite import Home, RewindPlace, bring_kept, put_files_back
from wal_agent.wal.state import State, apply

INSIDE = (".claude/worktrees/side", "module", "vendor/lib", "vendor/lib/deeper")


class Rewinder:
    """Rewinds of one machine's folder, as a rewind of its job does them."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.lab, self.n = machine, machine.lab, 0
        env = {**machine.target.env, "XDG_STATE_HOME": str(machine.state_dir.parent)}
        assert state_dir(env) == machine.state_dir
        self.home = Home("", "", Any, machine.work.resolve(), env)  # type: ignore[arg-type]

    @property
    def job(self) -> Any:
        writer = SimpleNamespace(state=self.lab.state, acked=SimpleNamespace(seq=1))
        return SimpleNamespace(writer=writer, blobs=self.lab.blobs, keys=SimpleNamespace(job=""))

    def back(self, to: State, undoes: int = 0) -> str:
        """What was said."""
        self.n += 1
        done = put_files_back(self.job, self.home, RewindPlace(tree=to.workspace, inside=to.inside), self.n)
        assert done is not None
        said = [*done.lines, *(bring_kept(self.job, self.home, undoes) if undoes else ())]
        for record in done.records:
            self.lab.state = apply(self.lab.state, 1, 1, record)
        self.machine._capture = None  # the next run's
        return "\n".join(said)


def filled(lab: Lab) -> Machine:
    """A workspace with a repository of each kind."""
    a = Machine(lab, lab.root / "a/wal-agent", lab.root / "a/work")
    repository(a.work)
    repository(lab.root / "origin")
    git(a.work, "submodule", "add", "-q", str(lab.root / "origin"), "module")
    git(a.work, "commit", "-qm", "module")
    (a.work / ".git/info/exclude").write_text(".claude/\n")
    git(a.work, "worktree", "add", "-q", "-b", "side", INSIDE[0])
    repository(repository(a.work / "vendor/lib") / "deeper")
    return a


def contents(machine: Machine) -> list[Any]:
    return [files(machine.work), *(files(machine.work / name) for name in INSIDE)]


def change(machine: Machine, text: str) -> None:
    for folder in (machine.work, *(machine.work / name for name in INSIDE)):
        write(folder, a=text, **{text: text})


def test_the_repositories_inside_go_back_too_and_forth_again(tmp_path: Path) -> None:
    """I7: what no capture has is kept, and comes back by an undo; commits, branches and the like stay as they are."""
    lab = Lab(tmp_path)
    a = filled(lab)
    change(a, "then")
    a.capture()
    then, was = lab.state, contents(a)
    change(a, "later")
    git(a.work / "vendor/lib", "add", "-A")
    git(a.work / "vendor/lib", "commit", "-qm", "later")
    a.capture()
    later = lab.state
    change(a, "unsaved")
    unsaved = contents(a)
    heads = [git(a.work / name, "for-each-ref") for name in INSIDE]
    rewind = Rewinder(a)
    rewind.back(then)
    assert contents(a) == was
    assert [git(a.work / name, "for-each-ref") for name in INSIDE] == heads
    assert [lab.state.inside[name].commit for name in INSIDE] == [then.inside[name].commit for name in INSIDE]
    rewind.back(later, undoes=1)
    assert contents(a) == unsaved
    a.capture()
    b = lab.machine("b")
    b.restore()
    assert contents(b) == unsaved, "captures go on from there"


def test_one_that_is_gone_comes_back_and_one_that_was_not_there_stays(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a = filled(lab)
    a.capture()
    then = lab.state
    git(a.work, "worktree", "remove", "--force", INSIDE[0])
    shutil.rmtree(a.work / "vendor")
    write(repository(a.work / "fresh"), mine="mine\n")
    a.capture()
    rewind = Rewinder(a)
    assert "fresh" in rewind.back(then)
    assert git(a.work / INSIDE[0], "rev-parse", "--abbrev-ref", "HEAD") == "side"
    assert git(a.work / "vendor/lib/deeper", "log", "--format=%s") == "second\nfirst"
    assert (a.work / "fresh/mine").read_text() == "mine\n"
    assert lab.captured.inside == tuple(sorted(lab.state.inside)) == tuple(sorted((*INSIDE, "fresh")))


def test_a_worktree_outside_stays_as_it_is(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a = Machine(lab, tmp_path / "a/wal-agent", tmp_path / "a/work", outside=True)
    git(repository(a.work), "worktree", "add", "-q", "-b", "side", "../side")
    a.capture()
    then = lab.state
    write(a.work, later="later\n")
    write(a.work.parent / "side", later="later\n")
    a.capture()
    rewind = Rewinder(a)
    assert f"{BROUGHT_IN}/side" in rewind.back(then)
    assert not (a.work / "later").exists() and not (a.work / BROUGHT_IN).exists()
    assert (a.work.parent / "side/later").exists()
    assert (a.capture(), lab.captured.inside) == (None, (f"{BROUGHT_IN}/side",))


def test_the_log_never_names_more_of_them_than_a_run_saves(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    a = Machine(lab, tmp_path / "a/wal-agent", tmp_path / "a/work")
    repository(a.work / "lib")
    a.capture()
    then = lab.state
    lab.state = State(workspace=lab.captured, inside={f"other/{n:02}": then.inside["lib"] for n in range(MAX_INSIDE)})
    Rewinder(a).back(then)
    assert len(lab.state.inside) == MAX_INSIDE and "lib" in lab.state.inside
