"""Bring the session into the log: capture its files, and settle calls by what the session itself reports.

`SessionSaver`: before-hooks fire before a person approves, and a refused or interrupted call has no after-hook; at a
batch boundary the session file reports their end (ARCHITECTURE.md, Turn boundaries).

`Unlogged` finds calls that ran without being announced by a hook (I5), in the session's files, at the first look behind
their end. A finished call whose id no before-hook reported proves that hooks are off; without ids, more finished calls
of a tool than before-hooks. From then on each such call goes into the log as what it is, and at the end also those that
the session asked for and that have no result: they may have begun.

`Autosave` saves also while the model thinks: on a file's change, on request, and every interval. One thread does all
captures, so their order in the log is the order in which the files changed. Nobody waits for it: an intent never does
(ARCHITECTURE.md), and while the log has a backlog captures wait so that memory stays bounded (I9). A folder that does
not exist yet is watched by the nearest one above it that does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from wal_agent.agents.base import Agent, RequestedCall, SeenCall, SessionFile
from wal_agent.agents.session_files import read_start
from wal_agent.capture.session import SessionCapture
from wal_agent.events import Saved
from wal_agent.records import Ending, FileDelta, FileGone
from wal_agent.supervise.context import MAX_BACKLOG, RunContext, Supervisor
from wal_agent.supervise.gate import RUNS_ON, Gate, unannounced_error

KNOWN = 4096  # ids of reported calls that are remembered (I9); a message is written again soon or never
LOST = "no file of the session is found, so the conversation is not saved"
_UNHOOKED = ("refused", "cancelled", "stopped")  # such a call has no after-hook
_WHY = {
    "done": "",
    "failed": "the session says that it failed",
    "refused": "it was refused, so it did not run",
    "cancelled": "it was cancelled; it may have begun",
    "stopped": "it was stopped after it had begun",
    "runs_on": RUNS_ON,
}
MAX_ASKED = 4096  # calls that are remembered until their result comes (I9)
MAX_ASKED_BYTES = 8 << 20  # of their inputs
_PIECE = 1 << 20
DEBOUNCE = 0.02  # seconds; an agent writes several lines for one event
UNWATCHED = (
    "The session's files cannot be watched for changes ({}), so they are saved at each tool call and every {:g} s. "
    "See: sysctl fs.inotify"
)

_HOW: dict[str, Ending | None] = {
    "done": "done",
    "failed": "failed",
    "cancelled": None,
    "stopped": None,
    "runs_on": None,
}


class _Outcome(msgspec.Struct, frozen=True):
    """An outcome that was read when `newest` was the newest call: it is of none behind that. `inner`: a subagent's file
    has it, so only its id counts."""

    seen: SeenCall
    newest: int
    inner: bool


class _Tail(msgspec.Struct):
    """A file that is only appended to, read up to here."""

    upto: int = 0

    def read(self, path: Path, settled_length: Callable[[bytes], int] = len) -> bytes:
        """Whole lines since the last look, as many of their bytes as `caught_up` says; none when the file was written
        anew, since what it repeats was reported before."""
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
        context: RunContext,
        gate: Gate,
        capture: SessionCapture,
        session: str,
        supervisor: Supervisor,
        copied: Path | None = None,
    ) -> None:
        """`copied`: the main file of the session that this one begins as a copy of; its calls are not this run's."""
        self._context = context
        self._agent = context.agent
        self._env = context.env
        self._workspace = context.workspace
        self._writer = context.job.writer
        self._blobs = context.job.blobs
        self._clock = context.clock
        self._emit = context.emit
        self._gate = gate
        self._capture = capture
        self._session = session
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._marking = threading.Lock()
        self._appending = threading.Lock()
        self._closed = False
        agent = context.agent
        self._by_file = agent.capabilities.boundary == "file"
        self._caught_up = agent.capabilities.settled_length or len
        # At a boundary the file may lack what it reports of it: only what it has reported counts.
        self._trails = self._by_file or agent.capabilities.settled_length is not None
        self._boundary = self._settled_upto = 0
        self._outcomes: list[_Outcome] = []  # that no call was ended by yet
        self._known: dict[str, None] = {}  # ids of calls that were reported, oldest first
        self._begin(self._files())
        self._unlogged = Unlogged(agent, gate, frozenset(context.settings.skip), supervisor, copied)
        self.saved = 0.0  # wall time of the last complete save
        self._before, self._lost = gate.newest(), ""

    def _begin(self, files: list[SessionFile]) -> None:
        """What stands in the session's files now is of before this run."""
        self._compactions_known = False
        self._tails = {f.name: _Tail(_size(f.path)) for f in files if self._reports_calls(f)}
        self._old = self._tails[self._agent.main_file].upto if self._agent.main_file in self._tails else 0

    def _reports_calls(self, file: SessionFile) -> bool:
        """Do outcomes of calls stand in it? In subagents' own files too."""
        return file.name == self._agent.main_file or file.name.endswith(".jsonl")

    def _files(self) -> list[SessionFile]:
        if journal := self._agent.capabilities.journal:
            journal.update(self._session, self._workspace, self._env)
        return self._agent.session_files(self._session, self._workspace, self._env)

    def mark_boundary(self, call: int) -> None:
        """Calls numbered up to `call` are all in the session file from now on, if they come there at all. Called by
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
            works = upto > self._before and not self._agent.capabilities.hookless
            self._lost = LOST if works and not files else ""
            if self._writer.backlog.size <= MAX_BACKLOG:
                reported = self._gate.reported_upto() if self._trails or last else self._over(upto)
                self._append(self._capture.capture(files, self._clock.now(), reported, last), began)
                self.saved = self._clock.now()
            return sorted({*(f.path.parent for f in files), *self._expected(files)})

    def _expected(self, files: list[SessionFile]) -> list[Path]:
        """Folders in which files of the session may appear."""
        agent, at = self._agent, (self._workspace, self._env)
        if hookless := agent.capabilities.hookless:
            return hookless.folders(*at)
        with suppress(ValueError):
            names = [*(() if files else [agent.main_file])]
            if requested := agent.capabilities.requested_calls:
                names += requested.other_files
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
                tickets = [self._writer.append(record, wait=self._context.capture_wait) for record in records]
            except BaseException:
                self._capture.forget()
                raise
        size = sum(edit.data.size for r in records if isinstance(r, FileDelta) for edit in r.edits)
        if tickets:  # the log keeps their order: with the last one all are there
            tickets[-1].when_acked(lambda: self._emit(Saved("session", size, self._clock.boot() - began)))
        elif idle:
            self._emit(Saved("session", 0, self._clock.boot() - began))

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be saved at the last look, in sentences. A session without a turn has nothing to lose: Gemini
        deletes it."""
        vanished = self._capture.vanished if self._writer.state.turn != "none" else ""
        return (*filter(None, [self._lost, vanished]), *self._capture.problems)

    @property
    def lost(self) -> str:
        """That the session has no file although the agent works, as a sentence; "" where it has."""
        return self._lost

    def _settle(self, files: list[SessionFile], upto: int, last: bool, completed: bool) -> None:
        main = next((f for f in files if f.name == self._agent.main_file), None)
        appended = self._tail(main).read(main.path, self._caught_up) if main else b""
        self._supervisor.check_handshake(appended)
        if main is not None and appended:
            self._find_compactions(main.path, appended)
        seen_here = self._unlogged.read(appended, self._agent.seen_calls(appended))
        over = [seen for seen in seen_here if seen.task and seen.status != "runs_on"]
        news = [seen for seen in seen_here if seen not in over and self._is_news(seen)]
        for seen in news:
            if seen.status == "refused":
                self._gate.refused_unasked(seen.tool, seen.input)
        inner = list(self._inner(files)) if self._gate.had_inner or self._unlogged.by_file else []
        for seen in [*news, *(inner if self._unlogged.by_file else [])]:
            self._unlogged.count(seen, self._session, main.path if main else None, self._old)
        if last:
            self._unlogged.finish(self._session, main.path if main else None, self._old)
        newest = self._gate.newest()
        self._outcomes += [_Outcome(seen, newest, inner=False) for seen in news]
        self._outcomes += [_Outcome(seen, newest, inner=True) for seen in inner]
        # In hooks mode, without a new boundary, what the file has may be of a batch that is still running.
        due = any(self._at_once(o.seen) or (self._trails and o.newest <= upto) for o in self._outcomes)
        if self._by_file or last or due or upto != self._settled_upto:
            self._match(newest if last else upto, last)
        if upto != self._settled_upto and not last:
            # A file that is written a little late has until the next boundary.
            self._gate.forget_reported(self._settled_upto if self._trails else upto)
            self._settled_upto = upto
        for seen in over:
            self._gate.end_task(seen.task, seen.status)
        stopped = self._agent.capabilities.stopped_turn
        if stopped is not None and stopped(appended):
            self._supervisor.turn_stopped()
        if completed and self._agent.capabilities.settled_length is not None:
            self._gate.forget_reported(upto)  # it wrote the rest before it ended

    def _find_compactions(self, main: Path, appended: bytes) -> None:
        """Report those that the appended bytes show; in front of the capture that has them."""
        read = self._agent.capabilities.compactions
        found = read(appended) if read is not None else []
        if read is None or not found:
            return
        if not self._compactions_known and self._old:
            before = read_start(main, self._old)
            self._supervisor.know_compactions({each.key for each in read(before)})
        self._compactions_known = True
        for each in found:
            self._supervisor.compacted(each, self._session)

    def _tail(self, file: SessionFile) -> _Tail:
        return self._tails.setdefault(file.name, _Tail())

    def _inner(self, files: list[SessionFile]) -> Iterator[SeenCall]:
        """What the subagents' own files have."""
        for file in files:
            if file.name != self._agent.main_file and self._reports_calls(file):
                tail = self._tail(file)
                if _size(file.path) != tail.upto:
                    appended = tail.read(file.path)
                    found = self._unlogged.read(appended, self._agent.seen_calls(appended))
                    yield from (seen for seen in found if seen.call_id)

    def _match(self, boundary: int, last: bool) -> None:
        """End calls by what the session has reported of them. What reports a call behind the boundary waits.

        A call that is ended already is reported here again: it must not end another one of its tool or of its input. So
        known ends go first, then equal inputs, and only what had no after-hook may be meant by its tool alone."""
        rest = []
        for outcome in sorted(self._outcomes, key=lambda t: t.seen.status in _UNHOOKED):
            seen = outcome.seen
            reach = outcome.newest if self._at_once(seen) else min(boundary, outcome.newest)
            if not (
                self._is_known(outcome, outcome.newest if self._by_file else reach)
                or self._end(seen, reach, exact=True)
            ):
                rest.append(outcome)
        for outcome in list(rest):
            seen = outcome.seen
            unsure = seen.status in _UNHOOKED and not seen.call_id
            if unsure and self._end(seen, min(boundary, outcome.newest), exact=False):
                rest.remove(outcome)
        self._outcomes = [t for t in rest if not last and t.newest > boundary and self._may_come(t)]

    def _at_once(self, seen: SeenCall) -> bool:
        """Whether its word is due before the next boundary: where only the file reports, and of a call that it names
        and that no after-hook reports. "done" has one, with the result."""
        return (self._by_file and seen.status != "done") or bool(seen.call_id and seen.status in _UNHOOKED)

    def _is_known(self, outcome: _Outcome, upto: int) -> bool:
        seen = outcome.seen
        if outcome.inner or (seen.status in ("cancelled", "stopped") and not seen.call_id):
            return False
        denied = seen.status == "refused" and not seen.call_id
        return self._gate.is_repeated_end(seen.tool, seen.input, upto, seen.call_id, denied)

    def _may_come(self, outcome: _Outcome) -> bool:
        """Is there a call that it may still end? Else it would wait for nothing, for a whole turn (I9)."""
        seen = outcome.seen
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
        running = self._gate.find_call(seen.tool, seen.input, seen.call_id, upto, exact)
        if running is None:
            return bool(seen.call_id) and seen.status != "runs_on" and self._gate.end_task(seen.call_id, seen.status)
        self._gate.report(running.call, seen.status, _WHY[seen.status], "session", seen.task)
        return True

    def finish(self, completed: bool = False) -> None:
        """The last save of a run: everything is re-read and compared. `completed`: the agent ended in good order, after
        its turn."""
        self.save(last=True, completed=completed)
        if completed and self._agent.capabilities.ends_its_calls:
            for running in self._gate.running():
                why = "it was not over when the agent ended; it may have begun"
                self._gate.report(running.call, "cancelled", why, "supervisor")

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


class Unlogged:
    """One session at a time; used by the thread that reads the session's files. A call that is found ends the run."""

    def __init__(
        self,
        agent: Agent,
        gate: Gate,
        skip: frozenset[str],
        supervisor: Supervisor,
        copied: Path | None = None,
    ) -> None:
        self._agent = agent
        self._copied, self._copied_size = copied, _size(copied) if copied is not None else 0
        self._gate = gate
        self._skip = skip
        self._supervisor = supervisor
        self._done: Counter[str] = Counter()
        self._asked = _Asked()
        self._off = False
        self.by_file = (
            agent.capabilities.requested_calls is not None
        )  # a hook announces every call of every file, by its id

    def begin(self) -> None:
        """Another session: what was asked for in the old one is over."""
        self._asked = _Asked()

    def read(self, appended: bytes, seen: list[SeenCall]) -> list[SeenCall]:
        """`seen` in these bytes, with the tool and the input of calls that earlier bytes asked for."""
        if requested := self._agent.capabilities.requested_calls:
            self._asked.add(requested.read(appended))
        found = []
        for call in seen:
            asked = self._asked.take(call.call_id)
            named = bool(call.tool) or asked is None
            found.append(call if named else replace(call, tool=asked.tool, input=asked.input))  # type: ignore[union-attr]
        return found

    def count(self, seen: SeenCall, session: str, path: Path | None, old: int) -> None:
        """One call that the session shows as over. The first `old` bytes of `path` are of before this run."""
        if seen.tool in self._skip or not (seen.tool or (seen.call_id and not self._skip)):
            return
        ran = seen.status in ("done", "runs_on") or (self._off and seen.status in _HOW)
        if seen.call_id:  # hooks may know it under another tool's name: Codex takes a shell's patch for one
            if not ran or self._gate.was_announced(seen.call_id):
                return
            if path is not None and file_contains(path, seen.call_id, old):  # repeated
                return
            if self._copied is not None and file_contains(self._copied, seen.call_id, self._copied_size):
                return
        else:
            self._done[seen.tool] += ran
            if not ran or self._done[seen.tool] <= self._gate.begun[seen.tool]:
                return
        self._off = True
        self._gate.log_unannounced(session, seen.tool, seen.input, seen.call_id, _HOW[seen.status])
        self._supervisor.stop(unannounced_error(self._agent.name, seen.tool or "a tool"))

    def finish(self, session: str, path: Path | None, old: int) -> None:
        """The agent is gone. With hooks off, what it was asked for and has no result may have begun."""
        for id, asked in self._asked.rest() if self._off else ():
            known = asked.tool in self._skip or self._gate.was_announced(id)
            if not known and not (path is not None and file_contains(path, id, old)):
                self._gate.log_unannounced(session, asked.tool, asked.input, id, None)


class _Asked:
    """Calls by id, whose result has not been seen; the oldest go first where there are too many."""

    def __init__(self) -> None:
        self._calls: dict[str, RequestedCall] = {}
        self._size = 0

    def add(self, calls: Mapping[str, RequestedCall]) -> None:
        for id, call in calls.items():
            self.take(id)
            self._calls[id] = call
            self._size += len(call.input)
        while len(self._calls) > MAX_ASKED or (self._size > MAX_ASKED_BYTES and len(self._calls) > 1):
            self.take(next(iter(self._calls)))

    def take(self, id: str) -> RequestedCall | None:
        call = self._calls.pop(id, None)
        self._size -= len(call.input) if call else 0
        return call

    def rest(self) -> list[tuple[str, RequestedCall]]:
        return list(self._calls.items())


def file_contains(path: Path, text: str, size: int) -> bool:
    """Do the first `size` bytes of a file have `text`?"""
    wanted, kept = text.encode("utf-8", "replace"), b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        while size > 0 and (piece := file.read(min(_PIECE, size))):
            size -= len(piece)
            if wanted in kept + piece:
                return True
            kept = piece[-len(wanted) :]
    return False


# It warns of events that come while it ends; the terminal is the agent's.
logging.getLogger("watchdog").addHandler(logging.NullHandler())


class Autosave:
    """Calls `save()` in its own thread whenever something may have changed. `save` gives the folders to watch next."""

    def __init__(
        self, save: Callable[[], list[Path]], interval: float, failed: Callable[[BaseException], None]
    ) -> None:
        self._save = save
        self._interval = interval
        self._failed = failed
        self._wanted = threading.Event()
        self._asked: deque[threading.Event] = deque()  # who waits for the next save to end
        self._stop = threading.Event()
        self._last: Callable[[], object] = lambda: None
        self.problem = (
            ""  # why changes of files are not noticed at once, in a sentence; known now, or only once it runs
        )
        self._observer: BaseObserver | None = None
        try:
            self._observer = Observer()
            self._observer.daemon = True
            self._observer.start()
        except (OSError, RuntimeError) as error:  # no inotify instance or thread is left
            self._unwatched(error)
        self._watched: dict[Path, ObservedWatch] = {}
        self._thread = threading.Thread(target=self._loop, name="autosave", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def watches(self) -> bool:
        """Whether changes of files can be noticed at all."""
        return self._observer is not None

    def poke(self) -> None:
        """Something changed; save soon. Never blocks."""
        self._wanted.set()

    def save_now(self, budget: float) -> bool:
        """Save without delay. Whether a save that began behind this call has ended within `budget` seconds."""
        ended = threading.Event()
        self._asked.append(ended)
        self._wanted.set()
        return ended.wait(budget)

    def stop(self, budget: float, last: Callable[[], object]) -> bool:
        """Do `last` in the thread, behind the save that it is in. Whether both ended within `budget` seconds: a request
        may hang, and then the thread is left behind in it. Nothing runs after this returned True."""
        self._last = last
        self._stop.set()
        self._wanted.set()
        self._thread.join(budget)
        if self._observer is not None:
            self._observer.stop()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._stop.is_set():
            poked = self._wanted.wait(self._interval)
            if self._stop.is_set():
                break
            if poked and not self._asked:
                self._stop.wait(DEBOUNCE)
            self._wanted.clear()
            asked = [self._asked.popleft() for _ in range(len(self._asked))]
            self._guard(lambda: self._watch(self._save()))
            for ended in asked:
                ended.set()
        self._guard(self._last)

    def _guard(self, save: Callable[[], object]) -> None:
        try:
            save()
        except Exception as error:  # noqa: BLE001 - reported, and tried again: a save that failed once must not be the last
            self._failed(error)

    def _watch(self, folders: list[Path]) -> None:
        observer = self._observer
        if observer is None:
            return
        wanted = {found for folder in folders if (found := nearest_folder(folder)) is not None}
        for folder in self._watched.keys() - wanted:
            with suppress(OSError, KeyError):
                observer.unschedule(self._watched.pop(folder))
        for folder in wanted - self._watched.keys():
            try:
                self._watched[folder] = observer.schedule(_Poke(self._wanted), str(folder), recursive=False)
            except FileNotFoundError:
                continue
            except (OSError, RuntimeError) as error:
                self._unwatched(error)
                continue
            self._wanted.set()  # nothing noticed what changed since that save

    def _unwatched(self, error: Exception) -> None:
        self.problem = UNWATCHED.format(getattr(error, "strerror", None) or error, self._interval)


def nearest_folder(folder: Path) -> Path | None:
    """The folder itself, or the nearest above it that exists; not as far up as the root, where everything happens."""
    return next((each for each in (folder, *folder.parents[:-1]) if each.is_dir()), None)


class _Poke(FileSystemEventHandler):
    def __init__(self, wanted: threading.Event) -> None:
        self._wanted = wanted

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in ("created", "modified", "moved", "deleted", "closed"):
            self._wanted.set()
