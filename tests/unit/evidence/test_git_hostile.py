"""Evidence for git in hostile repositories: nothing of theirs is run, followed or waited for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.evidence.git_stage import Stage, make
from tests.tiers import examples
from wal_agent.evidence import collector
from wal_agent.evidence.git import GitKind
from wal_agent.evidence.model import Step

COMMIT = ("git", "commit", "-q", "-m", "a message")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("git") / "made")


@pytest.fixture
def stage(made: Path, tmp_path: Path) -> Stage:
    found = Stage.copy(made, tmp_path / "stage")
    found.settle()
    return found


def test_before_starts_no_process(stage: Stage) -> None:
    text = """
import sys
from pathlib import Path
from wal_agent.clock import SystemClock
from wal_agent.evidence.git import GitKind
from wal_agent.evidence.model import Budget, Step

def stop(event, args):
    if event.startswith(("subprocess", "os.fork", "os.exec", "os.posix_spawn", "os.system", "socket")):
        raise SystemExit(f"started: {event}")

sys.addaudithook(stop)
clock = SystemClock()
for words in ("git commit -m m", "git push", "git add -A", "git worktree add x y", "git clone x z"):
    step = Step("run_shell_command", tuple(words.split()), (), Path.cwd())
    git, how = GitKind(), GitKind().parse(step)
    assert git.reach(step, how) and git.facts_before(step, how, Budget(clock, clock.boot() + 9)), words
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=stage.work, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_verdict_runs_nothing_that_the_repository_names(stage: Stage) -> None:
    evil = stage.root / "evil"
    run = f"touch {evil}"
    script = stage.root / "script"
    script.write_text(f"#!/bin/sh\n{run}\ncat\n")
    script.chmod(0o755)
    stage.sh("echo x > a; echo y > b; git add a")
    names = ("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.gitProxy", "core.askPass")
    more = (
        "diff.external",
        "diff.x.textconv",
        "diff.x.command",
        "filter.x.clean",
        "filter.x.smudge",
        "filter.x.process",
    )
    other = ("gpg.program", "credential.helper", "uploadpack.packObjectsHook", "core.alternateRefsCommand")
    for name in (*names, *more, *other):
        stage.sh(f"git config {name} {script}")
    for alias in ("cat-file", "config", "diff-index", "ls-files", "commit"):
        stage.sh(f"git config alias.{alias} '!{run}'")
    (stage.work / ".gitattributes").write_text("* filter=x diff=x\n")
    hooks = stage.work / ".git/hooks"
    for name in ("pre-commit", "post-index-change", "reference-transaction", "fsmonitor-watchman", "post-checkout"):
        shutil.copy(script, hooks / name)
    stage.settle()
    words = [COMMIT, ("git", "add", "-A"), ("git", "push"), ("git", "merge", "topic"), ("git", "branch", "x")]
    words += [("git", "commit", "-a", "-m", "x"), ("git", "checkout", "topic"), ("git", "stash")]
    facts = {w: stage.before(w) for w in words}
    assert all(facts.values()) and not evil.exists()
    # Something is done of each, so that there is something to ask git about; not by the settings above.
    quiet = "git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c filter.x.clean=cat -c filter.x.process= "
    quiet += "-c filter.x.smudge=cat "
    stage.sh(f"{quiet} add -A; {quiet} commit -q -m 'a message'; {quiet} branch x")
    evil.unlink(missing_ok=True)
    for w in words:
        stage.assess(w, facts[w])
    assert not evil.exists()
    stage.sh("touch a; git status || true")  # as git is run by people, it does
    assert evil.exists()


def test_a_lazy_fetch_is_not_made_for_a_verdict(stage: Stage) -> None:
    evil = stage.root / "evil"
    facts = stage.before(COMMIT)
    stage.sh("echo x > a; git add a; git commit -q -m 'a message'")
    stage.sh(f"git config remote.origin.promisor true; git config remote.origin.url 'ext::sh -c touch% {evil}'")
    stage.sh("git config protocol.ext.allow always; git config core.repositoryFormatVersion 1")
    stage.sh("git config extensions.partialClone origin; rm -r .git/objects/??")
    assert stage.assess(COMMIT, facts).finding == "unknown"
    assert not evil.exists()


FILES = (
    "HEAD",
    "index",
    "packed-refs",
    "refs/heads/main",
    "logs/HEAD",
    "logs/refs/heads/main",
    "config",
    "commondir",
    "refs",
)
LINES = (
    b"ref: refs/heads/main\n",
    b"ref: ../../x\n",
    b"ref: refs/heads/" + b"a/" * 300,
    b"0" * 40 + b"\n",
    b"\0" * 50,
    b"",
)


def spoil(own: Path, name: str, how: int | bytes) -> None:
    path = own / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(how, bytes):
        path.write_bytes(how)
    elif how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.symlink_to("/dev/zero")
    elif how == 2:
        path.symlink_to(own)
    elif how == 3:
        path.mkdir()
    elif how == 4:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif how == 5:
        path.symlink_to(path.name)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_spoiled_repository_is_met_with_silence(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    """No error, no end of time, and no word of what is not so."""
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    stage = Stage.copy(made, tmp_path / "s")
    own = stage.work / ".git"
    name = data.draw(st.sampled_from(FILES))
    how = data.draw(st.integers(0, 5) | st.sampled_from(LINES) | st.binary(max_size=200))
    words = data.draw(st.sampled_from([COMMIT, ("git", "add", "-A"), ("git", "push"), ("git", "checkout", "topic")]))
    facts = stage.before(words)
    if data.draw(st.booleans()):
        spoil(own, name, how)
        assert stage.assess(words, facts).finding != "completed"
    else:
        spoil(own, name, how)
        facts = stage.before(words)
        assert stage.assess(words, facts).finding in ("unknown", "not_started")


@pytest.mark.parametrize("how", [0, 1, 3, 5, b"gitdir: ../..", b"gitdir: /etc", b"gitdir: \0", b"junk"])
def test_a_git_file_that_leads_elsewhere_is_not_followed(made: Path, tmp_path: Path, how: int | bytes) -> None:
    stage = Stage.copy(made, tmp_path / "s")
    spoil(stage.work, ".git", how)
    assert stage.before(COMMIT) == ()
    step = Step("run_shell_command", COMMIT, (), stage.work)
    found = GitKind().parse(step)
    assert found is not None and GitKind().reach(step, found) is None


def test_reftable_links_in_refs_and_a_bare_repository_are_left_alone(stage: Stage) -> None:
    (stage.work / ".git/reftable").mkdir()
    assert stage.before(COMMIT) == ()
    (stage.work / ".git/reftable").rmdir()
    assert stage.before(COMMIT) != ()
    (stage.work / ".git/refs/heads/out").symlink_to(stage.root)
    assert stage.before(COMMIT) == ()
    assert stage.before(("git", "-C", "../remote.git", "tag", "x")) == ()


def test_facts_are_small_and_an_old_budget_gives_none(stage: Stage) -> None:
    facts = stage.before(("git", "push"))
    assert sum(len(f.what) + len(f.where) + len(f.value) for f in facts) < 2048
    assert all(len(f.value) <= collector.MAX_VALUE for f in facts)
    assert stage.before(("git", "push"), seconds=-1.0) == ()
