"""Answer what a live run is asked: by a person on this machine, by a tool of its agent, or by a control message.

What only few runs are asked for (values and steps, rewinds) is made and imported when it comes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import asdict

from wal_agent.agents.base import SessionFile
from wal_agent.errors import PersonNeeded, UsageError, WalAgentError
from wal_agent.events import TakesLong
from wal_agent.inbox import is_for_run
from wal_agent.redact import redact
from wal_agent.safefs import read_plain, real_path
from wal_agent.supervise import control
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.supervise.context import RunContext, await_durable
from wal_agent.supervise.conversation import Conversation
from wal_agent.supervise.ends import acknowledged_end
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.inbox import Inbox
from wal_agent.supervise.lease_keeper import LeaseKeeper
from wal_agent.supervise.machine import RunDir
from wal_agent.supervise.pausing import clean_reason, parse_duration, pause_plan
from wal_agent.supervise.saving import Saving
from wal_agent.supervise.tasks import TaskBounds, begin_task
from wal_agent.supervise.worktree import never_captured
from wal_agent.text import command, duration, plural
from wal_agent.wording.messages import DENY_DRAINING

if TYPE_CHECKING:
    from wal_agent.supervise.live_rewind import LiveRewind
    from wal_agent.supervise.steps import StepKeeper

MAX_BECAUSE = 1000  # characters
BY_AGENT = "Only a person may do this, in a terminal of their own: it was asked for by the agent or one of its tools."


class CommandedRun(Protocol):
    """What commands look at, and do, in a run (live.py)."""

    gate: Gate
    conversation: Conversation
    saving: Saving
    checkpoints: Checkpointer
    inbox: Inbox | None

    @property
    def late(self) -> tuple[TakesLong, ...]:
        """What takes too long now."""

    @property
    def down(self) -> ShutdownPlan | None:
        """Why the agent is being ended; None: it is not."""

    def shut_down(self, down: ShutdownPlan) -> None:
        """End the agent in good order. The first word counts; a drain overrules a pause or a hang."""

    def main_file(self) -> SessionFile | None:
        """The main file of the session that the agent works in."""

    def is_loaded(self) -> bool:
        """Whether the agent has read the session that it resumed; what a resume left behind is then removed."""


class Commands:
    """The commands of one run. Called from hook threads, and with control messages from the inbox's."""

    def __init__(
        self, context: RunContext, run_dir: RunDir, keeper: LeaseKeeper, bounds: TaskBounds | None, live: CommandedRun
    ) -> None:
        self._context, self._run_dir, self._keeper, self._bounds, self._live = context, run_dir, keeper, bounds, live
        self._agent, self._clock, self._writer = context.agent, context.clock, context.job.writer
        self._steps_lock = threading.Lock()
        self._steps: StepKeeper | None = None
        self._rewind_lock = threading.Lock()
        self.rewinding: LiveRewind | None = None  # made when a person asks for the first

    def step_runs(self) -> bool:
        return self._steps is not None and self._steps.running()

    def oldest_step(self) -> float:
        """When the oldest running step began, in boot time; 0.0: none runs."""
        return self._steps.oldest_running() if self._steps is not None else 0.0

    @property
    def steps(self) -> StepKeeper:
        """What answers for values and steps; made when the first is asked for."""
        from wal_agent.supervise.steps import StepKeeper

        with self._steps_lock:
            if self._steps is None:
                socket, gate = self._run_dir.socket, self._live.gate
                may_allow = (self._bounds or self._keeper).may_allow
                self._steps = StepKeeper(self._context, socket, may_allow, lambda: gate.refusal)
            return self._steps

    def answer(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        """Answer a command of a person on this machine, or of a tool of this agent's; `ack` (I8) and `rewind` of a
        person alone."""
        question = control.check_job(question, self._context.settings.bucket, self._context.job.keys.job)
        if by_agent and event in (control.ACK, control.REWIND):
            raise PersonNeeded(BY_AGENT)
        match event:
            case control.ACK:
                return self._acknowledge(question)
            case control.SETTLE:
                return self._settle(int(question["call"]), str(question["because"]))
            case control.PAUSE:
                return self._pause(question)
            case control.CHECKPOINT:
                return self._live.checkpoints.answer(question, by_agent)
            case control.MARK:
                return self._mark(str(question.get("name")))
            case control.REWIND:
                return self._rewind(question)
            case control.STEP:
                return self.steps.answer(question, by_agent)
            case control.TASK:
                return self._task(question)
            case control.STATUS:
                return self._status()
            case _:
                raise LookupError(event)

    def _status(self) -> dict[str, Any]:
        key_file = self._context.settings.encryption_key_file
        backlog = self._writer.backlog
        return {
            "phase": self._live.conversation.phase,
            "phase_age": self._clock.now() - self._live.conversation.since,
            "late": [asdict(late) for late in self._live.late],
            "bytes": backlog.size,
            "age": backlog.age,
            "saved": self._live.saving.session.saved,
            "lost": self._live.saving.session.lost,
            "spooled": self._writer.spooled,
            "tree": self._live.saving.tree.trouble if self._live.saving.tree else None,
            "messages": self._live.inbox.waiting if self._live.inbox else 0,
            "job": self._context.job.keys.job,
            "bucket": self._context.settings.bucket,
            "encryption_key_file": key_file and str(real_path(self._context.workspace / key_file)),
            "encryption_key_command": self._context.settings.encryption_key_command,
            "carrier": self._context.settings.messages,
        }

    def _acknowledge(self, question: dict[str, Any]) -> dict[str, Any]:
        done = bool(question["done"])
        if "step" in question:
            self.steps.acknowledge(str(question["step"]), done)
            return {}
        call = int(question["call"])
        if any(running.call == call for running in [*self._live.gate.running(), *self._live.gate.nested()]):
            raise UsageError("That call is running now; its end will tell.")
        await_durable(self._writer.append(acknowledged_end(self._writer.state, call, done, self._clock.now())))
        return {}

    def _mark(self, name: str) -> dict[str, Any]:
        from wal_agent.recovery.restore_session import MAX_MAIN  # late: only a conversation that is marked is read
        from wal_agent.supervise.rewrite import mark_of, rewriting_of

        how, main = rewriting_of(self._agent), self._live.main_file()
        data = read_plain(main.path, MAX_MAIN) if main else None
        units = how.units(data or b"")
        await_durable(self._writer.append(mark_of(name, self._live.conversation.session, units, self._clock.now())))
        return {"job": self._context.job.keys.job}

    def _rewind(self, question: dict[str, Any]) -> dict[str, Any]:
        from wal_agent.supervise.live_rewind import LiveRewind  # late: few runs are rewound
        from wal_agent.supervise.rewrite import Home

        context, agent = self._context, self._agent
        with self._rewind_lock:
            if self.rewinding is None:
                private = tuple(never_captured(context.settings, agent, context.env, context.workspace))
                named = context.settings.job_options
                home = Home(context.job.keys.job, named, agent, context.workspace, context.env, private)
                self.rewinding = LiveRewind(context.job, home, self._clock, context.settings.drain)
        calls = [f"#{call.call} {call.tool}" for call in [*self._live.gate.running(), *self._live.gate.nested()]]
        steps = self.step_runs()
        running = calls[0] if calls else "of a step" if steps else ""

        def shut_down(down: ShutdownPlan) -> bool:
            self._live.shut_down(down)
            return self._live.down is down

        return self.rewinding.answer(question, running, shut_down)

    def _task(self, question: dict[str, Any]) -> dict[str, Any]:
        job = self._context.job
        epoch, bounds = job.lease.epoch, self._bounds or TaskBounds(self._keeper, self._clock)
        if question.get("ask") != "begin":
            return bounds.answer(question, epoch, self._live.gate.refusal)
        if question.get("caller") != job.keys.job:
            return {"caller": ""}
        self._live.is_loaded()  # a task's agent starts beside this one
        checkpoint = begin_task(str(question.get("job")), self._writer.state, self._live.checkpoints)
        mine = {"caller": job.keys.job, "epoch": epoch, "run": self._run_dir.run, "counted": bounds.counted}
        return {**mine, "checkpoint": checkpoint}

    def _settle(self, call: int, because: str) -> dict[str, Any]:
        answer = self._live.gate.recovered.answer(call, redact(clean_reason(because[:MAX_BECAUSE])))
        await_durable(self._writer.append(answer))
        return {}

    def _pause(self, question: dict[str, Any]) -> dict[str, Any]:
        down = pause_plan(question, self._clock, self._context.settings.drain)
        if (step := question.get("step")) and isinstance(step, str):
            self.steps.mark_paused(step, down.resume_at, down.reason)
        self._live.shut_down(down)
        now = self._live.down
        if now is None or now.kind != "pause" or now.resume_at != down.resume_at:
            see = f"See: {command('status', self._context.settings.job_options)}"
            raise UsageError("This run is ending already, so it was not paused (anew).", see)
        return {"job": self._context.job.keys.job}

    def control(self, verb: str, text: str) -> str:
        """Carry out a control message, as the same command typed here, and return what became of it. UsageError."""
        match verb:
            case "checkpoint":
                try:
                    done = self._live.checkpoints.answer({"title": "", "note": text} if text else {}, by_agent=False)
                except WalAgentError as error:
                    raise UsageError(error.what, error.hint) from error
                return f"checkpoint {done['number']}"
            case "pause":
                lasts = parse_duration(text or "10m")
                self._pause({"seconds": lasts, "reason": "a control message"})
                return f"it pauses for {duration(lasts)}"
            case "drain":
                if not is_for_run(text, self._context.job.lease.doc.run):
                    raise UsageError("it was for a run that has ended")
                now = self._clock.boot()
                until = now + self._context.settings.drain
                self._live.shut_down(ShutdownPlan("drain", "message", now, until, DENY_DRAINING))
                return "it saves all and stops"
            case "resume":
                return "it runs"
            case "status":
                return self._describe()
            case _:
                raise UsageError(f"{verb} is not known here")

    def _describe(self) -> str:
        """The run in one line, for who asks by a message."""
        job, talk, inbox = self._context.job, self._live.conversation, self._live.inbox
        waiting = inbox.waiting if inbox else 0
        since = duration(max(0.0, self._clock.now() - talk.since))
        calls = plural(len(self._writer.acked.state.open), "open call")
        said = f"epoch {job.lease.epoch}, {self._agent.name}, {talk.phase} for {since}, {calls}"
        return f"{said}, {plural(waiting, 'message')} for the agent" if waiting else said
