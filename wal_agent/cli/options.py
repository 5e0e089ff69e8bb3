"""Options that several commands share, the job that they mean, and `wal-agent trust`: a person lets this folder's
project decide what its files ask for (config.Consents).
"""

from __future__ import annotations

import inspect
import os
import random
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec
import typer
from msgspec.structs import asdict, replace
from typer.models import OptionInfo

from wal_agent.config import DEFAULTS, SETTINGS, ConsentNeeded, Consents, OneOf, Settings, Want, default_text, option_of
from wal_agent.errors import Damaged, NoJob, UsageError, WalAgentError
from wal_agent.redact import redact
from wal_agent.text import answer, bucket_words, lines, quote_word, say, shorten
from wal_agent.wal.keys import Keys

if TYPE_CHECKING:
    from wal_agent.agents.base import Agent
    from wal_agent.bucket.base import Bucket
    from wal_agent.fleet.jobs import Job
    from wal_agent.supervise.at_rest import JobAccess
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.lease import StoredLease
    from wal_agent.wal.reader import Replay
    from wal_agent.wal.state import State


def trust(
    show: Annotated[
        bool, typer.Option("--show", help="Show what is asked for and what is allowed; do not ask.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Withdraw everything that was allowed for this folder.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow everything without asking.")] = False,
) -> None:
    """Allow settings that this folder's wal-agent.toml and .wal-agent/prompts may not decide alone.

    A consent applies to this folder and these values; a changed value is asked for again. It is kept in your own state
    folder. Agents may not use this command: inside a run it is refused (79).
    """
    from wal_agent.errors import ConfigError, UsageError
    from wal_agent.supervise.hook_server import require_person
    from wal_agent.supervise.settings import wants_of

    if show + revoke + yes > 1:
        raise UsageError("--show, --revoke and --yes go alone.")
    workspace = Path.cwd().resolve()
    consents = Consents(workspace, os.environ)
    if not show:
        require_person("wal-agent trust")
    if revoke:
        had = consents.revoke()
        say(f"{'nothing is allowed any more' if had else 'nothing was allowed'} for {workspace}.")
        return
    wants = wants_of(workspace, os.environ)
    missing = [want for want in wants if not consents.allows(want)]
    if show or not missing:
        answer([row for want in wants for row in describe_want(want, "not allowed" if want in missing else "allowed")])
        if not wants:
            answer([f"nothing in {workspace} asks for your consent."])
        elif not missing:
            answer([f"all that {workspace} asks for is allowed."])
        return
    if yes:
        lines([row for want in missing for row in describe_want(want)])
        consents.allow(missing)
        say(f"allowed for {workspace}. To take it back: wal-agent trust --revoke")
    elif not ask_consent(missing, workspace):
        lines([row for want in missing for row in describe_want(want)])
        raise ConfigError(
            f"There is no terminal to ask at, so nothing is allowed for {workspace}.",
            "If you want all of it: wal-agent trust --yes",
        )


def ask_consent(wants: Sequence[Want], workspace: Path) -> bool:
    """Ask the person, and keep a yes; False where nobody can be asked. ConfigError: the answer is no."""
    from wal_agent.errors import ConfigError
    from wal_agent.supervise.hook_server import outer_runs

    if outer_runs() or not can_ask():
        return False
    say(f"the project in {workspace} wants to decide what is yours to decide:")
    lines([row for want in wants for row in describe_want(want)])
    if not typer.confirm("Allow this, for this folder?", default=False, err=True):
        raise ConfigError(
            f"{wants[0].setting} in {wants[0].place} was not allowed.",
            "A flag, a variable or your own file goes before it.",
        )
    Consents(workspace, os.environ).allow(wants)
    say("allowed. To take it back: wal-agent trust --revoke")
    return True


def describe_want(want: Want, state: str = "") -> list[str]:
    """A want for people: what it is, where, and what it does."""
    return [
        f"  {want.setting} = {want.shown}" + (f"  ({state})" if state else ""),
        f"      in {want.place}; {want.means}",
    ]


def unknown_agent_error(name: str) -> UsageError:
    """Return the error for a name that is no agent's: the one that was probably meant, all names, and `generic`."""
    from difflib import get_close_matches

    from wal_agent.agents import AGENTS

    meant = get_close_matches(name.lower(), AGENTS, 1)
    hint = f"Did you mean {meant[0]}? " if meant else ""
    return UsageError(
        f"{name[:60]!r} is not an agent that wal-agent knows.",
        f"{hint}Known: {', '.join(sorted(AGENTS))}. For any other command: wal-agent run generic -- COMMAND",
    )


def complete_agent(incomplete: str) -> list[str]:
    """Return the agents whose name begins so, for shell completion."""
    from wal_agent.agents import AGENTS

    return sorted(name for name in AGENTS if name.startswith(incomplete))


def complete_job(incomplete: str) -> list[str]:
    """Return the jobs of this person on this machine whose own or display name begins so, for shell completion: from
    local notes."""
    from wal_agent.supervise.identity import known_folders

    jobs = [at for known in known_folders(os.environ) for at in known.jobs]
    names = {name for at in jobs for name in (at.job, at.alias) if name}
    return sorted(name for name in names if name.startswith(incomplete))


def check_typed_job(name: str | None) -> str | None:
    """Return a job's name as it was typed. UsageError: it begins with "-", so it is an option that was taken for it.

    A job that has such a name is still read: by WAL_AGENT_JOB, and in lists."""
    if name is not None and name.startswith("-"):
        raise UsageError(
            f"--job needs a job's name, and {shorten(name, 60)} is an option.",
            f"The jobs: wal-agent list. If one has this name, type it as WAL_AGENT_JOB={quote_word(name)}.",
        )
    return name


def require_subcommand(context: typer.Context) -> None:
    """Print a group's help, and end with 64, where it was typed alone."""
    if context.invoked_subcommand is None:
        lines(context.get_help().splitlines())
        raise typer.Exit(UsageError.exit_code)


def check_seconds(option: str, seconds: float, least: float, most: float) -> None:
    """UsageError: an option's value is out of bounds."""
    if not least <= seconds <= most:  # nor is nan
        raise UsageError(f"{option} {seconds:g} is not possible.", f"Allowed: seconds from {least:g} to {most:g}.")


def can_ask() -> bool:
    """Whether a person can be asked, and sees the question."""
    return sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def read_input(name: str, most: int) -> bytes:
    """Return a file that a person named ("-": stdin), at most `most` bytes and one. UsageError: it cannot be read."""
    try:
        if name == "-":
            return sys.stdin.buffer.read(most + 1)
        with Path(name).open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from error


AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        help="Choose the job of this agent, if several agents have a job in this folder.",
        metavar="NAME",
        autocompletion=complete_agent,
    ),
]


def setting_option(key: str) -> OptionInfo:
    """Make the option of a setting, as config.SETTINGS describes it."""
    setting, name = SETTINGS[key], option_of(key)
    names = f"{name}/--no-{name[2:]}" if setting.option == "switch" else name
    default = default_text(key)
    help = f"{setting.help} [{default}]" if default else setting.help
    complete = complete_job if key == "job" else complete_words(setting.read) if _is_choice(key) else None
    check = check_typed_job if key == "job" else None
    return cast(
        OptionInfo, typer.Option(names, help=help, metavar=_metavar(key), autocompletion=complete, callback=check)
    )


def _is_choice(key: str) -> bool:
    return SETTINGS[key].option == "value" and isinstance(SETTINGS[key].read, OneOf)


def complete_words(choice: Any) -> Callable[[str], list[str]]:
    """Return what completes a value that is one of the words of `choice`, a OneOf."""
    words: Sequence[str] = choice.words
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _metavar(key: str) -> str | None:
    """The word for the option's value: the choices, or the kind of number."""
    setting = SETTINGS[key]
    if setting.metavar is not None or setting.option != "value":
        return setting.metavar
    if isinstance(setting.read, OneOf):
        return "|".join(setting.read.words)
    return "SECONDS" if isinstance(getattr(DEFAULTS, key), float) else "N"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all settings that have an option, in place of its parameter `flags`: a mapping of each setting's
    name to the value as a configuration file would have it, None where the option is not given."""
    annotations = {}
    for key, setting in SETTINGS.items():
        if setting.option:
            kind = bool if setting.option != "value" else type(getattr(DEFAULTS, key))
            annotations[key] = Annotated[kind | None, setting_option(key)]

    def as_in_a_file(flags: dict[str, Any]) -> dict[str, Any]:
        for key, value in flags.items():
            if SETTINGS[key].option == "on":
                flags[key] = "on" if value else None
            elif SETTINGS[key].option == "switch" and value is not None:
                flags[key] = "on" if value else "off"
        return flags

    return _with_options(command, "flags", annotations, as_in_a_file)


def with_job(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which job is meant, in place of its parameter `which`, a JobOptions."""
    return _with_options(command, "which", _JOB_OPTIONS, lambda given: JobOptions(**given))


def _with_options(
    command: Callable[..., None], name: str, annotations: Mapping[str, Any], value: Callable[[dict[str, Any]], object]
) -> Callable[..., None]:
    """Return the command with these options, None where they are not given, in place of its parameter `name`, which
    gets `value` of them."""

    def wrapper(**given: Any) -> None:
        command(**{name: value({key: given.pop(key) for key in annotations})}, **given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != name:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for key, annotation in annotations.items():
            parameters.append(
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper


BucketUrl = Annotated[str | None, setting_option("bucket")]
JobName = Annotated[str | None, setting_option("job")]
KeyFile = Annotated[str | None, setting_option("encryption_key_file")]
KeyCommand = Annotated[str | None, setting_option("encryption_key_command")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
NAMES = frozenset(("bucket", "job"))  # the settings that say which job is meant
_JOB_OPTIONS: Mapping[str, Any] = {
    "agent": AgentName,
    "bucket": BucketUrl,
    "job": JobName,
    "encryption_key_file": KeyFile,
    "encryption_key_command": KeyCommand,
}


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
        from wal_agent.agents import AGENTS

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
        """What the job is opened with, where nobody runs it."""
        from wal_agent.supervise.at_rest import JobAccess

        return JobAccess(self.bucket, self.keys, self.settings.ttl, os.environ, self.key_id)

    @property
    def blobs(self) -> Blobs:
        """For reading."""
        from wal_agent.clock import SystemClock
        from wal_agent.wal.blobs import Blobs

        return Blobs(self.bucket, self.keys, SystemClock(), random.Random())

    def read_log(self, place: str | None = None) -> Replay:
        """The job's log up to a place as a person names it, or as far as it is sound. As recovery.export.replay_at."""
        from wal_agent.clock import SystemClock
        from wal_agent.recovery.export import replay_at

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
        return self.options().removeprefix(f" --job {shlex.quote(self.keys.job)}")

    def options(self) -> str:
        """What a command for this very job has to say, with a blank before each; never a secret."""
        said = {"job": self.keys.job}
        if self.settings.sources.get("bucket") != "default" and bucket_words(self.settings.bucket):
            said["bucket"] = self.settings.bucket
        for name in ("encryption_key_file", "encryption_key_command"):
            value = getattr(self.settings, name)
            if self.settings.sources.get(name) == "flag" and value and redact(value) == value:
                said[name.replace("_", "-")] = value
        return "".join(f" --{name} {shlex.quote(value)}" for name, value in said.items())


class JobOptions(msgspec.Struct, frozen=True):
    """The options that say which job is meant, as they were given: the named job, else the one that this folder has (of
    `agent`)."""

    agent: str | None = None
    bucket: str | None = None
    job: str | None = None
    encryption_key_file: str | None = None
    encryption_key_command: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the job is not just the one of the run or the folder in which the command was typed."""
        return self.bucket is not None or self.job is not None

    def open(self, *, as_a_run: bool = False) -> JobContext:
        """Open the bucket of the job. `as_a_run`: all settings count, as they would for a run of `agent` in this
        folder, and its job may be a new one.

        Raises NoJob, UsageError (several jobs), ConfigError, Denied (the key), and what the bucket raises."""
        from wal_agent.agents import AGENTS
        from wal_agent.bucket import open_bucket
        from wal_agent.bucket.decorators import RetryBucket
        from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
        from wal_agent.clock import SystemClock

        agent, workspace = self.agent, Path.cwd().resolve()
        if agent is not None and agent not in AGENTS:
            raise unknown_agent_error(agent)
        flags = {name: value for name, value in asdict(self).items() if name != "agent"}
        own = job_of_this_run() if agent is None and not self.is_named else None
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
                name, chosen = job_here(retrying, workspace, agent, settings.job)
            if as_a_run and name in AGENTS:
                settings = settings_for(name, workspace, {**flags, "job": chosen})
            agent, settings = name, replace(settings, job=chosen)
        return JobContext(settings, retrying, Keys(settings.job), workspace, key_id(key), agent)

    def open_existing(self) -> JobContext:
        """As `open`, for a command that needs the job's lease: it is there, and the key is the job's."""
        at = self.open()
        if at.lease() is None:
            raise at.missing()
        return at


HERE: Final = JobOptions()  # the job of this folder, or of the run in which the command is typed


def settings_for(
    agent: str, workspace: Path, flags: Mapping[str, object], uses: Collection[str] | None = None
) -> Settings:
    """As config.load; at a terminal the person is asked for the consent that is missing."""
    from wal_agent.supervise.settings import load

    try:
        return load(agent, workspace, os.environ, flags, uses=uses)
    except ConsentNeeded as needed:
        if not ask_consent(needed.wants, workspace):
            raise
    return load(agent, workspace, os.environ, flags, uses=uses)


def with_own_name(settings: Settings, bucket: Bucket) -> Settings:
    """The settings with the job's own name where its display name was given. As own_name."""
    if settings.sources.get("job") == "default":
        return settings
    return replace(settings, job=own_name(settings.job, bucket))


def own_name(name: str, bucket: Bucket) -> str:
    """Return the own name of the job that a person calls `name`; say so where it is another one.

    UsageError: it can name no job. Damaged, Newer, Unavailable."""
    from wal_agent.wal.names import resolve_name

    own = resolve_name(bucket, name, os.environ)
    if own != name:
        say(f"{name} is the display name of job {own}.")
    return own


def say_bucket(settings: Settings) -> None:
    """Who chose the bucket, before it is asked for anything."""
    if settings.origin:
        say(settings.origin)


ANY_AGENT = "gemini"  # whose settings name the bucket, where the agent is not known yet: all agents' do alike


def job_of_this_run() -> dict[str, str] | None:
    """Where the job of the live run is whose tool this is, by the names of the options; None where there is none. So
    its tools send their messages by the same servers."""
    from wal_agent.paths import MARKER, SOCKET

    if not (os.environ.get(SOCKET) and os.environ.get(MARKER)):
        return None
    from wal_agent.supervise.hook_server import STATUS
    from wal_agent.supervise.intervene import ask_own_run

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


MAX_NAMED = 5  # jobs of a folder that an error names


def job_here(bucket: Bucket, folder: Path, agent: str | None, default: str) -> tuple[str, str]:
    """Agent and name of the only job that `folder` has, of `agent` where it is named. `default`: the name that a start
    would give the folder's job. NoJob, UsageError."""
    from wal_agent.fleet.jobs import find_folder_jobs, find_jobs_here
    from wal_agent.supervise.identity import known_folders, read_owner

    every = find_jobs_here(bucket, folder, os.environ)
    found = [job for job in every if agent in (None, job.agent or find_agent(bucket, Keys(job.job)) or agent)]
    if len(found) > 1 and agent is not None:
        found = [job for job in found if job.job == default] or found
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
    raise NoJob(
        f"This folder has no job{f' of {agent}' if agent else ''} in {bucket.url}.",
        f"Start one: wal-agent run {agent or 'AGENT'}. Or name another: --job NAME (see: {list_command(bucket.url)})",
    )


def list_command(url: str) -> str:
    """Return the command that lists the jobs of this bucket, to be pasted in any folder."""
    from wal_agent.bucket import default_url

    words = bucket_words(url) if url != default_url(os.environ) else []
    return " ".join(map(quote_word, ("wal-agent", "list", *words)))


def _print_choices(jobs: Sequence[Job], url: str) -> None:
    """Print the command that was typed once for each of some jobs, to be pasted."""
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    rest = sys.argv[len(words) + 1 :]
    for job in jobs[:MAX_NAMED]:
        command = " ".join(map(quote_word, ("wal-agent", *_without_agent(words), "--job", job.job, *rest)))
        lines([f"  {command}   ({job.agent or 'unknown agent'}, {job.state})"])
    if len(jobs) > MAX_NAMED:
        lines([f"  and {len(jobs) - MAX_NAMED} more. See: {list_command(url)} --here"])


def _without_agent(words: Sequence[str]) -> list[str]:
    """A named job says which agent it is of."""
    kept = [word for n, word in enumerate(words) if "--agent" not in (word, *words[max(0, n - 1) : n])]
    return [word for word in kept if not word.startswith("--agent=")]
