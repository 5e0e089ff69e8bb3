"""Two machines around one bucket: captures by the real code on one, the working tree put back on the other."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from wal_agent.bucket.base import MemoryBucket
from wal_agent.capture.inside import TreeCapture
from wal_agent.records import Workspace
from wal_agent.recovery.restore_target import Keep, PutBack, RestoreTarget, decide_restore, inspect_target
from wal_agent.recovery.restore_workspace import TreeResult, restore_files
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State, apply
from wal_agent.wal.store import JobStore

NOW = 1_700_000_000.0
WHO = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always")


def git(folder: Path, *words: str, ok: bool = True, **env: str) -> str:
    """As a user of the machine would; `ok`: it must succeed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *WHO, *words],
        cwd=folder,
        env={**kept, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true", "LC_ALL": "C", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    assert not ok or done.returncode == 0, f"git {words}: {done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")


@dataclass
class Lab:
    """The bucket, and what the log says of the working tree."""

    root: Path
    state: State = field(default_factory=State)
    moment: float = NOW

    def __post_init__(self) -> None:
        self.bucket = MemoryBucket()
        self.blobs = Blobs(JobStore(self.bucket, Keys("job"), rng=random.Random(1)), epoch=1)

    @property
    def captured(self) -> Workspace:
        assert self.state.workspace is not None
        return self.state.workspace

    def machine(self, name: str, folder: Path | None = None) -> Machine:
        return Machine(self, self.root / name / "state", folder or self.root / name / "work")


@dataclass
class Machine:
    """A state folder and a workspace. `work` is made when somebody needs it."""

    lab: Lab
    state_dir: Path
    work: Path
    _capture: TreeCapture | None = None
    outside: bool = False  # linked worktrees outside are saved too

    @property
    def target(self) -> RestoreTarget:
        return RestoreTarget(self.work.resolve(), self.state_dir, {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})

    def capture(self) -> Workspace | None:
        """One capture into the log, if anything is new."""
        if self._capture is None:
            env = self.target.env
            put, outside = self.lab.blobs.put_payload, lambda _: self.outside
            self._capture = TreeCapture(self.state_dir, self.work.resolve(), env, put, outside=outside)
            self._capture.go_on_from(self.lab.state)
        self.lab.moment += 1
        records = self._capture.capture(0, self.lab.moment)
        for record in records:
            self.lab.state = apply(self.lab.state, 1, 1, record)
        self._capture.commit()
        return next((record for record in records if not record.folder), None)

    def decide(self) -> Keep | PutBack:
        captured = self.lab.state.workspace
        return decide_restore(captured, inspect_target(self.target, captured))

    def restore(self) -> TreeResult:
        """As a recovery does it."""
        decided = self.decide()
        assert isinstance(decided, PutBack)
        self.lab.moment += 1
        self._capture = None
        state = self.lab.state
        done = restore_files(
            self.target, self.lab.captured, self.lab.blobs, decided, self.lab.moment, inside=state.inside
        )
        assert self.decide() == Keep("newest")
        return done


def files(folder: Path) -> dict[str, tuple[str, object]]:
    """Every path below but `.git`: kind and mode, and content."""
    found: dict[str, tuple[str, object]] = {}
    for base, folders, names in os.walk(folder):
        if ".git" in folders:
            folders.remove(".git")
        for name in [*names, *(f for f in folders if (Path(base) / f).is_symlink())]:
            path = Path(base) / name
            if name == ".git":
                continue
            told = str(path.relative_to(folder))
            if path.is_symlink():
                found[told] = ("link", os.readlink(path))  # noqa: PTH115 - the words, whatever they are
            else:
                found[told] = ("x" if path.stat().st_mode & 0o100 else "f", path.read_bytes())
    return found


def raw(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, by bytes and mode."""
    return {
        str(p.relative_to(folder)): (p.stat().st_mode, p.read_bytes())
        for p in folder.rglob("*")
        if p.is_file() and not p.is_symlink()
    }


def write(folder: Path, **named: str) -> None:
    for name, text in named.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def repository(folder: Path) -> Path:
    """A repository with two commits on `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    write(folder, a="one\n", b="two\n", sub__c="three\n", gone="away\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    write(folder, a="one\nmore\n")
    git(folder, "commit", "-qam", "second")
    return folder
