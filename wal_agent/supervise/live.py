"""The agent's life under one epoch: everything that runs beside it, wired together, and what ends it."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from wal_agent.agents import AGENTS
from wal_agent.agents.base import (
    Agent,
    Command,
    Deny,
    Hookless,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import SHELL_SECONDS
from wal_agent.capture.session import SessionCapture
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.clock import Clock
from wal_agent.config import APPEND_DEADLINE, Settings
from wal_agent.errors import BucketError, ConfigError, Fenced, UsageError, WalAgentError
from wal_agent.events import AgentBegan, DrainStarted, Emit, HookAnswered, HungUp, LeaseLost, NoticeReceived, Ready
from wal_agent.failpoints import failpoint
from wal_agent.records import AgentStarted, AnyRecord
from wal_agent.recovery.project_rules import load_all
from wal_agent.recovery.prompt import DENY_DRAINING, DENY_HUNG
from wal_agent.sanitize import quote
from wal_agent.supervise import exits, hook_server, processes
from wal_agent.supervise.acknowledge import acknowledged_end
from wal_agent.supervise.acquire import check_signals
from wal_agent.supervise.callers import Callers
from wal_agent.supervise.conversation import Conversation, NestedAgents, Resuming
from wal_agent.supervise.descent import GracefulShutdown
from wal_agent.supervise.exits import StderrTail
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.hook_selftest import HookSwitches
from wal_agent.supervise.hook_server import HookRequest, HookServer
from wal_agent.supervise.lease_keeper import LeaseKeeper, RunProgress
from wal_agent.supervise.machine import RunDir
from wal_agent.supervise.options import AGENT_SAID_AFTER, ShowWait, agent_wait, show_no_wait
from wal_agent.supervise.pause import pause_plan
from wal_agent.supervise.phases import Action
from wal_agent.supervise.preemption import Preempted
from wal_agent.supervise.processes import Child
from wal_agent.supervise.run_end import AgentOutcome, hooks_silent_error, unsaved_line
from wal_agent.supervise.session_capture import Autosave, SessionSaver
from wal_agent.supervise.shutdown import ShutdownPlan
from wal_agent.supervise.watchdog import STUCK, Bounds, Liveness, Watch, waited_for
from wal_agent.supervise.worktree import PAUSE, WorktreeSaver
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.writer import WriterListener

PERSONS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM}
HOOKS_END = float(SHELL_SECONDS[False])
BY_AGENT = "Only a person may do this, in a terminal of their own: it was asked for by the agent or one of its tools."


@dataclass(frozen=True, slots=True)
class Launch:
    """How the agent starts: its command, and the session that it is to work in."""

    command: Command
    session: str
    resumed: bool
    notice: str  # the recovery's words, with which its first turn begins
    skip: tuple[str, ...]
    turn_open: bool  # the session has a turn that is not completed
    interactive: bool = True  # a person sits before it
    args: tuple[str, ...] = ()  # the user's own


class Live(WriterListener):
    """One agent process with its hooks, heartbeat and autosave. Make it in the main thread; `run` once."""

    def __init__(
        self,
        agent: Agent,
        env: Mapping[str, str],
        workspace: Path,
        opened: OpenedJob,
        run_dir: RunDir,
        heartbeat: LeaseKeeper,
        clock: Clock,
        capture: SessionCapture,
        launch: Launch,
        settings: Settings,
        on_completed: Callable[[], list[AnyRecord]],
        tree: WorkspaceCapture | None = None,
        emit: Emit = lambda _: None,
        pulse: Liveness | None = None,
        oom: Path | None = None,
        on: ShowWait = show_no_wait,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`tree`: captures of the working tree, None where they are off. `oom`: the file that counts OOM kills, if not
        our cgroup's. `progress`: takes a line for people, where the agent does not own the screen."""
        self._pulse = pulse or Liveness()
        self._emit = emit
        self._on = on
        self._agent = agent
        self._env = dict(env)
        self._workspace = workspace
        self._opened = opened
        self._run_dir = run_dir
        self._clock = clock
        self._launch = launch
        self._drain_budget = settings.drain
        self._watch = Watch(bounds_of(agent, settings, launch.interactive))
        self._stopped: WalAgentError | None = None
        self._trouble: BaseException | None = None
        self._unsaved = ""
        self._saved = True
        self._descent = GracefulShutdown(clock, free=isinstance(agent, Hookless))
        self._resuming = Resuming(agent, launch.session, workspace, env) if launch.resumed else None
        self._oom = oom or exits.oom_counter()
        self._ready = False
        self._await, self._awaited = ExitStack(), ""
        self._child: Child | None = None
        writer = opened.writer
        writer.add_listener(self)
        self.gate = Gate(
            writer,
            opened.blobs,
            heartbeat.may_allow,
            load_all(workspace).of(agent.name),
            workspace,
            clock,
            settings.append_deadline,
            sync=settings.durability == "sync",
            emit=emit,
        )
        self.saver = SessionSaver(
            agent,
            env,
            workspace,
            writer,
            opened.blobs,
            self.gate,
            clock,
            capture,
            launch.session,
            frozenset(launch.skip),
            self._unseen,
            self._look,
            emit,
        )
        self.autosave = Autosave(self._save, settings.autosave, self._fail)
        self.tree = tree and WorktreeSaver(
            tree,
            writer,
            self.gate.ended_upto,
            clock,
            settings.autosave,
            self._fail,
            emit,
            self.gate.ended_beyond,
            progress,
        )
        if self.tree:
            self.gate.changed = self.tree.poke
        self.conversation = Conversation(
            self.gate,
            writer,
            clock,
            launch.session,
            poke=self.autosave.poke,
            boundary=self.saver.boundary,
            switch=self._switch,
            unseen=self._unseen,
            may_begin=self._may_begin,
            on_completed=on_completed,
            notice=launch.notice,
            by_file=agent.boundary == "file",
            turn_open=launch.turn_open,
            emit=emit,
            on_phase=self._entered,
        )
        heartbeat.beat, heartbeat.on_expired, heartbeat.on_lost = self._beat, self._expired, self._stop
        self._stopped = heartbeat.lost or writer.ended
        self._callers = Callers(agent.hook_caller, agent.name, os.getpid())
        self._nested = NestedAgents(self.gate, lambda: self.conversation.session)
        self._refused = ""  # the first caller on the socket that was no hook
        self.server = HookServer(run_dir.socket, run_dir.run, self._hook, self._fail)

    # ---- what hooks and threads call

    def _hook(self, asked: HookRequest) -> bytes | None:
        if asked.event.startswith(hook_server.CONTROL_PREFIX):
            try:
                answer = self._control(asked.event, json.loads(asked.payload), self._callers.below(asked.chain))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # a tool may send anything
                answer = {"error": "That is no question of a command of wal-agent's."}
            return json.dumps(answer).encode()
        began = self._clock.boot()
        caller = self._callers.judge(asked.chain, asked.agent)
        if caller.origin == "agent":
            agent = self._agent
            parsed = agent.parse(asked.event, asked.payload)
            decision = self.conversation.on(parsed)
        elif caller.origin == "inner" and caller.speaker is not None and asked.agent in AGENTS:
            agent = AGENTS[asked.agent]
            try:
                parsed = agent.parse(asked.event, asked.payload)
            except ValueError:  # its line refuses; another CLI's version is no trouble of this run's
                return None
            decision = self._nested.on(asked.agent, parsed, caller.speaker)
        else:
            if caller.origin != "gone":
                self._refuse(asked)
            return None
        said = agent.render(asked.event, decision)
        ruled: Literal["", "allow"] = "allow" if isinstance(parsed, ToolStarting) else ""
        denied = isinstance(decision, Deny)
        word = decision.word if isinstance(decision, Deny) else ""
        self._emit(HookAnswered(asked.event, "deny" if denied else ruled, word, self._clock.boot() - began))
        return said

    def _refuse(self, asked: HookRequest) -> None:
        """Said once: a tool may call as often as it likes."""
        if not self._refused:
            who = quote(" ".join(asked.chain[0].argv), 120) if asked.chain else "a process"
            self._refused = (
                f"a process that is no hook of {self._agent.name}'s called the hook socket ({quote(asked.event, 40)}) "
                f"and was refused; nothing was changed by it: {who}"
            )
            self._emit(HookAnswered(asked.event, "deny", "stranger", 0.0))

    def _control(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        """`status` and `pause` of a person on this machine, or of a tool of this agent's (`by_agent`); `ack` of a
        person alone (I8)."""
        writer = self._opened.writer
        if event == hook_server.ACK:
            if by_agent:
                return {"error": BY_AGENT}
            if any(r.call == int(question["call"]) for r in [*self.gate.running(), *self.gate.nested()]):
                return {"error": "That call is running now; its end will tell."}
            try:
                end = acknowledged_end(writer.state, int(question["call"]), bool(question["done"]), self._clock.now())
            except UsageError as error:
                return {"error": str(error)}
            word = writer.append(end).wait(APPEND_DEADLINE)
            return {} if word != "undecided" else {"error": "The bucket cannot be reached now. Try again."}
        if event == hook_server.PAUSE:
            return self._pause(question)
        if event != hook_server.STATUS:
            raise LookupError(event)
        backlog = writer.backlog
        return {
            "phase": self.conversation.phase,
            "phase_age": self._clock.now() - self.conversation.since,
            "late": [asdict(late) for late in self._watch.late],
            "bytes": backlog.size,
            "age": backlog.age,
            "saved": self.saver.saved,
            "spooled": writer.spooled,
            "tree": self.tree.problem if self.tree else None,
        }

    def _pause(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            down = pause_plan(question, self._clock, self._drain_budget)
        except UsageError as error:
            return {"error": str(error)}
        self.go_down(down)
        now = self._descent.down
        if now is None or now.kind != "pause" or now.resume_at != down.resume_at:
            return {"error": "This run is ending already, so it was not paused (anew). See: wal-agent status"}
        return {"job": self._opened.keys.job}

    def _beat(self) -> RunProgress:
        last = self.gate.last
        at = self.conversation
        return RunProgress(at.phase, last.tool if last else "", self._opened.writer.acked.seq, at.since)

    def _entered(self, actions: Sequence[Action]) -> None:
        """What the table of phases asks for; from hook threads."""
        if "rearm" in actions:
            self._watch.rearm()
        if "save" in actions:
            self.autosave.poke()
        if "end_agent" in actions:
            self._descent.free = True

    def go_down(self, down: ShutdownPlan) -> None:
        """End the agent in good order, from any thread. The first word counts; a drain overrules a pause or a hang."""
        if not self._descent.begin(down, lambda: self.gate.drain(down.sentence)):
            return
        if down.kind == "drain":
            self._emit(DrainStarted(down.source, down.until - down.began))
        self.conversation.enter("pause_asked" if down.kind == "pause" else "drain_asked")

    def save_soon(self) -> None:
        """Save what there is, from any thread; the agent goes on."""
        self.autosave.poke()
        if self.tree:
            self.tree.poke()

    def _save(self) -> list[Path]:
        if self.tree and isinstance(self._agent, Hookless):
            self.tree.poke()  # no hook tells when a call has ended
        try:
            if self._resuming:
                self._resuming.look()
            return self.saver.save()
        except BucketError:
            return []  # found again by the next save; `status` tells what waits

    def _look(self, appended: bytes) -> None:
        """I5: a turn that began without a handshake has no hooks."""
        if not self.conversation.hooks_live.is_set() and self._agent.proves_turn(appended):
            self._stop(hooks_silent_error(self._agent.name))

    def _switch(self, session: str) -> None:
        self._run_dir.write("session", session + "\n")
        self.saver.switch(session)

    def _may_begin(self, session: str) -> Deny | None:
        """Before each turn."""
        if self._resuming is None:
            return None
        return self._resuming.wait(session, lambda: bool(self._stopped or self._descent.down))

    def _unseen(self, tool: str) -> None:
        self._stop(
            ConfigError(
                f"{self._agent.name} ran {tool}, which no hook announced, so not logged before. The run was stopped.",
                f"See what ran: wal-agent log. Whether hooks work here: wal-agent doctor {self._agent.name}",
            )
        )

    def _expired(self) -> None:
        """The lease ran out unrenewed: end running changing tools, let the CLI wait (DESIGN 5, Heartbeat). Hooks that
        wait for their answer are left alone: agents run a tool whose hook was killed (I5)."""
        allowed = self.gate.allowed()
        if allowed and self._child is not None:
            since = min(r.began for r in allowed) - 1
            processes.end_processes(processes.tool_processes(self._child.pid, self._run_dir.run, since))

    def on_ended(self, error: WalAgentError) -> None:
        self._stop(error)

    def _stop(self, error: WalAgentError) -> None:
        """End the agent's whole tree: first nothing is allowed any more, then the main thread kills."""
        if isinstance(error, Fenced):
            self._emit(LeaseLost(error.what))
        self._stopped = self._stopped or error
        self.gate.close()
        if self._child is not None:
            self._child.wake()

    def _fail(self, error: BaseException) -> None:
        """A failure of ours. Fenced and damage end the run; anything else is told at its end."""
        if isinstance(error, WalAgentError) and not isinstance(error, BucketError):
            self._stop(error)
        else:
            self._trouble = self._trouble or error

    # ---- the main thread

    def run(self) -> AgentOutcome:
        """From the agent's start to its end. When this returns the tree is gone, and nothing more is allowed."""
        launch, writer = self._launch, self._opened.writer
        self.server.start()
        failpoint("run.before_agent")
        check_signals()  # a ^C until here had no agent to reach
        if (going := self._descent.down) is not None and going.kind == "drain":
            raise Preempted(going, begun=True)
        self._switches = HookSwitches(self._agent, launch.args, self._workspace, self._env)
        kills, words = exits.oom_kills(self._oom), StderrTail() if exits.may_tee_stderr() else None
        argv, no_stdin = launch.command.argv, launch.command.no_stdin
        with self._callers.starting() as began:
            child = Child(argv, self._env, self._workspace, no_stdin, words.inlet if words else None)
            began(child.pid)
        self._child = child
        try:
            if words:
                words.began()
            self._run_dir.write("agent.pid", f"{child.pid}\n")
            writer.append(
                AgentStarted(time=self._clock.now(), pid=child.pid, session=launch.session, resumed=launch.resumed)
            )
            self._emit(AgentBegan(child.pid, launch.session, launch.resumed))
            self.autosave.start()
            if self.tree:
                self.tree.start()
            if isinstance(self._agent, Hookless):
                self.conversation.on(TurnStarted(launch.session, ""))
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
            self._await.close()
            self._pulse.rest()
        with self._on(f"hooks of {self._agent.name} to end", HOOKS_END):
            processes.await_hooks(self._run_dir.run, HOOKS_END, self._urgent)
        if self.tree:
            with self._on("git to end", PAUSE):
                self.tree.pause(self._descent.left(PAUSE))
        with self._on("what the agent left running to end", processes.ENDING):
            leftovers = processes.end_run_processes(
                self._run_dir.run, self._descent.left(processes.GRACE), adopted=True
            )
        child.reap()
        self.gate.close()
        self.server.close()
        said = words.finish(self._urgent) if words else b""
        self._last_save()
        down = self._descent.close()
        if exit.code == 0 and down is None and self._stopped is None:
            if isinstance(self._agent, Hookless):
                self.conversation.on(TurnCompleted(launch.session))
            self.conversation.ended()
        completed = not self.conversation.turn_open
        tree = self.tree.not_saved() if self.tree else ""
        unwatched = self.autosave.problem if self.autosave.watches else ""  # else it was said before the start
        problems = (*filter(None, [self._unsaved, tree, unwatched, self._refused]), *self.saver.problems)
        if isinstance(self._agent, Hookless):
            problems += tuple(self._agent.left_out(self._workspace, self._env))
        heard = self.conversation.hooks_live.is_set() or isinstance(self._agent, Hookless)
        silent = not heard and down is None and self._stopped is None
        self.conversation.enter("agent_ended")
        return AgentOutcome(
            exit,
            completed,
            down,
            self._stopped,
            tuple(leftovers),
            problems,
            self._trouble,
            silent,
            self._saved,
            signals=child.passed,
            oom_kills=exits.oom_kills_since(kills, self._oom),
            said=said,
            failed=self.conversation.failed,
            turned=self.conversation.turned,
        )

    def _urgent(self) -> bool:
        """Nothing may be waited for that somebody else must do."""
        return bool(self._descent.down or self._stopped or signal.sigpending() & PERSONS)

    def _every(self) -> float:
        """Seconds between two ticks: quick until the handshake, which nothing but polling can miss."""
        return 0.1 if self.conversation.hooks_live.is_set() else 0.02

    def _last_save(self) -> None:
        """Bounded: what the bucket does not take now is lost as in a crash (it was never acknowledged), and told."""
        budget = self._descent.to_save()
        until = self._clock.boot() + budget
        fenced = isinstance(self._stopped, Fenced)
        if self.tree:
            self.tree.finish(last=not fenced)
        with self._on("the bucket, to save the session", budget):
            in_time = self.autosave.stop(budget, self.saver.close if fenced else self._finish)
        self.saver.close()
        if not in_time:
            self._unsaved = unsaved_line(f"the bucket did not answer for {budget:.0f} s")
        left = max(0.0, until - self._clock.boot())
        with self._on("the bucket, to save the files of this folder", left):
            tree_saved = not self.tree or (self.tree.stop(left) and not self.tree.missed)
        self._saved = fenced or (tree_saved and not self._unsaved)

    def _finish(self) -> None:
        try:
            in_order = self._descent.down is None and self._stopped is None
            self.saver.finish(completed=in_order and not self.conversation.turn_open)
        except BucketError as error:
            self._unsaved = unsaved_line(str(error))

    def _on_terminate(self, count: int) -> None:
        """SIGTERM: drain inside the budget; a second one hurries (facts/fleet.md 4.2)."""
        if count == 1:
            self._emit(NoticeReceived("sigterm"))
        now = self._clock.boot()
        self.go_down(ShutdownPlan("drain", "sigterm", now, now + self._drain_budget, DENY_DRAINING))
        if count > 1:
            self._descent.hurry()

    def _tick(self) -> None:
        child = self._child
        assert child is not None
        self._pulse.beat(self._clock.awake())
        if self._stopped is None and (off := self._switches.look()) is not None:
            self._stop(off)
        if self._stopped is not None:
            child.kill()
            return
        if not self.conversation.hooks_live.is_set():
            self.autosave.poke()  # the session file may tell of a turn without hooks; nothing else wakes us then
        elif not self._ready:
            self._ready = True
            self._emit(Ready())
        self._say_what_is_awaited()
        self._look_after()
        match self._descent.step(bool(self.gate.running()), bool(self.gate.changing())):
            case "terminate":
                child.terminate()
            case "kill":
                child.kill()

    def _say_what_is_awaited(self) -> None:
        """Of an agent that talks to nobody: that it has not begun, or has not ended behind its turn."""
        at, awaited = self.conversation, ""
        if not self._launch.interactive and not isinstance(self._agent, Hookless):
            idle = at.phase == "awaiting_user" and not fed()
            awaited = agent_wait(self._agent.name, at.hooks_live.is_set(), idle and at.turned and not at.turn_open)
        if awaited != self._awaited:
            self._awaited = awaited
            self._await.close()
            if awaited:
                self._await.enter_context(self._on(awaited, after=AGENT_SAID_AFTER))

    def _look_after(self) -> None:
        """Tell what takes long; past the hard timeout the agent is interrupted, and the plan decides what follows."""
        self._nested.look()
        phase, about = self.conversation.look()
        is_fed = phase == "awaiting_user" and not self._launch.command.no_stdin and fed()
        owed = waited_for(phase, self.conversation.turned)
        for found in self._watch.tick(self._clock.awake(), owed, about, self.gate.running(), is_fed):
            self._emit(found)
            if isinstance(found, HungUp):
                now = self._clock.boot()
                self.go_down(ShutdownPlan("hang", found.what, now, now + self._drain_budget, DENY_HUNG))


def bounds_of(agent: Agent, settings: Settings, interactive: bool) -> Bounds:
    """What is watched; of an agent that tells nothing, nothing can be."""
    if isinstance(agent, Hookless):
        return Bounds(0, 0, 0, 0)
    stuck = 0.0 if interactive else STUCK
    return Bounds(settings.idle_soft, settings.approval_soft, settings.tool_soft, settings.hang_timeout, stuck)


def fed(fd: int = 0) -> bool:
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
