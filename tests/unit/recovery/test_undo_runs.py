"""recovery/undo.py on a real repository: what a suggestion takes back is as it was before the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from wal_agent.calls.call import ReadCall
from wal_agent.recovery.undo import undo_of_text

BEFORE = """
git init -q --bare origin && git -C origin symbolic-ref HEAD refs/heads/main
git init -q work && cd work && git symbolic-ref HEAD refs/heads/main
echo one >a.txt && echo b >b.txt && git add . && git commit -qm one
git remote add origin ../origin && git push -q origin main
git switch -qc side && echo side >side.txt && git add . && git commit -qm side && git switch -q main
echo two >>a.txt && git commit -qam two
"""
# What must be the same after command and undo: the named parts of the repository.
RUNS = [
    ("", "git push origin main", "refs remote"),
    ("echo x >>b.txt", "git commit -am x", "refs files"),
    ("echo x >>b.txt", "git commit -a --amend -m x", "refs files"),
    ("", "git reset --hard HEAD~1", "refs files index"),
    ("", "git reset HEAD~1", "refs files index"),
    ("", "git reset --soft HEAD~1", "refs files index"),
    ("", "git tag v1 -m first", "refs"),
    ("", "git tag v1", "refs"),
    ("", "git branch other", "refs"),
    ("echo x >>b.txt", "git stash", "refs files"),
    ("echo x >>b.txt", "git stash push -m 'for later'", "refs files"),
    ("echo x >>b.txt; git stash -q", "git stash pop", "files index"),
    ("", "git merge -q -m join side", "refs files index"),
    ("", "git cherry-pick side", "refs files index"),
    ("", "git revert --no-edit HEAD", "refs files index"),
    ("git switch -q side", "git rebase -q main", "refs files index"),
    ("", "git switch side", "refs files index"),
    ("echo x >>b.txt", "git add b.txt", "refs files index"),
    ("", "git rm -q b.txt", "refs files index"),
    ("", "git remote add mirror ../origin", "remotes"),
    ("", "git worktree add -q ../tree side", "refs worktrees"),
    ("", "cd . && git tag v2", "refs"),
]
LOOK = {
    "refs": "git for-each-ref --format='%(refname) %(objecttype) %(objectname)' refs/heads refs/tags; "
    "git symbolic-ref HEAD",
    "remote": "git -C ../origin for-each-ref",
    "files": "grep -r . --exclude-dir=.git .",
    "index": "git status --porcelain",
    "remotes": "git remote -v",
    "worktrees": "git worktree list --porcelain",
}


def shell(script: str, folder: Path, home: Path) -> str:
    own = {"GIT_CONFIG_GLOBAL": str(home / "config"), "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true", "LC_ALL": "C"}
    env = {"PATH": os.environ["PATH"], "HOME": str(home), **own}
    done = subprocess.run(["sh", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("undo")
    (home / "config").write_text("[user]\nname = t\nemail = t@example.invalid\n[core]\nhooksPath = /dev/null\n")
    shell(BEFORE, home, home)
    return home


@pytest.mark.parametrize(("first", "command", "parts"), RUNS, ids=[f"{first} {text}" for first, text, _ in RUNS])
def test_the_undo_takes_it_back(template: Path, tmp_path: Path, first: str, command: str, parts: str) -> None:
    found = undo_of_text(command, ReadCall("", b""))
    assert found.kind == "command"
    shell(f"cp -a {template}/. {tmp_path}", tmp_path, template)
    work = tmp_path / "work"
    shell(first or "true", work, template)
    look = " && ".join(f"({LOOK[part]}) | sort" for part in parts.split())
    before = shell(look, work, template)
    shell(command, work, template)
    assert shell(look, work, template) != before, "the command changed nothing that is looked at"
    for undo in found.commands:
        shell(undo, work, template)
    assert shell(look, work, template) == before
