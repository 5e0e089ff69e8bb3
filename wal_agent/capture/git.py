"""Run git as a tool that reads what it is pointed at and nothing else: no hooks, monitors, pagers, prompts, fetches or
settings of the user's, and none of the environment's GIT_* variables.

Its processes are our own children beside the agent: `OWN` names them, so that whoever reaps or ends the agent's
leftovers leaves them alone, and they do not carry the run's marker.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec

from wal_agent.budget import FOREIGN
from wal_agent.safefs import real_path

MAX_OUTPUT = 64 << 20  # bytes of output that are held in memory
MAX_WARNED = 1 << 20  # bytes of warnings
NICE = 10
_PIPE = 1 << 16

SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.quotePath=false",
    "core.attributesFile=/dev/null",
    "core.bigFileThreshold=1m",  # bytes: what is bigger is streamed, and compressed once
    "core.packedGitWindowSize=4m",  # of a pack, at a time; git's own is 1 GiB, all of which counts as resident
    "core.packedGitLimit=64m",
    "core.deltaBaseCacheLimit=32m",
    "pack.windowMemory=32m",  # for each thread
    "pack.deltaCacheSize=16m",
    "pack.threads=1",
    "core.alternateRefsCommand=false",
    "core.askPass=false",
    "credential.helper=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "safe.directory=*",  # it only reads here, and runs nothing that it reads
)
LOOK = 1.0  # seconds between two looks at a git that goes on
FEED = 0.02  # the same, where pipes are known
MAX_PIPES = 10_000
SEARCH_TIME = 20.0  # seconds
_READ_BY_GIT = (".gitignore", ".gitattributes", ".gitmodules", ".git")


class GitMissing(Exception):
    """There is no git on PATH, or it is too old to start."""


class GitFailed(Exception):
    """git ended with another code than allowed, was ended after its time, or had more to say than is taken."""

    def __init__(self, words: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"git {' '.join(words[:2])} ended with {code}: {said.strip()[:500]}")
        self.code = code
        self.said = said


class GitStopped(Exception):
    """`Git.stop` was called."""


class Busy(Exception):
    """Another process is at work in the repository."""


class OwnProcesses:
    """Our own processes, whose end their own thread waits for. `lock` is held from before one starts until it is known
    here, and by whoever reaps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pids: set[int] = set()


OWN = OwnProcesses()


class GitDirs(msgspec.Struct, frozen=True):
    """Which repository a git process works on. `alternates`: object directories to read besides."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    objects: Path | None = None
    alternates: tuple[Path, ...] = ()
    cwd: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        env = {"GIT_DIR": str(self.git_dir)}
        if self.work_tree is not None:
            env["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index is not None:
            env["GIT_INDEX_FILE"] = str(self.index)
        if self.objects is not None:
            env["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        if self.alternates:
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = ":".join(_quoted(str(path)) for path in self.alternates)
        return env


def _quoted(path: str) -> str:
    """As git reads one of a list of paths (since 2.11)."""
    if ":" not in path and not path.startswith('"'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


class GitBounds(msgspec.Struct, frozen=True):
    """`most`: bytes of output, `timeout`: seconds (None: as the Git says). `foreign`: it reads bytes of the bucket, so
    its memory is bounded."""

    most: int = MAX_OUTPUT
    timeout: float | None = None
    foreign: bool = False


GIT_BOUNDS = GitBounds()


class Git(msgspec.Struct):
    """One thread runs it; any thread may `stop` it. `env`: the user's, of which PATH, HOME and TMPDIR are kept.
    `keep`: file descriptors that each process keeps open (a lock must outlive us as long as git works under it)."""

    env: Mapping[str, str]
    keep: Collection[int] = ()
    timeout: float = FOREIGN.git_seconds
    project: Path | None = None  # a real path; what is in it is never run
    _searched: tuple[object, str] | None = None  # the folders of PATH that count, and for what that was found
    pipes: tuple[Path, ...] = ()  # where git would read a file; it was seen to wait for whoever writes one
    _running: subprocess.Popen[bytes] | None = None
    _stopped: bool = False
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def program(self) -> str:
        """Never one of a relative folder of PATH, or of one in the project."""
        found = shutil.which("git", path=path) if (path := self._path()) else None
        if found is None:
            raise GitMissing
        return found

    def _path(self) -> str:
        asked = (self.project, self.env.get("PATH"), self.env.get("HOME"))
        if self._searched is None or self._searched[0] != asked:  # to resolve each folder costs more than a git
            self._searched = (asked, os.pathsep.join(self._folders()))
        return self._searched[1]

    def _folders(self) -> list[str]:
        folders = [f for f in self.env.get("PATH", os.defpath).split(os.pathsep) if f.startswith("/")]
        project = self.project
        if project is not None and not real_path(self.env.get("HOME") or "/").is_relative_to(project):
            folders = [f for f in folders if not real_path(f).is_relative_to(project)]
        return folders

    def text(
        self,
        *words: str,
        at: GitDirs | None = None,
        ok: Collection[int] = (0,),
        cwd: Path | None = None,
        user_settings: bool = False,
    ) -> str:
        """What it says, without the last line's end; bytes that are not UTF-8 as `os.fsdecode` has them."""
        said = self.run(*words, at=at, ok=ok, cwd=cwd, user_settings=user_settings)
        return os.fsdecode(said).removesuffix("\n")

    def run(
        self,
        *words: str,
        at: GitDirs | None = None,
        input: bytes | IO[bytes] = b"",
        ok: Collection[int] = (0,),
        out: IO[bytes] | None = None,
        cwd: Path | None = None,
        user_settings: bool = False,
        warned: list[str] | None = None,
        within: GitBounds = GIT_BOUNDS,
    ) -> bytes:
        """Run `git WORDS` to its end; what it wrote, unless `out` takes that. `user_settings`: the user's own global
        settings count (to ask what they are). `warned` gets the lines that it said beside its output.

        GitFailed, GitMissing, GitStopped. The process is gone when this returns."""
        argv = [self.program(), "--no-pager", "--no-replace-objects"]
        for setting in SETTINGS:
            argv += ["-c", setting]
        env = self._environment(at, user_settings)
        if words[:1] != ("check-ignore",):  # which cannot take it
            env["GIT_LITERAL_PATHSPECS"] = "1"  # paths mean just themselves
        folder = cwd or (at.cwd if at else None) or (at.git_dir if at else None) or Path("/")
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as said:
            if isinstance(input, bytes):
                source.write(input)
                source.seek(0)
            given = source if isinstance(input, bytes) else input
            process = self._start([*argv, *words], env, folder, given, said, out)
            if within.foreign:
                _bound_memory(process.pid)
            timer = _Watch(self, process, within.timeout or self.timeout, _places(at, folder))
            timer.daemon = True
            timer.start()
            try:
                wrote = b"" if out is not None else _read(process, within.most)
                code = process.wait()
            except BaseException:
                _kill(process)
                process.wait()
                raise
            finally:
                timer.cancel()
                if process.stdout is not None:
                    process.stdout.close()
                with OWN.lock:
                    OWN.pids.discard(process.pid)
                with self._lock:
                    self._running = None
            if self._stopped:
                raise GitStopped
            said.seek(0)
            if len(wrote) > within.most:
                raise GitFailed(words, code, f"it had more to say than {within.most} bytes")
            if code not in ok:
                raise GitFailed(words, code, os.fsdecode(said.read(4096)))
            if warned is not None:
                warned += os.fsdecode(said.read(MAX_WARNED)).split("\n")
        return wrote

    def stop(self) -> None:
        """Kill what runs now; nothing more is started."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                _kill(self._running)

    def go_on(self) -> None:
        """After `stop`: processes may be started again."""
        with self._lock:
            self._stopped = False

    def _start(
        self, argv: list[str], env: dict[str, str], cwd: Path, given: IO[bytes], said: IO[bytes], out: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise GitStopped
            with OWN.lock:
                try:
                    process = subprocess.Popen(
                        argv,
                        env=env,
                        cwd=cwd,
                        stdin=given,
                        stdout=subprocess.PIPE if out is None else out,
                        stderr=said,
                        start_new_session=True,
                        pass_fds=tuple(self.keep),
                    )
                except FileNotFoundError as error:
                    raise GitFailed(argv[-1:], 127, str(error)) from None
                OWN.pids.add(process.pid)
            self._running = process
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        return process

    def _environment(self, at: GitDirs | None, user_settings: bool) -> dict[str, str]:
        kept = ("HOME", "TMPDIR", *(("XDG_CONFIG_HOME",) if user_settings else ()))
        env = {name: self.env[name] for name in kept if name in self.env} | {"PATH": self._path()}
        env |= {
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "",  # also above what the project's settings allow, and for a git that lacks the last
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_PAGER": "cat",
        }
        if not user_settings:
            env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
            env |= {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}  # before 2.32 that is where it is
        return env | (at.env if at else {})


def _read(process: subprocess.Popen[bytes], most: int) -> bytes:
    """All that it writes; where that is more than `most`, its beginning, and it is ended."""
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    while size <= most and (part := process.stdout.read(_PIPE)):
        parts.append(part)
        size += len(part)
    if size > most:
        _kill(process)
    return b"".join(parts)


class _Watch(threading.Timer):
    """Ends a git after its time. One that stands still may wait for whoever writes a pipe that has the name of a file
    which git reads (`.gitignore` in any folder, anything in a `.git`): it is given an empty one, as often as it takes
    to open it. Nobody else's pipe is touched."""

    def __init__(self, git: Git, process: subprocess.Popen[bytes], seconds: float, places: Collection[Path]) -> None:
        super().__init__(seconds, lambda: _kill(process))
        self._git, self._pid, self._places = git, process.pid, places

    def run(self) -> None:
        began = time.monotonic()
        until, look, pause, before = began + self.interval, began, LOOK, None
        while (left := until - time.monotonic()) > 0:
            if self.finished.wait(min(left, FEED if self._git.pipes else pause)):
                return
            if time.monotonic() >= look:
                now = _standstill(self._pid)
                if now is not None and now == before:
                    self._git.pipes = find_pipes(self._places)
                    pause *= 2  # it may wait for something else
                look, before = time.monotonic() + pause, now
            for pipe in self._git.pipes:
                with suppress(OSError):  # most often: nobody waits for it
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
        self.function()


def _standstill(pid: int) -> object:
    """Equal for two looks between which a process that waits has done nothing; None where it works, or is gone."""
    if sys.platform != "linux":
        return ()
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return tuple(fields[11:13]) if fields[0] == "S" else None  # CPU times
    return None


def _places(at: GitDirs | None, folder: Path) -> tuple[Path, ...]:
    """The folders in which git looks for its files."""
    own = at.git_dir if at else None
    linked = own.parent.parent if own is not None and own.parent.name == "worktrees" else None
    return tuple({each for each in (folder, at.work_tree if at else None, own, linked) if each is not None})


def find_pipes(places: Iterable[Path]) -> tuple[Path, ...]:
    """The pipes below these folders that git would open as files of its own. Bounded."""
    until, found = time.monotonic() + SEARCH_TIME, dict[Path, None]()
    for base, _, files in chain.from_iterable(os.walk(place) for place in places):
        inside = ".git" in base.split("/")
        for name in files if inside else set(files).intersection(_READ_BY_GIT):
            path = Path(base, name)
            with suppress(OSError):
                if stat.S_ISFIFO(path.lstat().st_mode):
                    found[path] = None
        if time.monotonic() > until or len(found) >= MAX_PIPES:
            break
    return tuple(found)


def _bound_memory(pid: int) -> None:
    """Before it has read much; a process that has ended already needs none."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_DATA, (FOREIGN.git_memory, FOREIGN.git_memory))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and its group, which is its own. It blocks the signals that we block, so SIGKILL."""
    if process.returncode is not None:
        return  # its number may be another's by now
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def reap_others(collect: Callable[[int, int], None]) -> None:
    """Collect every dead child but our own git processes (`OWN`), whose thread waits for it; `collect` gets pid and
    wait status.

    An own one that is dead and not yet collected hides others for the moment; the caller asks again. Where the system
    cannot check without collecting (macOS), nobody is adopted either. ChildProcessError: there is no child left."""
    if not hasattr(os, "waitid"):
        return
    with OWN.lock:
        while (info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if info.si_pid in OWN.pids:
                return
            collect(*os.waitpid(info.si_pid, 0))


class Change(msgspec.Struct, frozen=True):
    """A path that differs between two trees. Modes are "000000" where there is nothing."""

    old_mode: bytes
    new_mode: bytes
    old: str
    new: str
    path: bytes

    @property
    def old_blob(self) -> bool:
        return self.old_mode[:2] in (b"10", b"12")

    @property
    def new_blob(self) -> bool:
        return self.new_mode[:2] in (b"10", b"12")

    @property
    def new_tree(self) -> bool:
        return self.new_mode == b"040000"


def diff_trees(git: Git, at: GitDirs, old: str, new: str, trees: bool = False) -> Iterator[Change]:
    """`trees`: also the folders in which something differs. What was moved is gone at one path and new at another."""
    if old == new:
        return
    words = ("diff-tree", "-r", *(["-t"] if trees else []), "--raw", "-z", "--no-renames", "--no-abbrev", old, new)
    fields = git.run(*words, at=at).split(b"\0")
    for head, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_id, new_id, _ = head[1:].split(b" ")
        yield Change(old_mode, new_mode, old_id.decode(), new_id.decode(), path)


def list_reachable(
    git: Git, at: GitDirs, trees: Sequence[str], known: Sequence[str] = (), strict: bool = True
) -> Iterator[bytes]:
    """Lines of `id path` of what trees reach (`<commit>^{tree}` names one), but for what the trees `known` hold. Not
    `strict`: what is not on this machine is passed over; else GitFailed.

    Never commits: to leave anything out, git goes through the whole history behind them."""
    passed_over = [] if strict else ["--missing=allow-any", "--ignore-missing"]
    asked = "".join(f"{id}\n" for id in (*trees, *(f"^{id}" for id in known)))
    yield from git.run("rev-list", "--objects", *passed_over, "--stdin", at=at, input=asked.encode()).split(b"\n")[:-1]


def trees_of(commits: Sequence[str]) -> list[str]:
    return [f"{id}^{{tree}}" for id in commits]


def object_sizes(git: Git, at: GitDirs, ids: Sequence[str], what: str = "objectsize") -> list[int]:
    """Bytes of each; 0 for what is not there. `what` = objectsize:disk: as it is stored."""
    if not ids:
        return []
    said = git.run("cat-file", f"--batch-check=%({what})", at=at, input="".join(f"{id}\n" for id in ids).encode())
    return [int(line) if line.isdigit() else 0 for line in said.split(b"\n")[:-1]]


def file_sizes(git: Git, at: GitDirs, tree: str) -> Iterator[int]:
    """Bytes of each file of a tree."""
    for entry in git.run("ls-tree", "-r", "-l", "-z", tree, at=at).split(b"\0")[:-1]:
        size = entry.partition(b"\t")[0].rsplit(b" ", 1)[1]
        if size != b"-":
            yield int(size)
