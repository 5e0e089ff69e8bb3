"""Rewrite the conversation of a live run because a person asks for it: between the end of its agent and its own.

The run pauses: its agent ends in good order, the conversation is rewritten under the run's own epoch, and the run
begins again with it. A call that is running refuses it, and so does whatever else ends the run first: then nothing is
rewritten.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from wal_agent import msgspec_compat
from wal_agent.clock import Clock
from wal_agent.errors import PersonNeeded, Unavailable, WalAgentError
from wal_agent.recovery.restore_session import MAX_MAIN
from wal_agent.safefs import read_plain
from wal_agent.supervise import control
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.pausing import PAUSE_BUDGET
from wal_agent.supervise.rewrite import (
    Home,
    RewindPlace,
    Rewritten,
    check_at_rest,
    kept_at,
    local_file,
    rewind,
    rewriting_of,
    undo,
    undoable,
)
from wal_agent.text import command
from wal_agent.wal.job import OpenedJob
from wal_agent.wording.messages import DENY_PAUSING, REWINDING

DOING: Final = 120.0  # seconds for the rewrite itself, behind the agent's end


class FoundRewind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request whose place is found: what a live run is sent."""

    place: RewindPlace
    undo: bool = False
    compact: str | None = None


def carry_out(job: OpenedJob, home: Home, asked: FoundRewind) -> Rewritten:
    """Do it with an opened job whose agent does not run. UsageError: there is no such place."""
    if asked.undo:
        return undo(job, home, asked.place)
    return rewind(job, home, asked.place, asked.compact)


_found = msgspec_compat.of_values(FoundRewind)


class _Pending(msgspec.Struct):
    asked: FoundRewind
    down: ShutdownPlan
    done: threading.Event
    answer: dict[str, Any]


class LiveRewind:
    """A run's side. `answer` is called by a hook's thread while the agent lives, `go` by the main thread once it is
    gone, always, so that each question gets its answer."""

    def __init__(self, job: OpenedJob, home: Home, clock: Clock, drain: float) -> None:
        """`drain`: seconds that SIGTERM gives."""
        self._job, self._home, self._clock, self._drain = job, home, clock, drain
        self._lock = threading.Lock()
        self._pending: _Pending | None = None

    def answer(
        self, question: Mapping[str, Any], running: str, shut_down: Callable[[ShutdownPlan], bool]
    ) -> dict[str, Any]:
        """Have the agent end, wait for the rewrite, and say what was done. `running`: a call that runs, "" for none;
        `shut_down`: whether the run ends for this."""
        home = self._home
        try:
            asked = _found(question)
            if running:
                raise PersonNeeded(
                    f"Call {running} runs, so the conversation is not rewritten.",
                    f"Wait for its end, or end the run first: {command('stop', home.options)}",
                )
            self._check(asked)
        except msgspec.ValidationError:
            return {"error": "That is no question of `wal-agent rewind`."}
        except WalAgentError as error:
            return control.refusal(error)
        now = self._clock.boot()
        until = now + max(self._drain, PAUSE_BUDGET)
        down = ShutdownPlan("pause", "rewind", now, until, DENY_PAUSING, self._clock.now(), REWINDING)
        pending = _Pending(asked, down, threading.Event(), {})
        with self._lock:
            if self._pending is not None or not shut_down(down):
                see = f"See: {command('status', home.options)}"
                return {"error": f"This run is ending already, so nothing was rewritten. {see}"}
            self._pending = pending
        if not pending.done.wait(until - now + DOING):
            return {"error": f"It was not done in time. Whether it is done then: {command('trace list', home.options)}"}
        return pending.answer

    def _check(self, asked: FoundRewind) -> None:
        """Refuse what cannot be done before the agent is ended for it, by the agent's file as it is now. What a call in
        flight refuses is looked at again behind its end."""
        state = self._job.writer.acked.state
        how, file = rewriting_of(self._home.agent), local_file(state, self._home)
        check_at_rest(state, self._home)
        if file is None:
            return
        main = read_plain(file, MAX_MAIN) or b""
        if asked.undo:
            undoable(state, hashlib.sha256(main).hexdigest(), self._home.options)
        else:
            kept_at(asked.place, how.units(main), state.session, self._home.options)

    def go(self, down: ShutdownPlan | None, saved: bool, say: Callable[[str], None]) -> None:
        """Do what was asked for. `down`: why the agent was ended; `saved`: all of its session is in the log."""
        with self._lock:
            pending = self._pending
        if pending is None:
            return
        try:
            if down is not pending.down or not saved:
                raise Unavailable(
                    "The run ended for another reason first, or could not be saved; nothing was rewritten.",
                    f"See `{command('status', self._home.options)}`, then try again.",
                )
            job = self._job.refreshed()
            check_at_rest(job.replay.state, self._home)
            done = carry_out(job, self._home, pending.asked)
            what = "taken back to the version before" if pending.asked.undo else "rewound"
            shown = command(f"trace show {done.n}", self._home.options)
            say(f"the conversation was {what} by a person ({shown}); the run continues with it.")
            pending.answer = _encode(done)
        except WalAgentError as error:
            say(f"the conversation was not rewound: {error}")
            pending.answer = control.refusal(error)
        finally:
            see = f"See: {command('trace list', self._home.options)}"
            pending.answer = pending.answer or {"error": f"The run failed meanwhile. {see}"}
            pending.done.set()


def _encode(done: Rewritten) -> dict[str, Any]:
    placed = str(done.placed) if done.placed else None
    return {"n": done.n, "turns": done.turns, "tokens": done.tokens, "left": done.left, "placed": placed} | {
        "files": list(done.files)
    }
