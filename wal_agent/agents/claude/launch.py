"""Finding Claude Code and starting it: a new session under an id of ours, or a resume of a restored one.

The recovery prompt is not given on the command line. There Claude takes a leading `/` for a command of its own and adds
the files that `@path` names; an argument of more than 128 KiB does not even start. `notice.py` writes it into the
restored session instead, as the user's last words; the command line only says to act on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.claude import cli as settings
from wal_agent.agents.claude import inject, options
from wal_agent.agents.found import Program
from wal_agent.errors import ConfigError

PROGRAM = Program("claude", "@anthropic-ai/claude-code")
ACT = "Act on the wal-agent recovery notice above."
_SYSTEM = ("append-system-prompt", "append-system-prompt-file")
_AGAIN = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN"


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version): nothing to protect."""
    given = options.parse_args(args)
    return options.subcommand(args) in options.COMMANDS or any(
        options.is_given(given, name) for name in options.NO_SESSION
    )


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Claude can tell (the last one, a title, a fork)."""
    given = options.parse_args(args)
    chosen = options.last_value(given, "session-id")
    if chosen is not None:
        return chosen
    resumed = options.last_value(given, "resume")
    if resumed is None:
        other = ("continue", "from-pr", "fork-session")
        return "" if any(options.last_value(given, name) is not None for name in other) else None
    known = settings.SESSION.fullmatch(resumed) and options.last_value(given, "fork-session") is None
    return resumed if known else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    """The prompt among the arguments: the first word that is no option's."""
    return next((arg.value for arg in options.parse_args(args) if not arg.name and arg.value), None)


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """Claude's own rule; `tty` says that both its stdin and its stdout will be a terminal."""
    return tty and options.last_value(options.parse_args(args), "print") is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    ours, given = _injected(given, env)
    told = isinstance(session, ResumeSession) and session.prompt != ""
    behind: list[str] = []
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in options.SESSION_OPTIONS]
        ours += ["--resume", session.id]
        if told:
            given = [arg for arg in given if arg.name not in options.PROMPT_OPTIONS]
            behind = ["--", ACT]  # else an option that takes many words would take these too
    elif session_from_args(args) is None:
        ours += ["--session-id", session.id]
    # Set, it would send the cut-off prompt again by itself; empty counts as not set.
    extra = {_AGAIN: ""} if _AGAIN in env else {}
    argv = (str(cli.path), *ours, *options.to_words(given), *behind)
    return Command(argv, extra, told and not interactive)


def _injected(given: list[options.Arg], env: Env) -> tuple[list[str], list[options.Arg]]:
    """The options that carry our settings and the standing protocol, each in one with the user's own."""
    if not env.get(inject.SETTINGS):
        return [], given
    ours = Path(env[inject.SETTINGS])
    users = options.last_value(given, "settings")
    try:
        place = ours if users is None else inject.merge_settings(ours, settings.given_settings(users, Path.cwd()))
    except (OSError, ValueError) as error:
        why = f"--settings cannot be used with this run's hooks: {error}."
        raise ConfigError(why if users else f"Claude Code's settings could not be made: {error}.") from error
    text, file = (options.last_value(given, name) for name in _SYSTEM)
    rest = [arg for arg in given if arg.name != "settings"]
    if text is not None and file is not None:  # Claude refuses the two of them by itself
        return ["--settings", str(place)], rest
    try:
        both = _system_file(inject.protocol_file(ours), text, file)
    except OSError as error:
        raise ConfigError(f"--append-system-prompt-file {file} cannot be read: {error.strerror or error}.") from error
    rest = [arg for arg in rest if arg.name not in _SYSTEM]
    return ["--settings", str(place), "--append-system-prompt-file", str(both)], rest


def _system_file(protocol: Path, text: str | None, file: str | None) -> Path:
    """A file, since an argument holds 128 KiB at most: the user's own words for the system prompt, then ours."""
    own = text if file is None else Path(file).read_bytes().decode(errors="replace")
    if not own:
        return protocol
    both = protocol.with_name("claude-system-prompt.md")
    both.write_bytes(f"{own}\n\n{protocol.read_text()}".encode(errors="surrogateescape"))
    return both
