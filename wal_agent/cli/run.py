"""`wal-agent run AGENT [options] -- ARGS`."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace

from wal_agent.cli.options import JobOptions, complete_agent, with_settings
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Damaged, LeaseHeld, NoJob, PersonNeeded, UsageError, WalAgentError
from wal_agent.text import MEANT, command, is_utf8, lines, printable, redraw, say

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.cli.job import JobContext
    from wal_agent.config import Settings
    from wal_agent.fleet.jobs import FolderJob, Job
    from wal_agent.supervise.options import RunOptions

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}
MAX_SHOWN = 3  # unfinished jobs; the others are counted

# How a start gets a job that is not free: of `run` and of `resume`.
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Take over a job without the records that only the disk of its last machine has."
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Take over a job that another person ran last, on another host or path.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another machine holds the job.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Exit 75 at once if another machine may still run the job.")]
ExitOnPause = Annotated[
    bool, typer.Option("--exit-on-pause", help="Exit 75 instead of waiting for the end of a pause.")
]


@with_settings
def run(
    context: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            help="The agent to run (see: wal-agent agents).", metavar="AGENT", autocompletion=complete_agent
        ),
    ],
    flags: Mapping[str, object],
    accept_loss: AcceptLoss = False,
    take_over: TakeOver = False,
    wait: Wait = False,
    no_wait: NoWait = False,
    exit_on_pause: ExitOnPause = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new session, even if the last one was cut off.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Fork: start a new job from this one as it was at a record or a time (local, or with a zone).",
            metavar="RECORD|TIME",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Exit 0 without running if the job is already complete.")
    ] = False,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Resume the last session, even if it is complete.")
    ] = False,
    handoff: Annotated[
        bool, typer.Option("--handoff", help="Carry on with the job of another agent (name it with --job).")
    ] = False,
    hosted: Annotated[bool, typer.Option("--hosted", help="As a run of `wal-agent acp`.", hidden=True)] = False,
    from_agent: Annotated[
        str,
        typer.Option(
            "--from-agent",
            help="As --handoff, for the job of AGENT in this folder.",
            metavar="AGENT",
            autocompletion=complete_agent,
        ),
    ] = "",
) -> None:
    """Run an agent and log what it does; after a crash, on any machine, the same command resumes it.

    Everything after `--` is passed to the agent unchanged.

    The exit code is the agent's own, or one of wal-agent: 64 usage, 69 bucket unreachable, 70 bug, 73 log damaged, 74
    not done (the agent ended with 0 inside its turn), 75 not now (the job runs elsewhere), 76 taken over, 77
    permission, 78 configuration or hooks, 79 a person is needed, 80 crash loop, 143 drained.
    """
    start(
        agent,
        tuple(context.args),
        flags,
        from_,
        fresh=fresh,
        go_on=continue_,
        wait=wait,
        no_wait=no_wait,
        take_over=take_over,
        accept_loss=accept_loss,
        exit_on_pause=exit_on_pause,
        once=once,
        handoff=handoff or bool(from_agent),
        from_agent=from_agent,
        hosted=hosted,
    )


@with_settings
def resume(
    context: typer.Context,
    flags: Mapping[str, object],
    accept_loss: AcceptLoss = False,
    take_over: TakeOver = False,
    wait: Wait = False,
    no_wait: NoWait = False,
    exit_on_pause: ExitOnPause = False,
) -> None:
    """Run again what this folder had: its agent, its job and, after a crash, the arguments that were typed here.

    The same as `wal-agent run AGENT --job JOB --continue`: an unfinished job is recovered, a complete one continues its
    last session. Arguments after `--` go to the agent.
    """
    names = ("bucket", "job", "encryption_key_file", "encryption_key_command")
    which = JobOptions(None, *(value if isinstance(value := flags.get(name), str) else None for name in names))
    at = which.open()
    _say_name(which.job or at.keys.job, at.keys.job)
    args = tuple(context.args)
    if not args and at.agent.capabilities.hookless:
        args = _last_command(at)
    start(
        at.agent.name,
        args,
        {**flags, "job": at.keys.job},
        said=at.settings.origin if at.settings.sources.get("bucket") == "file" else "",
        go_on=True,
        found=at.settings.sources.get("job") not in ("flag", "environment"),
        accept_loss=accept_loss,
        take_over=take_over,
        wait=wait,
        no_wait=no_wait,
        exit_on_pause=exit_on_pause,
    )


def _last_command(at: JobContext) -> tuple[str, ...]:
    """What a job of any command was started with, if this machine has a note that it was typed here. ConfigError: it
    has none."""
    from wal_agent.supervise.options import Screen
    from wal_agent.supervise.provenance import unvouched_error, vouched_args
    from wal_agent.wal.reader import replay

    state = replay(at.bucket, at.keys).state
    args = state.home_opening.args if state.home_opening else ()
    if args != vouched_args(os.environ, at.settings.bucket, at.keys.job, state):
        raise unvouched_error(at.agent.name, at.settings, args, Screen(say, lines))
    return args


def start(
    agent: str,
    args: tuple[str, ...],
    flags: Mapping[str, object],
    from_: str | None = None,
    *,
    said: str = "",
    once: bool = False,
    fresh: bool = False,
    go_on: bool = False,
    **wishes: Any,
) -> None:
    """Run `agent` with `args` and exit with its code. `said`: a line that the person has read already; `wishes`:
    further switches of RunOptions."""
    from wal_agent import notify
    from wal_agent.agents import AGENTS, unknown_agent_error
    from wal_agent.cli.job import settings_for
    from wal_agent.cli.listeners import attach_listeners, report_refusals
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.options import RunOptions, Screen, WaitReport
    from wal_agent.supervise.restart import is_complete, run_with_restarts

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    for option in ("--accept-loss", "--take-over"):  # what another machine or person would lose by it
        if wishes.get(option[2:].replace("-", "_")):
            require_person(f"wal-agent run {agent} {option}")
    if not all(map(is_utf8, args)):
        raise UsageError("An argument for the agent is not UTF-8 text, so it could not be logged.")
    if fresh and go_on:
        raise UsageError("--fresh starts a new session and --continue resumes the last one: use only one of them.")
    workspace = Path.cwd().resolve()
    if not is_utf8(str(workspace)):
        raise ConfigError(
            f"The path of this folder is not UTF-8 text, so it could not be logged: {printable(str(workspace))}.",
            "Rename the folder.",
        )
    given, flags = flags, _settle_handoff(agent, workspace, flags, fresh, wishes)
    wishes["found"] = wishes.get("found", False) or flags is not given
    screen = Screen(say, lines, WaitReport(say).waiting_for, {said}, redraw)
    attended = sys.stdin.isatty() and sys.stderr.isatty()
    with report_refusals(os.environ, flags, agent, workspace, attended):
        settings = settings_for(agent, workspace, flags)
        if settings.sources["hang_timeout"] == "flag" and AGENTS[agent].capabilities.hookless:
            raise UsageError(f"{agent} reports nothing, so a hang cannot be detected: leave out --hang-timeout.")
        options = RunOptions(
            agent=AGENTS[agent],
            args=args,
            settings=settings,
            workspace=workspace,
            env=dict(os.environ),
            fresh=fresh,
            go_on=go_on,
            attended=attended,
            successors=_successors(agent, settings),
            **wishes,
        )
        if not options.agent.passthrough(args):
            settings = _settle_name(settings)
            options = replace(options, settings=settings)
        if from_ is not None or once:
            screen.once(settings.origin)
        if from_ is None:
            options = settle_folder(options)
            settings = options.settings
        if from_ is not None:
            from wal_agent.operate.fork import fork_job

            options = fork_job(options, from_, screen)
        if once and is_complete(settings.bucket, settings.job):
            say(f"job {settings.job} has come to its end, so nothing was run (--once).")
            raise typer.Exit
    if trouble := notify.trouble(os.environ, once=True):
        say(trouble)
    MEANT.set(options.settings.job_options)
    with attach_listeners(options, screen) as watched:
        code = run_with_restarts(watched, screen)
    raise typer.Exit(code)


def _settle_name(settings: Settings) -> Settings:
    """As job.with_own_name, before the bucket of the run is open. Where the names cannot be read, nothing is run:
    a new job would have the display name of another one."""
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket
    from wal_agent.bucket.folder import known_epoch
    from wal_agent.cli.job import with_own_name
    from wal_agent.wal.keys import check_job

    if settings.sources.get("job") == "default":
        return settings
    if known_epoch(settings.bucket, check_job(settings.job), os.environ):  # an own name, so no bucket need be opened
        return settings
    with closing(open_bucket(settings.bucket)) as bucket:
        own = with_own_name(settings, RetryBucket(bucket, SystemClock(), random.Random()))
    _say_name(settings.job, own.job)
    return own


def _say_name(typed: str, own: str) -> None:
    if typed != own:
        say(f"{typed} is the display name of job {own}.")


def _successors(agent: str, settings: Settings) -> tuple[str, ...]:
    """Return the agents that the job is handed to when a quota is used up. UsageError; ConfigError: one of them is not
    installed, which is better known now."""
    from wal_agent.agents import AGENTS, unknown_agent_error

    rule, _, names = settings.on_quota.partition(":")
    if rule != "handoff":
        return ()
    if settings.restart != "on":
        raise UsageError("--on-quota handoff works with --restart only.", "Add --restart.")
    for name in names.split(","):
        if name not in AGENTS:
            raise unknown_agent_error(name)
        if name == agent or AGENTS[name].capabilities.hookless is not None:
            raise UsageError(f"No job of {agent} can be handed to {name}.", "Name other agents in --on-quota.")
        AGENTS[name].locate(os.environ)
    return tuple(names.split(","))


def _settle_handoff(
    agent: str, workspace: Path, flags: Mapping[str, object], fresh: bool, wishes: Mapping[str, Any]
) -> Mapping[str, object]:
    """Return the flags; others, with the job that is handed over, where this folder's is looked up. UsageError: it is
    not said which, or it cannot be; NoJob."""
    from wal_agent.agents import AGENTS, unknown_agent_error
    from wal_agent.cli.job import settings_for

    before: str = wishes.get("from_agent", "")
    if not wishes.get("handoff"):
        return flags
    if fresh:
        raise UsageError("--fresh starts a new session and a handoff continues one: use only one of them.")
    if AGENTS[agent].capabilities.hookless is not None:
        raise UsageError(f"No job can be handed to {agent}: it reads no recovery prompt.")
    if before and before not in AGENTS:
        raise unknown_agent_error(before)
    if before == agent:
        raise UsageError(f"--from-agent names {agent} itself.", "Leave it out.")
    settings = settings_for(before or agent, workspace, flags)
    if settings.sources.get("job") != "default":
        return flags
    if not before:
        raise UsageError("--handoff needs the job's name.", "Name it with --job, or its agent with --from-agent AGENT.")
    return {**flags, "job": _job_of(before, agent, workspace, settings)}


def _job_of(before: str, agent: str, workspace: Path, settings: Settings) -> str:
    """Return the job that `before` has in this folder, whichever agent began it; or the one that it has just handed to
    `agent`, whose start was cut off. NoJob; UsageError: it has several. Unavailable."""
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket
    from wal_agent.cli.job import job_here
    from wal_agent.fleet.jobs import find_jobs_here
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.reader import replay

    with closing(open_bucket(settings.bucket)) as opened:
        bucket = RetryBucket(opened, SystemClock(), random.Random())
        try:
            return job_here(bucket, workspace, before, settings.job, asks=True)[1]
        except NoJob:
            for job in find_jobs_here(bucket, workspace, os.environ):
                if job.agent == agent:
                    with suppress(Damaged):
                        state = replay(_readable(bucket, job, settings, os.environ), Keys(job.job)).state
                        if state.owner_agent == before or (state.handoff and state.handoff.before == before):
                            return job.job
            raise


def _readable(bucket: Bucket, job: Job, settings: Settings, env: Mapping[str, str]) -> Bucket:
    """Return the bucket through which the job's log can be read."""
    from wal_agent.bucket.encryption import EncryptedBucket, load_key

    if not job.key:
        return bucket
    return EncryptedBucket(bucket, load_key(settings.encryption_key_file, settings.encryption_key_command, env))


def settle_folder(options: RunOptions) -> RunOptions:
    """Before a start that names no job: print the unfinished jobs of this folder, of those above and below it, and of
    other agents. Where one has an open call, a person decides; `--fresh` is such a decision. Where the folder's own
    job runs here already, a person is offered a second one beside it.

    Returns the options with the job to carry on with. PersonNeeded, LeaseHeld: nobody can be asked, or the answer is
    no. A bucket that does not answer in time holds up no start: the run itself reports it."""
    from wal_agent.concurrency import call_with_timeout
    from wal_agent.fleet.jobs import LOOK_TIME, describe_other
    from wal_agent.supervise.ancestry import outer_runs

    settings = options.settings
    if settings.sources.get("job") != "default" or options.agent.passthrough(options.args) or outer_runs():
        return options
    none: tuple[list[FolderJob], str, Held | None] = ([], "", None)
    try:
        with _unsignalled():
            others, earlier, held = call_with_timeout(2 * LOOK_TIME, lambda: _look_around(options), none)
    except (WalAgentError, OSError):
        return options
    if earlier:
        return replace(options, settings=replace(settings, job=earlier))
    for each in others[:MAX_SHOWN]:
        say(describe_other(each, options.workspace, settings))
    if len(others) > MAX_SHOWN:
        from wal_agent.cli.job import shown_bucket

        fleet = command("fleet ls", shown_bucket(settings.bucket))
        say(f"{len(others) - MAX_SHOWN} more jobs of this folder are not finished. See: {fleet}")
    stuck = [each for each in others if each.calls]
    if stuck and not options.fresh:
        options = _decide(options, stuck[0])
    return options if held is None or options.settings.job != settings.job else _begin_beside(options, held)


class Held(NamedTuple):
    """The folder's own job runs on this machine: what is said of that, what else can be done, and the name of a job
    for a second session."""

    what: str
    hint: str
    free: str


def _begin_beside(options: RunOptions, held: Held) -> RunOptions:
    """Return the options for a second session in the folder, which a person wants. LeaseHeld: nobody can be asked, or
    the answer is no."""
    from wal_agent.supervise.provenance import shown_command

    settings = options.settings
    beside = replace(settings, job=held.free, sources={**settings.sources, "job": "flag"})
    if options.attended and not options.no_wait:
        say(held.what)
        if typer.confirm(f"Start a second session beside it, as job {held.free}?", default=True, err=True):
            return replace(options, settings=beside)
    command = shown_command(options.agent.name, beside, options.args)
    raise LeaseHeld(held.what, f"For a second session beside it: `{command}`. {held.hint}")


def _find_holder(bucket: Bucket, options: RunOptions) -> Held | None:
    """What the start's own job is doing, where a process of this machine has it for sure."""
    from wal_agent.fleet.jobs import Reader
    from wal_agent.recovery.lease_policy import Decline, admit, same_kernel
    from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.lease import read_lease

    job = options.settings.job
    seen = read_lease(bucket, Keys(job))
    local = probe_holder(seen, this_host(options.env, Path(os.devnull)), spools_dir(options.env), bucket.url)
    if options.wait or seen is None or not (same_kernel(seen, local) and local.lock == "alive"):
        return None
    decided = admit(seen, local, url=bucket.url)
    if not isinstance(decided, Decline):
        return None
    reader = Reader.of(bucket, options.env)
    return Held(decided.sentence, decided.hint, second_name(job, lambda name: _is_free(reader.one(name))))


def _is_free(job: Job | None) -> bool:
    return job is None or job.state == "closed"


def second_name(job: str, is_free: Callable[[str], bool]) -> str:
    """Return the first of JOB-2, JOB-3, ... that `is_free`. Pure."""
    from wal_agent.wal.keys import LONGEST

    names = (f"{job[: LONGEST - 5]}-{n}" for n in range(2, 1000))
    return next(filter(is_free, names), f"{job[: LONGEST - 5]}-1000")


@contextmanager
def _unsignalled() -> Iterator[None]:
    """A thread that is begun here and hangs must not be the one that gets the run's signals."""
    from wal_agent.supervise.processes import handled_signals

    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _look_around(options: RunOptions) -> tuple[list[FolderJob], str, Held | None]:
    """The unfinished jobs beside the start's own; where the start has none of its own yet, the name of the one that
    an earlier wal-agent gave this folder, or that this folder has from another machine; and what runs it here now."""
    from wal_agent.bucket import open_bucket
    from wal_agent.fleet.jobs import LOOK_TIME, find_others, find_unowned
    from wal_agent.supervise.identity import earlier_default_job

    settings = options.settings
    with closing(open_bucket(settings.bucket)) as bucket:

        def counted(job: Job) -> Bucket:
            return _readable(bucket, job, settings, options.env)

        others, known = find_others(bucket, options.workspace, options.env, settings.job, counted, LOOK_TIME)
        earlier = earlier_default_job(options.agent.name, options.workspace)
        if known:
            return others, "", _find_holder(bucket, options)
        if find_unowned(bucket, earlier, options.workspace, options.env):
            return others, earlier, None
        return others, default_job_elsewhere(others, options.agent.name, earlier), None


def default_job_elsewhere(others: Sequence[FolderJob], agent: str, prefix: str) -> str:
    """Return the unfinished job that this start had on another machine, or before this one lost its state: of the same
    agent, user and path, with a name that the folder gave it (`prefix`). "": there is none, or several. Pure."""
    mine = [o.job.job for o in others if o.relation == "here" and o.job.agent == agent]
    named = [name for name in mine if name.startswith(f"{prefix}-")]
    return named[0] if len(named) == 1 else ""


def _decide(options: RunOptions, other: FolderJob) -> RunOptions:
    """What a person says about a job with an open call. PersonNeeded."""
    from wal_agent.fleet.jobs import carry_on_command
    from wal_agent.supervise.provenance import shown_command

    job, settings = other.job, options.settings
    same = other.relation == "here" and job.agent == options.agent.name
    if options.attended:
        if same and typer.confirm(f"Carry on with job {job.job}?", default=True, err=True):
            # A name that a person chose stays no default of the folder.
            sources = {**settings.sources, "job": "flag"} if other.known else settings.sources
            return replace(options, settings=replace(settings, job=job.job, sources=sources))
        if same or typer.confirm("Start a new job beside it?", default=False, err=True):
            return options
    fresh = shown_command(options.agent.name, settings, options.args, "--fresh")
    raise PersonNeeded(
        f"Job {job.job} has an open call here, and a new job would not know of it. Nothing was run.",
        f"To carry on: {carry_on_command(other, options.workspace, settings)} (to start anew: {fresh})",
    )
