"""End a run: its last record, the log sealed, the lease settled, and what people read (R6, RECOVERY.md).

Calls without an end when the agent has ended are left to the next start, or to a person (I8).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import Agent, TurnFailed
from wal_agent.calls.quote import inline
from wal_agent.clock import Clock
from wal_agent.concurrency import call_with_timeout
from wal_agent.errors import ConfigError, Denied, Fenced, PersonNeeded, Unavailable, WalAgentError
from wal_agent.events import AgentEnded, DrainFinished, LeaseSettled, LeftOpen, Paused
from wal_agent.failpoints import failpoint
from wal_agent.limits import describe_failure
from wal_agent.records import CHANGING, ExitClass, RunEnded, RunsOn
from wal_agent.recovery.lease_policy import crash_place
from wal_agent.recovery.report import name_calls, one_line
from wal_agent.redact import redact
from wal_agent.supervise.exits import (
    RESTARTED,
    ExitFacts,
    ExitReason,
    ShutdownPlan,
    classify_exit,
    lease_state_after,
    quota_pause,
    waits_in_vain,
)
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.processes import Exit
from wal_agent.supervise.provenance import resume_command
from wal_agent.text import ABOVE, command, describe_reach, quote_word
from wal_agent.wal.job import OpenedJob, close_job, describe_unsaved
from wal_agent.wal.state import OpenCall, State
from wal_agent.wording import messages

SEAL_BUDGET = 10.0  # seconds, for each of: flush the log, settle the lease
FLUSH_BUDGET = 2.0  # seconds, for what the agent's last calls left in the queue
SEAL_AT_LEAST = 1.0  # for both, when the time for going down is used up
DRAINED = 143


class AgentOutcome(msgspec.Struct, frozen=True):
    """How it ended. `stopped` is why we ended it, if we had to; `down`: we did so in good order."""

    exit: Exit
    completed: bool  # no turn of the session is unfinished, by the agent's own completion event
    down: ShutdownPlan | None
    stopped: WalAgentError | None
    leftovers: tuple[str, ...]
    problems: tuple[str, ...]  # what of the session could not be saved, in sentences
    trouble: BaseException | None  # a failure of ours beside the agent, reported at the end
    silent: bool  # it ended by itself, and none of its hooks was ever heard
    saved: bool = True  # the last captures came about, but for what no more time would have saved
    signals: frozenset[int] = frozenset()  # that came while it ran and were its to take
    oom_kills: int = 0  # of our cgroup meanwhile
    said: bytes = b""  # the end of its stderr
    failed: TurnFailed | None = None  # why its newest turn ended, if for want of the model
    turned: bool = False  # a turn began

    @property
    def done(self) -> bool:
        """A turn came to its end; who dies before the first one has completed nothing."""
        return self.completed and (self.turned or self.exit.code == 0)

    @property
    def clean(self) -> bool:
        """No turn is unfinished, and we did not end it; never rc 0 alone (RECOVERY.md)."""
        return self.completed and self.down is None and self.stopped is None

    @property
    def drained(self) -> bool:
        return self.down is not None and self.down.kind == "drain"


def unsaved_line(why: str) -> str:
    return f"the last changes of the session are not saved and exist only on this disk: {why.rstrip('.')}."


def hooks_silent_error(agent: str) -> ConfigError:
    return ConfigError(
        f"{agent}'s hooks did not answer when its session began, so no tool call could be logged. Nothing was run.",
        f"See what switches them off with: wal-agent doctor {agent}",
    )


def no_session_line(agent: str, code: int) -> str:
    """Why nothing is logged, where a person or an error of the agent's own (no login, a wrong option, a dialog that was
    declined) ended it before its first hook: that its hooks are off does not follow from that."""
    above = f" {ABOVE}" if 0 < code < 128 else ""
    return f"{agent} ended before its session began{above}, so there is nothing to log or to continue."


def no_hooks_error(agent: str) -> ConfigError:
    """For a run without a person that ended with 0: it did something, and no hook was heard."""
    return ConfigError(
        f"{agent} ended and its hooks never ran, so what it did was not logged.",
        f"Find out why: wal-agent doctor {agent}",
    )


def shut_out_error(agent: str, refused: str, job_options: str) -> PersonNeeded:
    """For an agent that took a job over without a person, and was refused each command by its own permissions."""
    return PersonNeeded(
        f"{agent} was refused its shell by its own permissions ({inline(redact(refused), 80)}): the job that it took "
        "over is not done.",
        f"Allow that in {agent}'s own settings, then start it again: {command(f'run {agent}', job_options)}",
    )


def exit_reason(agent: Agent, ended: AgentOutcome, interactive: bool, now: float) -> ExitReason:
    """How it ended, as one word and one sentence."""
    exit_cause = agent.capabilities.exit_cause
    death = exit_cause(ended.said, now) if exit_cause is not None and ended.exit.code != 0 else None
    return classify_exit(
        ExitFacts(
            code=ended.exit.code,
            completed=ended.completed,
            interactive=interactive,
            down=ended.down,
            stopped=str(ended.stopped or ""),
            signals=ended.signals,
            oom_kills=ended.oom_kills,
            said=ended.said,
            death=death,
            failed=ended.failed,
        )
    )


def ended_record(ended: AgentOutcome, word: ExitReason, place: str, rests: float, clock: Clock) -> RunEnded:
    """`rests`: seconds that the job is paused for what `word` says, where nobody asked for a pause."""
    down, now = ended.down, clock.now()
    until, reason = (down.resume_at, down.reason) if down is not None else (0.0, "")
    if rests > 0:
        until, reason = now + rests, word.why
    return RunEnded(
        time=now,
        code=ended.exit.code,
        completed=ended.done,
        why="" if word.cls == "completed" else word.why,
        cls=word.cls,
        place=place,
        until=until,
        reason=reason,
    )


def continues_by_itself(cls: ExitClass, until: float, restarts: bool) -> bool:
    """Whether the job is taken up again by itself: that start looks what became of the calls in flight, and no person
    is needed before. `until` > 0: it rests so long (since 1970); `restarts`: an agent that died is started again."""
    return until > 0 or cls in ("drained", "paused") or (restarts and cls in RESTARTED)


def left_open(calls: Sequence[OpenCall], unproven: Collection[int] = ()) -> LeftOpen | None:
    """What a person is asked of `calls`: nothing of those that are as well done twice. `unproven`: State.unproven."""
    matters = [(o.intent.call, o.intent.tool, o.state) for o in calls if o.intent.cls in CHANGING]
    return LeftOpen(tuple(matters), sum(call in unproven for call, _, _ in matters)) if matters else None


def open_calls_line(
    calls: Sequence[OpenCall], left: LeftOpen | None, follows: bool, job: str, answered: Collection[int] = ()
) -> str:
    """What is said of `calls` without an end; `left`: those that a person is asked of; `job`: the options that name
    the job; `answered`: calls that an agent was asked of, and no start checks again."""
    if left is not None:
        asked = {call for call, _, _ in left.calls}
        named = name_calls([o for o in calls if o.intent.call in asked])
        return messages.to_settle(named, left.calls[0][0], job, asked.isdisjoint(answered))
    return messages.left_open(name_calls(calls), follows)


Settled = Literal["closed", "released", "left"]


def may_continue(settled: Settled, cls: str, until: float, state: State, hookless: bool) -> bool:
    """Whether the next start begins a new conversation, and this one has something to continue. Pure. `cls`, `until`:
    how the run ended, and its pause's end; `hookless`: no turn of the agent is seen."""
    answered = settled == "released" and cls == "completed" and until <= 0 and not state.unanswered
    return (settled == "closed" or answered) and (hookless or state.turn != "none")


class RunResult(msgspec.Struct, frozen=True):
    """A run that the agent ended, or that we did in good order. `code` is what a shell would show, `until` > 0: the job
    is paused so long (since 1970). `completed`: its last turn is; `acted`: it made a call."""

    code: int
    cls: ExitClass
    why: str = ""
    until: float = 0.0
    interactive: bool = False
    completed: bool = False
    acted: bool = True


class EndNotSaved(Unavailable):
    """The agent has ended (`finished`), and the bucket could not be reached; or it refused: then with its code."""

    def __init__(self, what: str, hint: str, finished: RunResult, refused: Denied | None = None) -> None:
        super().__init__(what, hint)
        self.finished = finished
        self.exit_code = refused.exit_code if refused else Unavailable.exit_code


def end_run(
    options: RunOptions, opened: OpenedJob, ended: AgentOutcome, clock: Clock, screen: Screen, watcher: str
) -> RunResult:
    """Settle the job and report what is left to report. `watcher`: why the cloud's notices could not be watched.

    Raises why we ended the agent, if we had to (Fenced: before anything is written), and EndNotSaved."""
    if isinstance(ended.stopped, Fenced):
        raise ended.stopped
    if ended.silent and not options.interactive and ended.exit.code == 0:
        ended = replace(ended, stopped=no_hooks_error(options.agent.name))
    failpoint("run.before_seal")
    word = exit_reason(options.agent, ended, options.interactive, clock.now())
    closing = _Closing(options, opened, ended, word, clock)
    with screen.waiting_for("the bucket, to end the job", 2 * SEAL_BUDGET):
        settled, until = closing.settle()
    failpoint("run.after_seal")
    closing.report(settled, until, watcher, screen.say)
    if ended.stopped is not None:
        raise ended.stopped
    finished = closing.finished(until)
    if settled == "left" and not (closing.crash and closing.all_logged):
        raise closing.left(finished)
    return finished


class _Closing(msgspec.Struct, frozen=True):
    options: RunOptions
    opened: OpenedJob
    ended: AgentOutcome
    word: ExitReason
    clock: Clock

    @property
    def crash(self) -> bool:
        """What does not fit in the time for going down is left as a crash: nothing is given up half saved."""
        return self.ended.down is not None and not self.ended.saved

    @property
    def all_logged(self) -> bool:
        """The machine goes away, and the bucket has all that was logged."""
        return self.ended.drained and not self.opened.writer.pending

    # ---- the job

    def settle(self) -> tuple[Settled, float]:
        """What the job was settled as, and until when it is paused (since 1970), if it is."""
        ended, emit = self.ended, self.options.emit
        record, vain = self._record()
        emit(AgentEnded(ended.exit.code, self.word.cls, self.word.why))
        if not self.crash:
            self.opened.writer.append(record)
        reason = record.reason or self.word.why
        settled = self._close_job(None if self.crash else self._wanted_state(record.until), reason, record.until)
        emit(LeaseSettled(settled, reason, record.until))
        if settled == "released" and record.until > 0:
            emit(Paused(record.until, reason, vain))
        if ended.down is not None and ended.drained:
            emit(DrainFinished(self.clock.boot() - ended.down.began, settled != "left"))
        return settled, record.until

    def _record(self) -> tuple[RunEnded, float]:
        """The run's last record; and since when its quota was waited for in vain."""
        if self.ended.down is None and not self.crash:
            self.opened.writer.flush(FLUSH_BUDGET)  # a call that ended just now is a part of where it crashed
        state, now = self.opened.writer.state, self.clock.now()
        where = crash_place(state, self.opened.lease.epoch)
        options = self.options
        quota = self.word.cls == "quota" and options.settings.restart == "on" and not options.interactive
        waits = quota and not options.successors
        rests = quota_pause(self.word, where, state.ends) if waits else 0.0
        vain = waits_in_vain(where, state.ends, now) if waits else 0.0
        return ended_record(self.ended, self.word, where, rests, self.clock), vain

    def _wanted_state(self, until: float) -> Literal["closed", "released"]:
        untold = not self.ended.turned and self.opened.writer.state.recoveries > self.opened.replay.state.recoveries
        return lease_state_after(
            self.word.cls, clean=self.ended.clean, untold=untold, interactive=self.options.interactive, until=until
        )

    def _close_job(self, wanted: Literal["closed", "released"] | None, reason: str, until: float) -> Settled:
        """When it goes down, within what is left of its time, whatever hangs. `wanted` None: the log is sealed, and the
        lease left to run out."""
        opened, down = self.opened, self.ended.down
        if down is None and wanted is not None:
            return close_job(opened, wanted, reason, until=until, budget=SEAL_BUDGET)
        left = max(SEAL_AT_LEAST, (down.end if down else 0.0) - self.clock.boot())

        def close() -> Settled:
            if wanted is not None:
                return close_job(opened, wanted, reason, until=until, budget=left / 2)
            opened.writer.seal(left)
            return "left"

        return call_with_timeout(left, close, "left")

    # ---- what is said

    def report(self, settled: Settled, until: float, watcher: str, say: Callable[[str], None]) -> None:
        ended, options = self.ended, self.options
        for problem in ended.problems[:3]:
            say(problem)
        if ended.leftovers:
            shown = ", ".join(one_line(text, 80) for text in ended.leftovers[:3])
            say(f"ended what the agent left running: {shown}")
        epoch = self.opened.lease.doc.epoch
        if ran := [o for o in self.opened.writer.state.open if o.epoch == epoch and isinstance(o.held, RunsOn)]:
            say(messages.ended_in_background(name_calls(ran)))
        answered = {a.call for a in self.opened.replay.state.answers}  # said at the start
        if open_calls := [o for o in self.opened.writer.state.open if o.intent.call not in answered]:
            follows = settled == "left" or continues_by_itself(self.word.cls, until, self._restarts)
            unproven = {o.intent.call for o in self.opened.writer.state.unproven}
            left = None if follows else left_open(open_calls, unproven)
            if not (isinstance(ended.stopped, PersonNeeded) and len(open_calls) == 1):  # else the error names the call
                asked = {a.call for a in self.opened.writer.state.answers}
                say(open_calls_line(open_calls, left, follows, options.settings.job_options, asked))
            if left is not None:
                options.emit(left)
        if cut_off := list(self.opened.writer.state.undecided_steps):
            say(messages.steps_left(cut_off, options.settings.job_options))
        if lost := self._lost():
            say(messages.summaries_lost(lost, options.settings.job_options))
        if ended.trouble is not None:
            say(describe_failure(ended.trouble, options.env))
        if watcher:
            say(watcher)
        job = self.opened.keys.job
        if ended.drained and settled != "left":
            cd = "" if options.attended else f"cd {quote_word(str(options.workspace))} && "
            command = f"{cd}{resume_command(options)}"
            reach = describe_reach(options.settings.bucket, "this machine")
            say(f"job {job} is saved and stopped; `{command}` resumes it {reach}.")
        elif self.all_logged:
            say(
                f"job {job} was not saved completely within {options.settings.drain:.0f} s: the next start "
                "treats it as a crash, once its lease has expired, and resumes what was saved."
            )
        hookless = options.agent.capabilities.hookless is not None
        goes_on = may_continue(settled, self.word.cls, until, self.opened.writer.state, hookless)
        if goes_on and options.attended and not ended.drained and not ended.silent:
            say(messages.continue_with(resume_command(options, "--continue")))
        if ended.silent and ended.stopped is None:
            say(no_session_line(options.agent.name, ended.exit.code))

    def _lost(self) -> list[int]:
        """This run's compactions that left the agent nothing; none where the next start mends them."""
        if self.ended.down is not None and self.ended.down.source == "mend":
            return []
        return [c.n for c in self.opened.writer.state.compactions if c.lost and c.epoch == self.opened.lease.epoch]

    @property
    def _restarts(self) -> bool:
        """Whether `keep` starts the agent again if it died: not once its task was done."""
        return self.options.settings.restart == "on" and (self.options.interactive or not self.ended.done)

    @property
    def _unverified(self) -> bool:
        """Whether a run without a person is complete, and leaves a call open at which nothing has looked."""
        watched = self.options.interactive or self.options.settings.unverified == "allow"
        completed = self.word.cls == "completed" and self.ended.down is None
        return completed and not watched and left_open(self.opened.writer.state.unlooked) is not None

    def finished(self, until: float) -> RunResult:
        ended = self.ended
        code = DRAINED if ended.drained else ended.exit.shell_code
        if code == 0 and self._unverified:
            code = PersonNeeded.exit_code
        waits = 0.0 if ended.drained else until  # this process goes, and waits for no pause
        acted = self.opened.writer.state.calls > self.opened.replay.state.calls
        return RunResult(code, self.word.cls, self.word.why, waits, self.options.interactive, ended.done, acted)

    def left(self, finished: RunResult) -> EndNotSaved:
        size = self.opened.writer.backlog.size
        waits_for = f"{size} bytes wait" if size else "its last changes are only on this machine"
        trouble = self.opened.writer.trouble
        said = f"; {trouble.what.rstrip('.')}" if trouble is not None and not trouble.why else ""
        to_do = f"{trouble.hint} " if isinstance(trouble, Denied) and trouble.hint else ""
        return EndNotSaved(
            f"the end of job {self.opened.keys.job} could not be saved: {waits_for} "
            f"({messages.bucket_away(trouble)}{said}). The agent ended with {self.ended.exit.shell_code}.",
            f"{to_do}{describe_unsaved(self.opened)}",
            finished,
            trouble if isinstance(trouble, Denied) else None,
        )
