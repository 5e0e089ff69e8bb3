"""`wal-agent run`: from the command to the agent's exit code. The order of the steps is that of R1, R2 and DESIGN 7."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from wal_agent import __version__
from wal_agent.agents.base import (
    IMPORT_TIMEOUT,
    Agent,
    Cli,
    Env,
    Hookless,
    HookSetup,
    Injected,
    Journals,
    NewSession,
    ResumeSession,
)
from wal_agent.agents.program import ASKING
from wal_agent.bucket import marker_of, open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.disk import known_epoch, remember_run
from wal_agent.bucket.encryption import COMMAND_BUDGET, EncryptedBucket, load_key
from wal_agent.bucket.encryption import key_id as id_of
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import Clock
from wal_agent.concurrency import call_with_timeout
from wal_agent.errors import BucketError, ConfigError, Damaged, Fenced, Unavailable, WalAgentError
from wal_agent.events import DrainFinished, DrainStarted, LeaseLost, LeaseSettled, LeaseTaken, Logged, LostOnce
from wal_agent.hookwire import client_command
from wal_agent.limits import exhausted
from wal_agent.records import AnyRecord, End
from wal_agent.recovery.inflight import Resolver
from wal_agent.recovery.templates import read_protocol
from wal_agent.shell.rules import load_rules
from wal_agent.supervise import machine, processes, provenance, systemd
from wal_agent.supervise.acquire import Spooling, acquire_job, check_signals
from wal_agent.supervise.callers import outer_runs
from wal_agent.supervise.hook_selftest import prove_untested_version
from wal_agent.supervise.lease_keeper import Housekeeping, LeaseKeeper, LeaseTiming, RunProgress, sweep_mirrors
from wal_agent.supervise.live import Launch, Live
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.preemption import Preempted, Preemption
from wal_agent.supervise.prepare import PreparedStart, prepare_start
from wal_agent.supervise.processes import block_signals
from wal_agent.supervise.run_end import SEAL_AT_LEAST, SEAL_BUDGET, AgentOutcome, RunResult, Settled, end_run
from wal_agent.supervise.startup import InterruptibleBucket, InterruptibleClock, StartupInterrupt
from wal_agent.supervise.worktree import open_worktree_capture
from wal_agent.wal.job import OpenedJob, OpeningFields, Stopped, close_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Lease
from wal_agent.wal.lease_doc import LeaseRequest
from wal_agent.wal.state import State
from wal_agent.wal.writer import SPOOL_AFTER, WriterListener

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
SOCKET = "WAL_AGENT_SOCKET"  # for hooks that stand in an agent's own settings (configure-hooks --install)


def run(wish: RunOptions, screen: Screen) -> RunResult:
    """Run the agent under the log, once. Raises WalAgentError where ours is the last word."""
    agent, env = wish.agent, wish.env
    with screen.on(f"the version of {agent.name}", ASKING):
        cli = agent.locate(env)
    if agent.passthrough(wish.args):
        os.execve(cli.path, [str(cli.path), *wish.args], env)
    problem = agent.hooks_off_reason(wish.args, wish.workspace, env)
    if problem is not None:
        raise ConfigError(problem)
    prove_untested_version(agent, cli, env, screen)
    if isinstance(agent, Hookless):
        for line in agent.start_lines(wish.workspace, env):
            screen.say(line)
    timing = LeaseTiming(wish.settings.ttl)
    with screen.on("the key command", COMMAND_BUDGET):
        key = load_key(wish.settings.encryption_key_file, wish.settings.encryption_key_command, env)
    block_signals()  # not earlier: the key's command may take its time, and ends at Ctrl-C
    with suppress(RuntimeError):  # no thread is left; the first hook pays the 0.1 s then
        threading.Thread(target=load_rules, name="rules", daemon=True).start()
    runtime = machine.runtime_dir(env)
    with screen.on("the removal of what ended runs left here", SWEEP):
        try:
            call_with_timeout(SWEEP, lambda: sweep(agent, env, runtime), None)  # a disk that hangs holds up no start
        except RuntimeError:  # no thread is left
            sweep(agent, env, runtime)
    run_dir = machine.RunDir.create(runtime, secrets.token_hex(8))
    screen.once(wish.settings.origin)
    bucket = EncryptedBucket(wish.metered(open_bucket(wish.settings.bucket)), key)
    try:
        return _Run(wish, cli, timing, run_dir, bucket, id_of(key), screen).go()
    finally:
        bucket.close()
        run_dir.end()


def sweep(agent: Agent, env: Env, runtime: Path) -> None:
    """Remove what dead runs left on this machine."""
    machine.sweep_run_dirs(runtime)
    sweep_mirrors(machine.state_dir(env) / MIRRORS, lambda name: machine.is_run_live(runtime / name))
    agent.sweep(env, runtime)


class _Run(WriterListener):
    """One run, step by step."""

    def __init__(
        self,
        wish: RunOptions,
        cli: Cli,
        timing: LeaseTiming,
        run_dir: machine.RunDir,
        bucket: Bucket,
        key_id: str,
        screen: Screen,
    ) -> None:
        self.wish = wish = replace(wish, emit=LostOnce(wish.emit))
        self.cli = cli
        self.timing = timing
        self.run_dir = run_dir
        self.early = StartupInterrupt(self._may_start)
        self.bucket: Bucket = InterruptibleBucket(bucket, self.early)
        self.key_id = key_id
        self.screen = screen
        self.clock: Clock = InterruptibleClock(self.early)
        self.rng = random.Random()
        self.trouble: BaseException | None = None
        self.preemption = Preemption(wish.settings, wish.env, self.clock, wish.emit, self._failed)
        self.hasty = False  # the machine goes away: nothing that may hang is waited for
        self.keys = Keys(wish.settings.job)
        self.here = machine.this_host(wish.env, run_dir.lock)
        self.interactive = wish.interactive
        self.parents = tuple(above.run for above in reversed(outer_runs()))

    def go(self) -> RunResult:
        opened = None
        try:
            opened = self._take()
            return self._go(opened)
        except Fenced as fenced:
            self.wish.emit(LeaseLost(fenced.what))
            spool = opened.spool if opened is not None else None
            if spool is None or spool.empty:
                raise
            kept = f"{spool.count} segments of it never came into the log; they are kept in {spool.folder}."
            raise Fenced(fenced.what, kept) from fenced

    def _go(self, opened: OpenedJob) -> RunResult:
        heartbeat = LeaseKeeper(self.timing, self.clock, opened.lease, self.wish.emit)
        heartbeat.beat = lambda: RunProgress(seq=opened.writer.acked.seq)  # until there is an agent to report on
        with self._threads(opened, heartbeat) as start:
            try:
                start()
                prepared = prepare_start(self.wish, opened, self.here, self.clock, self.screen, self._may_start)
                ended = self._live(opened, heartbeat, prepared)
            except Fenced:
                raise
            except Exception as error:
                self._give_up(opened, error)
                raise
            ended = replace(ended, trouble=ended.trouble or self.trouble)
            return end_run(self.wish, opened, ended, self.clock, self.screen, self.preemption.problem)

    # ---- the job

    def _take(self) -> OpenedJob:
        claim = LeaseRequest(
            run=self.run_dir.run,
            host=self.here,
            agent=self.wish.agent.name,
            workspace=str(self.wish.workspace),
            ttl=self.timing.ttl,
            key=self.key_id,
        )
        fields = OpeningFields(
            agent_version=self.cli.version,
            version=__version__,
            args=self.wish.args,
            interactive=self.interactive,
            trace=self.wish.trace,
            parents=self.parents,
        )
        settings = self.wish.settings
        provenance.remember_args(self.wish.env, settings.bucket, settings.job, self.run_dir.run, self.wish.args)
        wanted = settings.on_outage == "spool"
        try:
            opened = acquire_job(
                self.bucket,
                self.keys,
                self.here,
                claim,
                fields,
                self.clock,
                self.rng,
                self.wish.wait,
                self.screen.say,
                Spooling(machine.spools_dir(self.wish.env), wanted, self.wish.accept_loss),
                "refuse" if self.wish.exit_on_pause else "wait",
                self.early.unbroken,
                known_epoch(self.bucket.url, self.keys.job, self.wish.env),
                self.screen.on,
            )
        except Stopped as stopped:
            if stopped.lease is not None:
                self._give_back(stopped.lease, stopped)
            raise
        self._remember(opened.lease.epoch)
        if opened.spool is not None:
            self.screen.say(SPOOLING)
        opened.writer.add_listener(self)
        openings = opened.replay.state.openings  # none where the log is damaged before ours
        self.wish.emit(
            LeaseTaken(
                job=self.keys.job,
                bucket=self.wish.settings.bucket,
                run=self.run_dir.run,
                epoch=opened.lease.epoch,
                cause=openings[-1].opening.cause if openings else "dead",
                host=self.here.name,
                agent=self.wish.agent.name,
                agent_version=self.cli.version,
                workspace=str(self.wish.workspace),
                ttl=self.timing.ttl,
            )
        )
        return opened

    def _remember(self, epoch: int) -> None:
        """The next start on this machine knows that this bucket holds this job."""
        try:
            remember_run(self.bucket.url, marker_of(self.bucket.url), self.keys.job, epoch, self.wish.env)
        except (OSError, BucketError, Damaged) as error:
            self.screen.say(
                f"this machine could not note that it uses the bucket ({error}): if its disk is not mounted at the "
                "next start, that will not be noticed"
            )

    def on_acked(self, records: Sequence[AnyRecord], state: State) -> None:
        """Of a segment that the bucket has."""
        earlier = sum(o.epoch < state.openings[-1].opening.epoch for o in state.open)
        self.wish.emit(Logged(tuple(str(type(r).__struct_config__.tag) for r in records), earlier))

    @contextmanager
    def _threads(self, opened: OpenedJob, heartbeat: LeaseKeeper) -> Iterator[Callable[[], None]]:
        """While this run owns the job. The caller calls what this gives: then the lease is renewed, the log written."""
        stop = threading.Event()

        def start() -> None:
            heartbeat.start()
            threading.Thread(target=opened.writer.run, args=(stop,), name="writer", daemon=True).start()
            self.preemption.start()
            if opened.spool is not None:
                after = min(SPOOL_AFTER, self.wish.settings.append_deadline / 2)
                threading.Thread(
                    target=opened.writer.run_spooling, args=(stop, after), name="spooler", daemon=True
                ).start()

        try:
            yield start
        finally:
            stop.set()
            self.preemption.stop()
            with self.screen.on("the lease's renewal to end", 2 * self.timing.period):
                heartbeat.stop(PATIENCE if self.hasty else None)

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
            self.wish.emit(DrainStarted(error.down.source, error.down.until - error.down.began))
        settled: Settled = "left"
        try:
            reason, left = stopped_by(error), self._time_left(error)
            settled = call_with_timeout(left, lambda: close_job(opened, "released", reason, budget=left / 2), "left")
            self.wish.emit(LeaseSettled(settled, reason))
        except WalAgentError:
            pass  # the lease runs out by itself; the error that stopped us is the one to tell
        if isinstance(error, Preempted):
            self.wish.emit(DrainFinished(self.clock.boot() - error.down.began, settled != "left"))

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
            return min(2 * SEAL_BUDGET, max(SEAL_AT_LEAST, self.wish.settings.drain))
        return 2 * SEAL_BUDGET

    # ---- the agent

    def _live(self, opened: OpenedJob, heartbeat: LeaseKeeper, prepared: PreparedStart) -> AgentOutcome:
        self.early.armed = False
        wish, agent = self.wish, self.wish.agent
        protocol = read_protocol(wish.workspace, wish.env)
        setup = HookSetup(self.run_dir.run, self.run_dir.path, client_command(), wish.settings.skip, protocol)
        kept = {name: value for name, value in wish.env.items() if name not in OURS}
        runs = ":".join((*self.parents, self.run_dir.run))  # never by the environment: that of a dead run may linger
        own = {processes.MARKER: self.run_dir.run, processes.CHAIN: runs, SOCKET: str(self.run_dir.socket)}
        env = {**kept, **own}
        mirror = machine.state_dir(env) / MIRRORS / self.run_dir.run
        keeper = Housekeeping(self.bucket, opened, mirror, heartbeat.may_delete, self._failed, wish.emit, self.clock)
        injected = agent.inject(setup, env)
        try:
            keeper.start()
            env |= injected.env
            processes.become_subreaper()
            agent.tidy(prepared.session.id, wish.workspace, env)
            self.run_dir.write("session", prepared.session.id + "\n")
            session: NewSession | ResumeSession = prepared.session
            args = prepared.args
            with self.screen.on("git, for the files of this folder"):
                tree = open_worktree_capture(wish.settings, agent, env, wish.workspace, opened, self.screen.say)
            answers = Resolver(prepared.asked, str(wish.workspace))
            open_turn = opened.replay.state.turn == "started"
            turned = False
            while True:
                if isinstance(session, ResumeSession) and isinstance(agent, Journals):
                    with self.screen.on(f"{agent.name} to take the session in", IMPORT_TIMEOUT):
                        agent.adopt(self.cli, session.id, wish.workspace, env)
                command = agent.command(self.cli, args, session, self.interactive, env)
                resumed = isinstance(session, ResumeSession)
                notice = session.prompt if isinstance(session, ResumeSession) else ""
                open_before = resumed and open_turn
                launch = Launch(
                    command, session.id, resumed, notice, wish.settings.skip, open_before, self.interactive, args
                )
                live = Live(
                    agent,
                    {**env, **command.env},
                    wish.workspace,
                    opened,
                    self.run_dir,
                    heartbeat,
                    self.clock,
                    self._capture(opened, prepared, session.id, env),
                    launch,
                    wish.settings,
                    lambda: self._settle(prepared, answers, opened),
                    tree,
                    wish.emit,
                    wish.pulse,
                    on=self.screen.on,
                    progress=(lambda _: None) if self.interactive else self.screen.say,
                )
                if not live.autosave.watches:
                    self.screen.say(live.autosave.problem)
                live.gate.on_clean_end = lambda *seen: self._answered(answers, opened, *seen)
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
                # Only where a person asked for it: without one, such a code is an error that would come again for ever.
                asked = self.interactive and ended.exit.code in agent.again
                if not asked or ended.stopped or ended.down:
                    return replace(ended, turned=ended.turned or turned)
                open_turn, turned = live.conversation.turn_open, turned or live.conversation.turned
                session = again(agent, prepared.session, live.conversation.session, turned, wish.workspace, env)
        finally:
            remove(injected)
            keeper.stop(PATIENCE if self.hasty else 2.0)

    def _settle(self, prepared: PreparedStart, answers: Resolver, opened: OpenedJob) -> list[AnyRecord]:
        """At the end of a turn: what was told of the calls in flight settles those that it can (I8)."""
        ends = prepared.settling(opened.writer.state, self.clock.now())
        return [end for end in ends if end.call not in answers.given]

    def _answered(
        self, answers: Resolver, opened: OpenedJob, call: int, tool: str, input: bytes, cwd: str
    ) -> list[End]:
        """At once, not at the end of the turn: another crash before that must not ask again about what the agent has
        looked at."""
        answers.saw(call, tool, input, cwd)
        return answers.ends([o.intent.call for o in opened.writer.state.open], self.clock.now())

    def _capture(self, opened: OpenedJob, prepared: PreparedStart, session: str, env: dict[str, str]) -> SessionCapture:
        """Captures that go on from what the log holds."""
        capture = SessionCapture(session, opened.blobs.put_payload)
        if prepared.captured:
            files = self.wish.agent.session_files(session, self.wish.workspace, env)
            capture.resume_from(files, prepared.captured)
        return capture

    def _failed(self, error: BaseException) -> None:
        """A failure of ours that the agent need not notice; told at the end."""
        self.trouble = self.trouble or error


def stopped_by(error: Exception) -> str:
    """For the lease: why no agent ran."""
    known = error if isinstance(error, WalAgentError) else exhausted(error)
    why = known.what if known else type(error).__name__
    passing = f" ({Unavailable.exit_code})" if isinstance(error, Unavailable) else ""  # the fleet goes by it
    return f"stopped{passing}: {why}"[:500]


def again(
    agent: Agent, first: NewSession | ResumeSession, session: str, turned: bool, workspace: Path, env: Env
) -> NewSession | ResumeSession:
    """The agent asked to be started again: in its session, or in a new one where that holds nothing yet. `first`: what
    this run began with; `turned`: a turn has begun since, so what it was asked is asked."""
    if not turned and isinstance(first, ResumeSession) and session == first.id:
        return first
    if agent.resumable(session, workspace, env):
        return ResumeSession(session, "", asked=turned)
    return NewSession(str(uuid.uuid4()))


def remove(injected: Injected) -> None:
    """Take out what was injected for this run (I7)."""
    for path in injected.paths:
        shutil.rmtree(path, ignore_errors=True)
