"""Capture all files of a session in one go: what changed, what is gone, the main file last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from wal_agent.capture.delta import Captured, FileTracker, LostBeginning, NotCapturable, Staged
from wal_agent.records import FileDelta, FileGone, Payload


class SessionFile(Protocol):
    """One file of a session: its logical name (posix, the same on every machine), and where it is here. `begins`: see
    FileTracker."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def begins(self) -> Callable[[int], bool] | None: ...


class SessionCapture:
    """The files of one session, which may appear and vanish between calls.

    All or nothing: when storing a payload fails, no tracker moves on, and the next call finds everything again. The
    caller holds one lock over a capture and the queuing of its records: deltas build on each other. When a record could
    not be queued, it calls `forget`.

    `problems` says of the last call, in sentences, what could not be captured and why.
    """

    def __init__(self, session: str, put_payload: Callable[[bytes], Payload]) -> None:
        self.session = session
        self.problems: tuple[str, ...] = ()
        self._put = put_payload
        self._trackers: dict[str, FileTracker] = {}
        self._gone: dict[str, FileTracker] = {}  # what the last call reported as gone
        self._main = ""

    def resume_from(self, files: Sequence[SessionFile], captured: Mapping[str, Captured]) -> None:
        """Go on from what the log holds (State.files); the next call checks which files are that, or extend it. Others
        are sent whole."""
        for file in files:
            if file.name in captured:
                self._tracker(file).resume_from(captured[file.name])

    def forget(self) -> None:
        """Records of the last call did not all reach the log: the next call sends every file whole, and reports
        again what is gone."""
        self._trackers = {**self._gone, **self._trackers}
        self._gone = {}
        for tracker in self._trackers.values():
            tracker.forget()

    def capture(
        self, files: Sequence[SessionFile], now: float, settled: int = 0, verify: bool = False
    ) -> list[FileDelta | FileGone]:
        """Records for everything that changed since the last call; `files` has the main file first, as agents give it.

        The main file's record comes last, so that whatever it names is there before it; it alone carries `settled`.
        A file that vanished from the disk is reported as gone, the main file never: an agent that deletes its own
        session must not take the log's copy with it. `verify` reads every file whole (at the end of a run)."""
        problems: list[str] = []
        staged: list[Staged] = []
        main = files[0].name if files else ""
        for file in (*files[1:], *files[:1]):
            tracker = self._tracker(file)
            if verify:
                tracker.verify()
            try:
                found = tracker.stage(self._put, now, settled if file.name == main else 0)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except NotCapturable:
                problems.append(f"{file.path} is not a regular file, so it is not saved.")
                continue
            except PermissionError as error:
                problems.append(f"{file.path} is not saved: {error.strerror}.")
                continue
            except LostBeginning:
                problems.append(
                    f"{file.path} was deleted by another program and begun anew, without what stood in it; the log "
                    "keeps the session as it was captured last."
                )
                continue
            if tracker.moving:
                problems.append(f"{file.path} was rewritten while it was read; it is saved at the next capture.")
            if found is not None:
                staged.append(found)
        self._main = main or self._main
        gone = self._vanished({each.delta.path for each in staged}, problems, now)
        for each in staged:
            each.commit()
        self.problems = tuple(problems)
        return [*gone, *(each.delta for each in staged)]

    def _tracker(self, file: SessionFile) -> FileTracker:
        tracker = self._trackers.setdefault(file.name, FileTracker(file.path, file.name, self.session))
        tracker.follow(file.path, file.begins)
        return tracker

    def _vanished(self, seen: set[str], problems: list[str], now: float) -> list[FileGone]:
        """Files that were captured and are no longer on the disk, whether they are still listed or not."""
        gone = []
        self._gone = {}
        for name, tracker in list(self._trackers.items()):
            if name in seen or not tracker.captured or _may_exist(tracker.path):
                continue
            if name == self._main:
                problems.append(f"{tracker.path} is gone; the log keeps the session as it was captured last.")
                continue
            self._gone[name] = self._trackers.pop(name)
            gone.append(FileGone(time=now, path=name))
        return gone


def _may_exist(path: Path) -> bool:
    """Whether anything is there. What cannot be known (permission, I/O) is not taken for gone."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True
