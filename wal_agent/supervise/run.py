"""`wal-agent run`, from the command to the agent's exit code. Steps in the order of R1, R2 and RECOVERY.md."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wal_agent import __version__
from wal_agent.agents.base import (
    IMPORT_TIMEOUT,
    Agent,
    Cli,
    Command,
    Env,
    HookSetup,
    Injected,
    McpServer,
    NewSession,
    ResumeSession,
    acp_command,
)
from wal_agent.agents.hook_line import MCP_MARK, client_command
from wal_agent.agents.program import ASKING
from wal_agent.bucket import marker_of, open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import COMMAND_BUDGET, EncryptedBucket, load_key
from wal_agent.bucket.encryption import key_id as id_of
from wal_agent.bucket.folder import conditions_due, known_epoch, note_conditions, remember_run
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import Clock
from wal_agent.concurrency import call_with_timeout
from wal_agent.errors import BucketError, ConfigError, Damaged, Fenced, Unavailable, WalAgentError
from wal_agent.events import (
    CheckpointCreated,
    DrainFinished,
    DrainStarted,
    Emit,
    LeaseLost,
    LeaseSettled,
    LeaseTaken,
    Logged,
    LostOnce,
)
from wal_agent.inbox import BucketDriver, Driver
from wal_agent.limits import explain
from wal_agent.paths import PROGRAM, state_dir
from wal_agent.records import AnyRecord, Checkpoint
from wal_agent.recovery.prompt import read_protocol
from wal_agent.supervise import processes, systemd, tasks
from wal_agent.supervise.ancestry import outer_runs
from wal_agent.supervise.context import Launch, RunContext
from wal_agent.supervise.gate import RecoveredCalls
from wal_agent.supervise.hook_selftest import prove_untested_version
from wal_agent.supervise.identity import KEY_VARIABLE, KnownJob, make_owner, make_person_key, read_owner, remember_job
from wal_agent.supervise.inbox import NEAR, Inbox, unlogged_messages
from wal_agent.supervise.lease_keeper import (
    AcquireOptions,
    Housekeeping,
    InterruptibleBucket,
    InterruptibleClock,
    LeaseKeeper,
    LeaseTiming,
    RunProgress,
    StartupInterrupt,
    acquire_job,
    check_signals,
    sweep_mirrors,
)
from wal_agent.supervise.live import Live, RunParts
from wal_agent.supervise.machine import (
    PLACE,
    RunDir,
    is_run_live,
    require_state_dir,
    runtime_dir,
    spools_dir,
    sweep_run_dirs,
    this_host,
)
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.pausing import lift_pause
from wal_agent.supervise.preemption import Preempted, Preemption
from wal_agent.supervise.prepare import PreparedStart, prepare_start
from wal_agent.supervise.processes import block_signals
from wal_agent.supervise.rewrite_first import rewrite_first
from wal_agent.supervise.run_end import SEAL_AT_LEAST, SEAL_BUDGET, AgentOutcome, RunResult, Settled, end_run
from wal_agent.supervise.start_checks import StartChecks
from wal_agent.supervise.worktree import open_worktree_capture
from wal_agent.wal.job import OpenedJob, Opener, OpeningFields, Stopped, close_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Lease, LeaseRequest, read_lease
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore
from wal_agent.wal.writer import SPOOL_AFTER, Writer, WriterListener

if TYPE_CHECKING:
    from wal_agent.messages.requests import Requests
    from wal_agent.messages.values import KvValues

PATIENCE = 0.5  # seconds for a thread of ours that may hang in the bucket, when the machine goes away
SWEEP = 10.0  # seconds for the removal of what dead runs left; what is left of it goes on beside the run
MIRRORS = "mirrors"
SPOOLING = (
    "--on-outage spool: while the bucket is away, tools run on records that are only on this machine's disk; who loses "
    "it loses them, and no other machine takes the job over by itself"
)
# No business of the agent's.
LOOKING_ON = ("METRICS_ADDR", "METRICS_FILE", "METRICS_JOB_LABEL", "LOG_FORMAT", "LOG_FILE", "LOG_LEVEL")
OURS = {"WAL_AGENT_ENCRYPTION_KEY_FILE", "WAL_AGENT_ENCRYPTION_KEY_COMMAND", "WAL_AGENT_NOTIFY", *systemd.VARIABLES}
OURS |= {f"WAL_AGENT_{name}" for name in (*LOOKING_ON, "ACCEPT_LOGGED_ARGS")}
OURS |= {KEY_VARIABLE}
OURS |= {"WAL_AGENT_STEP", "WAL_AGENT_ATTEMPT"}  # of a step of the run around this one
OURS |= {tasks.VARIABLE}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def run(options: RunOptions, screen: Screen) -> RunResult:
    """Run the agent under the log, once. Raises WalAgentError where ours is the last word."""
    agent, env = options.agent, options.env
    with screen.waiting_for(f"the version of {agent.name}", ASKING):
        cli = agent.locate(env)
    if agent.passthrough(options.args):
        os.execve(cli.path, [str(cli.path), *options.args], env)
    problem = agent.hooks_off_reason(options.args, options.workspace, env)
    if problem is not None:
        raise ConfigError(problem)
    prove_untested_version(agent, cli, env, screen)
    if hookless := agent.capabilities.hookless:
        for line in hookless.start_lines(options.workspace, env):
            screen.say(line)
    LeaseTiming(options.settings.ttl)  # UsageError before anything is begun
    with screen.waiting_for("the key command", COMMAND_BUDGET):
        key = load_key(options.settings.encryption_key_file, options.settings.encryption_key_command, env)
    block_signals()  # not earlier: the key's command may take its time, and ends at Ctrl-C
    runtime = runtime_dir(env)
    if options.settings.workspace != "off":
        require_state_dir(env)
    with screen.waiting_for("the removal of what ended runs left here", SWEEP):
        try:
            call_with_timeout(
                SWEEP, lambda: sweep_leftovers(agent, env, runtime), None
            )  # a disk that hangs holds up no start
        except RuntimeError:  # no thread is left
            sweep_leftovers(agent, env, runtime)
    run_dir = RunDir.create(runtime, secrets.token_hex(8), state_dir(env))
    screen.once(options.settings.origin)
    bucket = EncryptedBucket(options.metered(open_bucket(options.settings.bucket)), key)
    try:
        return Run(options, cli, run_dir, bucket, id_of(key), screen).go()
    finally:
        bucket.close()
        run_dir.end()


def sweep_leftovers(agent: Agent, env: Env, runtime: Path) -> None:
    """Remove what dead runs left on this machine."""
    sweep_run_dirs(runtime)
    sweep_mirrors(state_dir(env) / MIRRORS, lambda name: is_run_live(runtime / name))
    if agent.capabilities.sweep:
        agent.capabilities.sweep(env, runtime)


class AgentSlot(WriterListener):
    """Where threads that live as long as the run (the log's writer, the lease's keeper) reach the agent that runs now,
    if one does."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._agent: Live | None = None
        self._error: WalAgentError | None = None
        self._writer: Writer | None = None
        self._phase = ""  # until the agent runs

    def own(self, writer: Writer, phase: str) -> None:
        """The job is open, and this writes its log; its lease has the first `phase`."""
        self._writer, self._phase = writer, phase
        writer.add_listener(self)

    def attach(self, agent: Live) -> None:
        """From now on they reach this one; so does what ended the log or the lease before."""
        self._agent = agent
        if self._error is not None:
            agent.stop(self._error)

    def on_acked(self, records: Sequence[AnyRecord], state: State) -> None:
        """The bucket has a segment of these."""
        earlier = sum(o.epoch < state.openings[-1].opening.epoch for o in state.open)
        for made in (r for r in records if isinstance(r, Checkpoint)):
            self._emit(CheckpointCreated(made.number, made.trigger, len(made.body)))
        self._emit(Logged(tuple(str(type(r).__struct_config__.tag) for r in records), earlier))

    def on_ended(self, error: WalAgentError) -> None:
        """The log or the lease is somebody else's, or cannot be read."""
        self._error = self._error or error
        if self._agent is not None:
            self._agent.stop(error)

    def lease_lost(self, error: WalAgentError) -> None:
        self.on_ended(error)

    def lease_expired(self) -> None:
        if self._agent is not None:
            self._agent.lease_expired()

    def progress(self) -> RunProgress:
        """What a renewal of the lease writes."""
        if self._agent is not None:
            return self._agent.progress()
        return RunProgress(self._phase, seq=self._writer.acked.seq if self._writer else 0)


class Run:
    """One run, step by step: own the job, prepare, run the agent, end."""

    def __init__(
        self, options: RunOptions, cli: Cli, run_dir: RunDir, bucket: Bucket, key_id: str, screen: Screen
    ) -> None:
        self.options = options = replace(options, emit=LostOnce(options.emit))
        self.cli = cli
        self.timing = LeaseTiming(options.settings.ttl)
        self.run_dir = run_dir
        self.early = StartupInterrupt(self._may_start)
        self.bucket: Bucket = InterruptibleBucket(bucket, self.early)
        self.clock: Clock = InterruptibleClock(self.early)
        self.key_id = key_id
        self.screen = screen
        self.slot = AgentSlot(options.emit)
        self.preemption = Preemption(options.settings, options.env, self.clock, options.emit, self._failed)
        self.trouble: BaseException | None = None
        self.hasty = False  # the machine goes away: nothing that may hang is waited for
        self.here = this_host(options.env, run_dir.lock)
        self.parents = tuple(outer.run for outer in reversed(outer_runs()) if outer.run)
        self.task = tasks.read_task(options.env)
        self.driver: Driver | None = None  # of the job's messages
        self.checks = StartChecks(
            options, cli, run_dir.run, self.here, self.bucket, self.clock, screen, self._may_start
        )

    def go(self) -> RunResult:
        opened = None
        try:
            opened = self._acquire()
            return self._go(opened)
        except Fenced as fenced:
            self.options.emit(LeaseLost(fenced.what))
            spool = opened.spool if opened is not None else None
            if spool is None or spool.empty:
                raise
            kept = f"{spool.count} segments of it never came into the log; they are kept in {spool.folder}."
            raise Fenced(fenced.what, kept) from fenced

    def _go(self, opened: OpenedJob) -> RunResult:
        keeper = LeaseKeeper(self.timing, self.clock, opened.lease, self.slot, self.options.emit)
        with self._threads(opened, keeper) as start:
            try:
                start()
                self.run_dir.write(PLACE, f"{opened.keys.job}\n{self.options.workspace}")
                self.driver = self._open_driver()
                rewritten = rewrite_first(self.options, opened, self.clock, self.screen)
                prepared = prepare_start(
                    self.options,
                    rewritten,
                    self.here,
                    self.clock,
                    self.screen,
                    self._may_start,
                    self.driver,
                    self.checks.args,
                )
                self.options = replace(self.options, args=prepared.args)  # those of the lost run, where none were typed
                ended = self._live(opened, keeper, prepared)
            except Fenced:
                raise
            except Exception as error:
                self._give_up(opened, error)
                raise
            finally:
                if self.driver is not None:
                    self.driver.close()
            ended = replace(ended, trouble=ended.trouble or self.trouble)
            return end_run(self.options, opened, ended, self.clock, self.screen, self.preemption.problem)

    # ---- the job

    def _acquire(self) -> OpenedJob:
        options, settings = self.options, self.options.settings
        claim = LeaseRequest(
            run=self.run_dir.run,
            host=self.here,
            agent=options.agent.name,
            workspace=str(options.workspace),
            ttl=self.timing.ttl,
            key=self.key_id,
            owner=read_owner(options.workspace, options.env),
            phase="starting",
        )
        fields = OpeningFields(
            agent_version=self.cli.version,
            version=__version__,
            args=options.args,
            interactive=options.interactive,
            trace=options.trace,
            parents=self.parents,
            task=self.task.of if self.task else None,
        )
        wanted = AcquireOptions(
            spools_dir(options.env),
            spool=settings.on_outage == "spool",
            accept_loss=options.accept_loss,
            wait=options.wait,
            outlast=(options.attended or options.hosted) and not options.no_wait,
            pauses="refuse" if options.exit_on_pause else "wait",
            known_epoch=known_epoch(self.bucket.url, settings.job, options.env),
            probe=conditions_due(self.bucket.url, options.env, self.clock.now()),
            end_pause=self._resumed_by_message,
        )
        opener = Opener(
            make_person_key(options.env), check_owner=self.checks.check, uninterrupted=self.early.uninterrupted
        )
        try:
            opened = acquire_job(
                JobStore(self.bucket, Keys(settings.job), self.clock),
                claim,
                fields,
                wanted,
                self.screen,
                opener,
            )
        except Stopped as stopped:
            if stopped.lease is not None:
                self._give_back(stopped.lease, stopped)
            raise
        self._remember(opened.lease, wanted.probe)
        self.slot.own(opened.writer, opened.lease.doc.phase)
        if opened.spool is not None:
            self.screen.say(SPOOLING)
        openings = opened.replay.state.openings  # none where the log is damaged before ours
        options.emit(
            LeaseTaken(
                job=settings.job,
                bucket=settings.bucket,
                run=self.run_dir.run,
                epoch=opened.lease.epoch,
                cause=openings[-1].opening.cause if openings else "dead",
                host=self.here.name,
                agent=options.agent.name,
                agent_version=self.cli.version,
                workspace=str(options.workspace),
                ttl=self.timing.ttl,
            )
        )
        return opened

    def _remember(self, lease: Lease, probed: bool) -> None:
        """The next start on this machine knows that this bucket holds this job, that it is this folder's, and when its
        conditions were tried."""
        settings = self.options.settings
        try:
            known = KnownJob(
                settings.bucket, settings.job, self.options.agent.name, settings.sources.get("job") != "default"
            )
            remember_job(self.options.env, make_owner(self.options.workspace, self.options.env).folder, known)
            remember_run(self.bucket.url, marker_of(self.bucket.url), settings.job, lease.epoch, self.options.env)
            if probed:
                note_conditions(self.bucket.url, self.options.env, self.clock.now())
        except (OSError, BucketError, Damaged) as error:
            self.screen.say(
                f"this machine could not note that it uses the bucket ({error}): if its disk is not mounted at the "
                "next start, that will not be noticed"
            )

    @contextmanager
    def _threads(self, opened: OpenedJob, keeper: LeaseKeeper) -> Iterator[Callable[[], None]]:
        """While this run owns the job. The caller calls what this gives: then the lease is renewed, the log written."""
        stop = threading.Event()

        def start() -> None:
            keeper.start()
            threading.Thread(target=opened.writer.run, args=(stop,), name="writer", daemon=True).start()
            self.preemption.start()
            if opened.spool is not None:
                after = min(SPOOL_AFTER, self.options.settings.append_deadline / 2)
                threading.Thread(
                    target=opened.writer.run_spooling, args=(stop, after), name="spooler", daemon=True
                ).start()

        try:
            yield start
        finally:
            stop.set()
            self.preemption.stop()
            with self.screen.waiting_for("the lease's renewal to end", 2 * self.timing.period):
                keeper.stop(PATIENCE if self.hasty else None)

    def _may_start(self) -> None:
        """Raises when this machine was asked to end, or is about to."""
        check_signals()
        self.preemption.check()

    def _give_up(self, opened: OpenedJob, error: Exception) -> None:
        """No agent runs (any more) under this epoch: hand the job back, so that the next start need not take it for
        a crash."""
        self.early.armed = False
        self.hasty = isinstance(error, Stopped)
        if isinstance(error, Preempted) and not error.begun:
            self.options.emit(DrainStarted(error.down.source, error.down.until - error.down.began))
        settled: Settled = "left"
        try:
            reason, left = stopped_by(error), self._time_left(error)
            settled = call_with_timeout(left, lambda: close_job(opened, "released", reason, budget=left / 2), "left")
            self.options.emit(LeaseSettled(settled, reason))
        except WalAgentError:
            pass  # the lease runs out by itself; the error that stopped us is the one to report
        if isinstance(error, Preempted):
            self.options.emit(DrainFinished(self.clock.boot() - error.down.began, settled != "left"))

    def _give_back(self, lease: Lease, stopped: Stopped) -> None:
        """The same while the job was still being opened: nothing was written but the opening."""
        self.early.armed = False
        left = self._time_left(stopped)
        with suppress(WalAgentError):
            call_with_timeout(left, lambda: lease.settle("released", stopped_by(stopped), budget=left / 2), None)

    def _time_left(self, error: Exception) -> float:
        """Seconds for giving the job back, whatever hangs."""
        if isinstance(error, Preempted):
            return max(SEAL_AT_LEAST, error.down.end - self.clock.boot())
        if isinstance(error, Stopped):
            return min(2 * SEAL_BUDGET, max(SEAL_AT_LEAST, self.options.settings.drain))
        return 2 * SEAL_BUDGET

    # ---- the agent

    def _live(self, opened: OpenedJob, keeper: LeaseKeeper, prepared: PreparedStart) -> AgentOutcome:
        self.early.armed = False
        options, agent, workspace = self.options, self.options.agent, self.options.workspace
        protocol = read_protocol(workspace, options.env)
        kept = {name: value for name, value in options.env.items() if name not in OURS}
        runs = ":".join((*self.parents, self.run_dir.run))  # never by the environment: that of a dead run may linger
        own = {processes.MARKER: self.run_dir.run, processes.CHAIN: runs, processes.SOCKET: str(self.run_dir.socket)}
        env = {**kept, **own}
        mcp = self._mcp_server(env)
        setup = HookSetup(self.run_dir.run, self.run_dir.path, client_command(), options.settings.skip, protocol, mcp)
        mirror = state_dir(env) / MIRRORS / self.run_dir.run
        housekeeping = Housekeeping(
            self.bucket, opened, mirror, keeper.may_delete, self._failed, options.emit, self.clock
        )
        injected = agent.inject(setup, env)
        with ExitStack() as beside:  # what works beside the agent ends in the opposite order
            beside.callback(lambda: housekeeping.stop(PATIENCE if self.hasty else 2.0))
            beside.callback(remove_injected, injected)
            housekeeping.start()
            env |= injected.env
            if (values := self._open_values(opened)) is not None:
                beside.callback(values.close)
            context = RunContext(opened, agent, options.settings, workspace, env, self.clock, options.emit, values)
            processes.become_subreaper()
            if tidy := agent.capabilities.tidy:
                tidy(prepared.session.id, workspace, env)
            self.run_dir.write("session", prepared.session.id + "\n")
            with self.screen.waiting_for("git, for the files of this folder"):
                tree = open_worktree_capture(context, self.screen.say)
            inbox: Inbox | None = None
            if self.driver is not None:
                inbox = Inbox(context, self.driver, self._looks(), prepared.repeated)
                beside.callback(inbox.stop)
                inbox.start()
                if (requests := self._serve_requests(context, self.driver, inbox)) is not None:
                    beside.callback(requests.close)
            recovered = RecoveredCalls(context, prepared.verdicts, prepared.harmless, prepared.asked)
            bounds = self._bounds(opened, keeper)
            parts = RunParts(self.run_dir, keeper, self.screen, options.liveness, recovered, tree, inbox, bounds)

            def make_live(session: NewSession | ResumeSession, open_turn: bool) -> Live:
                mended = session is prepared.session and isinstance(session, ResumeSession)
                launch = self._launch(session, open_turn, env, mended)
                launch = replace(launch, context=prepared.context)
                return Live(
                    replace(context, env={**env, **launch.command.env}),
                    launch,
                    self._capture(opened, prepared, session.id, env),
                    parts,
                )

            return self._run_agents(make_live, prepared.session, opened.replay.state.turn == "started", env)

    def _mcp_server(self, env: Env) -> McpServer | None:
        agent = self.options.agent
        if self.options.settings.mcp != "on":
            return None
        if not agent.capabilities.mcp:
            self.screen.say(f"--mcp has no effect: {agent.name} takes no MCP server for one run.")
            return None
        self.run_dir.write(MCP_MARK, "")
        return McpServer((*PROGRAM, "mcp"), tuple(sorted(filter(_VARIABLE.fullmatch, env))))

    def _run_agents(
        self,
        make_live: Callable[[NewSession | ResumeSession, bool], Live],
        first: NewSession | ResumeSession,
        open_turn: bool,
        env: dict[str, str],
    ) -> AgentOutcome:
        """Run the agent, and again where it asks for that. `make_live`: for a session, and whether it has an open
        turn."""
        agent, session, turned = self.options.agent, first, False
        while True:
            live = make_live(session, open_turn)
            ended = self._run_agent(live)
            if live.commands.rewinding is not None:
                live.commands.rewinding.go(ended.down, ended.saved and ended.stopped is None, self.screen.say)
            # Only where a person asked for it: without one, such a code is an error that would come again for ever.
            asked = self.options.interactive and ended.exit.code in agent.capabilities.restart_codes
            if not asked or ended.stopped or ended.down:
                return replace(ended, turned=ended.turned or turned)
            open_turn, turned = live.conversation.turn_open, turned or live.conversation.turned
            session = next_session(agent, first, live.conversation.session, turned, self.options.workspace, env)

    def _bounds(self, opened: OpenedJob, keeper: LeaseKeeper) -> tasks.TaskBounds | None:
        task = self.task
        if task is None:
            return None
        spent = tasks.spent_by(self.bucket, opened.replay.state) if task.budget else 0
        return tasks.TaskBounds(
            keeper, self.clock, tasks.CallerRun.of(task, self.options.env), max(0, task.budget), spent
        )

    def _resumed_by_message(self) -> bool:
        """End the pause of the job, which nobody runs, where a control message asks for that."""
        settings, keys = self.options.settings, Keys(self.options.settings.job)
        if "resume" not in settings.control.split(","):
            return False
        try:
            if (driver := self._open_driver()) is None:
                return False
            with closing(driver):
                asked = [m.identity for m in driver.fetch(lambda _: False) if m.verb == "resume"]
            if not asked or not unlogged_messages(replay(self.bucket, keys).state, asked):
                return False
            seen = read_lease(self.bucket, keys)
            return seen is not None and lift_pause(self.bucket, keys, seen)
        except WalAgentError:
            return False  # it is looked at again

    def _open_driver(self) -> Driver | None:
        """What carries the job's messages; None where they are off."""
        options, settings = self.options, self.options.settings
        if settings.inbox <= 0:
            return None
        if not settings.messages:
            return BucketDriver(self.bucket, settings.job)
        from wal_agent.messages import open_driver

        # The listener of the status has the same servers, and reports where they are away.
        return open_driver(
            settings, options.env, self.bucket, settings.job, lambda _: None, settings.inbox, bool(self.key_id)
        )

    def _serve_requests(self, context: RunContext, driver: Driver, inbox: Inbox) -> Requests | None:
        if not self.options.settings.messages:
            return None
        from wal_agent.messages import serve_requests
        from wal_agent.supervise.requests import RequestDesk

        desk = RequestDesk(context, driver, inbox, bool(self.key_id))
        agent, env, run = self.options.agent.name, self.options.env, self.run_dir.run
        return serve_requests(context.settings, env, agent=agent, run=run, answers=desk, clock=self.clock)

    def _open_values(self, opened: OpenedJob) -> KvValues | None:
        """The values of steps that are on a server; None where they are in the log."""
        if self.options.settings.state != "nats":
            return None
        from wal_agent.messages import open_values

        run = opened.writer.state
        return open_values(self.options.settings, self.options.env, self.bucket, opened.keys, run=run)

    def _looks(self) -> float:
        """Seconds between two looks for messages: at a local folder or a NATS server they cost nothing."""
        every, cheap = self.options.settings.inbox, self.bucket.url.startswith("file:")
        return min(every, NEAR) if cheap or self.options.settings.messages else every

    def _launch(
        self,
        session: NewSession | ResumeSession,
        open_turn: bool,
        env: dict[str, str],
        mended: bool,
    ) -> Launch:
        """`mended`: the session is as the recovery has just written it."""
        agent, args = self.options.agent, self.options.args
        resumed = isinstance(session, ResumeSession)
        if resumed and (journal := agent.capabilities.journal):
            with self.screen.waiting_for(f"{agent.name} to take the session in", IMPORT_TIMEOUT):
                journal.restore(self.cli, session.id, self.options.workspace, env, self.options.hosted)
        heal = agent.capabilities.heal if not mended else None
        healed = heal(args, session.id, self.options.workspace, env, self.run_dir.path) if heal else args
        return Launch(
            self._command(healed, session, env),
            session.id,
            resumed,
            notice=session.prompt if isinstance(session, ResumeSession) else "",
            waits=isinstance(session, ResumeSession) and session.asked,
            turn_open=resumed and open_turn,
            interactive=self.options.interactive,
            args=args,
        )

    def _command(self, args: tuple[str, ...], session: NewSession | ResumeSession, env: Env) -> Command:
        agent = self.options.agent
        chosen = agent.command(self.cli, args, session, self.options.interactive, env)
        if not self.options.hosted:
            return chosen
        served = acp_command(agent, self.cli, args, env, self.run_dir.path)
        return replace(served, env={**served.env, **chosen.env})

    def _run_agent(self, live: Live) -> AgentOutcome:
        if not live.saving.autosave.watches:
            self.screen.say(live.saving.autosave.problem)
        self.slot.attach(live)
        self.preemption.check()
        self.preemption.attach(live)
        try:
            ended = live.run()
        except Stopped:
            self.hasty = True
            raise
        finally:
            self.preemption.detach()
        self.hasty = ended.drained
        return ended

    def _capture(self, opened: OpenedJob, prepared: PreparedStart, session: str, env: dict[str, str]) -> SessionCapture:
        """Captures that go on from what the log holds."""
        capture = SessionCapture(session, opened.blobs.put_payload)
        if prepared.captured:
            files = self.options.agent.session_files(session, self.options.workspace, env)
            capture.resume_from(files, prepared.captured, prepared.exact)
        return capture

    def _failed(self, error: BaseException) -> None:
        """A failure of ours that the agent need not notice; reported at the end."""
        self.trouble = self.trouble or error


def stopped_by(error: Exception) -> str:
    """For the lease: why no agent ran."""
    known = explain(error)
    why = known.what if known else type(error).__name__
    passing = f" ({Unavailable.exit_code})" if isinstance(error, Unavailable) else ""  # the fleet goes by it
    return f"stopped{passing}: {why}"[:500]


def next_session(
    agent: Agent, first: NewSession | ResumeSession, session: str, turned: bool, workspace: Path, env: Env
) -> NewSession | ResumeSession:
    """The agent asked to be started again: in its session, or in a new one where that holds nothing yet. `first`: what
    this run began with; `turned`: a turn has begun since, so what it was asked is asked."""
    if not turned and isinstance(first, ResumeSession) and session == first.id:
        return first
    if agent.resumable(session, workspace, env):
        return ResumeSession(session, "", asked=turned)
    return NewSession(str(uuid.uuid4()))


def remove_injected(injected: Injected) -> None:
    """Take out what was injected for this run (I7)."""
    for path in injected.paths:
        shutil.rmtree(path, ignore_errors=True)
