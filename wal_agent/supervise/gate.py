"""Allow or deny one tool call (ARCHITECTURE.md): intent, one put, the last check, the answer; then its end. Guards I1
and I5.

`Calls` holds the calls of this run that have begun and not ended. Where an agent gives call ids they are matched, the
newest of equal ones: models on one's own machine count them anew in each answer. Else by tool and input, oldest first:
identical parallel calls are one counter (n of m open), and which number is ended carries no meaning.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from wal_agent.agents.base import Allow, Decision, Deny, Status, ToolEnded, ToolStarting
from wal_agent.agents.session_files import well_formed
from wal_agent.calls.quote import inline, show_call, show_input
from wal_agent.concurrency import start_daemon
from wal_agent.errors import BucketError, ConfigError, Fenced, PersonNeeded, UsageError, WalAgentError
from wal_agent.events import CallEnded, CallStarted
from wal_agent.records import (
    CHANGING,
    PROVEN,
    Answer,
    Class,
    Cut,
    End,
    Ending,
    EndSource,
    Intent,
    Payload,
    RunsOn,
    Verdict,
)
from wal_agent.redact import redact_head
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.ends import HARMLESS, Seen, outcome_of
from wal_agent.supervise.loops import Loops
from wal_agent.supervise.processes import Begun, CallProcesses, Tree
from wal_agent.text import command
from wal_agent.wal.blobs import INLINE
from wal_agent.wal.state import RecentCall
from wal_agent.wal.writer import CALL, NOW, SOON, Ticket
from wal_agent.wording.messages import (
    DENY_BUDGET,
    DENY_CALLER,
    DENY_DRAINING,
    DENY_ENDED,
    DENY_FENCED,
    DENY_LATE,
    LOST,
    RUNS_NOW,
    WAS_CUT,
    deny_done,
    deny_in_flight,
    deny_loop,
    deny_repeated,
    deny_shown,
    deny_unsaved,
    look_first,
)

if TYPE_CHECKING:  # what only hooks need is imported beside the agent's own start (live.py, load_beside)
    from wal_agent.calls.call import ReadCall
    from wal_agent.calls.checks import Shown
    from wal_agent.calls.rules.table import Rules
    from wal_agent.recovery.inflight import AskedCall, Resolver
    from wal_agent.supervise.done_before import DoneBefore

SHOWN_TOOL = 60  # characters of a tool's name in a refusal, and
SHOWN_RESULT = 300  # of what a call had printed
RESULT_BUDGET = 2.0  # seconds for a result's blob: the agent waits for its after-hook
MAX_BEYOND = 256  # calls
IDS = 4096  # ids of begun calls that are remembered (I9); an end comes soon after its beginning
CUT = "it was stopped; it may have begun"
LEFT = "the agent ended what its shell had left in the background"
STOPPED = "it was stopped together with the agent; it may have begun"
RUNS_ON = "the agent has its result, and something of it still runs"
UNLOGGED = "it ran before it was logged: no hook announced it"
PATIENCE = 3  # denials in a row after which the agent's turn is ended: an outage must not burn turns
LEASE_LOOK = 0.05  # seconds between two looks at a lease that was not renewed in time
WATCH = 0.02  # seconds between looks for the end of the hook that reported a question
DIALOG = 4.0  # seconds until the hook that reported a question is over, also on a busy machine
HOLD = 2.0  # seconds that an agent survives a failed call of its own; whatever stops it is faster
STUBBORN = 10  # refusals of one call in flight in a row after which the run ends: not every agent ends its turn


class RunningCall(msgspec.Struct, frozen=True, dict=True):
    """A call between its before-hook and its end. `changes`: it may change something, by our own rules at least.
    `began` is wall time in seconds, `since` the same moment by the boot clock, which says how long the call took.
    `inner`: a subagent makes it, so the main file need not have it. `cwd`: where the agent said that it runs.
    `cls`: by what it is watched (watchdog.py). `shell`: the tool runs a command. `nested`: the agent below this one
    that makes it, "" for none; no word of the outer agent or its files is about such a call. `known`: as its hook has
    read it."""

    call: int
    tool: str
    input: bytes
    call_id: str
    changes: bool
    began: float
    inner: bool = False
    cwd: str = ""
    cls: Class = "unknown"
    nested: str = ""
    since: float = 0.0
    shell: bool = False
    known: ReadCall | None = None

    @property
    def harmless(self) -> bool:
        return self.cls in HARMLESS

    @cached_property
    def read(self) -> ReadCall:
        return self.known or read_call(self.tool, self.input, self.cwd)

    @cached_property
    def json(self) -> bytes:
        return canonical_json(self.read)


class Background(msgspec.Struct, frozen=True):
    """A call that runs on: `end` is logged once nothing of it runs any more. `task`: the agent's id of it."""

    call: RunningCall
    end: End
    task: str = ""


class Held(msgspec.Struct, frozen=True):
    """A failed call whose end is logged once the agent is seen to go on: agents stop their tools when they are stopped,
    and their report of that may come before anything else shows it. `at`: boot time."""

    call: RunningCall
    end: End
    at: float


class LoggedEnd(NamedTuple):
    """A call that has ended and is still going to be reported. `denied`: by us, so that it never ran."""

    call: int
    call_id: str
    tool: str
    hash: bytes  # of the input
    denied: bool


class Calls(msgspec.Struct):
    """Not thread-safe: the supervisor holds its lock."""

    running: dict[int, RunningCall] = msgspec.field(default_factory=dict)
    again: list[LoggedEnd] = msgspec.field(default_factory=list)
    """Ended calls that the session file is still going to report as well."""

    def start(self, call: RunningCall) -> None:
        self.running[call.call] = call

    def find(
        self,
        read: ReadCall,
        call_id: str = "",
        upto: int | None = None,
        exact: bool = False,
        inner: bool = True,
        nested: str = "",
    ) -> RunningCall | None:
        """The running call (numbered at most `upto`) that this event can belong to. `inner`: without an id, a
        subagent's may be meant too.

        An input that a user's own hook rewrote matches none; then, unless `exact`, the tool's only running call is
        meant, if it is one."""
        pool = [r for r in self.running.values() if r.nested == nested and (upto is None or r.call <= upto)]
        wanted = read.tool, canonical_json(read)
        if call_id:
            named = [r for r in pool if r.call_id == call_id]
            return max(named, key=lambda r: ((r.tool, r.json) == wanted, r.call), default=None)
        pool = [r for r in pool if inner or not r.inner]
        same = _first(pool, lambda r: (r.tool, r.json) == wanted)
        if same is not None or exact:
            return same
        same_tool = [r for r in pool if r.tool == read.tool]
        return same_tool[0] if len(same_tool) == 1 else None

    def end(self, call: int, again: bool = False, denied: bool = False) -> RunningCall | None:
        """`again`: the session file will report this end too."""
        ended = self.running.pop(call, None)
        if ended is not None and again and not ended.inner:
            self.again.append(LoggedEnd(call, ended.call_id, ended.tool, _hash(ended.json), denied))
        return ended

    def is_repeated(self, read: ReadCall, upto: int, call_id: str = "", denied: bool = False) -> bool:
        """Whether what the session reports is an end that is known already; each counts once. `denied`: only one that
        we denied can be meant."""
        wanted = read.tool, _hash(canonical_json(read))
        pool = [known for known in self.again if known.call <= upto and known.denied >= denied]
        found: LoggedEnd | None
        if call_id:
            named = [known for known in pool if known.call_id == call_id]
            found = max(named, key=lambda known: ((known.tool, known.hash) == wanted, known.call), default=None)
        else:
            found = next((known for known in pool if (known.tool, known.hash) == wanted), None)
        if found is not None:
            self.again.remove(found)
        return found is not None

    def reported_upto(self, newest: int) -> int:
        """Every call numbered up to this is over, and the session file has it. `newest`: the number of the newest."""
        waiting = [call for call, r in self.running.items() if not r.inner]
        return min([*waiting, *(known.call for known in self.again)], default=newest + 1) - 1

    def forget(self, upto: int) -> None:
        """The session has reported all that it will of calls numbered up to `upto`."""
        self.again = [known for known in self.again if known.call > upto]

    def changing(self) -> list[RunningCall]:
        """Running calls that may change something."""
        return [r for r in self.running.values() if r.changes]


def read_call(tool: str, input: bytes, folder: str = "") -> ReadCall:
    from wal_agent.calls.call import ReadCall  # late, as above

    return ReadCall(tool, input, folder)


def canonical_json(call: ReadCall) -> bytes:
    """One spelling for equal inputs: a session file may order keys otherwise than a hook does."""
    with suppress(ValueError, RecursionError):  # lone surrogates: a hook and a session file spell them otherwise
        if call.fields is not None:
            return msgspec.json.encode(call.fields, order="deterministic")
    try:
        return msgspec.json.encode(msgspec.json.decode(well_formed(call.input)), order="deterministic")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return call.input


def _hash(json: bytes) -> bytes:
    return hashlib.sha256(json).digest()


def _first(pool: list[RunningCall], test: Callable[[RunningCall], bool]) -> RunningCall | None:
    return next((r for r in pool if test(r)), None)


class RecoveredCalls:
    """Calls of earlier runs that the agent was asked about, and what settles them (I8): evidence, that doing them again
    harms nothing, or that the agent looked. The agent's own words never do. From hook threads."""

    def __init__(
        self,
        context: RunContext,
        verdicts: Sequence[Verdict] = (),
        harmless: frozenset[int] = frozenset(),
        asked: Sequence[AskedCall] = (),
    ) -> None:
        """`harmless`: calls whose class says that they may be done again; `asked`: those that the agent was asked
        about."""
        self._writer, self._clock = context.job.writer, context.clock
        self._verdicts = verdicts
        self._harmless = harmless
        self._asked, self._workspace = list(asked), str(context.workspace)
        self._making = threading.Lock()
        self._made: Resolver | None = None

    @property
    def _answers(self) -> Resolver:
        from wal_agent.recovery.inflight import Resolver

        with self._making:
            self._made = self._made or Resolver(self._asked, self._workspace)
            return self._made

    def ask(self, asked: AskedCall) -> None:
        """A call of this run is open from now on: it was cut off, or runs on."""
        self._answers.ask(asked)
        self._asked.append(asked)

    def ends_after_call(
        self, number: int, call: ReadCall, well: bool = True, changes: bool = False, printed: bytes | None = None
    ) -> list[End]:
        """The ends of calls that are settled by one that ended by itself. At once, not at the end of the turn: another
        crash before that must not ask again about what the agent has looked at. `well`: it succeeded; `changes`: it may
        have changed something; `printed`: the result of a command."""
        if not self._asked:
            return []
        answers = self._answers
        check = printed is not None and answers.read_check(number, call, well, printed, self._is_first)
        if well and not _reports(call):
            goes_on = changes and not check and b"wal-agent " not in call.input  # settle is no work
            answers.observe_call(number, call, goes_on)
        return answers.take_ends(self._open(), self._clock.now())

    def _is_first(self, asked: AskedCall) -> bool:
        """Whether no equal call was done before, as far as the log keeps them."""
        before = [c for c in self._writer.state.recent if c.call != asked.call and c.how == "done"]
        return not any(self._answers.equals(asked, read_call(c.tool, c.input)) for c in before)

    def shown(self, asked: AskedCall) -> Shown | None:
        """The check that shows that an asked call happened."""
        return self._answers.shown(asked.call)

    def refuse(self, call: ReadCall) -> AskedCall | None:
        """The open call that this one would repeat although nothing has looked yet whether it happened."""
        if not self._asked:
            return None
        state = self._writer.state
        left = {o.intent.call for o in state.open} - state.looked_at - self._harmless
        return self._answers.refuse(call, left)

    def refused(self, asked: AskedCall) -> int:
        """How often in a row the agent has made this call again, and done nothing else (decision 052)."""
        return self._answers.refused(asked.call)

    def begin_turn(self) -> None:
        """The agent was prompted."""
        if self._asked:
            self._answers.begin_turn()

    def unlooked(self) -> list[AskedCall]:
        """The open calls that may not be done again, and whose effect nothing has looked at."""
        if not self._asked:
            return []
        left = {o.intent.call for o in self._writer.state.unlooked if o.intent.cls not in HARMLESS}
        return self._answers.unlooked(left - self._harmless)

    def after_turn(self, running: Collection[int] = ()) -> list[End | Answer]:
        """The ends of calls that a completed turn settles: by evidence, or because doing them again harms nothing.
        What is unknown, or done in part, and may harm stays open, with the answer that this turn was; of calls that are
        still `running` no look can say how they end."""
        now, still_open = self._clock.now(), self._open()  # a person may have settled one meanwhile
        ends = [
            End(time=now, call=v.call, how="verified", by="recovery", finding=v.finding, why=v.why)
            for v in self._verdicts
            if v.call in still_open
            and v.call not in self._answers.ended
            and (v.finding in PROVEN or v.call in self._harmless)
        ]
        known = self._writer.state.looked_at | {*running}
        return [*ends, *self._answers.answers(still_open - {e.call for e in ends} - known, now)]

    def answer(self, call: int, because: str) -> Answer:
        """The agent's own word on a call that it was asked about. UsageError: it was not asked, or it is settled."""
        asked = sorted({*self._answers.asked} & self._open())
        if call not in asked:
            known = ", ".join(f"#{n}" for n in asked) or "none"
            raise UsageError(f"Call #{call} is not one that you were asked about and that is open.", f"Those: {known}.")
        return Answer(time=self._clock.now(), call=call, because=because)

    def _open(self) -> set[int]:
        return {o.intent.call for o in self._writer.state.open}


class CallBounds(Protocol):
    """What bounds calls beside the own log (supervise/tasks.py)."""

    def until(self) -> float:
        """Return until when (boot time, seconds) the runs around this one let it allow a call; 0.0: not at all."""

    def take_call(self) -> bool:
        """Count a call; whether the budgets had one left."""


class Gate:
    """Allows or denies each tool call. Called from many hook threads at once."""

    def __init__(
        self,
        context: RunContext,
        rules: Callable[[], Rules],
        may_allow: Callable[[], bool],
        recovered: RecoveredCalls | None = None,
        bounds: CallBounds | None = None,
    ) -> None:
        """`may_allow`: R7, the last check before an allow; `bounds`: of a task, or with a budget. With `durability =
        sync` calls that only read wait for their intents too, and each call's after-hook for its end."""
        self._writer = context.job.writer
        self._blobs = context.job.blobs
        self._may_allow = may_allow
        self._bounds = bounds
        self._rules = rules
        self._agent, self._settings = context.agent.name, context.settings
        self._ends_background = context.agent.capabilities.ends_background
        self._passes_cd = context.agent.capabilities.passes_cd
        self._workspace = context.workspace
        self._clock = context.clock
        self._deadline = context.settings.append_deadline
        self._sync = context.settings.durability == "sync"
        self._call, self._soon = (NOW, NOW) if self._sync else (CALL, SOON)
        self._emit = context.emit
        self.recovered = recovered or RecoveredCalls(context)
        self._lock = threading.Lock()
        self._calls = Calls()
        self._background: dict[int, Background] = {}
        self._held: list[Held] = []
        self._gone: dict[int, float] = {}  # calls that ran on and of which nothing lives, since when (boot time)
        self._nudged = False
        self._approving: dict[int, Tree | None] = {}  # calls that a person was asked to approve; what there was then
        self.processes: CallProcesses | None = None  # of the agent, once it is started
        self.loops: Loops | None = None  # in a run without a person
        self.is_stopping: Callable[[], bool] = lambda: False
        self._cut: bool | None = None  # whether the agent, which is gone, was to stop
        self._refusal = ""
        self._draining = ""
        self._denied_in_a_row = 0
        self._unanswered: set[int] = set()
        self._ended: Counter[str] = Counter()
        self._begun = self._writer.state  # as the run before left it
        self._done: DoneBefore | None = None
        self._ids: dict[str, None] = {}  # the agent's ids of calls whose before-hook fired in this run, oldest first
        self._before = self._writer.state.next_call - 1  # the newest call of earlier runs, whose tools are gone
        self.begun: Counter[str] = Counter()  # tools whose before-hook fired in this run
        self.last: RunningCall | None = None
        self._ending: set[int] = set()  # calls that are over and whose end is not in the log's order yet
        self.had_inner = False  # a subagent made calls that have ids
        self._forbidden = ""  # the first command that the agent's own permissions refused
        self._shell_ran = False
        self.stuck: PersonNeeded | None = None  # why only a person can carry on
        self.told_to_stop = False  # as the log took nothing, and no changing call has begun since
        self.ended_turn: PersonNeeded | None = None  # the same, where the agent may still be prompted again

    # ---- before and after

    def begin_turn(self) -> None:
        """The agent was prompted."""
        self.recovered.begin_turn()
        self.told_to_stop = False
        with self._lock:
            if self.loops is not None:
                self.loops.clear()

    def begin_call(self, event: ToolStarting, nested: str = "") -> Decision:
        """I1: a tool that may change anything is allowed only after its intent was acknowledged and R7 held. In a run
        that spools (R9), this machine's disk will do. `nested`: the other agent, below this one, that makes the call
        (agent and session): it counts for nothing in what the agent's own hooks and files report."""
        from wal_agent.calls.classify import classify
        from wal_agent.evidence import collector

        began = self._clock.boot()
        read = read_call(event.tool, event.input, event.cwd)
        found = classify(read, self._rules(), explain=False)
        reads = found.cls == "read_only"
        if not nested:
            self._remember(event)
        if found.cls == "mutation" and (earlier := self._before_compaction(read, event.session)) is not None:
            reason = deny_repeated(
                inline(event.tool, SHOWN_TOOL), earlier.time, earlier.call, self._writer.state.compacted
            )
            return self._deny(reason, "repeated", nested=nested)
        risky = found.cls in CHANGING and not nested
        if risky and (asked := self.recovered.refuse(read)) is not None:
            return self._refuse_in_flight(read, asked)
        if not (reads or nested) and (earlier := self._before_recovery(read, found.cls)) is not None:
            result = inline(redact_head(earlier.output.decode("utf-8", "replace"), SHOWN_RESULT), SHOWN_RESULT)
            reason = deny_done(inline(event.tool, SHOWN_TOOL), earlier.time, earlier.call, result)
            return self._deny(reason, "repeated")
        if not nested and (looping := self._loop(read)) is not None:
            return looping
        self.ended_turn = None
        self.confirm()
        facts = () if reads else collector.collect_facts(read, self._workspace)
        if len(event.input) > INLINE and self._writer.spooled:
            return self._deny(deny_unsaved(0), "unsaved", nested=nested)  # only the bucket holds so much: it is away
        try:
            payload = self._blobs.put_payload(event.input)
        except BucketError as error:
            return self._deny(deny_unsaved(0, error), "unsaved", nested=nested)
        inner = "/".join(filter(None, (nested, event.inner)))
        with self._lock:
            if self._refusal:
                return Deny(self._refusal, stop=True, word="ended")
            call = self._writer.next_call()
            now = self._clock.now()
            running = RunningCall(
                call,
                event.tool,
                event.input,
                event.call_id,
                not reads,
                now,
                bool(inner) and not event.reported,
                event.cwd,
                found.cls,
                nested,
                self._clock.boot(),
                event.tool in self._rules().shells,
                read,
            )
            try:
                ticket = self._writer.append(
                    Intent(
                        time=now,
                        call=call,
                        tool=event.tool,
                        input=payload,
                        cls=found.cls,
                        rule=found.rule,
                        session=f"{event.session}/{inner}" if inner else event.session,
                        agent_call=event.call_id,
                        before=facts,
                    ),
                    wait=self._soon if reads else self._call,
                )
            except WalAgentError as error:
                return _over(error)
            self._calls.start(running)
            self._unanswered.add(call)
            self.last = running
            self.begun[event.tool] += not nested
            draining = self._draining
        self._emit(CallStarted(call, event.tool, found.cls, event.call_id))
        try:
            return self._answer(call, ticket, began, reads, draining, nested)
        finally:
            with self._lock:
                self._unanswered.discard(call)

    def _loop(self, read: ReadCall) -> Deny | None:
        """Refuse a call that the agent makes again and again, once; then end the run."""
        with self._lock:
            if self.loops is None or self._background:  # it may wait for what runs there
                return None
            word, times = self.loops.begin(read), self.loops.times
        if not word:
            return None
        if word == "end":
            self.stuck = self.stuck or loop_error(self._agent, read, times, self._settings.job_options)
        reason = deny_loop(inline(read.tool, SHOWN_TOOL), times)
        return Deny(reason, stop=word == "end", word="loop")

    def _before_compaction(self, read: ReadCall, session: str) -> RecentCall | None:
        return self._done_before().before_compaction(read, session) if self._writer.state.compactions else None

    def _before_recovery(self, read: ReadCall, cls: Class) -> RecentCall | None:
        return self._done_before().before_recovery(read, cls) if self._begun.turn == "started" else None

    def _done_before(self) -> DoneBefore:
        from wal_agent.supervise.done_before import DoneBefore

        with self._lock:
            self._done = self._done or DoneBefore(lambda: self._writer.state, str(self._workspace), self._begun)
            return self._done

    def _remember(self, event: ToolStarting) -> None:
        """Also where no intent comes of it: an agent may report the end of a call that was denied."""
        if event.call_id:
            with self._lock:
                self.had_inner = self.had_inner or bool(event.inner)
                self._ids.pop(event.call_id, None)
                self._ids[event.call_id] = None
                if len(self._ids) > IDS:
                    del self._ids[next(iter(self._ids))]

    def _answer(self, call: int, ticket: Ticket, began: float, reads: bool, draining: str, nested: str) -> Decision:
        """The answer to a call whose intent is on its way."""
        if self._bounds is not None and not self._bounds.take_call():
            return self._deny(DENY_BUDGET, "budget", call, nested)
        if reads and not self._sync:
            return Allow()
        if draining and not reads:
            return self._deny(draining, "draining", call, nested)
        try:
            # What the bulk of the input took of the deadline is gone: the hook does not wait longer for it.
            word = ticket.wait(max(0.0, began + self._deadline - self._clock.boot()))
        except WalAgentError as error:
            return _over(error)
        if word == "undecided":
            reason = deny_unsaved(self._clock.boot() - began, self._writer.trouble)
            return self._deny(reason, "unsaved", call, nested)
        if self._refusal:
            self._deny(self._refusal, "ended", call, nested)
            return Deny(self._refusal, stop=True, word="ended")
        until = self._bounds.until() if self._bounds is not None else math.inf
        if not until:
            return self._deny(DENY_CALLER, "caller", call, nested)
        if not self._await_lease(min(until, began + self._deadline)) or self._clock.boot() >= until:
            return self._deny(DENY_LATE, "late", call, nested)
        if not nested:
            self._denied_in_a_row = 0
            self.told_to_stop = False
        return Allow()

    def _await_lease(self, until: float) -> bool:
        """R7: whether an allow may be sent. Behind an outage, or a suspend of this machine, the lease is renewed within
        moments, and an agent that was refused would stop: so it is waited for as the log is."""
        while not self._may_allow():
            if self._refusal or self._clock.boot() >= until:
                return False
            self._clock.sleep(LEASE_LOOK)
        return True

    def _refuse_in_flight(self, read: ReadCall, asked: AskedCall) -> Deny:
        times = self.recovered.refused(asked)
        tool = inline(read.tool, SHOWN_TOOL)
        if (shown := self.recovered.shown(asked)) is not None:
            reason = deny_shown(tool, asked.call, shown)
        else:
            reason = deny_in_flight(tool, asked.call, asked.look, asked.behind_cd, self._known(asked.call))
        denied = self._deny(reason, "in_flight")
        error = stuck_error(self._agent, read, asked, times, self._settings.job_options, shown)
        self.ended_turn = error if denied.stop and times >= PATIENCE else None
        if times >= STUBBORN:
            self.stuck = self.stuck or error
        return denied

    def _known(self, call: int) -> str:
        """What is known of an open call, in the words of a refusal."""
        if call in self._background:
            return RUNS_NOW
        cut = any(o.intent.call == call and isinstance(o.held, Cut) for o in self._writer.state.open)
        return WAS_CUT if cut else LOST

    def _deny(self, reason: str, word: str, call: int | None = None, nested: str = "") -> Deny:
        self._denied_in_a_row += not nested and word != "repeated"  # which is said once of each call
        self.told_to_stop = self.told_to_stop or (not nested and word in ("unsaved", "late"))
        if call is not None:
            with suppress(WalAgentError):  # the log has ended; the answer has not
                self.end_call(call, "refused", reason)
        return Deny(reason, stop=self._denied_in_a_row >= PATIENCE, word=word)

    @property
    def shut_out(self) -> str:
        """The first command that the agent's own permissions refused, where none ran in this run."""
        return "" if self._shell_ran else self._forbidden

    def refused_unasked(self, tool: str, input: bytes) -> None:
        """The session has a call that the agent refused before any hook."""
        if not self.begun[tool] and tool in self._rules().shells:
            self._forbidden = self._forbidden or show_input(tool, input)

    @property
    def refusal(self) -> str:
        """Why nothing that changes anything may begin now; "" where it may."""
        return self._refusal or self._draining

    def is_inner(self, event: ToolEnded) -> bool:
        """Whether a subagent made the call that has ended."""
        with self._lock:
            running = self._calls.find(read_call(event.tool, event.input), event.call_id)
        return running is not None and running.inner

    def finish_call(self, event: ToolEnded, nested: str = "") -> bool:
        """Log the end of a call. False when no logged call can be meant: the log did not see it begin."""
        began = self._clock.boot()
        read = read_call(event.tool, event.input)
        with self._lock:
            self._ended[event.tool] += not nested
            running = self._calls.find(read, event.call_id, nested=nested)
            if running is None and nested:
                return True
            if running is None:
                if event.call_id:
                    return event.call_id in self._ids  # its end may have been in the session file before
                # An input that another hook rewrote matches none of several; more ends than beginnings were not seen.
                return self._ended[event.tool] <= self.begun[event.tool]
            self._calls.end(running.call, again=True)
            self._ending.add(running.call)
            if self.loops is not None and not nested:
                self.loops.end(read, event.result, began - running.since)
        try:
            ticket = self._log_end(running, event, nested, began)
        finally:
            with self._lock:
                self._ending.discard(running.call)
        if self._sync and ticket is not None:
            # The tool has run: an end that stays undecided changes no answer, and the next call will be denied.
            with suppress(WalAgentError):
                ticket.wait(max(0.0, began + self._deadline - self._clock.boot()))
        return True

    def _log_end(self, running: RunningCall, event: ToolEnded, nested: str, began: float) -> Ticket | None:
        by_itself = not (event.cut or event.runs_on or nested)
        well = by_itself and event.clean and not event.failed
        settled: Sequence[End] = ()
        if by_itself and (well or not self.stopping):
            printed = event.result if running.shell else None
            of_earlier = self.recovered.ends_after_call
            same = running.input == event.input
            ran = running.read if same else read_call(event.tool, event.input, running.cwd)
            settled = of_earlier(running.call, ran, well, running.changes, printed)
        ended: Status = "failed" if event.failed else "done"
        status: Status = "stopped" if event.cut else "runs_on" if event.runs_on else ended
        end = End(
            time=self._clock.now(),
            call=running.call,
            how="failed" if event.failed else "done",
            by="hook",
            result=self._result(event.result),
            duration_ms=round((began - running.since) * 1000),
        )
        clean = event.clean and not event.failed
        return self._log_report(running, status, clean, end, event.cut, event.task, settled)

    def _log_report(
        self,
        running: RunningCall,
        status: Status,
        clean: bool,
        end: End,
        why: str = "",
        task: str = "",
        settled: Sequence[End] = (),
    ) -> Ticket | None:
        """Log what a report makes of a call that runs no more, as far as the agent is concerned. `end`: that of a
        completed call; `why`: why it was cut."""
        tree = self._tree(running)  # now: the agent goes on meanwhile
        if not running.nested and self.processes is not None and running.shell and running.changes:
            shells = {**self._shells(), running.call: begun_shell(running)}
            self.processes.look(shells, self._left_running(), running.call)
        seen = self._seen(running, tree)
        outcome = outcome_of(status, clean, seen)
        if running.shell and not running.nested and outcome == "refused":
            self._forbidden = self._forbidden or show_call(running.read)
        self._shell_ran = self._shell_ran or (running.shell and outcome != "refused")
        changed = running.changes and outcome != "refused"
        how: Ending = "failed" if outcome in ("cut", "failed") else "refused" if outcome == "refused" else "done"
        self._emit(CallEnded(running.call, running.tool, how, self._clock.boot() - running.since, changed))
        call, at, by = running.call, end.time, end.by
        if outcome == "cut":
            cut = Cut(time=at, call=call, by=by, why=why or (LEFT if seen.left else CUT), result=end.result)
            return self._leave_open(running, cut, settled)
        if outcome == "runs_on":
            pids = self.processes.alive(call, self._shells()) if self.processes is not None else ()
            stays = self._serves(running)
            held = RunsOn(
                time=at, call=call, by=by, why=why or RUNS_ON, task=task, pids=pids, serves=stays, result=end.result
            )
            with self._lock:
                self._background[running.call] = Background(running, end, task)
            return self._leave_open(running, held, settled)
        self._forget(running.call)
        ended = msgspec.structs.replace(end, how=outcome, why=end.why or why)
        may_be_stopped = self._cut is None and not seen.stopping and not running.harmless and not running.nested
        if outcome == "failed" and not clean and may_be_stopped:
            with self._lock:
                self._held.append(Held(running, ended, self._clock.boot()))
            return self._writer.append(*settled, wait=self._soon) if settled else None
        return self._writer.append(ended, *settled, wait=self._soon)

    def _left(self, running: RunningCall) -> bool:
        """Whether its text leaves something in the background whose end counts."""
        from wal_agent.calls.reading import leaves_behind

        return leaves_behind(running.read) and not self._serves(running)

    def _serves(self, running: RunningCall) -> bool:
        """Whether it is a server or a watcher, which is meant to keep running."""
        from wal_agent.calls.reading import find_runs
        from wal_agent.calls.serving import serves

        return serves(find_runs(running.read, str(self._workspace), self._rules()))

    def _tree(self, running: RunningCall) -> Tree | None:
        """What is below the agent, where a person was asked about a shell call."""
        known = self.processes if running.shell and self._approving.get(running.call) is not None else None
        return known.tree() if known is not None else None

    def _seen(self, running: RunningCall, tree: Tree | None) -> Seen:
        known = self.processes if running.shell and not running.nested else None
        begun = known is not None and known.begun(running.call)
        alive = known is not None and bool(known.alive(running.call, self._shells()))
        asked = running.call in self._approving
        before = self._approving.get(running.call)
        untouched = known is not None and before is not None and not begun and tree == before
        left = self._ends_background and running.shell and running.changes and not alive and self._left(running)
        return Seen(running.cls, self.stopping, asked, begun, alive, untouched, left)

    def _shells(self) -> dict[int, Begun]:
        """The running calls that may start processes."""
        with self._lock:
            running = [r for r in self._calls.running.values() if r.shell and not r.nested]
        return {r.call: begun_shell(r) for r in running}

    def _left_running(self) -> dict[int, Begun]:
        """The calls of which only what they left running is not over; the agent's tasks it ends itself."""
        with self._lock:
            return {each.call.call: begun_shell(each.call) for each in self._background.values() if not each.task}

    def _leave_open(self, running: RunningCall, held: Cut | RunsOn, settled: Sequence[End] = ()) -> Ticket:
        """The call is open, whatever the agent says of it: from now on an equal one is refused (I8)."""
        from wal_agent.recovery.inflight import asked_call

        if not running.harmless and not running.nested:
            before = next((o.intent.before for o in self._writer.state.open if o.intent.call == running.call), ())
            self.recovered.ask(
                asked_call(
                    running.call,
                    running.read,
                    running.cls,
                    self._rules(),
                    before,
                    str(self._workspace),
                    self._passes_cd,
                )
            )
        return self._writer.append(held, *settled, wait=self._soon)

    def _forget(self, call: int) -> None:
        self._approving.pop(call, None)
        if self.processes is not None:
            self.processes.forget(call)

    @property
    def stopping(self) -> bool:
        """Whether the agent is to stop: what it reports of its tools from then on is no completion by itself. Of one
        that is gone: whether it was to, as nothing is allowed then."""
        return bool(self._draining or self._refusal) or self.is_stopping() if self._cut is None else self._cut

    def approval_asked(self, tool: str) -> None:
        """The agent asks a person to approve running calls of `tool`, or where it names none, any."""
        with self._lock:
            running = self._calls.running.values()
            named = {r.call for r in running if r.tool == tool} or {r.call for r in running}
            new = named - self._approving.keys()
            since = min((r.since for r in running if r.call in new), default=0.0)
            self._approving |= dict.fromkeys(new)
        if new and (processes := self.processes) is not None and processes.sees:
            start_daemon("approval", lambda: self._await_dialog(processes, new, since))

    def has_begun(self, call: int) -> bool:
        """Whether a shell with its command was seen, so that nobody is asked about it any more."""
        return self.processes is not None and self.processes.shows(call)

    def _await_dialog(self, processes: CallProcesses, calls: set[int], since: float) -> None:
        """Note what is below the agent once the hook that reported its question is over. A person has hardly answered
        then; if the same is there when the agent says that the call was cancelled, nothing of it has begun. An Esc
        right behind a Yes leaves the words of a No, and no process to find later."""
        until, before = self._clock.boot() + DIALOG, None
        while self._clock.boot() < until and not self.stopping:
            tree = processes.tree()
            if tree == before and not processes.has_hook(tree, since):  # twice: a look is not of one instant
                with self._lock:
                    self._approving |= dict.fromkeys(calls & self._approving.keys(), tree)
                return
            before = tree
            time.sleep(WATCH)

    def confirm(self) -> None:
        """The agent goes on: calls that it says have failed did so by themselves, unless it is to stop."""
        with self._lock:
            held, self._held = self._held, []
        self._release(held, self.stopping)

    def tick(self) -> None:
        """Look after what is not over yet, while the agent lives."""
        now = self._clock.boot()
        with self._lock:
            due = [h for h in self._held if now - h.at >= HOLD]
            self._held = [h for h in self._held if h not in due]
            background = [*self._background.values()]
        self._release(due, self.stopping)
        if self.processes is None:
            return
        shells = self._shells()
        self.processes.look(shells, self._left_running())
        for each in background:
            call = each.call.call
            ours = not each.task and self.processes.begun(call)  # else only the agent's word ends it
            if not ours or self.stopping or self.processes.alive(call, shells):
                self._gone.pop(call, None)
            elif now - self._gone.setdefault(call, now) >= HOLD:  # an agent that ends takes what it started with it
                self._end_background(each, each.end.how, "nothing of it runs any more")

    def agent_ended(self, cut: bool) -> None:
        """The agent is gone. `cut`: not in good order, so what it said last may be of its end. What ran on stays open:
        it was ended with the agent."""
        with self._lock:
            held, self._held = self._held, []
        self._cut = cut or self.stopping
        self._release(held, self._cut)

    def _release(self, held: Sequence[Held], cut: bool) -> None:
        for each in held:
            with suppress(WalAgentError):
                if cut:
                    end = each.end
                    stopped = Cut(time=end.time, call=end.call, by=end.by, why=STOPPED, result=end.result)
                    self._leave_open(each.call, stopped)
                else:
                    self._writer.append(each.end, wait=self._soon)

    def end_task(self, task: str, status: Status) -> bool:
        """The agent says that its background task has ended. False when no call that runs on has it."""
        with self._lock:
            found = next((b for b in self._background.values() if b.task == task), None)
        if found is None:
            return False
        outcome = outcome_of(status, status == "done", Seen(found.call.cls, self.stopping))
        if outcome == "cut":
            with self._lock:
                self._background.pop(found.call.call, None)
            self._writer.append(Cut(time=self._clock.now(), call=found.call.call, by="session", why=CUT))
        elif outcome != "runs_on":
            self._end_background(found, "done" if status == "done" else "failed", "the agent says that it has ended")
        return True

    def _end_background(self, found: Background, how: Ending, why: str) -> None:
        with self._lock:
            if self._background.pop(found.call.call, None) is None:
                return
        self._gone.pop(found.call.call, None)
        self._forget(found.call.call)
        now = self._clock.now()
        took = round((self._clock.boot() - found.call.since) * 1000)
        end = msgspec.structs.replace(found.end, time=now, how=how, by="supervisor", why=why, duration_ms=took)
        with suppress(WalAgentError):
            self._writer.append(end, wait=self._soon)
        self._emit(CallEnded(found.call.call, found.call.tool, how, took / 1000, found.call.changes))

    def nudge(self) -> str:
        """What the agent gets in place of its turn's end, once: open calls at whose effect nothing has looked; "" for
        none. Those that still run are not over."""
        if self._nudged or self.ended_turn is not None or self.refusal:
            return ""
        running = {r.call for r in self.background()}
        calls = [asked for asked in self.recovered.unlooked() if asked.call not in running]
        if not calls:
            return ""
        self._nudged = True
        return look_first([(asked.call, inline(asked.tool, SHOWN_TOOL), asked.look) for asked in calls])

    def after_turn(self) -> list[End | Answer]:
        """What a completed turn says of open calls."""
        return self.recovered.after_turn({r.call for r in self.background()})

    def background(self) -> list[RunningCall]:
        """Calls that run on although the agent has their results."""
        with self._lock:
            return [b.call for b in self._background.values()]

    def end_call(self, call: int, how: Ending, why: str, by: EndSource = "supervisor") -> None:
        """Give a running call its one end (I8); a call that has ended already is left alone."""
        with self._lock:
            running = self._calls.end(call, again=by != "session", denied=how == "refused")
        if running is not None:
            self._forget(call)
            end = End(time=self._clock.now(), call=call, how=how, by=by, why=why)
            self._writer.append(end, wait=self._soon)
            changed = running.changes and how != "refused"
            self._emit(CallEnded(call, running.tool, how, self._clock.boot() - running.since, changed))

    def report(self, call: int, status: Status, why: str, by: EndSource, task: str = "") -> None:
        """What the session, or the end of the agent that made it, says of a running call; one that has ended already is
        left alone. `task`: the agent's id of the background task in which it goes on."""
        with self._lock:
            running = self._calls.end(call, again=by != "session")
        if running is not None:
            end = End(time=self._clock.now(), call=call, how="done", by=by, why=why)
            self._log_report(running, status, False, end, why, task)

    def log_unannounced(self, session: str, tool: str, input: bytes, call_id: str, how: Ending | None) -> None:
        """I5: log a call that no before-hook announced. `how` it ended; None: it may have run, and stays open."""
        payload = self._result(input)
        from wal_agent.calls.classify import classify

        found = classify(read_call(tool, input), self._rules(), explain=False)
        with self._lock:
            call, now = self._writer.next_call(), self._clock.now()
            intent = Intent(
                time=now,
                call=call,
                tool=tool,
                input=payload,
                cls=found.cls,
                rule=found.rule,
                session=session,
                agent_call=call_id,
                unlogged=True,
            )
            end = [End(time=now, call=call, how=how, by="session", why=UNLOGGED)] if how is not None else []
            with suppress(WalAgentError):  # fenced: that ends the run by itself
                self._writer.append(intent, *end)
            self.begun[tool] += 1
            self._ids[call_id] = None

    def _result(self, data: bytes) -> Payload:
        """`data`, or what of it needs no blob where the bucket takes none: the end counts, and nobody waits for it."""
        if len(data) > INLINE and self._writer.spooled:
            return cut_payload(data)
        try:
            return self._blobs.put_payload(data, RESULT_BUDGET)
        except BucketError:
            return cut_payload(data)

    # ---- the whole run

    def drain(self, sentence: str = DENY_DRAINING) -> None:
        """From now on no new changing tool, which gets `sentence`; read-only ones go on."""
        self._draining = sentence

    def close(self, sentence: str = DENY_ENDED) -> None:
        """R6: from now on nothing is allowed."""
        with self._lock:
            self._refusal = self._refusal or sentence

    def running(self) -> list[RunningCall]:
        """The agent's own calls, and its subagents'."""
        with self._lock:
            return [r for r in self._calls.running.values() if not r.nested]

    def nested(self) -> list[RunningCall]:
        """Calls of other agents below this one."""
        with self._lock:
            return [r for r in self._calls.running.values() if r.nested]

    def ended_upto(self) -> int:
        """Every call numbered up to this has ended, so whatever it did is done."""
        with self._lock:
            return min(self._calls.running, default=(self.last.call if self.last else self._before) + 1) - 1

    def ended_beyond(self) -> tuple[int, ...]:
        """The newest calls above `ended_upto` that have ended, while an earlier one still runs."""
        with self._lock:
            running = self._calls.running
            newest = self.last.call if self.last else self._before
            first = max(min(running, default=newest + 1), newest - MAX_BEYOND)
            return tuple(call for call in range(first, newest + 1) if call not in running)

    def changing(self) -> list[RunningCall]:
        with self._lock:
            return self._calls.changing()

    def allowed(self) -> list[RunningCall]:
        """The changing calls that may run now: those whose before-hook still waits for its answer do not."""
        with self._lock:
            return [r for r in self._calls.changing() if r.call not in self._unanswered]

    def find_call(self, tool: str, input: bytes, call_id: str, upto: int, exact: bool) -> RunningCall | None:
        """Find a running call for an outcome in the session file, numbered at most `upto`. Without an id it is
        none of a subagent's."""
        with self._lock:
            return self._calls.find(read_call(tool, input), call_id, upto, exact, inner=False)

    def is_repeated_end(self, tool: str, input: bytes, upto: int, call_id: str, denied: bool) -> bool:
        """Whether an end in the session file is logged already."""
        with self._lock:
            return self._calls.is_repeated(read_call(tool, input), upto, call_id, denied)

    def was_announced(self, call_id: str) -> bool:
        """Whether a before-hook of this run had this id."""
        with self._lock:
            return call_id in self._ids

    def newest(self) -> int:
        """The number of the newest call; 0: there was none yet."""
        with self._lock:
            return self.last.call if self.last else self._before

    def reported_upto(self) -> int:
        """Every call of this run numbered up to this is over, and log and session file have it."""
        with self._lock:
            reported = self._calls.reported_upto(self.last.call if self.last else self._before)
            return min([reported, *(call - 1 for call in self._ending)])

    def forget_reported(self, upto: int) -> None:
        """The session file has all that it will have of calls numbered up to `upto`."""
        with self._lock:
            self._calls.forget(upto)


def loop_error(agent: str, call: ReadCall, times: int, job: str) -> PersonNeeded:
    """Why a run without a person ends whose agent makes one call again and again. `job`: the options that name it."""
    return PersonNeeded(
        f"{agent} made the same call {times} times in a row, each with the same result: "
        f"{inline(call.tool, SHOWN_TOOL)} {inline(show_call(call))}. The run was stopped.",
        f"See what it did: {command('log', job)} -n 20. "
        "Then start it again with another prompt, or with --loop-limit 0.",
    )


def begun_shell(running: RunningCall) -> Begun:
    return Begun(running.since, show_call(running.read))


def cut_payload(data: bytes) -> Payload:
    """The beginning of a result as it fits a record, with a sentence behind it that says so."""
    note = f"\n[wal-agent: the rest of these {len(data)} bytes could not be saved: the bucket was away]".encode()
    kept = data[: INLINE - len(note)].decode(errors="ignore").encode() + note
    return Payload(size=len(kept), data=kept)


def _over(error: WalAgentError) -> Deny:
    """The log takes no more of this run: fenced, damaged or sealed."""
    fenced = isinstance(error, Fenced)
    return Deny(DENY_FENCED if fenced else DENY_ENDED, stop=True, word="fenced" if fenced else "ended")


def unannounced_error(agent: str, tool: str) -> ConfigError:
    """I5: why a run ends in which a tool ran without a hook."""
    return ConfigError(
        f"{agent} ran {tool}, which no hook announced, so not logged before. The run was stopped.",
        f"See what ran: wal-agent log. Whether hooks work here: wal-agent doctor {agent}",
    )


def stuck_error(
    agent: str, call: ReadCall, asked: AskedCall, times: int, job: str, shown: Shown | None = None
) -> PersonNeeded:
    """Decision 052: why a run ends whose agent only repeats a call in flight. `job`: the options that name the job."""
    if shown is not None:
        return PersonNeeded(
            f"{agent} repeated {inline(call.tool, SHOWN_TOOL)} {inline(show_call(call))} {times} "
            f"times although {inline(shown.command)} shows that it happened (call #{asked.call}). The run was stopped.",
            f"See the check: {command('log', job)}. Then go on with another prompt: {command(f'run {agent}', job)}",
        )
    return PersonNeeded(
        f"{agent} repeated {inline(call.tool, SHOWN_TOOL)} {inline(show_call(call))} {times} "
        f"times without checking anything, and whether it happened is not known (call #{asked.call}). The run was "
        "stopped.",
        f"Check whether it happened, then: {command(f'ack {asked.call}', job)} --done (or --not-done)",
    )


def _reports(call: ReadCall) -> bool:
    """Whether a call only tells or asks wal-agent something, and so looks at no effect, whatever it names. The command
    of a step may look."""
    from wal_agent.calls.reading import only_tells, tool_name

    return tool_name(call.tool).startswith("wal_agent_") or (b"wal-agent step " not in call.input and only_tells(call))
