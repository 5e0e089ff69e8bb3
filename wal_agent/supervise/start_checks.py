"""Decide by the log whether a start may open its job, before anything is written.

The job of another folder, agent or repository is refused. The job of another person, and arguments that only the log
has, need an answer at the terminal.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from wal_agent import __version__
from wal_agent.agents.base import Cli
from wal_agent.bucket.base import Bucket
from wal_agent.calls.quote import safe
from wal_agent.clock import Clock
from wal_agent.config import MAX_JOB
from wal_agent.errors import NotThisJob, NotYourJob, UsageError
from wal_agent.records import Cause, Host, Opening
from wal_agent.recovery.plan import LocalFacts, PlanInputs, Policy, Refuse, decide, refuse_other_job
from wal_agent.recovery.report import name_calls
from wal_agent.supervise import provenance
from wal_agent.supervise.ancestry import outer_runs
from wal_agent.supervise.identity import read_owner
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.prepare import recovery_policy
from wal_agent.supervise.recovery_input import hand_over_to_opening, is_folder, observe_log
from wal_agent.supervise.worktree import plan_worktree
from wal_agent.text import quote_word
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Replay
from wal_agent.wal.store import JobStore
from wal_agent.wording import messages


class StartChecks:
    """The checks of one start. `args`: arguments of the log that the agent may get, once they are admitted."""

    def __init__(
        self,
        options: RunOptions,
        cli: Cli,
        run: str,
        here: Host,
        bucket: Bucket,
        clock: Clock,
        screen: Screen,
        interrupt: Callable[[], None],
    ) -> None:
        """`interrupt`: raises when this machine was asked to end, while a person thinks."""
        self._options, self._cli, self._run, self._here = options, cli, run, here
        self._bucket, self._clock, self._screen, self._interrupt = bucket, clock, screen, interrupt
        self.args: tuple[str, ...] = ()

    def check(self, log: Replay, cause: Cause) -> bool:
        """Note what is noted before an opening, once the start is not refused. Whether a person takes the job over now.
        NotThisJob, NotYourJob, ConfigError."""
        self._check_owner(log, cause)
        taken = self._check_person(log, cause)
        self._check_args(log, cause)
        options, settings = self._options, self._options.settings
        provenance.remember_args(options.env, settings.bucket, settings.job, self._run, options.args)
        return taken

    def _check_owner(self, log: Replay, cause: Cause) -> None:
        """Refuse another folder's, agent's or repository's job before it is opened. NotThisJob, with the command for a
        job of its own."""
        options, settings = self._options, self._options.settings
        keys, home = Keys(settings.job), log.state.home_opening
        if log.damage is not None or home is None:
            return
        opening = self._opening(home, cause)
        situation = observe_log(log, opening, Blobs(JobStore(self._bucket, keys, self._clock)))
        owner = log.state.owner_agent
        if options.from_agent and owner not in (options.from_agent, options.agent.name):
            typed = provenance.shown_command(options.agent.name, settings, options.args, f"--from-agent={owner}")
            raise NotThisJob(messages.not_from(safe(owner, 40), options.from_agent), f"To hand it over: {typed}")
        if options.handoff:
            situation, _ = hand_over_to_opening(situation)
        elsewhere = (home.workspace, home.host.name) != (opening.workspace, self._here.name)
        identity: tuple[str, ...] = ()
        if elsewhere:
            identity = plan_worktree(
                situation, self._here, options.workspace, settings, options.agent, options.env
            ).identity
        local = LocalFacts(
            options.agent.main_file,
            home_exists=is_folder(home.workspace),
            identity=identity,
            unlogged=options.agent.capabilities.hookless is not None,
        )
        refused = refuse_other_job(PlanInputs(situation.before, opening, local, Policy()))
        if refused is not None:
            free = find_free_job(self._bucket, settings.job)
            own = replace(settings, job=free, sources={**settings.sources, "job": "flag"})
            cd = f"cd {quote_word(str(options.workspace))} &&"
            command = f"{cd} {provenance.shown_command(options.agent.name, own, options.args)}"
            hint = f"To start a job of this folder's own: {command}"
            if owner != options.agent.name and not options.handoff and options.agent.capabilities.hookless is None:
                here = replace(settings, sources={**settings.sources, "job": "flag"})
                typed = provenance.shown_command(options.agent.name, here, options.args, "--handoff")
                hint = f"To hand it to {options.agent.name}: {typed} (to start a job of this folder's own: {command})"
            raise NotThisJob(refused.what, hint)

    def _check_person(self, log: Replay, cause: Cause) -> bool:
        """Ask before an unfinished job is taken over from another person, and before a job is continued that only the
        bucket calls this person's: a typed job or --take-over is consent. Whether a person takes it over: the name
        alone, which a service types too, does not say so of what the log has. NotYourJob."""
        options, settings, home = self._options, self._options.settings, log.state.home_opening
        last = home or (log.state.openings[-1].opening if log.state.openings else None)
        if last is None or options.take_over or provenance.is_job_typed(options):
            return options.take_over
        known = provenance.is_persons_job(options.env, settings, log)
        if known and provenance.previous_person(log.state, self._opening(last, cause)) is None:
            return False
        user, host = safe(last.owner.user, 64) or "somebody", safe(last.host.name, 100)
        what = f"Job {settings.job} was last run by {user} on {host}, in {safe(last.workspace, 200)}."
        if not known:
            what += " This machine has no note of it, so whoever can write the bucket may have made it."
        if log.state.unlooked:
            what += f" Open: {name_calls(log.state.unlooked)}."
        if options.attended and not outer_runs():
            self._screen.say(what)
            question = f"That continues its conversation and files here, and locks {host} out. Take it over?"
            if provenance.ask_person(question, self._screen, self._interrupt):
                return True
            what = f"Job {settings.job} was not taken over."
        free = find_free_job(self._bucket, settings.job)
        own = replace(settings, job=free, sources={**settings.sources, "job": "flag"})
        name, args = options.agent.name, options.args
        handoff = ("--handoff",) if options.handoff else ()
        raise NotYourJob(
            f"{what} Nothing was changed.",
            f"To take it over: {provenance.shown_command(name, settings, args, '--take-over', *handoff)} "
            f"(to start one of your own: {provenance.shown_command(name, own, args)})",
        )

    def _check_args(self, log: Replay, cause: Cause) -> None:
        """Refuse arguments of the log that nobody vouches for before the job is opened, if the log alone decides that
        the agent would get them. ConfigError."""
        options, home = self._options, log.state.home_opening
        if options.args or options.handoff or log.damage is not None or home is None:
            return
        local = LocalFacts(options.agent.main_file, unlogged=options.agent.capabilities.hookless is not None)
        decided = decide(log.state, self._opening(home, cause), local, recovery_policy(options))
        if not isinstance(decided, Refuse):
            openings = [each.opening for each in log.state.openings]
            provenance.admit_args(options, openings, decided.args, self._screen, self._interrupt)
            self.args = decided.args

    def _opening(self, home: Opening, cause: Cause) -> Opening:
        """The opening that this start would write behind `home`."""
        options = self._options
        return Opening(
            time=self._clock.now(),
            run=self._run,
            epoch=home.epoch + 1,
            cause=cause,
            host=self._here,
            agent=options.agent.name,
            agent_version=self._cli.version,
            version=__version__,
            workspace=str(options.workspace),
            args=options.args,
            owner=read_owner(options.workspace, options.env),
        )


def find_free_job(bucket: Bucket, job: str) -> str:
    """`<job>-2`, or the next number that no job has. UsageError: none of a thousand is free."""
    for n in range(2, 1000):
        tail = f"-{n}"
        name = job[: MAX_JOB - len(tail)] + tail
        if leases.read_lease(bucket, Keys(name)) is None:
            return name
    raise UsageError(f"A thousand jobs are named like {job}.", "Choose a name: --job NAME.")
