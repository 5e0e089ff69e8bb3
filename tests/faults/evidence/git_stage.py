"""Real repositories for the tests of evidence for git: a remote, a clone with work in it, and the truth about both, as
git and the files themselves tell it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_agent.clock import SystemClock
from wal_agent.evidence.git import GitKind
from wal_agent.evidence.model import Budget, Context, Outcome, Step
from wal_agent.records import Fact

Truths = dict[str, object]
HERE = Context(same_place=True, gone=True, alone=True)
_CLOCK = SystemClock()
_STATES = (
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "MERGE_AUTOSTASH",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
)
_SOUND = "git rev-parse --git-dir >/dev/null 2>&1 && echo yes || true"
_REFS = (
    "git for-each-ref; git ls-files -s; test ! -e {own}/logs/refs/stash || git log -g --format=%H refs/stash -- || true"
)
_MAKE = """
git init -q --bare -b main remote.git
git init -q -b main work && cd work
mkdir src
for n in 1 2 3 4 5 6; do echo "$n" > src/$n; done; echo one > a; echo base > b
git add -A && git commit -qm base
git branch old
echo two > a && git commit -qam two
git branch topic old && git checkout -q topic && echo topic > t && echo more > src/7
git add -A && git commit -qm topic
git checkout -q -b pair && echo pair > p && git add p && git commit -qm pair
git checkout -q main && git checkout -q -b ahead && echo ahead > h && echo three > a
git add -A && git commit -qm ahead
git checkout -q main
git remote add origin ../remote.git
git push -q origin main topic
git branch -q -u origin/main
git tag v0
"""


def environment(home: Path) -> dict[str, str]:
    """The same times and names for every run, so that the same command makes the same objects."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
    }
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "n", f"GIT_{who}_EMAIL": "n@example.org", f"GIT_{who}_DATE": "1700000000 +0000"}
    return env


def sh(script: str, cwd: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(["sh", "-ec", script], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout


def make(folder: Path) -> Path:
    """The two repositories as every test finds them."""
    folder.mkdir(parents=True)
    sh(_MAKE, folder, environment(folder))
    return folder


@dataclass(frozen=True, slots=True)
class Stage:
    """A copy of them."""

    root: Path
    env: dict[str, str]

    @classmethod
    def copy(cls, made: Path, to: Path) -> Stage:
        shutil.copytree(made, to, symlinks=True)
        return cls(to, environment(to))

    @property
    def work(self) -> Path:
        return self.root / "work"

    def sh(self, script: str) -> str:
        return sh(script, self.work, self.env)

    def settle(self) -> None:
        """Until the next change has other times than the last one."""
        changed = time.time_ns()
        while time.time_ns() - changed < 25_000_000:
            time.sleep(0.005)

    def truth(self) -> Truths:
        """All that a command here may change, and that means anything."""
        told: Truths = {"files": self._files()}
        for name in ("work", "remote.git", "made", "work/made"):
            folder = self.root / name
            own = folder if name == "remote.git" else folder / ".git"
            if own.is_file():  # a worktree's
                own = folder / own.read_text().partition(": ")[2].strip()
            if not own.exists():
                continue
            head, config = own / "HEAD", own / "config"
            told[f"{name} HEAD"] = head.read_text() if head.exists() else "none"
            sound = name in ("work", "remote.git") or sh(_SOUND, folder, self.env)
            told[name] = sh(_REFS.format(own=own), folder, self.env) if sound else "broken"
            told[f"{name} states"] = [s for s in _STATES if (own / s).exists()]
            told[f"{name} config"] = config.read_text() if config.exists() else ""
        return told

    def locks(self) -> list[str]:
        """What git leaves when it is killed: it stops at these the next time."""
        found = [*self.root.glob("work/.git/**/*.lock"), *self.root.glob("made/.git/**/*.lock")]
        return sorted(str(p.relative_to(self.root)) for p in found if "objects" not in p.parts)

    def _files(self) -> dict[str, str]:
        found = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "remote.git")]
            for name in names:
                path = Path(folder, name)
                if name not in (".git", "post-commit"):  # it may be cut off after a commit
                    found[str(path.relative_to(self.root))] = hashlib.sha256(path.read_bytes()).hexdigest()
            if not names and not folders:
                found[str(Path(folder).relative_to(self.root))] = "empty"
        return found

    # ---- evidence ----

    def before(self, words: Sequence[str], seconds: float = 5.0) -> tuple[Fact, ...]:
        step = self._step(words)
        how = GitKind().parse(step)
        return () if how is None else GitKind().facts_before(step, how, Budget(_CLOCK, _CLOCK.boot() + seconds))

    def assess(self, words: Sequence[str], facts: Sequence[Fact], around: Context = HERE) -> Outcome:
        step = self._step(words)
        how = GitKind().parse(step)
        assert how is not None
        return GitKind().assess_step(step, how, facts, around, Budget(_CLOCK, _CLOCK.boot() + 20.0))

    def _step(self, words: Sequence[str]) -> Step:
        return Step("run_shell_command", tuple(words), (), self.work)
