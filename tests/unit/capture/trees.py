"""What the tests of captured working trees share: a user's repository, a log that takes captures, and a machine that
has nothing but the bucket."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from wal_agent.capture.candidates import Caps
from wal_agent.capture.git import Git
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.records import Pack, Payload, Workspace
from wal_agent.wal.state import State, apply

SET = [
    *("-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"),
    *("-c", "maintenance.auto=false", "-c", "gc.auto=0"),
]
WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def user_env(home: Path) -> dict[str, str]:
    """A user's environment; their own git settings stand in `home`."""
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


class User:
    """A person at work in `top`, with git set up as in `home`."""

    def __init__(self, root: Path, name: str = "work") -> None:
        self.home = root / "home"
        self.home.mkdir(exist_ok=True)
        self.top = root / name
        self.top.mkdir(exist_ok=True)
        self.env = user_env(self.home)

    def git(self, *words: str, cwd: Path | None = None, ok: bool = True, input: bytes = b"") -> bytes:
        done = subprocess.run(
            ["git", *SET, *words],
            cwd=cwd or self.top,
            env={**self.env, **WHO, "GIT_CONFIG_NOSYSTEM": "1"},
            input=input,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0 or not ok, done.stderr.decode()
        return done.stdout

    def init(self) -> None:
        self.git("init", "-q")

    def write(self, name: str | bytes, data: bytes | str = b"x\n", mode: int = 0o644) -> Path:
        path = self.top / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        path.chmod(mode)
        return path

    def commit(self, message: str = "c") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").decode().strip()


class Log:
    """Takes captures as a job's log does; bulk bytes are kept under their hash."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.state = State()
        self.records: list[Workspace] = []

    def put(self, data: bytes) -> Payload:
        if len(data) <= 64 << 10:
            return Payload(size=len(data), data=data)
        name = hashlib.sha256(data).hexdigest() + "-1"
        self.blobs[name] = data
        return Payload(size=len(data), blob=name)

    def take(self, capture: WorkspaceCapture, holds: int = 0) -> Workspace | None:
        record = capture.capture(holds, 1000.0 + len(self.records))
        if record is not None:
            self.records.append(record)
            self.state = apply(self.state, 1, 1, record)
            capture.commit()
        return record

    def must(self, capture: WorkspaceCapture, holds: int = 0) -> Workspace:
        record = self.take(capture, holds)
        assert record is not None
        return record

    @property
    def now(self) -> Workspace:
        assert self.state.workspace is not None
        return self.state.workspace

    def bytes_of(self, pack: Pack) -> bytes:
        data = b"".join(p.data if p.data is not None else self.blobs[p.blob or ""] for p in pack.parts)
        assert len(data) == pack.size
        assert hashlib.sha256(data).hexdigest() == pack.sha256
        return data

    @property
    def sent(self) -> int:
        return sum(pack.size for record in self.records for pack in record.packs)


def capture_of(user: User, root: Path, sub: str = "", caps: Caps | None = None, **more: object) -> WorkspaceCapture:
    log = more.pop("log")
    assert isinstance(log, Log)
    private = more.pop("private", ())
    assert isinstance(private, tuple)
    return WorkspaceCapture(root / "state", (user.top / sub).resolve(), user.env, log.put, private, caps)


class Elsewhere:
    """A machine with nothing but the log: the packs of its newest capture in an empty repository."""

    def __init__(self, log: Log, folder: Path, object_format: str = "sha1") -> None:
        self.git = Git(user_env(folder))
        self.shadow = Shadow(folder / "elsewhere", self.git)
        self.shadow.ensure(object_format)
        for pack in log.now.packs:
            self.git.run("index-pack", "--stdin", at=self.shadow.at(), input=log.bytes_of(pack))
        self.contents: Contents = self.shadow.contents(log.now.commit)
        self.git.run("rev-list", "--objects", log.now.commit, at=self.shadow.at())  # whole
        self.root = folder

    def files(self, tree: str = "") -> dict[bytes, tuple[str, bytes]]:
        """Every entry of the tree (default: `work`): path to mode and bytes."""
        at = self.shadow.at()
        listed = self.git.run("ls-tree", "-r", "-z", tree or self.contents.work, at=at)
        found = {}
        for entry in listed.split(b"\0")[:-1]:
            head, _, path = entry.partition(b"\t")
            mode, kind, id = head.decode().split()
            found[path] = (mode, self.git.run("cat-file", "blob", id, at=at) if kind == "blob" else id.encode())
        return found


def on_disk(top: Path) -> dict[bytes, tuple[str, bytes]]:
    """The same of a folder, without .git: modes as git has them."""
    found = {}
    for folder, names, files in os.walk(os.fsencode(top)):
        if b".git" in names:
            names.remove(b".git")
        for name in [*files, *(n for n in names if (Path(os.fsdecode(folder)) / os.fsdecode(n)).is_symlink())]:
            path = folder + b"/" + name
            info = os.lstat(path)
            if name == b".git":
                continue
            key = os.path.relpath(path, os.fsencode(top))
            if stat.S_ISLNK(info.st_mode):
                found[key] = ("120000", os.readlink(path))  # noqa: PTH115 - bytes
            elif stat.S_ISREG(info.st_mode):
                mode = "100755" if info.st_mode & 0o100 else "100644"
                found[key] = (mode, Path(os.fsdecode(path)).read_bytes())
    return found


def fingerprint(git_dir: Path) -> Mapping[str, object]:
    """All of a .git: each file's bytes, mode and inode; each folder's names. (Times of objects git may refresh.)"""
    return dict(_print(git_dir))


def _print(folder: Path) -> Iterator[tuple[str, object]]:
    for at, names, files in os.walk(folder):
        yield at, sorted(names)
        for name in files:
            path = Path(at) / name
            info = path.lstat()
            data: object = path.read_bytes() if stat.S_ISREG(info.st_mode) else ""
            if path.is_symlink():
                data = path.readlink()
            yield str(path), (info.st_mode, info.st_ino, data)
