"""What the hooks tell of the conversation, turned into records, phases and saves. One place knows every event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    ContextRequested,
    Decision,
    Deny,
    HookEvent,
    ModelRequest,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.clock import Clock
from wal_agent.errors import WalAgentError
from wal_agent.happened import PhaseChanged, Tell
from wal_agent.records import AgentStarted, AnyRecord, Ending, Payload, PhaseChange, Turn
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.phases import Action, Phase, PhaseEvent, event_of, next_phase
from wal_agent.wal.writer import Writer

MAX_PROMPT = 64 << 10  # bytes of a prompt that are kept
MAX_TOOL = 200  # characters of a tool's name, in a phase's record


class Conversation:
    """Called by hook threads. `poke` asks for a save; `boundary` and `switch` are the saver's."""

    def __init__(
        self,
        gate: Gate,
        writer: Writer,
        clock: Clock,
        session: str,
        poke: Callable[[], None],
        boundary: Callable[[int], None],
        switch: Callable[[str], None],
        unseen: Callable[[str], None],
        may_begin: Callable[[str], Deny | None],
        on_completed: Callable[[], list[AnyRecord]],
        turn_open: bool,
        notice: str,
        by_file: bool = False,
        tell: Tell = lambda _: None,
        on_phase: Callable[[Sequence[Action]], None] = lambda _: None,
    ) -> None:
        """`by_file`: only the session's file tells which calls it has, and hooks only that a turn before is whole.
        `on_phase`: called after each event that the table knows, with what it asks for then."""
        self._gate = gate
        self._writer = writer
        self._clock = clock
        self.session = session
        self._poke = poke
        self._boundary = boundary
        self._switch = switch
        self._unseen = unseen
        self._may_begin = may_begin
        self._on_completed = on_completed
        self._lock = threading.Lock()
        self._tell = tell
        self._on_phase = on_phase
        self.phase: Phase = "starting"
        self.about = ""  # the tool that it is about, or the agent's words for what it asks
        self.since = clock.now()  # when it began
        self._entered = clock.boot()
        self.failed: TurnFailed | None = None  # why the newest turn ended, if it did so for want of the model
        self.hooks_live = threading.Event()  # the handshake
        self.turn_open = turn_open
        self.turned = False  # a turn began
        self._pending = ""  # the session of a turn that is complete if nothing follows it
        self._beginning = 0  # calls whose before-hook has no answer yet
        self._asked: frozenset[int] = frozenset()  # calls that a person's word is waited for, as far as is known
        self._by_file = by_file
        self._notice = notice  # the recovery's words, with which the first turn begins; until it is over

    def on(self, event: HookEvent) -> Decision:
        """Log and answer one hook event."""
        first = not self.hooks_live.is_set()
        self.hooks_live.set()
        decision: Decision = Allow()
        if isinstance(event, TurnStarted) and (refusal := self._may_begin(event.session)) is not None:
            return refusal
        # Before the phase, so that `look` never takes work in the background for a lost end.
        if isinstance(event, TurnStarted | TurnCompleted):
            self._pending = event.session if isinstance(event, TurnCompleted) and event.pending else ""
        if isinstance(event, TurnStarted | TurnCompleted | ModelRequest):
            self.failed = None
        if not isinstance(event, ToolStarting | ToolEnded) and not self._comes_late(event):
            self._advance(event)
        match event:
            case SessionStarted(session=session):
                if session != self.session:
                    self._begin_session(session)
            case TurnStarted(session=session, prompt=prompt):
                if first and session != self.session:  # an agent that tells of no session's start
                    self._begin_session(session)
                self._begin_turn(session, prompt)
            case ToolStarting():
                decision = self._begin_call(event)
            case ToolEnded():
                if not self._gate.after(event):
                    how: Ending = "failed" if event.failed else "done"
                    self._gate.unlogged(event.session, event.tool, event.input, event.call_id, how)
                    self._unseen(event.tool)
                self._poke()
                self._advance(event)
            case ModelRequest():
                self._at_boundary()
            case TurnCompleted(pending=True):
                self._poke()
            case TurnCompleted():
                self._complete_turn(event.session)
            case ContextRequested():
                decision = Allow(self._notice)
            case TurnFailed():
                self.failed = event
                self._poke()
            case _:
                pass
        return decision

    def _comes_late(self, event: HookEvent) -> bool:
        """A session's start that was told behind its first turn's: on a terminal Gemini and Qwen do not wait for it."""
        return isinstance(event, SessionStarted) and self.turned and self.turn_open and event.session == self.session

    def _begin_call(self, event: ToolStarting) -> Decision:
        with self._lock:
            self._beginning += 1
        try:
            self._pending = ""
            self._advance(event)
            if self.turned and not self.turn_open and not event.inner:
                self._go_on(event.session)
            return self._gate.before(event)
        finally:
            with self._lock:
                self._beginning -= 1

    # ---- the phase

    def look(self) -> tuple[Phase, str]:
        """The phase and what it is about. First calls are left behind that ended with no hook: that were denied, or
        whose end the session's file told."""
        self._step(self._left)
        return self.phase, self.about

    def _left(self) -> PhaseEvent | None:
        """Which step was missed, if any. A call that is about to begin counts as one that runs."""
        running = {r.call for r in self._gate.running()}
        busy = bool(running or self._beginning)
        if self.phase == "executing_tools" and not busy and not self._pending:
            return "last_tool_ended"
        if self.phase == "awaiting_approval" and self._asked and not self._asked & running:
            return "approval_over" if busy else "last_tool_ended"
        return None

    def _advance(self, event: HookEvent) -> None:
        def found() -> PhaseEvent | None:
            running = self._gate.running()
            if isinstance(event, AwaitingApproval):
                calls = frozenset(r.call for r in running)
                named = frozenset(r.call for r in running if r.tool == event.what) or calls
                self._asked = named | (self._asked if self.phase == "awaiting_approval" else frozenset())
            return event_of(event, len(running) + self._beginning, self.turn_open)

        self._step(found, getattr(event, "tool", "") or getattr(event, "what", ""))

    def enter(self, event: PhaseEvent, tool: str = "") -> None:
        """One step in the table of phases; a change is told and logged, riding with the next record."""
        self._step(lambda: event, tool)

    def _step(self, find: Callable[[], PhaseEvent | None], tool: str = "") -> None:
        with self._lock:
            event = find()
            if event is None:
                return
            was = self.phase
            self.phase, actions = next_phase(was, event)
            changed = self.phase != was
            if changed or (tool and event == "approval_asked"):
                self.about = tool[:MAX_TOOL]
            if changed:
                now, lasted = self._clock.now(), self._clock.boot() - self._entered
                self.since, self._entered = now, self._clock.boot()
                with suppress(WalAgentError):  # a writer that has ended says so to who needs its word
                    record = PhaseChange(time=now, phase=self.phase, was=was, tool=tool[:MAX_TOOL])
                    self._writer.append(record, later=True)
        if changed:
            self._tell(PhaseChanged(was, self.phase, tool, lasted))
        self._on_phase(actions)

    def _begin_session(self, session: str) -> None:
        self.session = session
        self._writer.append(AgentStarted(time=self._clock.now(), pid=0, session=session, resumed=False))
        self._switch(session)

    def _begin_turn(self, session: str, prompt: str) -> None:
        text = prompt.encode("utf-8", "replace")[:MAX_PROMPT]
        asked = Payload(size=len(text), data=text) if text and (self.turned or not self._notice) else None
        self.turned = True
        self._writer.append(Turn(time=self._clock.now(), state="started", session=session, prompt=asked))
        self.turn_open = True
        if self._by_file:
            self._everything_is_told()
        self._poke()

    def _go_on(self, session: str) -> None:
        """The turn was not over after all: another hook on its end made the agent work on."""
        self._writer.append(Turn(time=self._clock.now(), state="started", session=session, prompt=None))
        self.turn_open = True

    def _everything_is_told(self) -> None:
        last = self._gate.last
        if last is not None:
            self._boundary(last.call)

    def _at_boundary(self) -> None:
        if not self._by_file:
            self._everything_is_told()
        self._poke()

    def _complete_turn(self, session: str) -> None:
        self._at_boundary()
        self._notice = ""
        self._writer.append(*self._on_completed(), Turn(time=self._clock.now(), state="completed", session=session))
        self.turn_open = False

    def ended(self) -> None:
        """The agent ended by itself, with 0: what it left in the background begins no other turn."""
        if self._pending:
            self._complete_turn(self._pending)
