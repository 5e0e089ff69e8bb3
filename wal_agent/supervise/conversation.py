"""Turn hook events into records, phases and saves. One place knows every event.

`Resuming`: the first turn of a resumed session waits until its agent works in it, and what the resume left is cleared.

`NestedAgents`: agents that a tool of the agent started call the same socket, since they inherit its environment. Their
calls are logged like any other, intent first, under the outer session and a name of their own. Nothing that they say
moves the outer session, its turn or its phase, and none of their calls is settled by the outer session's files.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wal_agent.agents import AGENTS
from wal_agent.agents.base import (
    Agent,
    Allow,
    AwaitingApproval,
    Boundary,
    Compacting,
    ContextRequested,
    Decision,
    Deny,
    Env,
    HookEvent,
    ModelRequest,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    TurnStopped,
)
from wal_agent.agents.session_files import find_main
from wal_agent.errors import Unreadable, WalAgentError
from wal_agent.events import HookAnswered, PhaseChanged
from wal_agent.records import MAX_PROMPT, AgentStarted, Ending, Payload, PhaseChange, Turn
from wal_agent.safefs import open_plain
from wal_agent.supervise.ancestry import Process, read_process
from wal_agent.supervise.callers import Callers
from wal_agent.supervise.compaction import CompactionGuard
from wal_agent.supervise.context import Launch, Phase, PhaseEvent, RunContext, Supervisor, event_of, next_phase
from wal_agent.supervise.control import CONTROL_PREFIX, refusal
from wal_agent.supervise.gate import Gate, unannounced_error
from wal_agent.supervise.hook_server import HookRequest
from wal_agent.supervise.loops import Loops
from wal_agent.text import quote
from wal_agent.wal.writer import DEFERRED
from wal_agent.wording import messages

if TYPE_CHECKING:
    from wal_agent.supervise.inbox import Inbox

MAX_TOOL = 200  # characters of a tool's name, in a phase's record
LOADING = 20.0  # seconds; the client of a firm hook waits 25 (agents/hook_line.py)
_STEP = 0.05
GONE = "the agent that made it has ended; it may have begun"

NOT_LOADED = Deny(messages.not_loaded(LOADING))


class Conversation:
    """Log and answer what the agent's own hooks report. Called by hook threads."""

    def __init__(
        self,
        context: RunContext,
        gate: Gate,
        launch: Launch,
        supervisor: Supervisor,
        guard: CompactionGuard,
        inbox: Inbox | None = None,
    ) -> None:
        self._gate, self._guard = gate, guard
        self._inbox, self._speaks = inbox, context.agent.capabilities.speaks
        self._writer = context.job.writer
        self._clock = context.clock
        self._emit = context.emit
        self._supervisor = supervisor
        self._agent = context.agent.name
        self._unseen = context.agent.capabilities.hookless is not None  # what it does: it counts as busy
        # Only the session's file shows which calls it has, and hooks only that a turn before is whole.
        self._by_file = context.agent.capabilities.boundary == "file"
        self._notice = launch.notice  # the recovery's words, with which the first turn begins; until it is over
        self._typed = launch.waits or not launch.notice  # a person's words begin it
        self._context = launch.context
        self._asks_to_look = not launch.interactive and context.settings.unverified == "fail"
        if not launch.interactive and context.settings.loop_limit:
            gate.loops = Loops(context.settings.loop_limit)
        self._lock = threading.Lock()
        self.session = launch.session
        self.phase: Phase = "starting"
        self.about = ""  # the tool that it is about, or the agent's words for what it asks
        self.since = self._clock.now()  # when it began
        self._entered = self._clock.boot()
        self.failed: TurnFailed | None = None  # why the newest turn ended, if it did so for want of the model
        self.hooks_live = threading.Event()  # the handshake
        self.turn_open = launch.turn_open
        self.turned = False  # a turn began
        self._stopped = False  # a person stopped the turn, and nothing has begun since
        self._pending = ""  # the session of a turn that is complete if nothing follows it
        self._beginning = 0  # calls whose before-hook has no answer yet
        self._asked: frozenset[int] = frozenset()  # calls that a person's word is waited for, as far as is known

    def handle(self, event: HookEvent) -> Decision:
        """Log and answer one hook event."""
        first = not self.hooks_live.is_set()
        self.hooks_live.set()
        decision: Decision = Allow()
        if isinstance(event, TurnStarted) and (refusal := self._supervisor.may_begin_turn(event.session)) is not None:
            return refusal
        if isinstance(event, TurnStarted | TurnCompleted | ModelRequest):
            # Before the phase, so that `refresh_phase` never takes work in the background for a lost end.
            self._pending = event.session if isinstance(event, TurnCompleted) and event.pending else ""
            self.failed = None
            self._gate.confirm()
        if isinstance(event, TurnStarted | ModelRequest | ToolStarting | TurnCompleted):
            self._stopped = False
        if isinstance(event, AwaitingApproval):
            self._gate.approval_asked(event.what)
        if not isinstance(event, ToolStarting | ToolEnded) and not self._comes_late(event):
            self._advance(event)
        match event:
            case SessionStarted(session=session):
                if session != self.session:
                    self._begin_session(session)
            case TurnStarted(session=session, prompt=prompt):
                if first and session != self.session:  # an agent that reports no session's start
                    self._begin_session(session)
                self._begin_turn(session, prompt)
                decision = Allow(self._say("turn_started"))
            case ToolStarting():
                decision = self._begin_call(event)
            case ToolEnded():
                speaks = self._has_words() and not self._gate.is_inner(event)
                if not self._gate.finish_call(event):
                    how: Ending = "failed" if event.failed else "done"
                    self._gate.log_unannounced(event.session, event.tool, event.input, event.call_id, how)
                    self._supervisor.stop(unannounced_error(self._agent, event.tool))
                self._supervisor.request_save()
                self._advance(event)
                decision = Allow(self._say("tool_ended") if speaks else "")
            case ModelRequest():
                self._at_boundary()
            case TurnCompleted(pending=True):
                self._supervisor.request_save()
            case TurnCompleted() if self._gate.stopping or self._gate.told_to_stop:  # the agent ends it, at our word
                self._at_boundary()
            case TurnCompleted() if words := self._messages("turn_completed") or self._nudge(event.session):
                self._at_boundary()
                self.enter("model_asked")  # the turn goes on with them
                decision = Allow(words)
            case TurnCompleted():
                self._complete_turn(event.session)
            case Compacting(done=False):
                decision = self._guard.before(event)
            case ContextRequested():  # the recovery's words as long as its turn lasts, and what the summary lacks
                decision = Allow(f"{self._notice}\n\n{self._guard.context(event)}".strip())
            case TurnStopped():
                self.turn_stopped()
            case TurnFailed():
                self.failed = event
                self._supervisor.request_save()
            case _:
                pass
        return decision

    def _messages(self, boundary: Boundary) -> str:
        """The messages that the agent gets here; "" for none, and where it is to end."""
        if self._inbox is None or boundary not in self._speaks or self._gate.refusal:
            return ""
        return self._inbox.take()

    def _nudge(self, session: str) -> str:
        """Words that ask the agent to look, at the end of a turn without a person; "" for none. An agent that ends all
        the same has completed the turn."""
        words = self._gate.nudge() if "turn_completed" in self._speaks and self._asks_to_look else ""
        if words:
            self._pending = session
        return words

    def _has_words(self) -> bool:
        return bool(self._context) or self._guard.waiting or (self._inbox is not None and self._inbox.waiting > 0)

    def _say(self, boundary: Boundary) -> str:
        """All that the agent gets here: what a compaction left out, a recovery's words too, and messages."""
        if boundary not in self._speaks or self._gate.refusal:
            return ""
        behind = self._guard.take()
        if behind and self._notice:
            behind = f"{self._notice}\n\n{behind}"
        with self._lock:
            context, self._context = self._context, ""
        return "\n\n".join(filter(None, (context, behind, self._messages(boundary))))

    def _comes_late(self, event: HookEvent) -> bool:
        """Whether a session's start comes behind its first turn's: on a terminal Gemini and Qwen do not wait for it."""
        return isinstance(event, SessionStarted) and self.turned and self.turn_open and event.session == self.session

    def _begin_call(self, event: ToolStarting) -> Decision:
        with self._lock:
            self._beginning += 1
        try:
            self._pending = ""
            self._advance(event)
            if self.turned and not self.turn_open and not event.inner:
                self._go_on(event.session)
            decision = self._gate.begin_call(event)
            if self._gate.stuck is not None:
                self._supervisor.stop(self._gate.stuck)
            return decision
        finally:
            with self._lock:
                self._beginning -= 1

    # ---- the phase

    def refresh_phase(self) -> tuple[Phase, str]:
        """The phase and what it is about. First calls are left behind that ended with no hook: that were denied, or
        whose end is in the session's file; and questions about a call that has begun."""
        self._step(self._missed)
        return self.phase, self.about

    def _missed(self) -> PhaseEvent | None:
        """Which step was missed, if any. A call that is about to begin counts as one that runs."""
        running = {r.call for r in self._gate.running()}
        busy = bool(running or self._beginning or self._unseen)
        if self._stopped and not busy:
            return "turn_failed"
        if self.phase == "executing_tools" and not busy and not self._pending:
            return "last_tool_ended"
        if self.phase == "awaiting_approval" and self._asked and all(map(self._gate.has_begun, self._asked & running)):
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
        """One step in the table of phases; a change is emitted and logged, riding with the next record."""
        self._step(lambda: event, tool)

    def turn_stopped(self) -> None:
        """A person stopped the turn. It stays open: it was not completed. Calls that the stop cut off may still have to
        be found in the session."""
        self._stopped = self.turn_open
        self._step(self._missed)

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
                    self._writer.append(record, wait=DEFERRED)
        if changed:
            self._emit(PhaseChanged(was, self.phase, tool, lasted))
        self._supervisor.on_phase(actions)

    def _begin_session(self, session: str) -> None:
        self.session = session
        self._writer.append(AgentStarted(time=self._clock.now(), pid=0, session=session, resumed=False))
        self._supervisor.switch_session(session)

    def _begin_turn(self, session: str, prompt: str) -> None:
        text = prompt.encode("utf-8", "replace")[:MAX_PROMPT]
        asked = Payload(size=len(text), data=text) if text and (self.turned or self._typed) else None
        self.turned = True
        self._writer.append(Turn(time=self._clock.now(), state="started", session=session, prompt=asked))
        self.turn_open = True
        self._gate.begin_turn()
        if self._inbox is not None:
            self._inbox.turn_started()
        if self._by_file:
            self._mark_boundary()
        self._supervisor.request_save()

    def _go_on(self, session: str) -> None:
        """The turn was not over after all: another hook on its end made the agent work on."""
        self._writer.append(Turn(time=self._clock.now(), state="started", session=session, prompt=None))
        self.turn_open = True

    def _mark_boundary(self) -> None:
        last = self._gate.last
        if last is not None:
            self._supervisor.mark_boundary(last.call)

    def _at_boundary(self) -> None:
        if not self._by_file:
            self._mark_boundary()
        self._supervisor.request_save()

    def _complete_turn(self, session: str) -> None:
        self._at_boundary()
        self._notice = ""
        self._writer.append(*self._gate.after_turn(), Turn(time=self._clock.now(), state="completed", session=session))
        self.turn_open = False
        if self._inbox is not None:
            self._inbox.turn_completed()

    def end(self) -> None:
        """The agent ended by itself, with 0: what it left in the background begins no other turn, and it went
        on for no words at the end of its own."""
        if self._pending and not self._gate.told_to_stop:
            self._complete_turn(self._pending)


class Resuming:
    """From any thread."""

    def __init__(self, agent: Agent, session: str, workspace: Path, env: Env, *, waits: bool = True) -> None:
        """To be made before the agent loads the session. `waits`: its first turn waits for that; not where the person
        chose the session, since the agent may have it already."""
        self._agent, self._session, self._workspace, self._env = agent, session, workspace, env
        self._waits = waits
        self._lock = threading.Lock()
        self._over = False
        self._before = self._main()[0] if agent.capabilities.loads_late else 0  # 0: nothing is waited for

    def is_loaded(self) -> bool:
        """Whether the agent works in the session. Once it does, what the resume left is cleared: at once, since another
        start of the agent may take it for a reason to delete the session."""
        with self._lock:
            if not self._over and self._loaded():
                if tidy := self._agent.capabilities.tidy:
                    tidy(self._session, self._workspace, self._env)
                self._over = True
            return self._over

    def await_loaded(
        self, session: str, ending: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
    ) -> Deny | None:
        """Before a turn of `session`: None once it may begin. `ending`: nothing need be waited for any more."""
        if session != self._session or not self._waits:  # a person has begun another one, or chose this one
            self.is_loaded()
            return None
        for _ in range(round(LOADING / _STEP)):
            if self.is_loaded() or ending():
                break
            sleep(_STEP)
        return None if self._over else NOT_LOADED

    def _loaded(self) -> bool:
        if self._before == 0:
            return True
        size, whole = self._main()
        return size > self._before or not whole

    def _main(self) -> tuple[int, bool]:
        """The main file's size, and whether it is whole: it may be deleted meanwhile, and the agent that has loaded it
        goes on in another one (SessionFile.begins)."""
        main = find_main(self._agent, self._session, self._workspace, self._env)
        if main is None:
            return 0, True
        try:
            with open_plain(main.path) as file:
                fd = file.fileno()
                return os.fstat(fd).st_size, main.begins is None or main.begins(fd)
        except OSError:
            return 0, True


class NestedAgents:
    """Log and answer hooks of the agents below one agent. `session` returns the outer session's id."""

    def __init__(
        self, gate: Gate, session: Callable[[], str], read: Callable[[int], Process | None] = read_process
    ) -> None:
        self._gate = gate
        self._session = session
        self._read = read
        self._lock = threading.Lock()
        self._speakers: dict[str, Process] = {}

    def handle(self, agent: str, event: HookEvent, speaker: Process) -> Decision:
        """Log and answer one hook event of the `agent` whose process is `speaker`."""
        if not isinstance(event, ToolStarting | ToolEnded):
            return Allow()
        name = f"{agent}:{event.session}"
        with self._lock:
            self._speakers[name] = speaker
        outer = self._session()
        call_id = event.call_id and f"{name}/{event.call_id}"  # two models may give the same id
        if isinstance(event, ToolEnded):
            self._gate.finish_call(replace(event, session=outer, call_id=call_id), name)
            return Allow()
        cwd = event.cwd or _folder(speaker)
        return self._gate.begin_call(replace(event, session=outer, call_id=call_id, cwd=cwd), name)

    def end_orphaned_calls(self) -> None:
        """End the calls of agents that are gone: no hook will."""
        for running in self._gate.nested():
            with self._lock:
                speaker = self._speakers.get(running.nested)
            now = speaker and self._read(speaker.pid)
            if speaker is not None and not (now and now.is_(speaker)):
                self._gate.report(running.call, "cancelled", GONE, "supervisor")


def _folder(process: Process) -> str:
    """Where it works, which need not be the run's workspace; "" where that cannot be read."""
    with suppress(OSError):
        return os.fspath(Path(f"/proc/{process.pid}/cwd").readlink())
    return ""


class HookHandler:
    """Answers each request on the hook socket, from its thread. `callers` identifies who asks."""

    def __init__(self, context: RunContext, conversation: Conversation, nested: NestedAgents, supervisor: Supervisor):
        self._agent = context.agent
        self._clock = context.clock
        self._emit = context.emit
        self._conversation = conversation
        self._nested = nested
        self._supervisor = supervisor
        self.callers = Callers(context.agent.capabilities.hook_caller, context.agent.name, os.getpid())
        self.refused = ""  # the first caller that was no hook, in a sentence

    def answer(self, request: HookRequest) -> bytes | None:
        """What the client prints; None: its line refuses."""
        if request.event.startswith(CONTROL_PREFIX):
            by_agent = not request.from_outside
            try:
                answer = self._supervisor.answer_command(request.event, json.loads(request.payload), by_agent)
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):  # from a tool
                answer = {"error": "That is no question of a command of wal-agent's."}
            except WalAgentError as error:
                answer = refusal(error)
            return json.dumps(answer).encode()
        began = self._clock.boot()
        agent, caller = self._agent, self.callers.identify(request.caller.processes, request.agent)
        if caller.origin == "agent":
            try:
                event = agent.parse(request.event, request.payload)
            except Unreadable:
                if self.callers.is_left(request.caller.processes, caller.speaker):
                    return None  # its input was cut off with the agent, or by it
                raise
            decision = self._conversation.handle(event)
        elif caller.origin == "inner" and caller.speaker is not None and request.agent in AGENTS:
            agent = AGENTS[request.agent]
            try:
                event = agent.parse(request.event, request.payload)
            except ValueError:  # its line refuses; another CLI's version is no trouble of this run's
                return None
            decision = self._nested.handle(request.agent, event, caller.speaker)
        else:
            if caller.origin != "gone":
                self._refuse(request)
            return None
        printed = agent.render(request.event, decision)
        took = self._clock.boot() - began
        if isinstance(decision, Deny):
            self._emit(HookAnswered(request.event, "deny", decision.word, took))
        else:
            self._emit(HookAnswered(request.event, "allow" if isinstance(event, ToolStarting) else "", "", took))
        return printed

    def _refuse(self, request: HookRequest) -> None:
        """Reported once: a tool may call as often as it likes."""
        if not self.refused:
            who = quote(" ".join(request.caller.processes[0].argv), 120) if request.caller.processes else "a process"
            self.refused = (
                f"a process that is no hook of {self._agent.name}'s called the hook socket "
                f"({quote(request.event, 40)}) and was refused; nothing was changed by it: {who}"
            )
            self._emit(HookAnswered(request.event, "deny", "stranger", 0.0))
