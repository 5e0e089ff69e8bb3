"""Run one agent process under one epoch: wire up everything that works beside it, and end it."""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from wal_agent.agents.base import Agent, Compacted, Deny, Rewriting, SessionFile, TurnCompleted, TurnFailed, TurnStarted
from wal_agent.agents.hook_line import SHELL_SECONDS
from wal_agent.agents.session_files import find_main
from wal_agent.capture.session import SessionCapture
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.concurrency import start_daemon
from wal_agent.config import Settings
from wal_agent.errors import BucketError, ConfigError, Fenced, PersonNeeded, UsageError, WalAgentError
from wal_agent.events import (
    AgentBegan,
    CallEnded,
    DrainStarted,
    HungUp,
    LeaseLost,
    NoticeReceived,
    PhaseChanged,
    Ready,
    emit_after,
)
from wal_agent.failpoints import failpoint
from wal_agent.inbox import is_for_run
from wal_agent.records import AgentStarted
from wal_agent.recovery.project_rules import load_later
from wal_agent.redact import redact
from wal_agent.safefs import read_end, read_plain
from wal_agent.supervise import control, exits, processes
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.supervise.compaction import CompactionGuard, Surroundings
from wal_agent.supervise.context import Action, Launch, RunContext, await_durable
from wal_agent.supervise.conversation import Conversation, HookHandler, NestedAgents, Resuming
from wal_agent.supervise.ends import acknowledged_end
from wal_agent.supervise.exits import GracefulShutdown, ShutdownPlan, StderrTail
from wal_agent.supervise.gate import Gate, RecoveredCalls
from wal_agent.supervise.hook_selftest import HookSwitches
from wal_agent.supervise.hook_server import HookServer
from wal_agent.supervise.inbox import Inbox
from wal_agent.supervise.lease_keeper import LeaseKeeper, RunProgress, check_signals
from wal_agent.supervise.machine import RunDir
from wal_agent.supervise.options import AGENT_SAID_AFTER, Screen, agent_wait
from wal_agent.supervise.pausing import clean_reason, parse_duration, pause_plan
from wal_agent.supervise.preemption import Preempted
from wal_agent.supervise.processes import Child
from wal_agent.supervise.run_end import AgentOutcome, hooks_silent_error, shut_out_error, unsaved_line
from wal_agent.supervise.session_capture import Autosave, SessionSaver
from wal_agent.supervise.tasks import TaskBounds, begin_task
from wal_agent.supervise.watchdog import STUCK, Liveness, Watchdog, WatchdogLimits, watched_phase
from wal_agent.supervise.worktree import PAUSE, WorktreeSaver, never_captured
from wal_agent.text import duration, plural
from wal_agent.wording.messages import DENY_DRAINING, DENY_HUNG, DENY_PAUSING, MENDING

if TYPE_CHECKING:
    from wal_agent.supervise.live_rewind import LiveRewind
    from wal_agent.supervise.steps import StepKeeper

PERSONS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM}
HOOKS_END = float(SHELL_SECONDS[False])
MEND_APART = 600.0  # seconds between two mends of a lost summary: an agent that loses each one is left alone
FAILURE_BYTES = 64 << 10  # of the session's file in which the failure of its newest turn is looked for
LOOK = 0.5  # seconds between two looks at the processes of running calls
MAX_BECAUSE = 1000  # characters
BY_AGENT = "Only a person may do this, in a terminal of their own: it was asked for by the agent or one of its tools."


class Live:
    """One agent process with its hooks and captures; a `Supervisor` to its parts. Make it in the main thread; `run`
    once."""

    def __init__(
        self,
        context: RunContext,
        launch: Launch,
        run_dir: RunDir,
        keeper: LeaseKeeper,
        capture: SessionCapture,
        tree: WorkspaceCapture | None,
        recovered: RecoveredCalls,
        screen: Screen,
        liveness: Liveness,
        inbox: Inbox | None = None,
        bounds: TaskBounds | None = None,
    ) -> None:
        """`tree`: captures of the working tree, None where they are off; `inbox`: so are messages. `bounds`: of a
        task's calls, and of those of its own tasks."""
        self._emit = context.emit
        emit = emit_after({CallEnded: self._on_call_ended, PhaseChanged: self._on_phase}, context.emit)
        context = replace(context, emit=emit)
        agent, workspace = context.agent, context.workspace
        self._context, self._launch, self._run_dir, self._screen = context, launch, run_dir, screen
        self._agent, self._clock, self._writer = agent, context.clock, context.job.writer
        self._liveness = liveness
        self._watch = Watchdog(watchdog_limits(agent, context.settings, launch.interactive))
        self._shutdown = GracefulShutdown(context.clock, free=agent.capabilities.hookless is not None)
        self._resuming = Resuming(agent, launch.session, workspace, context.env, waits=launch.resumed)
        self._oom = exits.oom_counter()
        self._stopped: WalAgentError | None = None
        self._trouble: BaseException | None = None
        self._unsaved = ""
        self._saved = True
        self._ready = False
        self._handed = self._writer.state.handoff is not None  # the job was another agent's
        self._told_shut_out = False
        self._await, self._awaited = ExitStack(), ""
        self._child: Child | None = None
        self._looked = 0.0
        self._rules = load_later(workspace, agent.name)
        self._bounds, self._keeper = bounds, keeper
        self.gate = Gate(context, self._rules, keeper.may_allow, recovered, bounds)
        self.saver = SessionSaver(context, self.gate, capture, launch.session, self, self._copied_file())
        self.autosave = Autosave(self._save, context.settings.autosave, self.fail)
        # Where the agent does not own the screen, people read how a long first capture gets on.
        progress = (lambda _: None) if launch.interactive else screen.say
        self.tree = tree and WorktreeSaver(context, self.gate, tree, self.fail, progress)
        self.checkpoints = Checkpointer(context)
        self.inbox = inbox
        self._compacting = CompactionGuard(context, self.gate, self._surroundings())
        self.conversation = talk = Conversation(context, self.gate, launch, self, self._compacting, inbox)
        if inbox is not None:
            inbox.resting = lambda: talk.phase == "awaiting_user"
        self._nested = NestedAgents(self.gate, lambda: self.conversation.session)
        self._steps_lock = threading.Lock()
        self._steps: StepKeeper | None = None
        self._rewind_lock = threading.Lock()
        self.rewinding: LiveRewind | None = None  # made when a person asks for the first
        self._hooks = HookHandler(context, self.conversation, self._nested, self)
        self.server = HookServer(run_dir.socket, run_dir.run, self._hooks.answer, self.fail)

    # ---- what hooks and threads call

    @property
    def steps(self) -> StepKeeper:
        """What answers for values and steps; made when the first is asked for."""
        from wal_agent.supervise.steps import StepKeeper

        with self._steps_lock:
            if self._steps is None:
                socket, gate = self._run_dir.socket, self.gate
                may_allow = (self._bounds or self._keeper).may_allow
                self._steps = StepKeeper(self._context, socket, may_allow, lambda: gate.refusal)
            return self._steps

    def _on_call_ended(self, event: CallEnded) -> None:
        if self.tree:
            self.tree.on_call_ended(event)

    def _on_phase(self, event: PhaseChanged) -> None:
        if self.tree:
            self.tree.on_phase(event)

    def answer_command(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
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
                return self.checkpoints.answer(question, by_agent)
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
            "phase": self.conversation.phase,
            "phase_age": self._clock.now() - self.conversation.since,
            "late": [asdict(late) for late in self._watch.late],
            "bytes": backlog.size,
            "age": backlog.age,
            "saved": self.saver.saved,
            "lost": self.saver.lost,
            "spooled": self._writer.spooled,
            "tree": self.tree.trouble if self.tree else None,
            "messages": self.inbox.waiting if self.inbox else 0,
            "job": self._context.job.keys.job,
            "bucket": self._context.settings.bucket,
            "encryption_key_file": key_file and str((self._context.workspace / key_file).resolve()),
            "encryption_key_command": self._context.settings.encryption_key_command,
            "carrier": self._context.settings.messages,
        }

    def _acknowledge(self, question: dict[str, Any]) -> dict[str, Any]:
        done = bool(question["done"])
        if "step" in question:
            self.steps.acknowledge(str(question["step"]), done)
            return {}
        call = int(question["call"])
        if any(running.call == call for running in [*self.gate.running(), *self.gate.nested()]):
            raise UsageError("That call is running now; its end will tell.")
        await_durable(self._writer.append(acknowledged_end(self._writer.state, call, done, self._clock.now())))
        return {}

    def _mark(self, name: str) -> dict[str, Any]:
        from wal_agent.recovery.restore_session import MOST_MAIN  # late: only a conversation that is marked is read
        from wal_agent.supervise.rewrite import mark_of, rewriting_of

        how, main = rewriting_of(self._agent), self._main_file()
        data = read_plain(main.path, MOST_MAIN) if main else None
        units = how.units(data or b"")
        await_durable(self._writer.append(mark_of(name, self.conversation.session, units, self._clock.now())))
        return {"job": self._context.job.keys.job}

    def _copied_file(self) -> Path | None:
        """The main file of the session that this one begins as a copy of."""
        session, file = self._agent.capabilities.forms.forked_from(self._launch.args)
        if file:
            return Path(file)
        main = find_main(self._agent, session, self._context.workspace, self._context.env)
        return main.path if main else None

    def _main_file(self) -> SessionFile | None:
        """The main file of the session that the agent works in."""
        return find_main(self._agent, self.conversation.session, self._context.workspace, self._context.env)

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
        calls = [f"#{call.call} {call.tool}" for call in [*self.gate.running(), *self.gate.nested()]]
        steps = self._steps is not None and self._steps.running()
        running = calls[0] if calls else "of a step" if steps else ""

        def shut_down(down: ShutdownPlan) -> bool:
            self.shut_down(down)
            return self._shutdown.down is down

        return self.rewinding.answer(question, running, shut_down)

    def _task(self, question: dict[str, Any]) -> dict[str, Any]:
        job = self._context.job
        epoch, bounds = job.lease.epoch, self._bounds or TaskBounds(self._keeper, self._clock)
        if question.get("ask") != "begin":
            return bounds.answer(question, epoch, self.gate.refusal)
        if question.get("caller") != job.keys.job:
            return {"caller": ""}
        self._resuming.is_loaded()  # a task's agent starts beside this one
        checkpoint = begin_task(str(question.get("job")), self._writer.state, self.checkpoints)
        mine = {"caller": job.keys.job, "epoch": epoch, "run": self._run_dir.run, "counted": bounds.counted}
        return {**mine, "checkpoint": checkpoint}

    def _settle(self, call: int, because: str) -> dict[str, Any]:
        answer = self.gate.recovered.answer(call, redact(clean_reason(because[:MAX_BECAUSE])))
        await_durable(self._writer.append(answer))
        return {}

    def _pause(self, question: dict[str, Any]) -> dict[str, Any]:
        down = pause_plan(question, self._clock, self._context.settings.drain)
        if (step := question.get("step")) and isinstance(step, str):
            self.steps.mark_paused(step, down.resume_at, down.reason)
        self.shut_down(down)
        now = self._shutdown.down
        if now is None or now.kind != "pause" or now.resume_at != down.resume_at:
            see = f"See: wal-agent status {self._context.settings.job_options}"
            raise UsageError("This run is ending already, so it was not paused (anew).", see)
        return {"job": self._context.job.keys.job}

    def _control(self, verb: str, text: str) -> str:
        """Carry out a control message, as the same command typed here, and return what became of it. UsageError."""
        match verb:
            case "checkpoint":
                try:
                    done = self.checkpoints.answer({"title": "", "note": text} if text else {}, by_agent=False)
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
                self.shut_down(ShutdownPlan("drain", "message", now, until, DENY_DRAINING))
                return "it saves all and stops"
            case "resume":
                return "it runs"
            case "status":
                return self._describe()
            case _:
                raise UsageError(f"{verb} is not known here")

    def _hand_over_control(self, act: Callable[[str, str], str] | None) -> None:
        """Control messages are for a run whose agent lives and is not to end; others wait for the next one."""
        if self.inbox is not None:
            self.inbox.take_control(None if self._shutdown.down else act)

    def _describe(self) -> str:
        """The run in one line, for who asks by a message."""
        job, talk, waiting = self._context.job, self.conversation, self.inbox.waiting if self.inbox else 0
        since = duration(max(0.0, self._clock.now() - talk.since))
        calls = plural(len(self._writer.acked.state.open), "open call")
        said = f"epoch {job.lease.epoch}, {self._agent.name}, {talk.phase} for {since}, {calls}"
        return f"{said}, {plural(waiting, 'message')} for the agent" if waiting else said

    def progress(self) -> RunProgress:
        """What a renewal of the lease writes."""
        last, at = self.gate.last, self.conversation
        return RunProgress(at.phase, last.tool if last else "", self._writer.acked.seq, at.since)

    def on_phase(self, actions: Sequence[Action]) -> None:
        if "rearm" in actions:
            self._watch.rearm()
        if "save" in actions:
            self.request_save()
        if "end_agent" in actions:
            self._shutdown.free = True

    def shut_down(self, down: ShutdownPlan) -> None:
        """End the agent in good order, from any thread. The first word counts; a drain overrules a pause or a hang."""
        if not self._shutdown.begin(down, lambda: self.gate.drain(down.sentence)):
            return
        self._hand_over_control(None)
        self.checkpoints.before("pre_shutdown")
        if down.kind == "drain":
            self._emit(DrainStarted(down.source, down.until - down.began))
        self.conversation.enter("pause_asked" if down.kind == "pause" else "drain_asked")

    def save_soon(self) -> None:
        """Save what there is, from any thread; the agent goes on."""
        self.request_save()
        if self.tree:
            self.tree.poke()

    def request_save(self) -> None:
        self.autosave.poke()

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.autosave.save_now, self.checkpoints.before, self._mend, self._main_size)

    def compacted(self, found: Compacted, session: str) -> None:
        self._compacting.found(found, session)

    def turn_stopped(self) -> None:
        self.conversation.turn_stopped()

    def know_compactions(self, keys: set[str]) -> None:
        self._compacting.know(keys)

    def _main_size(self) -> int:
        main = self._main_file()
        try:
            return main.path.stat().st_size if main else 0
        except OSError:
            return 0

    def _mend(self) -> bool:
        """End an agent that has lost its conversation, where the restart that follows can put a compact form of it into
        place (prepare.py)."""
        context, now = self._context, self._clock
        able = isinstance(context.agent.capabilities.rewriting, Rewriting) and not self._launch.interactive
        recent = any(r.record.time > now.now() - MEND_APART for r in self._writer.state.rewrites)
        in_turn = self.conversation.turn_open  # pi compacts behind its last turn, which nothing need follow
        if context.settings.restart != "on" or not able or recent or not in_turn:
            return False
        until = now.boot() + context.settings.drain
        down = ShutdownPlan("pause", "mend", now.boot(), until, DENY_PAUSING, now.now(), MENDING)
        self.shut_down(down)
        return self._shutdown.down is down

    def mark_boundary(self, call: int) -> None:
        self.saver.mark_boundary(call)

    def _save(self) -> list[Path]:
        if self.tree and self._agent.capabilities.hookless:
            self.tree.poke()  # no hook reports when a call has ended
        try:
            self._resuming.is_loaded()
            return self.saver.save()
        except BucketError:
            return []  # found again by the next save; `status` shows what waits

    def check_handshake(self, appended: bytes) -> None:
        if not self.conversation.hooks_live.is_set() and self._agent.proves_turn(appended):
            self.stop(hooks_silent_error(self._agent.name))

    def switch_session(self, session: str) -> None:
        self._run_dir.write("session", session + "\n")
        self._resuming = Resuming(self._agent, session, self._context.workspace, self._context.env, waits=False)
        self.saver.switch(session)

    def may_begin_turn(self, session: str) -> Deny | None:
        return self._resuming.await_loaded(session, lambda: bool(self._stopped or self._shutdown.down))

    def lease_expired(self) -> None:
        """The lease ran out unrenewed: end running changing tools, let the CLI wait (PROTOCOL.md, Timing). Hooks that
        wait for their answer are left alone: agents run a tool whose hook was killed (I5)."""
        began = [r.began for r in self.gate.allowed()]
        began += filter(None, [self._steps.oldest_running() if self._steps else 0.0])
        if began and self._child is not None:
            since = min(began) - 1
            processes.end_processes(processes.tool_processes(self._child.pid, self._run_dir.run, since))

    def stop(self, error: WalAgentError) -> None:
        """First nothing is allowed any more, then the main thread kills."""
        if isinstance(error, Fenced):
            self._emit(LeaseLost(error.what))
        self._stopped = self._stopped or error
        self.gate.close()
        if self._child is not None:
            self._child.wake()

    def fail(self, error: BaseException) -> None:
        """Fenced and damage end the run; anything else is reported at its end."""
        if isinstance(error, WalAgentError) and not isinstance(error, BucketError):
            self.stop(error)
        else:
            self._trouble = self._trouble or error

    # ---- the main thread

    def run(self) -> AgentOutcome:
        """From the agent's start to its end. When this returns the tree is gone, and nothing more is allowed."""
        launch, context = self._launch, self._context
        self.server.start()
        failpoint("run.before_agent")
        check_signals()  # a ^C until here had no agent to reach
        if (going := self._shutdown.down) is not None and going.kind == "drain":
            raise Preempted(going, begun=True)
        self._switches = HookSwitches(self._agent, launch.args, context.workspace, context.env)
        kills, words = exits.oom_kills(self._oom), StderrTail() if exits.may_tee_stderr() else None
        argv, no_stdin = launch.command.argv, launch.command.no_stdin
        with self._hooks.callers.starting() as began:
            child = Child(argv, context.env, context.workspace, no_stdin, words.inlet if words else None)
            began(child.pid)
        self._child = child
        self.gate.processes = processes.CallProcesses(child.pid, self._run_dir.run)
        self.gate.is_stopping = lambda: bool(child.passed & PERSONS or signal.sigpending() & PERSONS)
        try:
            if words:
                words.began()
            self._report_start(child.pid)
            self._start_saving()
            if self._agent.capabilities.hookless:
                self.conversation.handle(TurnStarted(launch.session, ""))
            self._hand_over_control(self._control)
            failpoint("run.after_agent_start")
            exit = child.wait(self._on_terminate, self._tick, self._every)
        except BaseException:  # a bug, or no thread was left: the lease may be settled only over a dead tree
            self.gate.close()
            child.kill()
            if self.tree:
                self.tree.pause()
            processes.end_run_processes(self._run_dir.run, adopted=True)
            raise
        finally:
            self._hand_over_control(None)
            self._await.close()
            self._liveness.rest()
        leftovers = self._end_processes()
        child.reap()
        self.gate.agent_ended(cut=exit.code != 0)
        self.gate.close()
        self.server.close()
        said = words.finish(self._urgent) if words else b""
        self._last_save()
        down = self._shutdown.close()
        if exit.code == 0 and down is None and self._stopped is None:
            if self._agent.capabilities.hookless:
                self.conversation.handle(TurnCompleted(launch.session, pending=True))
            self.conversation.end()
        completed = not self.conversation.turn_open
        if exit.code >= 0 and down is None and not completed and not launch.interactive:  # pi and Qwen end with 1
            self._stopped = self._stopped or self.gate.ended_turn
        problems = self._problems()
        hooks_live = self.conversation.hooks_live.is_set() or self._agent.capabilities.hookless is not None
        silent = not hooks_live and down is None and self._stopped is None
        self.conversation.enter("agent_ended")
        return AgentOutcome(
            exit,
            completed,
            down,
            self._stopped or (self._shut_out() if completed and down is None else None),
            leftovers,
            problems,
            self._trouble,
            silent,
            self._saved,
            signals=child.passed,
            oom_kills=exits.oom_kills_since(kills, self._oom),
            said=said,
            failed=self.conversation.failed or (None if completed else self._failure_in_file()),
            turned=self.conversation.turned,
        )

    def _shut_out(self) -> PersonNeeded | None:
        """Why an agent that took the job over, and has nobody to ask, can do nothing of it."""
        command = self.gate.shut_out if self._handed and not self._launch.interactive else ""
        return shut_out_error(self._agent.name, command, self._context.settings.job_options) if command else None

    def _report_start(self, pid: int) -> None:
        launch = self._launch
        self._run_dir.write("agent.pid", f"{pid}\n")
        self._writer.append(
            AgentStarted(time=self._clock.now(), pid=pid, session=launch.session, resumed=launch.resumed)
        )
        self._emit(AgentBegan(pid, launch.session, launch.resumed))

    def _start_saving(self) -> None:
        load_beside(self._rules)
        self.autosave.start()
        if self.tree:
            self.tree.start()

    def _end_processes(self) -> tuple[str, ...]:
        """End what the agent left running, hooks last; the names of what had to be ended."""
        with self._screen.waiting_for(f"hooks of {self._agent.name} to end", HOOKS_END):
            processes.await_hooks(self._run_dir.run, HOOKS_END, self._urgent)
        if self.tree:
            with self._screen.waiting_for("git to end", PAUSE):
                self.tree.pause(self._shutdown.left(PAUSE))
        with self._screen.waiting_for("the processes of the agent to end", processes.ENDING):
            grace = self._shutdown.left(processes.GRACE)
            return tuple(processes.end_run_processes(self._run_dir.run, grace, adopted=True))

    def _problems(self) -> tuple[str, ...]:
        """What people are to know of saving and hooks at the end."""
        tree = self.tree.not_saved() if self.tree else ""
        unwatched = self.autosave.problem if self.autosave.watches else ""  # else it was said before the start
        problems = (*filter(None, [self._unsaved, tree, unwatched, self._hooks.refused]), *self.saver.problems)
        hookless = self._agent.capabilities.hookless
        if hookless is None:
            return problems
        return (*problems, *hookless.left_out(self._context.workspace, self._context.env))

    def _failure_in_file(self) -> TurnFailed | None:
        """Why the newest turn failed, by the session's file: an agent may be gone before its hook has reported it."""
        read = self._agent.capabilities.turn_failure
        if read is None or not self.conversation.turned or (main := self._main_file()) is None:
            return None
        return read(read_end(main.path, FAILURE_BYTES))

    def _urgent(self) -> bool:
        """Nothing may be waited for that somebody else must do."""
        return bool(self._shutdown.down or self._stopped or signal.sigpending() & PERSONS)

    def _every(self) -> float:
        """Seconds between two ticks: quick until the handshake, which nothing but polling can miss."""
        return 0.1 if self.conversation.hooks_live.is_set() else 0.02

    def _last_save(self) -> None:
        """Bounded: what the bucket does not take now is lost as in a crash (it was never acknowledged); reported."""
        budget = self._shutdown.to_save()
        until = self._clock.boot() + budget
        fenced = isinstance(self._stopped, Fenced)
        if self.tree:
            self.tree.finish(last=not fenced)
        with self._screen.waiting_for("the bucket, to save the session", budget):
            in_time = self.autosave.stop(budget, self.saver.close if fenced else self._finish)
        self.saver.close()
        if not in_time:
            self._unsaved = unsaved_line(f"the bucket did not answer for {budget:.0f} s")
        left = max(0.0, until - self._clock.boot())
        with self._screen.waiting_for("the bucket, to save the files of this folder", left):
            tree_saved = not self.tree or (self.tree.stop(left) and not self.tree.missed)
        self._saved = fenced or (tree_saved and not self._unsaved)

    def _finish(self) -> None:
        try:
            in_order = self._shutdown.down is None and self._stopped is None
            self.saver.finish(completed=in_order and not self.conversation.turn_open)
        except BucketError as error:
            self._unsaved = unsaved_line(str(error))

    def _on_terminate(self, count: int) -> None:
        """SIGTERM: drain inside the budget; a second one hurries."""
        if count == 1:
            self._emit(NoticeReceived("sigterm"))
        now = self._clock.boot()
        self.shut_down(ShutdownPlan("drain", "sigterm", now, now + self._context.settings.drain, DENY_DRAINING))
        if count > 1:
            self._shutdown.hurry()

    def _check_socket(self) -> ConfigError | None:
        """I5: what stands in its place could allow calls that nobody logs."""
        if not self.server.is_replaced:
            return None
        return ConfigError(
            f"The socket of {self._agent.name}'s hooks was replaced while it ran ({self._run_dir.socket}). The run was "
            "stopped.",
            "See what its last calls did: wal-agent log",
        )

    def _tick(self) -> None:
        child = self._child
        assert child is not None
        self._liveness.beat(self._clock.awake())
        if self._stopped is None and (off := self._switches.check() or self._check_socket()) is not None:
            self.stop(off)
        if self._stopped is not None:
            child.kill()
            return
        if not self.conversation.hooks_live.is_set():
            self.autosave.poke()  # the session file may show a turn without hooks; nothing else wakes us then
        elif not self._ready:
            self._ready = True
            self._emit(Ready())
        self._say_what_is_awaited()
        self._look_after()
        step_runs = self._shutdown.down is not None and self._steps is not None and self._steps.running()
        match self._shutdown.step(step_runs or bool(self.gate.running()), step_runs or bool(self.gate.changing())):
            case "terminate":
                child.terminate()
            case "kill":
                child.kill()

    def _say_what_is_awaited(self) -> None:
        """Of an agent that talks to nobody: that it has not begun, or has not ended behind its turn."""
        at, awaited = self.conversation, ""
        if not self._launch.interactive and not self._agent.capabilities.hookless:
            idle = at.phase == "awaiting_user" and not stdin_is_fed()
            awaited = agent_wait(self._agent.name, at.hooks_live.is_set(), idle and at.turned and not at.turn_open)
        if awaited != self._awaited:
            self._awaited = awaited
            self._await.close()
            if awaited:
                self._await.enter_context(self._screen.waiting_for(awaited, after=AGENT_SAID_AFTER))

    def _look_after(self) -> None:
        """Report what takes long; past the hard timeout the agent is interrupted, and the plan decides what follows."""
        self._nested.end_orphaned_calls()
        if (now := self._clock.boot()) - self._looked >= LOOK:
            self._looked = now
            self.gate.tick()
        if not self._told_shut_out and (error := self._shut_out()) is not None:
            self._told_shut_out = True
            self._screen.say(error.what)
        phase, about = self.conversation.refresh_phase()
        self.checkpoints.tick(phase)
        is_fed = phase == "awaiting_user" and not self._launch.command.no_stdin and stdin_is_fed()
        owed = watched_phase(phase, self.conversation.turned)
        for found in self._watch.tick(self._clock.awake(), owed, about, self.gate.running(), is_fed):
            self._emit(found)
            if isinstance(found, HungUp):
                now = self._clock.boot()
                self.shut_down(ShutdownPlan("hang", found.what, now, now + self._context.settings.drain, DENY_HUNG))


def watchdog_limits(agent: Agent, settings: Settings, interactive: bool) -> WatchdogLimits:
    """What is watched; of an agent that reports nothing, nothing can be."""
    if agent.capabilities.hookless:
        return WatchdogLimits(0, 0, 0, 0)
    stuck = 0.0 if interactive else STUCK
    return WatchdogLimits(settings.idle_soft, settings.approval_soft, settings.tool_soft, settings.hang_timeout, stuck)


def stdin_is_fed(fd: int = 0) -> bool:
    """Whether a program may still have words for the agent: its stdin is a pipe or socket whose other end is open."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    look = select.poll()
    look.register(fd, select.POLLRDHUP)  # nothing is read
    return not look.poll(0)


def load_beside(rules: Callable[[], object]) -> None:
    """Load what only hooks need, beside the agent's own start: the modules that classify and look at a call, and the
    rules. A hook that comes earlier waits for its own imports."""

    def load() -> None:
        with suppress(OSError, ImportError):  # too few open files: the first hook tries again, and answers for it
            import wal_agent.evidence.collector
            import wal_agent.recovery.inflight
            import wal_agent.shell.classify  # noqa: F401

            rules()

    with suppress(RuntimeError):  # no thread is left: the first hook pays for it
        start_daemon("load", load)
