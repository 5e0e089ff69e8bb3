"""Save what one agent process leaves, while it runs and at its end: its session and the working tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wal_agent.errors import BucketError
from wal_agent.events import CallEnded, PhaseChanged
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.exits import GracefulShutdown
from wal_agent.supervise.options import Screen
from wal_agent.supervise.run_end import unsaved_line
from wal_agent.supervise.session_capture import Autosave, SessionSaver
from wal_agent.supervise.worktree import WorktreeSaver


class Saving:
    """`tree`: None where captures of the working tree are off. `before_save` is called before each save of the
    session, `fail` with what no later save can mend."""

    def __init__(
        self,
        context: RunContext,
        session: SessionSaver,
        tree: WorktreeSaver | None,
        before_save: Callable[[], object],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.session, self.tree = session, tree
        self.autosave = Autosave(self._save, context.settings.autosave, fail)
        self.complete = True  # nothing that could be saved was left behind
        self._clock, self._hookless, self._before_save = context.clock, context.agent.capabilities.hookless, before_save
        self._unsaved = ""

    def start(self) -> None:
        self.autosave.start()
        if self.tree:
            self.tree.start()

    def request(self) -> None:
        """Save the session soon, from any thread."""
        self.autosave.poke()

    def request_all(self) -> None:
        """Save what there is, from any thread; the agent goes on."""
        self.request()
        if self.tree:
            self.tree.poke()

    def on_call_ended(self, event: CallEnded) -> None:
        if self.tree:
            self.tree.on_call_ended(event)

    def on_phase(self, event: PhaseChanged) -> None:
        if self.tree:
            self.tree.on_phase(event)

    def finish(self, shutdown: GracefulShutdown, screen: Screen, fenced: bool, completed: Callable[[], bool]) -> None:
        """Bounded: what the bucket does not take now is lost as in a crash (it was never acknowledged); reported."""
        budget = shutdown.to_save()
        until = self._clock.boot() + budget
        if self.tree:
            self.tree.finish(last=not fenced)

        def last() -> None:
            try:
                self.session.finish(completed=completed())
            except BucketError as error:
                self._unsaved = unsaved_line(str(error))

        with screen.waiting_for("the bucket, to save the session", budget):
            in_time = self.autosave.stop(budget, self.session.close if fenced else last)
        self.session.close()
        if not in_time:
            self._unsaved = unsaved_line(f"the bucket did not answer for {budget:.0f} s")
        left = max(0.0, until - self._clock.boot())
        with screen.waiting_for("the bucket, to save the files of this folder", left):
            tree_saved = not self.tree or (self.tree.stop(left) and not self.tree.missed)
        self.complete = fenced or (tree_saved and not self._unsaved)

    def problems(self, hooks: str) -> tuple[str, ...]:
        """What people are to know of saving at the end, and of the `hooks`."""
        tree = self.tree.not_saved() if self.tree else ""
        unwatched = self.autosave.problem if self.autosave.watches else ""  # else it was said before the start
        return (*filter(None, [self._unsaved, tree, unwatched, hooks]), *self.session.problems)

    def _save(self) -> list[Path]:
        if self.tree and self._hookless:
            self.tree.poke()  # no hook reports when a call has ended
        try:
            self._before_save()
            return self.session.save()
        except BucketError:
            return []  # found again by the next save; `status` shows what waits
