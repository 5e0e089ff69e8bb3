"""Evidence for git against the truth: real commands, ended at any of their system calls, never get a wrong verdict."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.evidence import stepper, tally_git
from tests.faults.evidence.git_stage import Stage, make

POINTS = int(os.environ.get("WAL_AGENT_TEST_GIT_POINTS", "3"))  # of each command at which it is ended; 0 for all

# name: what is done first, the command
COMMANDS = {
    "commit": ("echo x > a && git add a", "git commit -q -m 'a message'"),
    "commit -am": ("echo x > a; echo y > b", "git commit -am 'a message'"),
    "commit paths": ("echo x > a; echo y > b; git add b", "git commit -m m -- a"),
    "commit --amend": ("echo x > a && git add a", "git commit --amend -m other"),
    "commit --allow-empty": ("", "git commit --allow-empty -m empty"),
    "commit hooks": (
        "for h in pre-commit post-commit; do printf '#!/bin/sh\\necho ran >> ../'$h > .git/hooks/$h; done;"
        "chmod +x .git/hooks/p*; echo x > a; git add a",
        "git commit -m m",
    ),
    "commit nothing": ("", "git commit -m m"),
    "commit merge": ("git merge -q --no-commit --no-ff topic", "git commit -m merged"),
    "add": ("echo x > a; echo n > new", "git add -A"),
    "add file": ("echo x > a; echo n > new", "git add a new"),
    "rm": ("", "git rm -q b src/1"),
    "mv": ("", "git mv b c"),
    "merge": ("", "git merge --no-edit topic"),
    "merge ff": ("", "git merge ahead"),
    "merge conflict": ("git checkout -q -b x old; echo z > t; git add t; git commit -qm z", "git merge topic"),
    "merge same": ("", "git merge old"),
    "rebase": ("git checkout -q pair", "git rebase main"),
    "rebase apply": ("git checkout -q pair", "git rebase --apply main"),
    "checkout": ("echo y > b", "git checkout topic"),
    "checkout -b": ("echo y > b", "git checkout -b fresh"),
    "checkout -b at": ("", "git checkout -b fresh topic"),
    "checkout detached": ("", "git checkout --detach topic"),
    "checkout paths": ("echo y > b", "git checkout -- b"),
    "switch": ("", "git switch topic"),
    "switch -c": ("", "git switch -c fresh"),
    "restore": ("echo y > b", "git restore b"),
    "reset": ("echo y > b; git add b", "git reset -q"),
    "reset --hard": ("echo y > b; git add b", "git reset --hard old"),
    "reset --soft": ("", "git reset --soft HEAD~1"),
    "tag": ("", "git tag v1"),
    "tag -a": ("", "git tag -a v1 -m one"),
    "tag -d": ("git pack-refs --all", "git tag -d v0"),
    "branch": ("", "git branch fresh"),
    "branch at remote": ("", "git branch fresh origin/topic"),
    "branch -d": ("git pack-refs --all; git config branch.old.remote origin", "git branch -D old"),
    "branch -m": ("git config branch.old.remote origin", "git branch -m old older"),
    "push": ("echo x > a && git commit -qam x", "git push origin main"),
    "push bare": ("echo x > a && git commit -qam x", "git push"),
    "push -u": ("git checkout -q ahead", "git push -u origin ahead"),
    "push --force": ("git commit -q --amend -m other", "git push --force origin HEAD"),
    "push two": ("git branch -f topic ahead; git checkout -q ahead", "git push --force origin ahead topic"),
    "push tag": ("", "git push origin v0"),
    "push rejected": (
        "printf '#!/bin/sh\\nexit 1' > ../remote.git/hooks/pre-receive; chmod +x ../remote.git/hooks/pre-receive;"
        "git commit -q --allow-empty -m x",
        "git push origin main",
    ),
    "pull": ("git reset -q --hard old", "git pull"),
    "pull --rebase": ("git reset -q --hard old; echo n > new; git add new; git commit -qm new", "git pull --rebase"),
    "fetch": ("git update-ref -d refs/remotes/origin/topic", "git fetch origin"),
    "cherry-pick": ("", "git cherry-pick topic"),
    "cherry-pick two": ("", "git cherry-pick topic pair"),
    "revert": ("", "git revert --no-edit HEAD"),
    "stash": ("echo x > a; echo y > b", "git stash"),
    "stash -u": ("echo x > a; echo n > new", "git stash push -u -m later"),
    "stash pop": ("echo x > a; git stash -q", "git stash pop"),
    "stash pop of two": ("echo x > a; git stash -q; echo y > b; git stash -q", "git stash pop"),
    "stash drop": ("echo x > a; git stash -q", "git stash drop"),
    "clone": ("", "git clone -q ../remote.git ../made"),
    "clone into": ("mkdir ../made", "git clone ../remote.git ../made"),
    "init": ("mkdir ../made", "git init ../made"),
    "worktree add": ("", "git worktree add -b side ../made"),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("git") / "made")


def stage(made: Path, folder: Path, first: str) -> Stage:
    shutil.rmtree(folder, ignore_errors=True)
    found = Stage.copy(made, folder)
    found.sh(first)
    found.settle()
    return found


def ends(calls: int, rng: random.Random) -> list[tuple[int, int]]:
    """Where to end a command that makes so many calls, and how: every second time it may clean up after itself."""
    if not POINTS:
        return [(stop, sig) for stop in range(1, calls + 1) for sig in (signal.SIGKILL, signal.SIGTERM)]
    parts = [(calls * n // POINTS, calls * (n + 1) // POINTS) for n in range(POINTS)]
    chosen = [rng.randint(first + 1, max(first + 1, last)) for first, last in parts]
    return [(stop, rng.choice((signal.SIGKILL, signal.SIGTERM))) for stop in chosen]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_verdict_is_wrong_wherever_git_is_ended(made: Path, tmp_path: Path, name: str) -> None:
    first, command = COMMANDS[name]
    words = shlex.split(command)
    whole = stage(made, tmp_path / "x", first)
    facts = whole.before(words)
    untouched = whole.judge(words, facts)
    assert untouched.finding in ("not_started", "unknown"), untouched
    calls = stepper.run(words, whole.work, whole.env)
    done, found = whole.truth(), whole.judge(words, facts)
    tally_git.count(name, "to its end", found.finding)
    assert found.finding in ("completed", "unknown") or name in ENDS, found
    for stop, sig in ends(calls, random.Random(name)):
        trial = stage(made, tmp_path / "x", first)
        before, facts = trial.truth(), trial.before(words)
        stepper.run(words, trial.work, trial.env, stop, sig)
        now, locks, found = trial.truth(), trial.locks(), trial.judge(words, facts)
        truth = "done" if now == done else "before" if now == before else "between"
        if done == before:
            truth = "no change"
        tally_git.count(name, truth + ("+lock" if locks else ""), found.finding)
        said = (name, stop, sig, truth, locks, found)
        if found.finding == "completed":
            assert now == done and not locks, said
        elif found.finding == "not_started":
            assert now == before and not locks, said
        elif found.finding == "partial":
            assert locks or now != before or name in ENDS, said


# Ends with something in progress, or with nothing done, so that other verdicts are right, too.
ENDS = {
    "merge conflict": "partial",
    "merge same": "not_started",
    "commit nothing": "not_started",
}


@pytest.fixture(scope="session", autouse=True)
def shares() -> object:
    yield
    print(f"\n{tally_git.table()}")
