"""Run one agent process under one epoch: wire up everything that works beside it, and end it."""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from wal_agent.agents import tools_of
from wal_agent.agents.base import Agent, Compacted, Deny, Rewriting, SessionFile, TurnCompleted, TurnFailed, TurnStarted
from wal_agent.agents.hook_line import SHELL_SECONDS
from wal_agent.agents.session_files import find_main
from wal_agent.capture.inside import TreeCapture
from wal_agent.capture.session import SessionCapture
from wal_agent.concurrency import start_daemon
from wal_agent.config import Settings
from wal_agent.errors import BucketError, ConfigError, Fenced, PersonNeeded, WalAgentError
from wal_agent.events import (
    AgentBegan,
    CallEnded,
    DrainStarted,
    HungUp,
    LeaseLost,
    NoticeReceived,
    PhaseChanged,
    Ready,
    TakesLong,
    emit_after,
)
from wal_agent.failpoints import failpoint
from wal_agent.records import AgentStarted
from wal_agent.recovery.project_rules import load_later
from wal_agent.safefs import read_end
from wal_agent.supervise import exits, processes
from wal_agent.supervise.checkpoints import Checkpointer
from wal_agent.supervise.commands import Commands
from wal_agent.supervise.compaction import CompactionGuard, Surroundings
from wal_agent.supervise.context import Action, Launch, RunContext
from wal_agent.supervise.conversation import Conversation, HookHandler, NestedAgents, Resuming
from wal_agent.supervise.exits import GracefulShutdown, ShutdownPlan, StderrTail
from wal_agent.supervise.gate import Gate, RecoveredCalls
from wal_agent.supervise.hook_selftest import HookSwitches
from wal_agent.supervise.hook_server import HookServer
from wal_agent.supervise.inbox import Inbox
from wal_agent.supervise.lease_keeper import LeaseKeeper, RunProgress, check_signals
from wal_agent.supervise.machine import RunDir
from wal_agent.supervise.options import AGENT_SAID_AFTER, Screen, agent_wait
from wal_agent.supervise.preemption import Preempted
from wal_agent.supervise.processes import Child
from wal_agent.supervise.run_end import AgentOutcome, hooks_silent_error, shut_out_error
from wal_agent.supervise.saving import Saving
from wal_agent.supervise.session_capture import SessionSaver
from wal_agent.supervise.tasks import TaskBounds
from wal_agent.supervise.watchdog import STUCK, Liveness, Watchdog, WatchdogLimits, watched_phase
from wal_agent.supervise.worktree import PAUSE, WorktreeSaver
from wal_agent.wording.messages import DENY_DRAINING, DENY_HUNG, DENY_PAUSING, MENDING

PERSONS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM}
HOOKS_END = float(SHELL_SECONDS[False])
MEND_APART = 600.0  # seconds between two mends of a lost summary: an agent that loses each one is left alone
FAILURE_BYTES = 64 << 10  # of the session's file in which the failure of its newest turn is looked for
LOOK = 0.5  # seconds between two looks at the processes of running calls


class RunParts(msgspec.Struct, frozen=True):
    """What serves each agent process of a run. `tree`: captures of the working tree, None where they are off; `inbox`:
    so are messages. `bounds`: of a task's calls, and of those of its own tasks."""

    run_dir: RunDir
    keeper: LeaseKeeper
    screen: Screen
    liveness: Liveness
    recovered: RecoveredCalls
    tree: TreeCapture | None = None
    inbox: Inbox | None = None
    bounds: TaskBounds | None = None


class Live:
    """One agent process with its hooks and captures; a `Supervisor` to its parts. Make it in the main thread; `run`
    once."""

    def __init__(
        self,
        context: RunContext,
        launch: Launch,
        capture: SessionCapture,
        parts: RunParts,
    ) -> None:
        run_dir, keeper, tree, screen = parts.run_dir, parts.keeper, parts.tree, parts.screen
        inbox, bounds = parts.inbox, parts.bounds
        self._emit = context.emit
        emit = emit_after(
            {CallEnded: lambda e: self.saving.on_call_ended(e), PhaseChanged: lambda e: self.saving.on_phase(e)},
            context.emit,
        )
        context = replace(context, emit=emit)
        agent, workspace = context.agent, context.workspace
        self._context, self._launch, self._run_dir, self._screen = context, launch, run_dir, screen
        self._agent, self._clock, self._writer = agent, context.clock, context.job.writer
        self._liveness = parts.liveness
        self._watch = Watchdog(watchdog_limits(agent, context.settings, launch.interactive))
        self._shutdown = GracefulShutdown(context.clock, free=agent.capabilities.hookless is not None)
        self._resuming = Resuming(agent, launch.session, workspace, context.env, waits=launch.resumed)
        self._oom = exits.oom_counter()
        self._stopped: WalAgentError | None = None
        self._trouble: BaseException | None = None
        self._ready = False
        self._handed = self._writer.state.handoff is not None  # the job was another agent's
        self._told_shut_out = False
        self._await, self._awaited = ExitStack(), ""
        self._child: Child | None = None
        self._looked = 0.0
        self._rules = load_later(workspace, tools_of(agent.name), context.settings.mcp == "on")
        self.gate = Gate(context, self._rules, keeper.may_allow, parts.recovered, bounds)
        session = SessionSaver(context, self.gate, capture, launch.session, self, self._copied_file())
        # Where the agent does not own the screen, people read how a long first capture gets on.
        progress = (lambda _: None) if launch.interactive else screen.say
        saver = WorktreeSaver(context, self.gate, tree, self.fail, progress) if tree is not None else None
        self.saving = Saving(context, session, saver, self.is_loaded, self.fail)
        self.checkpoints = Checkpointer(context)
        self.inbox = inbox
        self._compacting = CompactionGuard(context, self.gate, self._surroundings())
        self.conversation = talk = Conversation(context, self.gate, launch, self, self._compacting, inbox)
        if inbox is not None:
            inbox.resting = lambda: talk.phase == "awaiting_user"
        self._nested = NestedAgents(self.gate, lambda: self.conversation.session)
        self.commands = Commands(context, run_dir, keeper, bounds, self)
        self._hooks = HookHandler(context, self.conversation, self._nested, self)
        self.server = HookServer(run_dir.socket, run_dir.run, self._hooks.answer, self.fail)

    # ---- what hooks and threads call

    def answer_command(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        return self.commands.answer(event, question, by_agent)

    @property
    def late(self) -> tuple[TakesLong, ...]:
        return self._watch.late

    @property
    def down(self) -> ShutdownPlan | None:
        return self._shutdown.down

    def is_loaded(self) -> bool:
        return self._resuming.is_loaded()

    def _copied_file(self) -> Path | None:
        """The main file of the session that this one begins as a copy of."""
        session, file = self._agent.capabilities.forms.forked_from(self._launch.args)
        if file:
            return Path(file)
        main = find_main(self._agent, session, self._context.workspace, self._context.env)
        return main.path if main else None

    def main_file(self) -> SessionFile | None:
        """The main file of the session that the agent works in."""
        return find_main(self._agent, self.conversation.session, self._context.workspace, self._context.env)

    def _hand_over_control(self, act: Callable[[str, str], str] | None) -> None:
        """Control messages are for a run whose agent lives and is not to end; others wait for the next one."""
        if self.inbox is not None:
            self.inbox.take_control(None if self._shutdown.down else act)

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

    def request_save(self) -> None:
        self.saving.request()

    def save_soon(self) -> None:
        self.saving.request_all()

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.saving.autosave.save_now, self.checkpoints.before, self._mend, self._main_size)

    def compacted(self, found: Compacted, session: str) -> None:
        self._compacting.found(found, session)

    def turn_stopped(self) -> None:
        self.conversation.turn_stopped()

    def know_compactions(self, keys: set[str]) -> None:
        self._compacting.know(keys)

    def _main_size(self) -> int:
        main = self.main_file()
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
        self.saving.session.mark_boundary(call)

    def check_handshake(self, appended: bytes) -> None:
        if not self.conversation.hooks_live.is_set() and self._agent.proves_turn(appended):
            self.stop(hooks_silent_error(self._agent.name))

    def switch_session(self, session: str) -> None:
        self._run_dir.write("session", session + "\n")
        self._resuming = Resuming(self._agent, session, self._context.workspace, self._context.env, waits=False)
        self.saving.session.switch(session)

    def may_begin_turn(self, session: str) -> Deny | None:
        return self._resuming.await_loaded(session, lambda: bool(self._stopped or self._shutdown.down))

    def lease_expired(self) -> None:
        """The lease ran out unrenewed: end running changing tools, let the CLI wait (PROTOCOL.md, Timing). Hooks that
        wait for their answer are left alone: agents run a tool whose hook was killed (I5)."""
        began = [r.began for r in self.gate.allowed()]
        began += filter(None, [self.commands.oldest_step()])
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
            load_beside(self._rules)
            self.saving.start()
            if self._agent.capabilities.hookless:
                self.conversation.handle(TurnStarted(launch.session, ""))
                self.conversation.enter("tool_started")  # the command is at work; whether a model is asked is not known
            self._hand_over_control(self.commands.control)
            failpoint("run.after_agent_start")
            exit = child.wait(self._on_terminate, self._tick, self._every)
        except BaseException:  # a bug, or no thread was left: the lease may be settled only over a dead tree
            self.gate.close()
            child.kill()
            if self.saving.tree:
                self.saving.tree.pause()
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
        self.saving.finish(self._shutdown, self._screen, isinstance(self._stopped, Fenced), self._in_order)
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
            self.saving.complete,
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

    def _end_processes(self) -> tuple[str, ...]:
        """End what the agent left running, hooks last; the names of what had to be ended."""
        if not self._agent.capabilities.hookless:
            with self._screen.waiting_for(f"hooks of {self._agent.name} to end", HOOKS_END):
                processes.await_hooks(self._run_dir.run, HOOKS_END, self._urgent)
        if self.saving.tree:
            with self._screen.waiting_for("git to end", PAUSE):
                self.saving.tree.pause(self._shutdown.left(PAUSE))
        with self._screen.waiting_for("the processes of the agent to end", processes.ENDING):
            grace = self._shutdown.left(processes.GRACE)
            return tuple(processes.end_run_processes(self._run_dir.run, grace, adopted=True))

    def _problems(self) -> tuple[str, ...]:
        """What people are to know of saving and hooks at the end."""
        problems = self.saving.problems(self._hooks.refused)
        hookless = self._agent.capabilities.hookless
        if hookless is None:
            return problems
        return (*problems, *hookless.left_out(self._context.workspace, self._context.env))

    def _failure_in_file(self) -> TurnFailed | None:
        """Why the newest turn failed, by the session's file: an agent may be gone before its hook has reported it."""
        read = self._agent.capabilities.turn_failure
        if read is None or not self.conversation.turned or (main := self.main_file()) is None:
            return None
        return read(read_end(main.path, FAILURE_BYTES))

    def _urgent(self) -> bool:
        """Nothing may be waited for that somebody else must do."""
        return bool(self._shutdown.down or self._stopped or signal.sigpending() & PERSONS)

    def _every(self) -> float:
        """Seconds between two ticks: quick until the handshake, which nothing but polling can miss."""
        return 0.1 if self.conversation.hooks_live.is_set() else 0.02

    def _in_order(self) -> bool:
        """Whether the agent ended by itself, behind a turn that it completed."""
        return self._shutdown.down is None and self._stopped is None and not self.conversation.turn_open

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
            self.saving.request()  # the session file may show a turn without hooks; nothing else wakes us then
        elif not self._ready:
            self._ready = True
            self._emit(Ready())
        self._say_what_is_awaited()
        self._look_after()
        step_runs = self._shutdown.down is not None and self.commands.step_runs()
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
            rules()

    with suppress(RuntimeError):  # no thread is left: the first hook pays for it
        start_daemon("load", load)
