"""`wal-agent acp AGENT`: an agent for editors and other programs that speak the Agent Client Protocol."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.cli.options import complete_agent, with_settings
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, UsageError, WalAgentError

if TYPE_CHECKING:
    from wal_agent.acp.serve import Known
    from wal_agent.bucket.base import Bucket
    from wal_agent.fleet.jobs import Job
    from wal_agent.operate.at_rest import JobAccess
    from wal_agent.wal.state import State

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}
MAX_READ = 50  # jobs of a folder whose sessions are looked up, newest first


@with_settings
def acp(
    context: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            help="The agent to run (see: wal-agent agents).", metavar="AGENT", autocompletion=complete_agent
        ),
    ],
    flags: Mapping[str, object],
) -> None:
    """Serve the Agent Client Protocol for an editor on stdin and stdout: each session is a job with its own log.

    An editor starts this in place of the agent's own ACP mode. A session that was cut off is restored when the editor
    loads it, on any machine. Options are those of `wal-agent run`; everything after `--` is passed to the agent.
    """
    from wal_agent.acp.serve import Jobs, Known, Server, new_job
    from wal_agent.agents import AGENTS, unknown_agent_error
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket
    from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
    from wal_agent.cli.job import settings_for
    from wal_agent.config import variable_of
    from wal_agent.operate.at_rest import JobAccess
    from wal_agent.wal.keys import Keys
    from wal_agent.wal.reader import replay

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    own = AGENTS[agent]
    if not own.capabilities.serves_acp:
        known = ", ".join(name for name, each in sorted(AGENTS.items()) if each.capabilities.serves_acp)
        raise UsageError(
            f"{agent} has no ACP mode in which its hooks report each tool call, so nothing could be logged.",
            f"Agents with one: {known}.",
        )
    args = tuple(context.args)
    given = {variable_of(key): str(value) for key, value in flags.items() if value is not None and key != "job"}

    key_of = cache(lambda file, command: load_key(file, command, os.environ))  # a key's command may ask a person

    def find(folder: Path, cut_off: bool) -> Iterator[Known]:
        settings = settings_for(agent, folder, flags)
        key = key_of(settings.encryption_key_file, settings.encryption_key_command)
        with closing(EncryptedBucket(open_bucket(settings.bucket), key)) as opened:
            bucket = RetryBucket(opened, SystemClock(), random.Random())
            for job in find_jobs(bucket, agent, folder, cut_off):
                with suppress(Damaged):
                    state = replay(bucket, Keys(job.job)).state
                    if state.ran and state.session:
                        yield Known(state.session, job.job, str(folder), len(state.open))
                    elif job.state == "crashed" and is_unsaid(state, args):
                        close_unsaid(JobAccess(bucket, Keys(job.job), settings.ttl, os.environ, key_id(key)), args)

    def name(folder: Path) -> str:
        return new_job(settings_for(agent, folder, flags).job)

    jobs = Jobs(find, name, lambda job: {**given, variable_of("job"): job})
    raise typer.Exit(Server(own, args, jobs).serve())


def find_jobs(bucket: Bucket, agent: str, folder: Path, cut_off: bool) -> list[Job]:
    """Find the agent's jobs of `folder`, newest first; with `cut_off` those that were. Takes its time: a session that
    is not found cannot be loaded. Unavailable, Denied."""
    from wal_agent.fleet.jobs import UNFINISHED, find_folder_jobs

    states = UNFINISHED - {"running"}
    here = (each.job for each in find_folder_jobs(bucket, folder, os.environ, seconds=inf) if each.relation == "here")
    wanted = [job for job in here if job.agent == agent and (not cut_off or job.state in states)]
    return sorted(wanted, key=lambda job: job.started, reverse=True)[:MAX_READ]


def is_unsaid(state: State, args: Sequence[str]) -> bool:
    """Whether nobody said anything in a job's one session, which was begun with no other arguments. Pure."""
    openings = [each.opening for each in state.openings]
    typed = all(o.interactive and o.args in ((), tuple(args)) for o in openings)
    return bool(openings) and typed and not (state.ran or state.open or state.steps or state.messages)


def close_unsaid(at: JobAccess, args: Sequence[str]) -> None:
    """Close a job in which nothing was said, so that it asks for nobody; one that is no longer so stays as it is."""
    from wal_agent.operate.at_rest import act_unowned
    from wal_agent.wal.job import close_job

    def check(state: State) -> None:
        if not is_unsaid(state, args):
            raise UsageError("Something was said in it.")

    with suppress(WalAgentError):
        act_unowned(at, at.lease(), lambda job: close_job(job, "closed", "nothing was said"), check)
