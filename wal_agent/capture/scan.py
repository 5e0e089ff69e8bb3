"""The files of a workspace as a git tree, through our own index: what changed since the last scan is hashed, the rest
is known by its stat data. No filter sees a byte; nothing is run.

What cannot be saved is reported and never a failure: files that are too big, not readable, no files at all, or
repositories of their own.

Not captured by wish: what git's own ignore rules name, the user's global ones, and the workspace's `.wal-agentignore`,
which wins over both and may take back (`!name`) what a .gitignore says. A project's file can only choose among the
files of its own workspace.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.capture import candidates as left_out
from wal_agent.capture.candidates import (
    Add,
    Caps,
    LeftOut,
    bound_paths,
    display_path,
    is_within,
    select_candidates,
    take_first,
    total_cost,
)
from wal_agent.capture.git import Git, GitBounds, GitDirs, GitFailed, GitStopped
from wal_agent.capture.repository import Location
from wal_agent.capture.shadow import Shadow
from wal_agent.records import Pending
from wal_agent.safefs import Signature, file_signature, read_plain, real_path

IGNORE_FILE = ".wal-agentignore"
MAX_IGNORE_FILE = 1 << 20  # bytes of a file of patterns
MAX_IGNORE_LINES = 500
BATCH = 4000  # files that are hashed by one process
BATCH_BYTES = 128 << 20
NO_BUDGET = 1 << 62  # bytes
MAX_PENDING = 5  # files that are not saved yet and are named
MAX_IGNORED = 1 << 20  # bytes of their list
MAX_MODES = 10_000  # files; where there are more, only those that changed are asked for their modes again
_CLOSED = re.compile(r"warning: could not open directory '(.*)/(?:': .*|[^/]*)")  # git cuts its line at 4096 bytes
_UNABLE = re.compile(r"fatal: Unable to process path (.*)", re.DOTALL)


def write_excludes(users: Path | None, place: Location, target: Path) -> bytes:
    """Bring the user's info/exclude and global ignore file `users` together in our own, `target`; the same order, so
    that the last word is the same. What was written."""
    texts = [read_plain(path, MAX_IGNORE_FILE) or b"" for path in (users, _local(place)) if path is not None]
    text = b"\n".join(texts)
    if read_plain(target, 3 * MAX_IGNORE_FILE) != text:
        target.write_bytes(text)
    return text


def _local(place: Location) -> Path | None:
    return place.common / "info" / "exclude" if place.common is not None else None


def settings_stamp(place: Location, env: Mapping[str, str]) -> object:
    """Another one when the settings are others that `users_excludes` asks for."""
    files = [Path("/etc/gitconfig")]
    if home := env.get("HOME"):
        files += [Path(home) / ".gitconfig", Path(env.get("XDG_CONFIG_HOME") or f"{home}/.config") / "git" / "config"]
    if place.common is not None:
        files.append(place.common / "config")
    return place, file_signature(*files)


def users_excludes(git: Git, place: Location, env: Mapping[str, str]) -> Path | None:
    """`core.excludesFile` as the user's git has it."""
    with suppress(GitFailed):
        words = ("config", "--path", "--get", "core.excludesFile")
        found = git.text(*words, cwd=place.top if place.git_dir else None, ok=(0, 1), user_settings=True)
        if found:
            return place.top / found
    home = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    return Path(home) / "git" / "ignore" if home else None


def ignore_patterns(workspace: Path, place: Location, private: Iterable[bytes]) -> list[str]:
    """Patterns for git's command line, the last match wins: those of `.wal-agentignore`, then the folders (below `top`)
    that are never captured."""
    text = read_plain(workspace / IGNORE_FILE, MAX_IGNORE_FILE) or b""
    found = []
    for line in os.fsdecode(text).split("\n")[:MAX_IGNORE_LINES]:
        line = line.removesuffix("\r")
        if line.strip() and not line.startswith("#") and "\0" not in line:
            found.append(_anchored(line, place.prefix))
    return [*found, *(f"/{escape_pattern(os.fsdecode(path))}" for path in private)]


def _anchored(line: str, prefix: str) -> str:
    """A pattern of the workspace's folder as one of the top folder."""
    sign, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    if not prefix or "/" not in pattern.rstrip("/ "):
        return line
    return f"{sign}/{escape_pattern(prefix)}/{pattern.lstrip('/')}"


def escape_pattern(path: str) -> str:
    """A path as a pattern that means just it."""
    return re.sub(r"([\\*?\[\]!# ])", r"\\\1", path)


class Scanned(msgspec.Struct, frozen=True):
    """`work`: tree of the workspace folder. `candidates`: how many files were examined. `private`: as in
    shadow.GitState. `inside`: repositories inside, below the workspace. `pending`: files that were not taken this
    time; the newest change of one was at `changed` (seconds since 1970). Those that were taken cost `cost` bytes
    (candidates.cost), and hashing them took `seconds`."""

    work: str
    left_out: LeftOut
    candidates: int
    private: tuple[bytes, ...]
    inside: tuple[bytes, ...] = ()
    pending: Pending | None = None
    changed: float = 0.0
    taken: int = 0
    cost: int = 0
    seconds: float = 0.0


class Scanner:
    """Used under the shadow's lock. `private`: absolute paths that are never captured."""

    def __init__(
        self, shadow: Shadow, workspace: Path, env: Mapping[str, str], private: Iterable[Path], caps: Caps
    ) -> None:
        self._shadow, self._git, self._workspace, self._env = shadow, shadow.git, workspace, env
        self._private = [path for each in private for path in {each.absolute(), real_path(each)}]
        self._caps = caps
        self._users: tuple[object, Path | None] | None = None  # the user's own ignore file, and when that was asked
        self._rules: object = None  # by which the list of ignored files was made
        self._forced: set[bytes] = set()  # files that the user tracks although they are ignored
        self._ignored: list[bytes] = []
        self._links: set[bytes] = set()  # repositories inside, as our index has them
        self._theirs: set[bytes] | None = None  # files of which only their owner may open any; None: not known yet
        self._many = False

    def scan(self, place: Location, index_stamp: object, total: int, budget: int = NO_BUDGET) -> Scanned:
        """Bring our index up to date and write its tree. `index_stamp`: changes with the user's index; `total`: bytes
        of the files as of the last scan; `budget`: bytes of changed files that are taken this time. GitFailed."""
        dirs = self._begin(place)
        prefix = os.fsencode(place.prefix) + b"/" if place.prefix else b""
        where = [place.prefix] if place.prefix else []
        private = {*self._below(place.top)}
        rules = ignore_patterns(self._workspace, place, sorted(private))
        settings = settings_stamp(place, self._env)
        if self._users is None or self._users[0] != settings:
            self._users = (settings, users_excludes(self._git, place, self._env))
        excludes = write_excludes(self._users[1], place, self._shadow.folder / "info" / "exclude")
        chosen = [word for rule in rules for word in ("-x", rule)]
        rules_now = (place, index_stamp, tuple(rules), excludes, self._above(place))
        warned: list[str] = []
        words = ("ls-files", "-z", "-t", "-m", "-d", "-o", "--exclude-standard", *chosen, "--", *where)
        listed = self._git.run(*words, at=dirs, warned=warned).split(b"\0")[:-1]
        found = {entry[2:]: entry[:1] for entry in listed}
        if rules_now != self._rules or any(path.endswith(b".gitignore") for path in found):
            self._apply_rules(place, dirs, chosen, where)
            self._rules = rules_now
        for path in self._forced:
            found.setdefault(path, b"?")
        out = LeftOut()
        for found_out in filter(None, map(_CLOSED.fullmatch, warned)):
            out.add(os.fsencode(found_out[1]), left_out.UNREADABLE)
        gone = [path for path in found if is_within(path, private)]
        for path in gone:
            del found[path]
        todo = select_candidates(place.top, found, total, self._caps, out, lambda: self._edited(place, where))
        now, later = take_first(todo.adds, budget, lambda: self._clean(place, where))
        self._remove(dirs, [*todo.removes, *gone])
        self._add(dirs, place.top, todo.nested, out)
        self._links |= {add.path for add in todo.nested} - out.why.keys()
        inside = self._links | {add.path for add in todo.nested}
        began = time.monotonic()
        self._add(dirs, place.top, now, out)
        seconds = time.monotonic() - began
        for path in self._ignored:
            out.add(path, left_out.PRIVATE if is_within(path, private) else left_out.IGNORED)
        self._look_at_modes(dirs, place.top, where, [add.path for add in now], bool(todo.removes or gone))
        reported = LeftOut()
        for path, why in out.why.items():
            reported.add(path.removeprefix(prefix), why)
        reported.later = [add.path.removeprefix(prefix) for add in later if add.new]
        theirs = bound_paths(path.removeprefix(prefix) for path in sorted(self._theirs or ()))
        pending = None
        if later:
            names = tuple(display_path(add.path.removeprefix(prefix)) for add in later[:MAX_PENDING])
            pending = Pending(files=len(later), size=sum(add.size for add in later), names=names)
        changed = max((add.changed for add in later), default=0.0)
        return Scanned(
            self._tree(dirs, place),
            reported,
            len(found),
            theirs,
            tuple(sorted(path.removeprefix(prefix) for path in inside)),
            pending,
            changed,
            len(now),
            total_cost(now),
            seconds,
        )

    def settings(self, place: Location) -> object:
        """Another one when the user's settings or ignore file are others."""
        kept = self._users[1] if self._users is not None else None
        return settings_stamp(place, self._env), file_signature(*([kept] if kept is not None else []))

    def _begin(self, place: Location) -> GitDirs:
        """Our index is of one top folder and prefix; elsewhere it begins anew."""
        mark = self._shadow.folder / "place"
        now = os.fsencode(place.top) + b"\0" + os.fsencode(place.prefix)
        if not mark.exists() or mark.read_bytes() != now:
            (self._shadow.folder / "index").unlink(missing_ok=True)
            mark.write_bytes(now)
            self._rules = self._theirs = None
        dirs = self._shadow.at(*place.alternates, work_tree=place.top)
        if self._rules is None:
            staged = self._git.run("ls-files", "-s", "-z", at=dirs).split(b"\0")
            self._links = {entry.partition(b"\t")[2] for entry in staged if entry.startswith(b"160000")}
        # To git's eyes a repository inside that has lost its .git is unchanged, and its files are not captured.
        top = os.fsencode(place.top)
        self._remove(dirs, [link for link in self._links if not os.path.lexists(top + b"/" + link + b"/.git")])
        return dirs

    def _below(self, top: Path) -> Iterator[bytes]:
        for path in self._private:
            if path.is_relative_to(top) and path != top:
                yield os.fsencode(path.relative_to(top))

    def _above(self, place: Location) -> Signature:
        """What the ignore files above the workspace are known by."""
        parts = Path(place.prefix).parts[:-1]
        folders = [place.top, *(place.top.joinpath(*parts[: n + 1]) for n in range(len(parts)))]
        return file_signature(*(folder / ".gitignore" for folder in folders))

    def _list(self, dirs: GitDirs, *words: str) -> list[bytes]:
        return self._git.run("ls-files", "-z", *words, at=dirs).split(b"\0")[:-1]

    def _edited(self, place: Location, where: list[str]) -> set[bytes]:
        """Files that the user tracks and that are not as their index has them."""
        tracked = self._shadow.folder / "user-index"
        if place.git_dir is None or not tracked.exists():
            return set()
        theirs = self._shadow.at(*place.alternates, work_tree=place.top, index=tracked)
        try:
            return set(self._list(theirs, "-m", "--", *where))
        except GitFailed:
            return set()

    def _clean(self, place: Location, where: list[str]) -> set[bytes]:
        """Files that the user tracks and that are as their index has them."""
        tracked = self._shadow.folder / "user-index"
        if place.git_dir is None or not tracked.exists():
            return set()
        theirs = self._shadow.at(*place.alternates, work_tree=place.top, index=tracked)
        try:
            return set(self._list(theirs, "--", *where)) - self._edited(place, where)
        except GitFailed:
            return set()

    def _look_at_modes(self, dirs: GitDirs, top: Path, where: list[str], changed: list[bytes], fewer: bool) -> None:
        if self._theirs is not None and not changed and not fewer and self._many:
            return
        paths = self._list(dirs, "--", *where)
        self._many = len(paths) > MAX_MODES
        if self._theirs is None or not self._many:
            self._theirs, checked = set(), paths
        else:
            self._theirs = self._theirs.intersection(paths).difference(changed)
            checked = sorted({*changed}.intersection(paths))
        folder = os.fsencode(top) + b"/"
        for path in checked:
            with suppress(OSError):
                mode = os.lstat(folder + path).st_mode
                if stat.S_ISREG(mode) and not mode & 0o077:
                    self._theirs.add(path)

    # ---- ignored files

    def _apply_rules(self, place: Location, dirs: GitDirs, chosen: list[str], where: list[str]) -> None:
        """After a change of the rules: files that the user tracks stay, others that are ignored now leave our index."""
        tracked = self._shadow.folder / "user-index"
        self._forced = set()
        ask = ("-c", "-i")
        if place.git_dir is not None and tracked.exists():
            theirs = self._shadow.at(*place.alternates, work_tree=place.top, index=tracked)
            try:
                self._forced = set(self._list(theirs, *ask, "--exclude-standard", "--", *where))
                if chosen:
                    self._forced -= set(self._list(theirs, *ask, *chosen, "--", *where))
            except GitFailed:
                self._forced = set()
        found = set(self._list(dirs, *ask, "--exclude-standard", *chosen, "--", *where))
        self._remove(dirs, sorted(found - self._forced))
        words = ("-o", "-i", "--directory", "--exclude-standard", *chosen, "--", *where)
        try:
            said = self._git.run("ls-files", "-z", *words, at=dirs, within=GitBounds(MAX_IGNORED))
            self._ignored = [path for path in said.split(b"\0")[:-1] if path not in self._forced]
        except GitFailed:
            self._ignored = []

    # ---- our index

    def _remove(self, dirs: GitDirs, paths: Sequence[bytes]) -> None:
        if not paths:
            return
        self._git.run("update-index", "--force-remove", "-z", "--stdin", at=dirs, input=_lines(paths))
        self._links.difference_update(paths)

    def _add(self, dirs: GitDirs, top: Path, adds: Sequence[Add], out: LeftOut) -> None:
        batch: list[bytes] = []
        size = 0
        for add in adds:
            batch.append(add.path)
            size += add.size
            if len(batch) >= BATCH or size > BATCH_BYTES:
                self._hash(dirs, top, batch, out)
                batch, size = [], 0
        self._hash(dirs, top, batch, out)

    def _hash(self, dirs: GitDirs, top: Path, paths: list[bytes], out: LeftOut) -> None:
        """Hash files into our index. One that went wrong (gone, cut or closed while git read it) takes its batch with
        it: without it, or in halves, it is tried again."""
        while paths:
            try:
                words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
                self._git.run(*words, at=dirs, input=_lines(paths))
            except GitStopped:
                raise
            except GitFailed as error:
                if len(paths) == 1:
                    self._give_up(dirs, top, paths[0], out)
                    return
                named = _UNABLE.search(error.said)
                bad = os.fsencode(named[1].rstrip("\n")) if named else b""
                if bad in paths:
                    self._give_up(dirs, top, bad, out)
                    paths = [path for path in paths if path != bad]
                    continue
                middle = len(paths) // 2
                self._hash(dirs, top, paths[:middle], out)
                paths = paths[middle:]
            else:
                return

    def _give_up(self, dirs: GitDirs, top: Path, path: bytes, out: LeftOut) -> None:
        inside = os.path.lexists(os.fsencode(top) + b"/" + path + b"/.git")
        out.add(path, left_out.NESTED_EMPTY if inside else left_out.UNREADABLE)
        self._remove(dirs, [path])

    def _tree(self, dirs: GitDirs, place: Location) -> str:
        words = [f"--prefix={place.prefix}/"] if place.prefix else []
        try:
            return self._git.run("write-tree", *words, at=dirs).decode().strip()
        except GitFailed as error:
            if place.prefix and "not found" in error.said:  # nothing is in the folder
                return self._git.run("mktree", at=dirs, input=b"").decode().strip()
            raise


def _lines(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)
