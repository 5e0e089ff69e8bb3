"""Options that several commands share, and how their values are completed, checked and read."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec
import typer
from typer.models import OptionInfo

from wal_agent.config import DEFAULTS, SETTINGS, OneOf, default_text, option_of
from wal_agent.errors import UsageError
from wal_agent.text import lines, quote_word, shorten

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext


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


def setting_option(key: str, check: Callable[[str | None], str | None] | None = None) -> OptionInfo:
    """Make the option of a setting, as config.SETTINGS describes it. `check`: what the value goes through."""
    setting, name = SETTINGS[key], option_of(key)
    names = f"{name}/--no-{name[2:]}" if setting.option == "switch" else name
    default = default_text(key)
    help = f"{setting.help} [{default}]" if default else setting.help
    complete = complete_job if key == "job" else complete_words(setting.read) if _is_choice(key) else None
    check = check_typed_job if key == "job" else check
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


def check_key_command(command: str | None) -> str | None:
    """Return the command: one that an agent's user has allowed it to type, such as `wal-agent status ...`, must run no
    program that the agent names. PersonNeeded."""
    if command is not None:
        from wal_agent.supervise.ancestry import require_person

        require_person(f"wal-agent --encryption-key-command {quote_word(command)}")
    return command


BucketUrl = Annotated[str | None, setting_option("bucket")]
JobName = Annotated[str | None, setting_option("job")]
KeyFile = Annotated[str | None, setting_option("encryption_key_file")]
KeyCommand = Annotated[str | None, setting_option("encryption_key_command", check_key_command)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
_JOB_OPTIONS: Mapping[str, Any] = {
    "agent": AgentName,
    "bucket": BucketUrl,
    "job": JobName,
    "encryption_key_file": KeyFile,
    "encryption_key_command": KeyCommand,
}


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

    def open(self, *, as_a_run: bool = False, asks: bool = False) -> JobContext:
        """Open the bucket of the job, as `open_job`."""
        from wal_agent.cli.job import open_job

        return open_job(self, as_a_run=as_a_run, asks=asks)

    def open_existing(self) -> JobContext:
        """As `open`, for a command that needs the job's lease: it is there, and the key is the job's."""
        at = self.open()
        if at.lease() is None:
            raise at.missing()
        return at


HERE: Final = JobOptions()  # the job of this folder, or of the run in which the command is typed


def with_job(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which job is meant, in place of its parameter `which`, a JobOptions."""
    return _with_options(command, "which", _JOB_OPTIONS, lambda given: JobOptions(**given))
