"""Saves the working tree beside the agent: after each call that changed something, and every interval.

One thread does all of it, so that captures stand in the log in the order in which they were made. Nobody waits for it:
no hook, no intent. It rests four times as long as it worked, so that a big workspace does not eat a core, and it waits
while the log has a backlog (I9).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from wal_agent import places
from wal_agent.agents.base import Agent
from wal_agent.capture.candidates import Caps
from wal_agent.capture.git import Busy, GitFailed, GitMissing, GitStopped
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.errors import BucketError, WalAgentError
from wal_agent.happened import Saved, Tell
from wal_agent.supervise import local
from wal_agent.supervise.saver import MAX_BACKLOG
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.writer import Writer

DEBOUNCE = 0.05  # seconds; calls of a batch end together
REST = 4.0  # times the work
MOST_REST = 60.0  # seconds
PAUSE = 3.0  # seconds in which a git that was killed is gone
NO_GIT = "The working tree was not saved: there is no git on this machine."
UNSAVED = "The last changes of the working tree are not saved, only on this machine: {}."


class TreeSaver:
    """`start`, then `poke` as often as something may have changed; `pause` and `stop` at the end."""

    def __init__(
        self,
        capture: WorkspaceCapture,
        writer: Writer,
        ended_upto: Callable[[], int],
        clock: Clock,
        interval: float,
        failed: Callable[[BaseException], None],
        tell: Tell = lambda _: None,
    ) -> None:
        """`ended_upto()`: every call numbered up to this has ended. `failed`: is told of a failure of ours."""
        self._capture = capture
        self._writer = writer
        self._ended_upto = ended_upto
        self._clock = clock
        self._interval = interval
        self._failed = failed
        self._tell = tell
        self._wanted = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._resume = threading.Event()
        self._appending = threading.Lock()
        self._closed = False
        self._last = False
        self._thread = threading.Thread(target=self._loop, name="treesaver", daemon=True)
        self.problem = ""  # why the last capture did not come about, in a sentence
        self.missed = False  # ... for want of time or of the bucket

    def start(self) -> None:
        self._capture.git.go_on()  # the agent may be started again in one run
        self._thread.start()

    def poke(self) -> None:
        """Something changed; save soon. Never blocks."""
        self._wanted.set()

    def pause(self, most: float = PAUSE) -> None:
        """End the git that runs, if one does, and begin no other: who ends what the agent left must find no process of
        ours. Waits at most so many seconds for it."""
        self._stop.set()
        self._wanted.set()
        self._capture.git.stop()
        if self._thread.is_alive():
            self._idle.wait(most)  # longer only in a request to the bucket

    def finish(self, last: bool) -> None:
        """After `pause`: one more capture (`last`), or none."""
        self._last = last
        if last:
            self._capture.git.go_on()
        self._resume.set()

    def stop(self, budget: float) -> bool:
        """After `finish`: wait at most `budget` seconds; whether it came to its end. Nothing is appended after this."""
        if self._thread.is_alive():
            self._thread.join(budget)
        with self._appending:
            self._closed = True
        self._capture.git.stop()
        if self._thread.is_alive():
            self.problem, self.missed = UNSAVED.format("there was no time left"), True
            return False
        return True

    # ---- in the thread

    def _loop(self) -> None:
        while not self._stop.is_set():
            if self._wanted.wait(self._interval):
                self._stop.wait(DEBOUNCE)
            if self._stop.is_set():
                break
            self._wanted.clear()
            began = self._clock.boot()
            self._told()
            self._stop.wait(min(MOST_REST, REST * (self._clock.boot() - began)))
        self._idle.set()
        self._resume.wait()
        if self._last:
            self._told()

    def _told(self) -> None:
        self.missed = False
        try:
            self.save()
        except GitStopped:
            self.problem, self.missed = UNSAVED.format("it had to be left half-way"), True
        except GitMissing:
            self.problem = NO_GIT
        except Busy:
            self.problem = UNSAVED.format("another run is at work in this folder")
        except (BucketError, GitFailed, OSError) as error:
            self.missed = isinstance(error, BucketError)
            self.problem = UNSAVED.format(str(error).rstrip("."))  # the next capture finds everything again
        except WalAgentError:
            return  # the log has ended, and says so itself
        except Exception as error:  # noqa: BLE001 - told at the end; the session is saved all the same
            self.problem = UNSAVED.format(repr(error))
            self._failed(error)

    def save(self) -> None:
        """One capture, unless the bucket is behind. In the thread, or in a test's."""
        if self._writer.spooled or self._writer.backlog.size > MAX_BACKLOG:
            self.problem, self.missed = UNSAVED.format("the bucket was away"), True
            return
        newest = self._writer.state.workspace
        if newest is not None:
            self._capture.acked(newest.commit)
        if self._capture.many_waiting and not self._last:
            return  # what the log may have as its newest must stay known here
        began = self._clock.boot()
        record = self._capture.capture(self._ended_upto(), self._clock.now())
        with self._appending:
            if self._closed:
                return
            if record is not None:
                size, ticket = sum(pack.size for pack in record.packs), self._writer.append(record)
                ticket.then(lambda: self._tell(Saved("workspace", size, self._clock.boot() - began)))
                self._capture.commit()
            elif not self._writer.pending:
                self._tell(Saved("workspace", 0, self._clock.boot() - began))
        self.problem = ""


def capture_of(
    settings: Settings,
    agent: Agent,
    env: Mapping[str, str],
    workspace: Path,
    opened: OpenedJob,
    say: Callable[[str], None],
) -> WorkspaceCapture | None:
    """The workspace's captures, as the settings say; they go on from what the log holds. None: they are off, or the
    workspace lies in a folder that is never captured, which is said."""
    private = never_captured(settings, agent, env, workspace)
    inside = next((folder for folder in private if workspace.is_relative_to(folder.resolve())), None)
    why = "as the settings say" if settings.workspace == "off" else too_wide(workspace, env)
    if inside is not None and not why:
        why = f"it lies in {inside}"
    if why:
        say(f"the files of this folder are not saved, {why}; the session is")
        return None
    total = int(settings.workspace_cap * (1 << 20))
    caps = Caps(total, max(1, total // 20))
    put = opened.blobs.put_payload
    capture = WorkspaceCapture(local.state_dir(env), workspace, env, put, private, caps, settings.job)
    capture.go_on_from(opened.replay.state.workspace)
    return capture


def too_wide(workspace: Path, env: Mapping[str, str]) -> str:
    """Why a folder holds too much to be saved or put back, in words; "" for one that does not. `workspace`: a real
    path."""
    if workspace == Path("/"):
        return "it is the root of the file system"
    if workspace in (homes := _homes(env)):
        return "it is your home folder"
    return "your home folder is in it" if any(home.is_relative_to(workspace) for home in homes) else ""


def _homes(env: Mapping[str, str]) -> list[Path]:
    found = places.home(env)
    return [] if found is None else [found]


def never_captured(settings: Settings, agent: Agent, env: Mapping[str, str], workspace: Path) -> list[Path]:
    """The agents' own state with its credentials, other programs' credentials, what is wal-agent's, its key, and the
    bucket itself."""
    found = [agent.folder(env), local.state_dir(env), local.runtime_dir(env)]
    found += [home / name for home in _homes(env) for name in (*places.AGENTS, *places.CREDENTIALS)]
    url = urlsplit(settings.bucket)
    if settings.bucket.startswith("/") or url.scheme == "file":
        bucket = Path(settings.bucket if settings.bucket.startswith("/") else unquote(url.path))
        if workspace.is_relative_to(bucket.resolve()):
            found += [bucket / name for name in (settings.job, ".locks", ".tmp")]
        else:
            found.append(bucket)
    if settings.encryption_key_file:
        found.append(Path(settings.encryption_key_file).absolute())
    return found
