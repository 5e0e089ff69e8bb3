"""Guard a live run's conversation around the agent's own compactions (docs/CHECKPOINTS.md). From hook threads, and from
the thread that saves the session.

Before one, the agent waits until the log has the conversation, a checkpoint and the record. After it, what the new
history lacks is said by the first hook that can speak. Where no hook reports a compaction (Gemini), the session's file
shows it: its record then goes in front of the capture that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import Allow, Compacted, Compacting, ContextRequested, Decision, Deny
from wal_agent.conversation import compaction
from wal_agent.conversation.checkpoint import plan_of
from wal_agent.errors import WalAgentError
from wal_agent.events import SummaryLost
from wal_agent.records import Compaction, CompactionDone
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.wal.writer import Ticket
from wal_agent.wording import messages

WAIT: Final = 3.0  # seconds that an agent waits for its conversation to be saved before it compacts that
BYTES_PER_TOKEN: Final = 4  # of a session's lines: an estimate


class Surroundings(msgspec.Struct, frozen=True):
    """What the guard asks of the run. `save`: capture the session within so many seconds, False where that failed;
    `checkpoint`: make one; `mend`: the summary of the newest compaction is lost, and whether the run ends to mend it;
    `main_size`: bytes of the session's main file here."""

    save: Callable[[float], bool]
    checkpoint: Callable[[Literal["pre_compaction"]], None]
    mend: Callable[[], bool]
    main_size: Callable[[], int]


class CompactionGuard:
    def __init__(self, context: RunContext, gate: Gate, around: Surroundings) -> None:
        self._writer, self._clock, self._emit = context.job.writer, context.clock, context.emit
        self._main, self._sync = context.agent.main_file, context.settings.durability == "sync"
        self._gate, self._around = gate, around
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # keys of compactions that are accounted for
        state = self._writer.state  # of what is acknowledged: later numbers are this run's own
        self._number = state.compacted
        newest = state.compactions[-1] if state.compactions else None
        self._begun = (newest.n, newest.session) if newest is not None and not newest.done else None
        self._told = False  # the agent was given all that it must know behind the newest one
        self._waits: tuple[int, compaction.AtHand, bool] | None = None  # for the first hook that can speak

    @property
    def waiting(self) -> bool:
        """Whether something waits to be said."""
        return self._waits is not None

    def before(self, event: Compacting) -> Decision:
        """Save the conversation, then say what its summary must keep. With `durability = sync` a compaction of what
        could not be saved is refused, where the agent can be refused."""
        until = self._clock.boot() + WAIT
        saved = self._around.save(WAIT)
        self._around.checkpoint("pre_compaction")
        with self._lock:
            self._told = False
            ticket = self._log(event.session, event.trigger, event.tokens)
        try:
            word = ticket.wait(max(0.0, until - self._clock.boot())) if ticket is not None else "undecided"
        except WalAgentError:  # a log that has ended ends the run by itself
            word = "undecided"
        if self._sync and (not saved or word == "undecided"):
            return Deny(messages.NOT_COMPACTED, word="unsaved")
        return Allow(compaction.words_before(self._at_hand()))

    def context(self, event: ContextRequested) -> str:
        """What the agent must know behind a compaction, as it asks for it."""
        with self._lock:
            self._waits, self._told = None, True
            found = event.compacted
            if found is not None:
                self._done(found, event.session)
            lacks = compaction.missing(self._at_hand(), found.history if found is not None else None)
            lost = found is not None and compaction.is_lost(found.summary)
            return compaction.words_after(self._number, lacks, lost=lost)

    def found(self, compacted: Compacted, session: str) -> None:
        """The session's file shows a compaction that is done."""
        with self._lock:
            if compacted.key in self._seen:
                return
            if self._begun is None or self._begun[1] != session:
                self._told = False
                self._around.checkpoint("pre_compaction")
                self._log(session, "", compacted.tokens)
            lacks = self._done(compacted, session)
            if not self._told:
                self._waits = self._number, lacks, compaction.is_lost(compacted.summary)

    def know(self, keys: set[str]) -> None:
        """Compactions of before this run, which an agent may report again."""
        with self._lock:
            self._seen |= keys

    def take(self) -> str:
        """What waits to be said; it counts as said. A call that has ended meanwhile is left out."""
        with self._lock:
            waits, self._waits = self._waits, None
        if waits is None:
            return ""
        number, lacks, lost = waits
        running = {call.call for call in self._gate.running()}
        lacks = replace(lacks, running=tuple(call for call in lacks.running if call[0] in running))
        return compaction.words_after(number, lacks, lost=lost)

    def _log(self, session: str, trigger: str, tokens: int) -> Ticket | None:
        state = self._writer.state
        before = next((c.files for c in reversed(state.compactions) if c.session == session), ())
        since = next((size for path, size, _ in before if path == self._main), 0)
        estimate = max(0, self._around.main_size() - since) // BYTES_PER_TOKEN
        self._number += 1
        self._begun = (self._number, session)
        record = Compaction(
            time=self._clock.now(),
            n=self._number,
            session=session,
            trigger=trigger,
            tokens=tokens or estimate,
            plan=plan_of(state),
        )
        with suppress(WalAgentError):
            return self._writer.append(record)
        return None

    def _done(self, compacted: Compacted, session: str) -> compaction.AtHand:
        """Log it, once; what its history lacks."""
        lacks = compaction.missing(self._at_hand(), compacted.history)
        begun = self._begun
        known = compacted.key in self._seen
        self._seen.add(compacted.key)
        if known or begun is None or begun[1] != session:
            return lacks
        self._begun = None
        lost = compaction.is_lost(compacted.summary)
        record = CompactionDone(
            time=self._clock.now(),
            n=begun[0],
            session=session,
            missing=compaction.names(lacks),
            lost=lost,
            tokens=compacted.tokens,
        )
        with suppress(WalAgentError):
            self._writer.append(record)
        if lost:
            self._emit(SummaryLost(begun[0], self._around.mend()))
        return lacks

    def _at_hand(self) -> compaction.AtHand:
        running = [(call.call, call.tool, call.input) for call in self._gate.running()]
        return compaction.at_hand(self._writer.state, running)
