"""Keep notes on this machine that the log cannot forge: which arguments were typed here, and which job owns a session's
files.

A log says what its writer likes. Arguments that a start takes from the log count where this machine typed them: a note
in the state folder (0600 in 0700), written before the opening that holds them, names bucket, job, run and the hash of
the arguments. Nothing from the bucket chooses what a note says. Without one the person confirms them, types them, or
has said beforehand that whoever writes the bucket may choose.

A fork goes on in its source's session. A local copy that is longer than the log's is what was not captured any more
(recovery/restore_session.py), but only where the job itself wrote it; what another job of the same session wrote is no
part of this one. Without a note the files are the job's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.bucket import folder_of
from wal_agent.bucket.folder import known_epoch
from wal_agent.config import Settings
from wal_agent.errors import ConfigError
from wal_agent.paths import state_dir
from wal_agent.records import Opening
from wal_agent.recovery.plan import is_other_persons
from wal_agent.redact import redact
from wal_agent.safefs import make_private_folder, read_plain, swap_file, sync_folder, write_new_file
from wal_agent.supervise.ancestry import outer_runs, require_person
from wal_agent.supervise.identity import person_key
from wal_agent.supervise.machine import is_run_live, runtime_dir
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.text import command, quote_word
from wal_agent.wal.reader import Replay, is_signed
from wal_agent.wal.state import State

MAX_NOTES = 1000  # notes; the oldest go
READABLE = 4000  # characters of arguments that a person is asked about
SHORT = 1200  # characters of a command inside an error's line
_RUN = re.compile(r"[0-9a-f]{16}")
_STEP = 0.2  # seconds between two looks for a signal while a person thinks
_ANSWER_TIME = 3600.0  # seconds after which the question is said to wait
NOBODY = "?"  # while one job's files take the place of another's; no job has this name


def remember_args(env: Mapping[str, str], url: str, job: str, run: str, args: Sequence[str]) -> None:
    """Before the run's opening: these arguments, or none, were typed or confirmed here. A disk that refuses costs a
    question at the next start, no more."""
    if not _RUN.fullmatch(run):
        return
    folder = _folder(env)
    with suppress(OSError):
        make_private_folder(folder)
        _prune(folder)
        write_new_file(folder / run, _mark(url, job, run, args).encode())
        sync_folder(folder)


def is_noted(env: Mapping[str, str], url: str, job: str, opening: Opening) -> bool:
    """Whether this machine wrote that opening with just these arguments."""
    if not _RUN.fullmatch(opening.run):
        return False
    mark = _mark(url, job, opening.run, opening.args)
    return read_plain(_folder(env) / opening.run, 200) == mark.encode()


def forget_args(env: Mapping[str, str], run: str) -> None:
    """Delete the note of a run whose job is deleted. A note that cannot be deleted says nothing of any other job."""
    if _RUN.fullmatch(run):
        with suppress(OSError):
            (_folder(env) / run).unlink(missing_ok=True)


def may_end_leftovers(env: Mapping[str, str], url: str, job: str, opening: Opening) -> bool:
    """Whether processes that carry this opening's run may be ended: the run is over, or was one of this job by the word
    of this machine. Who writes the bucket could name a live run of another job."""
    if not _RUN.fullmatch(opening.run):
        return True  # it is no run's
    return is_noted(env, url, job, opening) or not is_run_live(runtime_dir(env) / opening.run)


def is_vouched(env: Mapping[str, str], url: str, job: str, openings: Iterable[Opening], args: tuple[str, ...]) -> bool:
    """Whether one of the log's openings that hold `args` was written here."""
    return any(opening.args == args and is_noted(env, url, job, opening) for opening in openings)


def vouched_args(env: Mapping[str, str], url: str, job: str, state: State) -> tuple[str, ...]:
    """What the agent of the job was started with last, where this machine has a note that it was typed here; () where
    it has none."""
    home = state.home_opening
    args = home.args if home is not None else ()
    return args if is_vouched(env, url, job, (each.opening for each in state.openings), args) else ()


def admit_args(
    options: RunOptions,
    openings: Iterable[Opening],
    args: tuple[str, ...],
    screen: Screen,
    check: Callable[[], None] = lambda: None,
) -> None:
    """ConfigError unless `args` may be given to the agent. `openings`: of the log that they come from. `check` raises
    when a signal asks us to end."""
    settings = options.settings
    if not args or args == options.args or is_vouched(options.env, settings.bucket, settings.job, openings, args):
        return
    if settings.accept_logged_args == "on":
        require_person(f"wal-agent run {options.agent.name} --accept-logged-args")
        screen.say(f"{len(args)} arguments for {options.agent.name} are taken from the log (--accept-logged-args).")
    elif options.attended and not outer_runs() and sum(map(len, args)) <= READABLE:
        _ask(options, args, screen, check)
    else:
        raise unvouched_error(options.agent.name, settings, args, screen)
    if problem := options.agent.hooks_off_reason(args, options.workspace, options.env):
        raise ConfigError(problem)


def is_persons_job(env: Mapping[str, str], settings: Settings, log: Replay) -> bool:
    """Whether more than the bucket says that this person's runs wrote the job: a note of this machine, that it could be
    read with their key, which authenticates all of the log but its lease, or their tag. ConfigError: their key."""
    if settings.encryption_key_file or settings.encryption_key_command:
        return True
    url, job = settings.bucket, settings.job
    if known_epoch(url, job, env) > 0 or any(is_noted(env, url, job, each.opening) for each in log.state.openings):
        return True
    return is_signed(log, person_key(env))


def is_job_typed(options: RunOptions) -> bool:
    """Whether the person named the job of this start."""
    return options.settings.sources.get("job") in ("flag", "environment") and not options.found


def previous_person(state: State, opening: Opening) -> Opening | None:
    """Return the newest opening of another person's, from whom a start by `opening` would take over an unfinished job;
    None where it would not. Pure."""
    home = state.home_opening
    over = state.ended is not None and state.ended.completed and not state.unlooked and not state.undecided_steps
    return home if home is not None and not over and is_other_persons(home, opening) else None


def unvouched_error(agent: str, settings: Settings, args: Sequence[str], screen: Screen) -> ConfigError:
    """With the whole command, ready to be typed; what does not fit into the line stands above it."""
    what = (
        f"The arguments for {agent} would come from the log of job {settings.job}, and this machine has no note that "
        "they were typed here: whoever writes the bucket may have chosen them. Nothing was run."
    )
    typed = typed_command(agent, settings, args)
    if redact(typed) != typed:
        return ConfigError(what, f"One holds a secret, so they are not shown: type them after wal-agent run {agent} --")
    if len(typed) > SHORT:
        screen.rows([typed])
        return ConfigError(what, "If they are right, type them: the command above.")
    return ConfigError(what, f"If they are right, type them: {typed}")


def typed_command(agent: str, settings: Settings, args: Sequence[str], *more: str) -> str:
    """The start with its arguments typed, for a shell on any machine; without a bucket whose URL holds a secret.
    `more`: further options."""
    return command(f"run {agent}", settings.job_options, *more, "--", *args)


def shown_command(agent: str, settings: Settings, args: Sequence[str], *more: str) -> str:
    """The start as a person may type it; arguments that hold a secret are not shown."""
    command = typed_command(agent, settings, args, *more)
    if redact(command) != command:
        command = typed_command(agent, settings, ("ARGS",), *more)
    return command.removesuffix(" --")


def resume_command(options: RunOptions, *more: str) -> str:
    """The next start of this run's job. What an agent without hooks is run with, only the log has."""
    settings = options.settings
    if options.agent.capabilities.hookless is None:
        return shown_command(options.agent.name, settings, (), *more)
    return command("resume", settings.job_options)


def _ask(options: RunOptions, args: Sequence[str], screen: Screen, check: Callable[[], None]) -> None:
    name = options.agent.name
    screen.say(f"the log says that {name} was started with these arguments; no note says that they were typed here:")
    screen.rows([f"  {quote_word(word)}" for word in args])
    if not ask_person(f"whoever writes the bucket may have chosen them. Start {name} with them?", screen, check):
        raise ConfigError(
            f"The arguments of the log were not confirmed, so {name} was not started.",
            f"Type others: wal-agent run {name} -- ARGS",
        )


def ask_person(question: str, screen: Screen, check: Callable[[], None]) -> bool:
    """Ask at the terminal while signals are blocked; `check` raises when one asks us to end."""
    screen.say(f"{question} [y/N]")
    with screen.waiting_for("an answer", after=_ANSWER_TIME):
        while True:
            check()
            if select.select([sys.stdin], [], [], _STEP)[0]:
                break
    return os.read(sys.stdin.fileno(), 1000).strip().lower() in (b"y", b"yes")


def _folder(env: Mapping[str, str]) -> Path:
    return state_dir(env) / "typed"


def _mark(url: str, job: str, run: str, args: Sequence[str]) -> str:
    folder = folder_of(url)
    place = url if folder is None else os.fsencode(folder).decode("utf-8", "backslashreplace")
    return hashlib.sha256(msgspec.json.encode((place, job, run, list(args)))).hexdigest()


def _prune(folder: Path) -> None:
    found = sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime)
    for path in found[: max(0, len(found) - MAX_NOTES + 1)]:
        path.unlink(missing_ok=True)


class SessionOwner(msgspec.Struct, frozen=True):
    """The note on one session in one workspace of this machine; `state_dir` holds it."""

    state_dir: Path
    session: str
    workspace: Path

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(os.fsencode(f"{self.session}\0{self.workspace}")).hexdigest()
        return self.state_dir / "sessions" / name[:32]

    def foreign(self, job: str) -> bool:
        """Whether they are known to be another job's."""
        data = read_plain(self._path)
        return data is not None and data.decode("utf-8", "replace") != job

    def known(self) -> bool:
        """Whether there is a note."""
        return self._path.exists()

    def give(self, job: str) -> None:
        """Durable. ConfigError: the disk refuses."""
        try:
            swap_file(self._path, job.encode())
        except OSError as error:
            raise ConfigError(f"{self._path.parent} cannot be written: {error.strerror}.") from error
