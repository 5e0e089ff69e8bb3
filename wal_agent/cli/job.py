"""The job that a command means: the options that say which, the settings and the bucket, and the job of this folder."""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from wal_agent.config import ConsentNeeded, Settings
from wal_agent.errors import Damaged, NoJob, UsageError, WalAgentError
from wal_agent.text import MEANT, bucket_option, command, lines, say
from wal_agent.wal.keys import Keys

if TYPE_CHECKING:
    from wal_agent.agents.base import Agent
    from wal_agent.bucket.base import Bucket
    from wal_agent.cli.options import JobOptions
    from wal_agent.fleet.jobs import Job
    from wal_agent.operate.at_rest import JobAccess
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.lease import StoredLease
    from wal_agent.wal.reader import Replay
    from wal_agent.wal.state import State
    from wal_agent.wal.store import JobStore

ANY_AGENT = "gemini"  # whose settings name the bucket, where the agent is not known yet: all agents' do alike
NAMES = frozenset(("bucket", "job"))  # the settings that say which job is meant
MAX_NAMED = 5  # jobs of a folder that an error names


class JobContext(msgspec.Struct, frozen=True):
    """A job in a bucket, as the options, the environment and wal-agent.toml say."""

    settings: Settings
    bucket: Bucket
    keys: Keys
    workspace: Path
    key_id: str
    """Of the encryption key that was given; empty for none."""
    name: str
    """Of the agent; empty where there is no such job."""

    @property
    def agent(self) -> Agent:
        """The job's agent. UsageError: there is no such job, or this wal-agent does not know its agent."""
        from wal_agent.agents import AGENTS, unknown_agent_error

        if not self.name:
            raise self.missing()
        if self.name not in AGENTS:
            raise unknown_agent_error(self.name)
        return AGENTS[self.name]

    def missing(self) -> WalAgentError:
        """The error for a job of which the bucket holds nothing: it is lost, where it has run on this machine."""
        from wal_agent.bucket.folder import known_epoch, missing_job_error
        from wal_agent.wal.damage import unknown_job_error

        if epoch := known_epoch(self.bucket.url, self.keys.job, os.environ):
            return missing_job_error(self.bucket.url, self.keys.job, epoch)
        return unknown_job_error(self.bucket, self.keys)

    @property
    def access(self) -> JobAccess:
        """Return what a command needs to open the job while no run has it."""
        from wal_agent.operate.at_rest import JobAccess

        return JobAccess(self.bucket, self.keys, self.settings.ttl, os.environ, self.key_id)

    @property
    def store(self) -> JobStore:
        from wal_agent.wal.store import JobStore

        return JobStore(self.bucket, self.keys)

    @property
    def blobs(self) -> Blobs:
        """For reading."""
        from wal_agent.wal.blobs import Blobs

        return Blobs(self.store)

    def read_log(self, place: str | None = None) -> Replay:
        """The job's log up to a place as a person names it, or as far as it is sound. As operate.export.replay_at."""
        from wal_agent.clock import SystemClock
        from wal_agent.operate.export import replay_at

        return replay_at(self.bucket, self.keys, self.key_id, place, SystemClock().now())

    def state(self, place: str | None = None) -> State:
        """The state of the log up to there. As `read_log`; Damaged, where it is not sound."""
        from wal_agent.wal.damage import sound_state

        return sound_state(self.read_log(place))

    def lease(self) -> StoredLease | None:
        """The job's lease, None where it has none. Denied: the job is encrypted with another key than the one given;
        Damaged; BucketError."""
        from wal_agent.bucket.encryption import wrong_key_error
        from wal_agent.wal.lease import read_lease

        seen = read_lease(self.bucket, self.keys)
        if seen is not None and (problem := wrong_key_error(self.keys.job, seen.doc.key, self.key_id)):
            raise problem
        return seen

    def bucket_option(self) -> str:
        """As `options`, for a command that names the job itself."""
        return f" {self.settings.bucket_options}"

    def options(self) -> str:
        """What a command for this very job has to say, with a blank in front; never a secret."""
        return f" {self.settings.job_options}"


def open_job(which: JobOptions, *, as_a_run: bool = False, asks: bool = False) -> JobContext:
    """Open the bucket of the job that the user means: the named one, else the one that this folder has. `as_a_run`: all
    settings count, as they would for a run of the agent in this folder, and its job may be a new one. `asks`: the
    command deletes or resolves something, so that of several jobs none is chosen for the user.

    Raises NoJob, UsageError (several jobs), ConfigError, Denied (the key), and what the bucket raises."""
    from wal_agent.agents import AGENTS, unknown_agent_error
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket
    from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
    from wal_agent.clock import SystemClock

    agent, workspace = which.agent, Path.cwd().resolve()
    if agent is not None and agent not in AGENTS:
        raise unknown_agent_error(agent)
    flags = {name: value for name, value in asdict(which).items() if name != "agent"}
    own = job_of_this_run() if agent is None and not which.is_named else None
    if own is not None:
        flags = {name: given or own.get(name) for name, given in {**flags, "messages": None}.items()}
    settings = settings_for(agent or ANY_AGENT, workspace, flags, None if as_a_run and agent else NAMES)
    if own is None:
        say_bucket(settings)
    key = load_key(settings.encryption_key_file, settings.encryption_key_command, os.environ)
    opened = EncryptedBucket(open_bucket(settings.bucket), key)
    retrying = RetryBucket(opened, SystemClock(), random.Random())
    named = settings.sources.get("job") != "default"
    settings = settings if own is not None else with_own_name(settings, retrying)
    if agent is None or not (named or as_a_run):
        if named:
            name, chosen = find_agent(retrying, Keys(settings.job)), settings.job
        else:
            name, chosen = job_here(retrying, workspace, agent, settings.job, asks)
        if as_a_run and name in AGENTS:
            settings = settings_for(name, workspace, {**flags, "job": chosen})
        agent, settings = name, replace(settings, job=chosen)
    if own is None:  # an agent's commands mean the job of its run
        MEANT.set(settings.job_options)
    return JobContext(settings, retrying, Keys(settings.job), workspace, key_id(key), agent)


def settings_for(
    agent: str, workspace: Path, flags: Mapping[str, object], uses: Collection[str] | None = None
) -> Settings:
    """As config.load; at a terminal the person is asked for the consent that is missing."""
    from wal_agent.supervise.settings import load

    try:
        return load(agent, workspace, os.environ, flags, uses=uses)
    except ConsentNeeded as needed:
        from wal_agent.cli.consent import ask_consent

        if not ask_consent(needed.wants, workspace):
            raise
    return load(agent, workspace, os.environ, flags, uses=uses)


def with_own_name(settings: Settings, bucket: Bucket) -> Settings:
    """The settings with the job's own name where its display name was given. As own_name."""
    if settings.sources.get("job") == "default":
        return settings
    return replace(settings, job=own_name(settings.job, bucket))


def own_name(name: str, bucket: Bucket) -> str:
    """Return the own name of the job that a person calls `name`. UsageError: it can name no job. Damaged, Newer,
    Unavailable."""
    from wal_agent.wal.names import resolve_name

    return resolve_name(bucket, name, os.environ)


def say_bucket(settings: Settings) -> None:
    """Who chose the bucket, before it is asked for anything: only a project's file, since a person knows what they
    said. A start says it always."""
    if settings.origin and settings.sources.get("bucket") == "file":
        say(settings.origin)


def job_of_this_run() -> dict[str, str] | None:
    """Where the job of the live run is whose tool this is, by the names of the options; None where there is none. So
    its tools send their messages by the same servers."""
    from wal_agent.paths import MARKER, SOCKET

    if not (os.environ.get(SOCKET) and os.environ.get(MARKER)):
        return None
    from wal_agent.supervise.control import STATUS, ask_own_run

    said = ask_own_run(os.environ, STATUS, {})
    names = {"messages": "carrier"} | {n: n for n in ("job", "bucket", "encryption_key_file", "encryption_key_command")}
    found = {name: value for name, key in names.items() if isinstance(value := (said or {}).get(key), str) and value}
    return found if "job" in found and "bucket" in found else None


def find_agent(bucket: Bucket, keys: Keys) -> str:
    """The agent of a job, as its lease says, else as its log does; "" where neither does. Newer, Denied."""
    from wal_agent.wal.lease import read_lease
    from wal_agent.wal.reader import replay

    with suppress(Damaged):
        seen = read_lease(bucket, keys)
        if seen is not None and seen.doc.agent:  # one that a person repaired names none
            return seen.doc.agent
    with suppress(Damaged):
        if openings := replay(bucket, keys).state.openings:
            return openings[-1].opening.agent
    return ""


def job_here(bucket: Bucket, folder: Path, agent: str | None, default: str, asks: bool) -> tuple[str, str]:
    """Agent and name of the job that `folder` has, of `agent` where it is named; of several the running or the newest
    one, with a line that says so. `default`: the name that a start would give the folder's job. NoJob, UsageError
    (several jobs, where the command `asks`)."""
    from wal_agent.fleet.jobs import find_folder_jobs, find_jobs_here
    from wal_agent.supervise.identity import known_folders, read_owner

    every = find_jobs_here(bucket, folder, os.environ)
    found = [job for job in every if agent in (None, job.agent or find_agent(bucket, Keys(job.job)) or agent)]
    if len(found) > 1 and agent is not None:
        found = [job for job in found if job.job == default] or found
    if len(found) > 1 and not asks:
        chosen = _newest(found)
        which = (
            f"job {chosen.title} ({chosen.agent or 'unknown agent'}, {chosen.state}), of {len(found)} of this folder"
        )
        say(f"{which}. For another add --job NAME (see: {list_command(bucket.url)} --here)")
        found = [chosen]
    if len(found) == 1:
        return agent or found[0].agent or find_agent(bucket, Keys(found[0].job)), found[0].job
    if found:
        _print_choices(found, bucket.url)
        of = f" of {agent}" if agent else ""
        raise UsageError(f"This folder has {len(found)} jobs{of} in {bucket.url}.", "Name one: the commands above.")
    if agent is not None and find_agent(bucket, Keys(default)) == agent:
        return agent, default
    here = read_owner(folder, os.environ).folder
    for known in known_folders(os.environ):
        gone = [at for at in known.jobs if (known.id, at.bucket) == (here, bucket.url) and agent in (None, at.agent)]
        if gone and (agent is not None or not every):  # what this machine knows and the bucket lacks is for the command
            return gone[0].agent, gone[0].job
    if every:
        _print_choices(every, bucket.url)
        raise NoJob(f"This folder has no job of {agent} in {bucket.url}.", "Its jobs: the commands above.")
    if around := [each.job for each in find_folder_jobs(bucket, folder, os.environ) if agent in (None, each.job.agent)]:
        _print_choices(around, bucket.url)
        raise NoJob(
            f"This folder has no job{f' of {agent}' if agent else ''} in {bucket.url}.",
            "Those of the folders above and below it: the commands above.",
        )
    start = command(f"run {agent or 'AGENT'}", shown_bucket(bucket.url))
    raise NoJob(
        f"This folder has no job{f' of {agent}' if agent else ''} in {bucket.url}.",
        f"Start one: {start}. Or name another: --job NAME (see: {list_command(bucket.url)})",
    )


def _newest(jobs: Sequence[Job]) -> Job:
    """The running one, or the one that ran last. A task counts as its caller's, where that one is here too."""
    from wal_agent.conversation.tasks import MARK

    names = {job.job for job in jobs}
    own = [job for job in jobs if MARK not in job.job or job.job.partition(MARK)[0] not in names]
    return min(own, key=lambda job: (job.state != "running", bool(job.problem), job.age, job.job))


def list_command(url: str) -> str:
    """Return the command that lists the jobs of this bucket, to be pasted in any folder."""
    return command("list", shown_bucket(url))


def shown_bucket(url: str) -> str:
    """Return the option that names the bucket in a printed command; "" where it is the default."""
    from wal_agent.bucket import default_url

    return bucket_option(url) if url != default_url(os.environ) else ""


def _print_choices(jobs: Sequence[Job], url: str) -> None:
    """Print the command that was typed once for each of some jobs, to be pasted."""
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    rest = sys.argv[len(words) + 1 :]
    for job in jobs[:MAX_NAMED]:
        typed = shlex.join(_without_agent(words))
        lines([f"  {command(typed, f'--job {job.job}', *rest)}   ({job.agent or 'unknown agent'}, {job.state})"])
    if len(jobs) > MAX_NAMED:
        lines([f"  and {len(jobs) - MAX_NAMED} more. See: {list_command(url)} --here"])


def _without_agent(words: Sequence[str]) -> list[str]:
    """A named job says which agent it is of."""
    kept = [word for n, word in enumerate(words) if "--agent" not in (word, *words[max(0, n - 1) : n])]
    return [word for word in kept if not word.startswith("--agent=")]
