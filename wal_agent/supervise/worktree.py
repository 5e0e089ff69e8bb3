"""Save the working tree beside the agent, and put it back at a start.

`WorktreeSaver` saves once the agent is prompted first, after each call that changed something, and every interval. One
thread does all of it, so that captures stand in the log in the order in which they were made. Nobody waits for it: no
hook, no intent. It rests four times as long as it worked, so that a big workspace does not eat a core, but from the
first capture only for what the next one repeats; and where a capture is quick, a call that has ended waits at most
BEHIND for its own. It waits while the log has a backlog (I9). A big tree in which no call runs and nothing changes is
looked at more seldom, and one in which a call runs more often.
A capture is bounded (capture/workspace.py): what it does not hold yet is `pending`, and the next one goes on with it.

`plan_worktree` decides what a start does with the working tree: looked up before the plan, done after it, reported to
the person and the agent.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from wal_agent import paths
from wal_agent.agents import places
from wal_agent.agents.base import Agent
from wal_agent.capture.candidates import Caps, describe_unexpected
from wal_agent.capture.git import Busy, GitFailed, GitMissing, GitStopped
from wal_agent.capture.inside import TreeCapture
from wal_agent.capture.repository import RepositoryReader, find_location
from wal_agent.capture.shadow import Shadow
from wal_agent.config import Settings
from wal_agent.errors import BucketError, WalAgentError
from wal_agent.events import CallEnded, PhaseChanged, Saved
from wal_agent.paths import state_dir
from wal_agent.records import Host, Pending, Workspace
from wal_agent.recovery.report import (
    MissingEffects,
    describe_folders,
    describe_names,
    describe_pending,
    describe_tree,
    missing_effects,
    one_line,
    row,
    uncommitted_line,
)
from wal_agent.recovery.restore_target import (
    Keep,
    PutBack,
    RestoreBackup,
    RestoreTarget,
    decide_restore,
    inspect_target,
)
from wal_agent.recovery.restore_tree import coverage_check
from wal_agent.recovery.restore_workspace import TreeResult, read_note, restore_files
from wal_agent.safefs import real_path
from wal_agent.supervise.context import MAX_BACKLOG, RunContext
from wal_agent.supervise.identity import KEY_VARIABLE
from wal_agent.supervise.machine import runtime_dir
from wal_agent.supervise.recovery_input import Situation
from wal_agent.text import duration, moment, plural, size
from wal_agent.wal.blobs import Blobs
from wal_agent.wording import messages
from wal_agent.wording.messages import HOME_FOLDER

if TYPE_CHECKING:  # a recovery that is only shown needs no gate
    from wal_agent.supervise.gate import Gate

DEBOUNCE = 0.05  # seconds; calls of a batch end together
REST = 4.0  # times the work
REST_PENDING = 1.0  # the same, while files are pending
BEHIND = 2.0  # seconds from a call's end to the capture with its changes, where one takes less than half of them
PROGRESS = 5.0  # seconds after which a first capture reports its progress, and then from report to report
MAX_REST = 60.0  # seconds
IDLE = 250.0  # times the work of a capture that found nothing: less than half a percent of a core
MAX_IDLE = 300.0  # seconds
RUNNING = 2.0  # seconds between captures while a call runs that may change something
RUNNING_REST = 50.0  # times the work of the last capture, the same: 2 % of a core
SLOW = 60.0  # seconds of one capture, after which a status says that it still runs
PAUSE = 3.0  # seconds in which a git that was killed is gone
NO_GIT = "The working tree was not saved: there is no git on this machine."
UNSAVED = "The last changes of the working tree are not saved and exist only on this disk: {}."
SLOW_CAPTURE = "git has been reading this folder for {}; a file in it may not answer (a pipe, a network disk)"
MOVED = "The last changes of the working tree are not saved: {} was moved or deleted while the agent ran."
NEVER = "No file of this folder was saved."


class WorktreeSaver:
    """`start`, then `poke` as often as something may have changed; `pause` and `stop` at the end."""

    def __init__(
        self,
        context: RunContext,
        gate: Gate,
        capture: TreeCapture,
        failed: Callable[[BaseException], None],
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`failed`: takes a failure of ours. `progress`: takes a line for people while the first capture takes long."""
        self._context = context
        self._writer = context.job.writer
        self._clock = context.clock
        self._interval = context.settings.autosave
        self._emit = context.emit
        self._gate = gate
        self._capture = capture
        self._failed = failed
        self._progress = progress
        self._reported = 0.0  # when the last progress line was due or printed, by the boot-time clock
        self._wanted = threading.Event()
        self._poked = 0.0  # when it was set
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._resume = threading.Event()
        self._appending = threading.Lock()
        self._closed = False
        self._last = False
        self._thread = threading.Thread(target=self._loop, name="treesaver", daemon=True)
        self.problem = ""  # why the last capture did not come about, in a sentence
        self._began: float | None = None  # of the capture under way, by the boot-time clock
        self.missed = False  # ... for want of time or of the bucket
        self._newest: Workspace | None = None  # the last one that was appended
        self._over = False  # the log takes no more
        self._ended = False  # a capture of the end came about
        self.whole = False  # a capture of this run held every file
        self._found = True  # the last capture found a change, or did not come about

    def on_call_ended(self, event: CallEnded) -> None:
        """Save soon after a call that may have changed something."""
        if event.changed:
            self.poke()

    def on_phase(self, event: PhaseChanged) -> None:
        """Save what is there before the first call while the model is asked for the first time: another machine has no
        other source of it."""
        if event.phase == "awaiting_model" and self._writer.state.workspace is None:
            self.poke()

    @property
    def trouble(self) -> str:
        """What a status says: that a capture takes long, or why the last one did not come about; "" for nothing."""
        began = self._began
        lasts = self._clock.boot() - began if began is not None else 0.0
        return SLOW_CAPTURE.format(duration(lasts)) if lasts > SLOW else self.problem

    def start(self) -> None:
        self._capture.git.go_on()  # the agent may be started again in one run
        self._thread.start()

    def poke(self) -> None:
        """Something changed; save soon. Never blocks."""
        if not self._wanted.is_set():
            self._poked = self._clock.boot()
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
            self._capture.in_small_parts()
        self._resume.set()

    def stop(self, budget: float) -> bool:
        """After `finish`: wait at most `budget` seconds; whether what this run changed is saved. Nothing is appended
        after this."""
        if self._thread.is_alive():
            self._thread.join(budget)
        with self._appending:
            self._closed = True
        self._capture.git.stop()
        cut, lags = self._thread.is_alive(), self._capture.lags
        if lags or (cut and not self._ended):
            self.problem, self.missed = UNSAVED.format("no time was left"), True
        return not (cut and self.missed)

    # ---- in the thread

    def _loop(self) -> None:
        self._reported = self._clock.boot()
        idle_until = self._reported + self._interval
        running_until = self._reported + min(self._interval, running_rest(0.0))
        while not self._stop.is_set():
            if self._goes_on or self._wanted.wait(min(self._interval, RUNNING)):
                self._stop.wait(DEBOUNCE)
            elif self._clock.boot() < (running_until if self._gate.changing() else idle_until):
                continue
            if self._stop.is_set():
                break
            self._wanted.clear()
            began, whole = self._clock.boot(), self.whole
            self._began = began
            self._try_to_save()
            self._began = None
            self._report_progress()
            work = self._clock.boot() - began
            self._rest(work if whole else repeated(work, self._capture.look, self.whole))
            now = self._clock.boot()
            idle_until = now + (self._interval if self._found else max(self._interval, idle_rest(work)))
            running_until = now + min(self._interval, running_rest(work))
        self._idle.set()
        self._resume.wait()
        if self._last:
            self._try_to_save()
            self._ended = not self.problem
            while self._goes_on:
                self._try_to_save()

    @property
    def _goes_on(self) -> bool:
        """Whether another capture is due at once, since the last one left files for it."""
        return self._capture.pending is not None and not (self.problem or self._closed or self._over)

    def _rest(self, work: float) -> None:
        """After a capture that took `work` seconds."""
        rest = rest_after(work, self._goes_on)
        until = self._clock.boot() + rest
        if is_quick(work) and self._wanted.wait(rest):  # a call's changes do not wait for the rest
            until = min(until, due(work, self._poked))
        self._stop.wait(max(0.0, until - self._clock.boot()))

    def _report_progress(self) -> None:
        now, saved = self._clock.boot(), self._writer.state.workspace
        if self.whole or now - self._reported < PROGRESS:
            return
        pending = self._capture.pending
        if pending is not None:
            self._reported = now
            done = saved.size if saved else 0
            self._progress(f"saving the files of this folder: {size(done)} of {size(done + pending.size)}")
        elif not self.problem:
            self.whole = True

    def _try_to_save(self) -> None:
        self.missed = False
        try:
            self.save()
        except GitStopped:
            self._miss("it had to be left half-way", missed=True)
        except GitMissing:
            self.problem = NO_GIT
        except Busy:
            self._miss("another run is at work in this folder")
        except (BucketError, GitFailed, OSError) as error:
            # the next capture finds everything again
            self._miss(str(error).rstrip("."), missed=isinstance(error, BucketError))
            if not self._closed and not self._context.workspace.exists():
                self.problem = MOVED.format(self._context.workspace)
        except WalAgentError:
            self._over = True  # the log has ended, and says so itself
        except Exception as error:  # noqa: BLE001 - reported at the end; the session is saved all the same
            self._miss(repr(error))
            self._failed(error)

    def _miss(self, why: str, missed: bool = False) -> None:
        if not self._closed:  # what `stop` cut off, it judges itself
            self.problem, self.missed = UNSAVED.format(why), missed

    def save(self) -> None:
        """One capture, unless the bucket is behind. In the thread, or in a test's."""
        self._found = True
        if self._writer.spooled or self._writer.backlog.size > MAX_BACKLOG:
            self.problem, self.missed = UNSAVED.format("the bucket was away"), True
            return
        self._capture.acked(self._writer.state)
        if self._capture.many_waiting and not self._last:
            return  # what the log may have as its newest must stay known here
        began = self._clock.boot()
        beyond = self._gate.ended_beyond()  # before `upto`: both are of a moment before the capture
        upto = self._gate.ended_upto()
        also = tuple(call for call in beyond if call > upto)
        records = self._capture.capture(upto, self._clock.now(), also)
        with self._appending:
            if self._closed:
                return
            self._found = bool(records)
            sent = sum(pack.size for record in records for pack in record.packs)
            for record in records:
                ticket = self._writer.append(record, wait=self._context.capture_wait)
                self._newest = self._newest if record.folder else record
            if records:
                ticket.when_acked(lambda: self._emit(Saved("workspace", sent, self._clock.boot() - began)))
                self._capture.commit()
            elif not self._writer.pending:
                self._emit(Saved("workspace", 0, self._clock.boot() - began))
            if self._capture.pending is None:
                self.whole = True
        self.problem = ""

    def not_saved(self) -> str:
        """At the end of a run: what of the working tree is on this machine only, in a line; "" for nothing."""
        saved = self._newest or self._writer.state.workspace
        if saved is None:
            return f"{NEVER} {self.problem}".rstrip()
        parts = []
        for pending in (each.pending for each in (saved, *self._writer.state.inside.values()) if each.pending):
            more = f" and {pending.files - len(pending.names)} more" if pending.files > len(pending.names) else ""
            parts.append(f"{size(pending.size)} in {', '.join(pending.names)}{more}")
        if left := describe_unexpected(saved.left_out, saved.left_out_more):
            parts.append(left)
        listed = f"Not saved, only on this machine: {'; '.join(parts)}." if parts else ""
        return one_line(f"{self.problem} {listed}".strip(), 600)


def repeated(work: float, look: float, whole: bool) -> float:
    """What the next capture takes again of the first one's `work`, in seconds. Where it held the `whole` tree, that is
    the `look` at it: what it hashed and packed is done once, and a change behind it must not wait for a rest from it.
    """
    return min(work, look) if whole else work


def rest_after(work: float, goes_on: bool) -> float:
    """Seconds to rest after a capture that took `work`. `goes_on`: files are pending."""
    return REST_PENDING * work if goes_on else min(MAX_REST, REST * work)


def idle_rest(work: float) -> float:
    """Seconds to the next capture, if no call changes anything, behind one that took `work` and found nothing new."""
    return min(MAX_IDLE, IDLE * work)


def running_rest(work: float) -> float:
    """Seconds to the next capture while a call that may change something runs, behind one that took `work`."""
    return max(RUNNING, RUNNING_REST * work)


def is_quick(work: float) -> bool:
    """Whether a capture that takes `work` seconds can follow each ended call within BEHIND."""
    return 2 * work < BEHIND


def due(work: float, ended: float) -> float:
    """When a quick capture begins at the latest, if the first call since the last one ended at `ended`."""
    return ended + BEHIND - work - DEBOUNCE


def open_worktree_capture(context: RunContext, say: Callable[[str], None]) -> TreeCapture | None:
    """The workspace's captures, as the settings say; they go on from what the log holds. None: they are off, or the
    workspace lies in a folder that is never captured, which is said."""
    settings, workspace, env = context.settings, context.workspace, context.env
    private = never_captured(settings, context.agent, env, workspace)
    inside = next((folder for folder in private if workspace.is_relative_to(real_path(folder))), None)
    why = "the settings say so" if settings.workspace == "off" else too_wide(workspace, env)
    if inside is not None and not why:
        why = f"it lies in {inside}"
    if why:
        say(f"only the session is saved, not the files of this folder: {why}")
        return None
    total = int(settings.workspace_cap * (1 << 20))
    caps = Caps(total, max(1, total // 20))
    put = context.job.blobs.put_payload

    def outside(folder: Path) -> bool:
        hidden = any(folder.is_relative_to(real_path(each)) for each in private)
        wide = bool(too_wide(folder, env)) or workspace.is_relative_to(folder)
        return settings.worktrees == "all" and not hidden and not wide

    capture = TreeCapture(state_dir(env), workspace, env, put, private, caps, settings.job, outside)
    capture.go_on_from(context.job.replay.state)
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
    found = paths.home(env)
    return [] if found is None else [found]


def never_captured(settings: Settings, agent: Agent, env: Mapping[str, str], workspace: Path) -> list[Path]:
    """The agents' own state with its credentials, other programs' credentials, what is wal-agent's, its key, and the
    bucket itself."""
    found = [agent.folder(env), state_dir(env), runtime_dir(env)]
    found += [home / name for home in _homes(env) for name in places.SECRET]
    url = urlsplit(settings.bucket)
    if settings.bucket.startswith("/") or url.scheme == "file":
        bucket = Path(settings.bucket if settings.bucket.startswith("/") else unquote(url.path))
        if workspace.is_relative_to(real_path(bucket)):
            found += [bucket / name for name in (settings.job, ".locks", ".tmp")]
        else:
            found.append(bucket)
    return found + [Path(name).absolute() for name in (settings.encryption_key_file, env.get(KEY_VARIABLE)) if name]


class WorktreeFacts(msgspec.Struct, frozen=True):
    """What a start would do with the working tree, as plain data. `why`: of a folder that stays. `saved`: seconds since
    1970; `size` in bytes; `holds` and `left_out` as in records.Workspace."""

    action: Literal["keep", "put_back"]
    why: str = ""
    saved: float = 0.0
    commit: str = ""
    files: int = 0
    size: int = 0
    holds: int = 0
    left_out: tuple[str, ...] = ()
    pending: Pending | None = None
    keeps_what_is_here: bool = False
    makes_repository: bool = False
    uncommitted: tuple[str, ...] = ()  # files here that no commit has, and that would be replaced
    inside: tuple[str, ...] = ()  # repositories inside that would be put back too

    def rows(self) -> list[str]:
        """For the screen."""
        if self.action == "keep":
            reasons = {"not_saved": "was not saved yet; it would stay as it is", "home": HOME_FOLDER}
            return [row("tree", reasons[self.why])] if self.why in reasons else []
        first = "what is here would be kept, and then " if self.keeps_what_is_here else ""
        git = ", with a repository like the lost one" if self.makes_repository else ""
        saved = moment(self.saved, self.saved, exact=True, whole=True)
        what = f"{plural(self.files, 'file')} ({size(self.size)}) as of {saved}"
        lines = [row("tree", f"{first}the saved one would be put back: {what}{git}")]
        if self.inside:
            lines.append(row("inside", f"would be put back too: {describe_folders(self.inside)}"))
        if self.uncommitted:
            shown = describe_names(len(self.uncommitted), self.uncommitted)
            lines.append(row("uncommitted", messages.would_replace(shown)))
        if self.pending is not None:
            lines.append(row("not saved", describe_pending(self.pending, one_line)))
        return lines


class WorktreePlan(msgspec.Struct, frozen=True):
    """Before anything is done. `captured`: None also where captures are off. `inside`: the captures of the repositories
    in the workspace. `identity`: of the repository here, looked up only where a tree would be put back into one.
    `before`: an earlier start put it back here, and no agent was started since. `elsewhere`: the calls of the last run
    ran on another machine."""

    target: RestoreTarget
    captured: Workspace | None
    decided: Keep | PutBack
    inside: Mapping[str, Workspace] = {}
    identity: tuple[str, ...] = ()
    before: bool = False
    elsewhere: bool = False
    empty: bool = False
    epoch: int = 0  # ours

    @property
    def now(self) -> TreeResult:
        """Before anything is done."""
        return TreeResult(Keep("newest") if self.captured else Keep("not_saved"), self.captured)

    @property
    def then(self) -> TreeResult:
        """Afterwards, as far as it can be said without doing it."""
        return TreeResult(self.decided, self.captured)

    @property
    def plan(self) -> WorktreeFacts:
        decided, saved = self.decided, self.captured
        if isinstance(decided, Keep) or saved is None:
            return WorktreeFacts("keep", decided.why if isinstance(decided, Keep) else "")
        return WorktreeFacts(
            "put_back",
            saved=saved.time,
            commit=saved.commit,
            files=saved.files,
            size=saved.size,
            holds=saved.holds,
            left_out=saved.left_out,
            pending=saved.pending,
            keeps_what_is_here=not self.empty,
            makes_repository=decided.make_repository,
            inside=tuple(sorted(self.inside)),
        )

    def foresee(self, blobs: Blobs, now: float) -> WorktreeFacts:
        """`plan`, with the files here that no commit has. Changes nothing. Damaged, ConfigError, BucketError."""
        facts = self.plan
        if facts.action == "keep" or self.empty or self.captured is None:
            return facts
        # Imported here: a start does this as it restores.
        from wal_agent.recovery.compare_trees import scratch_trees

        with scratch_trees(self.target, self.captured, blobs) as trees:
            return replace(facts, uncommitted=tuple(trees.uncommitted(self.captured, now)))

    def carry_out(self, blobs: Blobs, now: float, say: Callable[[str], None]) -> TreeResult:
        """`say` gets a line before work is replaced that no commit has. Raises Damaged, ConfigError, BucketError."""

        def announce(names: Sequence[str], kept: RestoreBackup) -> None:
            say(uncommitted_line(names, self.target.folder, kept))

        if isinstance(self.decided, Keep) or self.captured is None:
            return self.then
        note = str(self.epoch)
        return restore_files(self.target, self.captured, blobs, self.decided, now, note, announce, self.inside)

    def covers(self, done: TreeResult) -> Callable[[str], bool]:
        """For the evidence: which paths here are what the capture says."""
        if self.captured is None or not (done.put_back or self.before):
            return lambda path: False
        return coverage_check(self.target.shadow(), self.target.folder, self.captured)

    def describe(self, done: TreeResult) -> str:
        """What the prompt says of it."""
        return describe_tree(done, self.before)

    def will_hold(self, call: int) -> bool:
        """Whether the file changes of an earlier run's call will be in this workspace when the agent starts."""
        return not self.effects(self.then).note(call)

    def effects(self, done: TreeResult) -> MissingEffects:
        return missing_effects(done, self.elsewhere, self.before)


def plan_worktree(
    at: Situation, here: Host, workspace: Path, settings: Settings, agent: Agent, env: Mapping[str, str]
) -> WorktreePlan:
    """Changes nothing. ConfigError: there is no git to look with."""
    private = tuple(never_captured(settings, agent, env, workspace))
    target = RestoreTarget(workspace, state_dir(env), env, private, settings.job)
    captured = at.before.workspace if at.damage is None and settings.workspace != "off" else None
    wide = captured is not None and bool(too_wide(workspace, env))
    captured = None if wide else captured
    local = inspect_target(target, captured)
    decided = Keep("home") if wide else decide_restore(captured, local)
    home = at.home
    before = False
    if isinstance(decided, Keep) and captured is not None and home is not None:
        note = read_note(target, captured)
        before = note.isdecimal() and int(note) > home.epoch
    seen = WorktreePlan(
        target,
        captured,
        decided,
        inside=at.before.inside if captured is not None else {},
        before=before,
        elsewhere=not at.same_host(here),
        empty=local.empty,
        epoch=at.opening.epoch,
    )
    if isinstance(decided, PutBack) and local.repository and captured is not None and captured.repository is not None:
        return replace(seen, identity=identity_here(target))
    return seen


def identity_here(target: RestoreTarget) -> tuple[str, ...]:
    """Of the repository around the folder; empty where it cannot be read. Works in a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="wal-agent-look-") as folder:
        shadow = Shadow(Path(folder) / "shadow", target.shadow().git)
        try:
            place = find_location(shadow.git, target.folder)
            shadow.ensure(place.object_format)
            around = RepositoryReader(shadow).read(place)
        except (GitFailed, GitMissing):
            return ()
        return around.repository.identity if around.repository is not None else ()
