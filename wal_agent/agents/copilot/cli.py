"""Finding Copilot and starting it: a new session under an id of ours, or a resume of a restored one.

Copilot hands a prompt of its command line on byte for byte, with the time before it; only one that begins with the name
of a command of its own (`/compact`) is taken for that, so such a one gets a title.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.copilot import options
from wal_agent.agents.copilot.files import resumable
from wal_agent.agents.copilot.home import SESSION, platform_builds
from wal_agent.agents.copilot.inject import PLUGIN
from wal_agent.agents.copilot.version import running_version
from wal_agent.agents.found import Program

PROGRAM = Program("copilot", "@github/copilot")
TITLE = "[wal-agent recovery]\n"


def locate(env: Env) -> Cli:
    found = PROGRAM.locate(env)
    return replace(found, version=running_version(found.version, env))


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session (a subcommand, --version): nothing to protect."""
    given = options.parse_args(args)
    first = next((arg for arg in given if not arg.name), None)
    command = first is not None and first.words[0] != "--" and first.value in options.COMMANDS
    return command or any(options.is_given(given, name) for name in options.NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Copilot can tell (the last one, a name), else None."""
    given = options.parse_args(args)
    for name in ("session-id", "resume"):
        if (chosen := options.last_value(given, name)) is not None:
            return chosen if SESSION.fullmatch(chosen) else ""
    return "" if options.last_value(given, "continue") is not None else None


def prompt_from_args(args: Sequence[str]) -> str | None:
    given = options.parse_args(args)
    return options.last_value(given, "prompt") or options.last_value(given, "interactive") or None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    """`tty` says that both its stdin and its stdout will be a terminal."""
    return tty and options.last_value(options.parse_args(args), "prompt") is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    ours = ["--plugin-dir", env[PLUGIN]] if env.get(PLUGIN) else []
    if isinstance(session, NewSession):
        # With --trust-folder it takes no id: the handshake tells it.
        if not any(arg.name in options.SESSION_OPTIONS or arg.name == "trust-folder" for arg in given):
            ours += ["--session-id", session.id]
        return Command((str(native_program(cli.path)), *ours, *options.to_words(given)), {})
    told = session.prompt != ""
    left_out = options.SESSION_OPTIONS | options.FIRST | (options.PROMPT_OPTIONS if told else frozenset())
    given = [arg for arg in given if arg.name not in left_out]
    # Without a session there is only what the prompt tells: its own had not been saved.
    known = resumable(session.id, Path(), env)
    ours += [f"--resume={session.id}"] if known else ["--session-id", session.id]
    if told:
        ours += [f"--{'interactive' if interactive else 'prompt'}={prompt_argument(session.prompt)}"]
    # Else it would go and work where the session was, if there is such a folder on this machine too.
    stay = {"COPILOT_DISABLE_RESUME_AUTO_CD": "1"}
    return Command((str(native_program(cli.path)), *ours, *options.to_words(given)), stay, told and not interactive)


def prompt_argument(prompt: str) -> str:
    """The prompt as an argument that Copilot takes for nothing else."""
    prompt = prompt.replace("\0", "\ufffd")
    return TITLE + prompt if not prompt.strip() or prompt.lstrip()[0] in "/!?#&" else prompt


def native_program(program: Path) -> Path:
    """The binary that npm's loader would start: without the loader there is one process, which gets the signals."""
    loader = program.resolve()
    if loader.name != "npm-loader.js":
        return program
    for build in platform_builds():
        for folder in loader.parents:
            found = folder / "node_modules" / "@github" / f"copilot-{build}" / "copilot"
            if found.is_file():
                return found
    return program
