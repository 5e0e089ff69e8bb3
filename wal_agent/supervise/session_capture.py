"""Brings the session into the log: captures its files, and settles calls from what the session itself tells.

Before-hooks fire before a person approves, and a refused or interrupted call has no after-hook; at a batch boundary the
session file tells their end (DESIGN 8, Turn boundaries).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents.base import (
    Agent,
    EndsItsCalls,
    Env,
    Hookless,
    Journals,
    NamesCallsOnce,
    SeenCall,
    SessionFile,
    Trails,
)
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import Clock
from wal_agent.happened import Saved, Tell
from wal_agent.records import Ending, FileDelta, FileGone
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.unlogged import Unlogged
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.writer import Writer

MAX_BACKLOG = 32 << 20  # bytes waiting for the bucket above which captures wait (I9)
KNOWN = 4096  # ids of told calls that are remembered (I9); a message is written again soon or never
_UNHOOKED = ("refused", "cancelled")  # such a call has no after-hook
_ENDINGS: dict[str, tuple[Ending, str]] = {
    "done": ("done", ""),
    "failed": ("failed", "the session says that it failed"),
    "refused": ("denied", "it was refused, so it did not run"),
    "cancelled": ("interrupted", "it was cancelled; it may have begun"),
}


@dataclass(frozen=True, slots=True)
class _Told:
    """An outcome that was read when `newest` was the newest call: it is of none behind that. `inner`: a subagent's file
    tells it, so only its id counts."""

    seen: SeenCall
    newest: int
    inner: bool


@dataclass(slots=True)
class _Tail:
    """A file that is only appended to, told up to here."""

    upto: int = 0

    def read(self, path: Path, settled_length: Callable[[bytes], int] = len) -> bytes:
        """Whole lines since the last look, as many of their bytes as `caught_up` says; none when the file was written
        anew, since what it repeats has been told."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""  # gone since it was listed, or not ours to read; the capture says so
        with os.fdopen(fd, "rb") as file:
            anew = os.fstat(fd).st_size < self.upto
            self.upto = file.seek(0 if anew else self.upto)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        whole = whole[: settled_length(whole)]
        self.upto += len(whole)
        return b"" if anew else whole


class SessionSaver:
    """One session at a time. `save` and `finish` run in the autosave thread alone."""

    def __init__(
        self,
        agent: Agent,
        env: Env,
        workspace: Path,
        writer: Writer,
        blobs: Blobs,
        gate: Gate,
        clock: Clock,
        capture: SessionCapture,
        session: str,
        skip: frozenset[str],
        unseen: Callable[[str], None],
        look: Callable[[bytes], None],
        tell: Tell = lambda _: None,
    ) -> None:
        self._tell = tell
        self._agent = agent
        self._env = env
        self._workspace = workspace
        self._writer = writer
        self._blobs = blobs
        self._gate = gate
        self._clock = clock
        self._capture = capture
        self._lock = threading.Lock()
        self._marking = threading.Lock()
        self._appending = threading.Lock()
        self._closed = False
        self._session = session
        self._by_file = agent.boundary == "file"
        self._caught_up = agent.settled_length if isinstance(agent, Trails) else len
        # At a boundary the file may lack what it tells of it: only what it has told counts as told.
        self._trails = self._by_file or isinstance(agent, Trails)
        self._boundary = self._settled_upto = 0
        self._told: list[_Told] = []
        self._known: dict[str, None] = {}  # ids of calls that were told, oldest first
        self._begin(self._files())
        self._unlogged = Unlogged(agent, gate, skip, unseen)
        self._look = look
        self.saved = 0.0  # wall time of the last complete save

    def _begin(self, files: list[SessionFile]) -> None:
        """What stands in the session's files now is of before this run."""
        self._tails = {f.name: _Tail(_size(f.path)) for f in files if self._is_told(f)}
        self._old = self._tails[self._agent.main_file].upto if self._agent.main_file in self._tails else 0

    def _is_told(self, file: SessionFile) -> bool:
        """Do outcomes of calls stand in it? In subagents' own files too."""
        return file.name == self._agent.main_file or file.name.endswith(".jsonl")

    def _files(self) -> list[SessionFile]:
        if isinstance(self._agent, Journals):
            self._agent.journal(self._session, self._workspace, self._env)
        return self._agent.session_files(self._session, self._workspace, self._env)

    def boundary(self, call: int) -> None:
        """Calls numbered up to `call` are all told by the session file from now on, if they are told at all. Called by
        a hook, which must not wait for a save."""
        with self._marking:
            self._boundary = max(self._boundary, call)

    def switch(self, session: str) -> None:
        """The agent began another session (/clear): what was captured of the old one leaves the state."""
        with self._lock:
            gone = [FileGone(time=self._clock.now(), path=f.name) for f in self._files()]
            if gone:
                self._writer.append(*gone)
            self._capture = SessionCapture(session, self._blobs.put_payload)
            self._session = session
            self._known.clear()
            self._unlogged.begin()
            self._begin(self._files())  # `--continue`, or /resume to an old session

    def save(self, last: bool = False, completed: bool = False) -> list[Path]:
        """Capture what changed; gives the folders to watch. `last`: the agent has ended, every file is read whole.
        `completed`: in good order, after its turn.
        Raises BucketError when bulk bytes could not be stored: the next save finds them again."""
        with self._lock:
            if self._closed:
                return []
            began, files = self._clock.boot(), self._files()
            upto = self._boundary
            self._settle(files, upto, last, completed)
            if self._writer.backlog.size <= MAX_BACKLOG:
                told = self._gate.told_upto() if self._trails or last else self._over(upto)
                self._append(self._capture.capture(files, self._clock.now(), told, last), began)
                self.saved = self._clock.now()
            return sorted({*(f.path.parent for f in files), *self._expected(files)})

    def _expected(self, files: list[SessionFile]) -> list[Path]:
        """Folders in which files of the session may appear."""
        agent, at = self._agent, (self._workspace, self._env)
        if isinstance(agent, Hookless):
            return agent.folders(*at)
        with suppress(ValueError):
            names = [*(() if files else [agent.main_file])]
            names += agent.other_files if isinstance(agent, NamesCallsOnce) else ()
            return [agent.restore_path(name, self._session, *at).parent for name in names]
        return []  # an id that only the agent's own is to replace

    def _over(self, upto: int) -> int:
        """`upto`, once every call up to there has ended."""
        return 0 if any(r.call <= upto for r in self._gate.running()) else upto

    def _append(self, records: Sequence[FileDelta | FileGone], began: float) -> None:
        """Apart: together they may be too much for a segment. Deltas build on each other, so when one is not taken, all
        files are sent whole at the next save."""
        with self._appending:
            if self._closed:
                return
            idle = not records and not self._writer.pending
            try:
                tickets = [self._writer.append(record) for record in records]
            except BaseException:
                self._capture.forget()
                raise
        size = sum(edit.data.size for r in records if isinstance(r, FileDelta) for edit in r.edits)
        if tickets:  # the log keeps their order: with the last one all are there
            tickets[-1].then(lambda: self._tell(Saved("session", size, self._clock.boot() - began)))
        elif idle:
            self._tell(Saved("session", 0, self._clock.boot() - began))

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be saved at the last look, in sentences."""
        return self._capture.problems

    def _settle(self, files: list[SessionFile], upto: int, last: bool, completed: bool) -> None:
        main = next((f for f in files if f.name == self._agent.main_file), None)
        appended = self._tail(main).read(main.path, self._caught_up) if main else b""
        self._look(appended)
        seen_here = self._unlogged.read(appended, self._agent.seen_calls(appended))
        told = [seen for seen in seen_here if self._is_news(seen)]
        inner = list(self._inner(files)) if self._gate.had_inner or self._unlogged.by_file else []
        for seen in [*told, *(inner if self._unlogged.by_file else [])]:
            self._unlogged.count(seen, self._session, main.path if main else None, self._old)
        if last:
            self._unlogged.finish(self._session, main.path if main else None, self._old)
        newest = self._gate.newest()
        self._told += [_Told(seen, newest, inner=False) for seen in told]
        self._told += [_Told(seen, newest, inner=True) for seen in inner]
        # In hooks mode, without a new boundary, what the file tells may be of a batch that is still running.
        late = self._trails and any(told.newest <= upto for told in self._told)
        if self._by_file or last or late or upto != self._settled_upto:
            self._match(newest if last else upto, last)
        if upto != self._settled_upto and not last:
            # A file that is written a little late has until the next boundary.
            self._gate.forget(self._settled_upto if self._trails else upto)
            self._settled_upto = upto
        if completed and isinstance(self._agent, Trails):
            self._gate.forget(upto)  # it wrote the rest before it ended

    def _tail(self, file: SessionFile) -> _Tail:
        return self._tails.setdefault(file.name, _Tail())

    def _inner(self, files: list[SessionFile]) -> Iterator[SeenCall]:
        """What the subagents' own files tell."""
        for file in files:
            if file.name != self._agent.main_file and self._is_told(file):
                tail = self._tail(file)
                if _size(file.path) != tail.upto:
                    appended = tail.read(file.path)
                    found = self._unlogged.read(appended, self._agent.seen_calls(appended))
                    yield from (seen for seen in found if seen.call_id)

    def _match(self, boundary: int, last: bool) -> None:
        """End calls by what the session has told of them. What tells of a call behind the boundary waits for the next.

        A call that is ended already is told here again: it must not end another one of its tool or of its input. So
        known ends go first, then equal inputs, and only what had no after-hook may be meant by its tool alone."""
        rest = []
        for told in sorted(self._told, key=lambda t: t.seen.status in _UNHOOKED):
            seen = told.seen
            # Where the file alone tells, an end is due at once; but "done" has an after-hook, with the result.
            at_once = self._by_file and seen.status != "done"
            reach = told.newest if at_once else min(boundary, told.newest)
            if not (
                self._is_known(told, told.newest if self._by_file else reach) or self._end(seen, reach, exact=True)
            ):
                rest.append(told)
        for told in list(rest):
            seen = told.seen
            unsure = seen.status in _UNHOOKED and not seen.call_id
            if unsure and self._end(seen, min(boundary, told.newest), exact=False):
                rest.remove(told)
        self._told = [t for t in rest if not last and t.newest > boundary and self._may_come(t)]

    def _is_known(self, told: _Told, upto: int) -> bool:
        seen = told.seen
        if told.inner or (seen.status == "cancelled" and not seen.call_id):
            return False
        denied = seen.status == "refused" and not seen.call_id
        return self._gate.told_again(seen.tool, seen.input, upto, seen.call_id, denied)

    def _may_come(self, told: _Told) -> bool:
        """Is there a call that it may still end? Else it would wait for nothing, for a whole turn (I9)."""
        seen = told.seen
        return not self._by_file or any(
            r.call_id == seen.call_id if seen.call_id else r.tool == seen.tool and not r.inner
            for r in self._gate.running()
        )

    def _is_news(self, seen: SeenCall) -> bool:
        """A message is written again whenever something of it changes, with all its calls."""
        if not seen.id:
            return True
        news = seen.id not in self._known
        self._known[seen.id] = None
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return news

    def _end(self, seen: SeenCall, upto: int, exact: bool) -> bool:
        running = self._gate.take(seen.tool, seen.input, seen.call_id, upto, exact)
        if running is None:
            return False
        how, why = _ENDINGS[seen.status]
        self._gate.end(running.call, how, why, by="session")
        return True

    def finish(self, completed: bool = False) -> None:
        """The last save of a run: everything is re-read and compared. `completed`: the agent ended in good order, after
        its turn."""
        self.save(last=True, completed=completed)
        if completed and isinstance(self._agent, EndsItsCalls):
            for running in self._gate.running():
                self._gate.end(running.call, "interrupted", "it was not over when the agent ended; it may have begun")

    def close(self) -> None:
        """Nothing more is captured after this returned, also when a save hangs in a blob: the agent may be started
        again in this session, and deltas build on each other. Never waits for the bucket."""
        with self._appending:
            self._closed = True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
