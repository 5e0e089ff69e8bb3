"""Brings the session into the log: captures its files, and settles calls from what the session itself tells.

Before-hooks fire before a person approves, and a refused or interrupted call has no after-hook; at a batch boundary the
session file tells their end (DESIGN 8, Turn boundaries).
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from wal_agent.agents.base import Agent, Env, Hookless, Journals, SeenCall, SessionFile
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import Clock
from wal_agent.records import Ending, FileDelta, FileGone
from wal_agent.supervise.gate import Gate
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.writer import Writer

MAX_BACKLOG = 32 << 20  # bytes waiting for the bucket above which captures wait (I9)
KNOWN = 4096  # ids of told calls that are remembered (I9); a message is written again soon or never
_ENDINGS: dict[str, tuple[Ending, str]] = {
    "done": ("done", ""),
    "failed": ("failed", "the session says that it failed"),
    "refused": ("denied", "it was refused, so it did not run"),
    "cancelled": ("interrupted", "it was cancelled; it may have begun"),
}


class Saver:
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
    ) -> None:
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
        self._boundary = self._settled_upto = 0
        self._seen: list[SeenCall] = []
        self._known: dict[str, None] = {}  # ids of calls that were told, oldest first
        self._told_upto = _size(self._files())
        self._seen_done: Counter[str] = Counter()
        self._skip = skip
        self._unseen = unseen
        self._look = look
        self.saved = 0.0  # wall time of the last complete save

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
            # What stands there now is of before this run: `--continue`, or /resume to an old session.
            self._told_upto = _size(self._files())

    def save(self, last: bool = False) -> list[Path]:
        """Capture what changed; gives the folders to watch. `last`: the agent has ended, every file is read whole.
        Raises BucketError when bulk bytes could not be stored: the next save finds them again."""
        with self._lock:
            if self._closed:
                return []
            files = self._files()
            upto = self._boundary
            self._settle(files, upto, last)
            if self._writer.backlog.size <= MAX_BACKLOG:
                told = self._gate.told_upto() if self._by_file or last else self._over(upto)
                self._append(self._capture.capture(files, self._clock.now(), told, last))
                self.saved = self._clock.now()
            more = self._agent.folders(self._workspace, self._env) if isinstance(self._agent, Hookless) else ()
            return sorted({*(f.path.parent for f in files), *more})

    def _over(self, upto: int) -> int:
        """`upto`, once every call up to there has ended."""
        return 0 if any(r.call <= upto for r in self._gate.running()) else upto

    def _append(self, records: Sequence[FileDelta | FileGone]) -> None:
        """Apart: together they may be too much for a segment. Deltas build on each other, so when one is not taken, all
        files are sent whole at the next save."""
        with self._appending:
            if self._closed:
                return
            try:
                for record in records:
                    self._writer.append(record)
            except BaseException:
                self._capture.forget()
                raise

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be saved at the last look, in sentences."""
        return self._capture.problems

    def _settle(self, files: list[SessionFile], upto: int, last: bool) -> None:
        appended = self._appended(files)
        self._look(appended)
        for seen in self._agent.seen_calls(appended):
            if self._is_news(seen):
                self._count(seen)
                self._seen.append(seen)
        if self._by_file or last:
            self._match(self._gate.last.call if self._gate.last else 0, whole_batch=last)
        elif upto != self._settled_upto:  # else no new boundary: what the file tells may be of a batch still running
            self._match(upto, whole_batch=True)
        if upto != self._settled_upto and not last:
            self._settled_upto = upto
            self._gate.forget(upto)

    def _match(self, upto: int, whole_batch: bool) -> None:
        """End calls numbered up to `upto` by what the file has told of them since the last match."""
        told, self._seen = self._seen, []
        # A call that is ended already is told here again: it must not end another one of its tool or of its input. So
        # known ends go first, then equal inputs, and only what had no after-hook may be meant by its tool alone.
        unhooked = ("refused", "cancelled")
        rest = [
            seen
            for seen in told
            if not (
                (seen.call_id or seen.status not in unhooked)
                and self._gate.told_again(seen.tool, seen.input, upto, seen.call_id)
            )
            and not self._end(seen, upto, exact=True)
        ]
        for seen in rest if whole_batch else []:
            if seen.status in unhooked and not seen.call_id:
                self._end(seen, upto, exact=False)

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

    def _count(self, seen: SeenCall) -> None:
        """I5: more finished calls of a tool in the session than before-hooks that fired = the hooks are off."""
        if seen.status != "done" or not seen.tool or seen.tool in self._skip:
            return  # a result alone, whose call was told earlier, does not name its tool
        self._seen_done[seen.tool] += 1
        if self._seen_done[seen.tool] > self._gate.begun[seen.tool]:
            self._unseen(seen.tool)

    def _appended(self, files: list[SessionFile]) -> bytes:
        """Whole lines that the main file got since the last look; none when it was written anew, since what it repeats
        has been told."""
        main = next((f for f in files if f.name == self._agent.main_file), None)
        if main is None:
            return b""
        try:
            fd = os.open(main.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""  # gone since it was listed, or not ours to read; the capture says so
        with os.fdopen(fd, "rb") as file:
            anew = os.fstat(fd).st_size < self._told_upto
            self._told_upto = file.seek(0 if anew else self._told_upto)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._told_upto += len(whole)
        return b"" if anew else whole

    def finish(self) -> None:
        """The last save of a run: everything is re-read and compared."""
        self.save(last=True)

    def close(self) -> None:
        """Nothing more is captured after this returned, also when a save hangs in a blob: the agent may be started
        again in this session, and deltas build on each other. Never waits for the bucket."""
        with self._appending:
            self._closed = True


def _size(files: list[SessionFile]) -> int:
    try:
        return files[0].path.stat().st_size if files else 0
    except OSError:
        return 0
