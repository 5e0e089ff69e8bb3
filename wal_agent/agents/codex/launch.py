"""Finding Codex and starting it: the native program itself, since the launcher on npm may stand between it and signals.

The recovery prompt is not given on the command line. Codex reads a prompt that it gets there: `!` runs a command, `$x`
brings in a skill. `notice.py` writes it into the restored session instead; the command line only says to act on it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.codex import options
from wal_agent.agents.codex.home import is_session
from wal_agent.agents.codex.hooks import run_flags
from wal_agent.agents.codex.statedb import private_index
from wal_agent.agents.found import Program

PROGRAM = Program(
    "codex",
    "@openai/codex",
    # Seen on 0.144.6: no item_completed in its session files.
    broken=("0.145.0", "its sessions do not tell how calls ended, nor that a turn began while hooks are off."),
)
ACT = "Act on the wal-agent recovery notice above."
_TRIPLES = {
    ("linux", "x86_64"): ("linux-x64", "x86_64-unknown-linux-musl"),
    ("linux", "aarch64"): ("linux-arm64", "aarch64-unknown-linux-musl"),
    ("darwin", "x86_64"): ("darwin-x64", "x86_64-apple-darwin"),
    ("darwin", "arm64"): ("darwin-arm64", "aarch64-apple-darwin"),
}


def locate(env: Env) -> Cli:
    return PROGRAM.locate(env)


def passthrough(args: Sequence[str]) -> bool:
    """These arguments start no session here: nothing to protect. An option that is not known may take the word behind
    it, and what looks like a subcommand be the prompt."""
    given = options.parse_args(args)
    early = given.options[: given.before] if given.command in options.TOOLS else given.options
    known = all(arg.name in options.KINDS for arg in early)
    if known and (given.command in options.TOOLS or given.inner == "help"):
        return True
    return any(options.is_given(given.options, name) for name in ("help", "version"))


def session_from_args(args: Sequence[str]) -> str | None:
    """The session that the user chose: its id, "" where only Codex can tell (the last, a name, a fork), else None."""
    given = options.parse_args(args)
    if "fork" in (given.command, given.inner):
        return ""
    if "resume" not in (given.command, given.inner):
        return None
    return given.session.lower() if is_session(given.session.lower()) else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    """The prompt among the arguments; `-`, and nothing at all, stand for what comes by stdin."""
    prompt = options.parse_args(args).prompt
    return prompt if prompt not in ("", "-") else None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    return not options.parse_args(args).headless


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = options.parse_args(args)
    program, own = native_program(cli.path)
    # A shared server that runs beside us would run the session, and our hooks with it, out of our reach.
    ours = [
        *run_flags(env),
        *(() if given.headless or options.is_given(given.options, "no-daemon") else ("--no-daemon",)),
    ]
    if isinstance(session, NewSession):
        return Command((program, *ours, *args), own)
    told = session.prompt != ""
    dropped = options.PICKS | {"cd", "image"}
    kept = [(arg, n < given.before) for n, arg in enumerate(given.options) if arg.name not in dropped]
    first = options.to_words(arg for arg, early in kept if early)
    then = options.to_words(arg for arg, early in kept if not early)
    if given.headless:
        words = [*first, "exec", *then, "resume"]
    else:
        # Where it is; else Codex asks, if the session is of another folder, which one to use.
        words = [*first, "resume", *then, "--cd", "."]
    images = [] if told else [f for arg in given.options if arg.name == "image" for f in _image_files(arg.words)]
    words += [word for file in images for word in ("--image", file)]  # last: they would take words for more of them
    prompt = ACT if told else given.prompt
    said = ["--", session.id, prompt] if prompt else ["--", session.id]
    own |= private_index(session.id, env)
    return Command((program, *ours, *words, *said), own, told and given.headless)


def _image_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """Of an image option, however it is spelt."""
    if len(words) > 1:
        return words[1:]
    _, eq, file = words[0].partition("=")
    return (file,) if eq else (words[0][2:],)


def native_program(path: Path) -> tuple[str, dict[str, str]]:
    """The Rust program of an npm installation, and what its launcher adds to the environment."""
    real = path.resolve()
    target = _TRIPLES.get((sys.platform, platform.machine()))
    if real.name != "codex.js" or target is None:
        return str(path), {}
    package, triple = target
    root = real.parents[1]
    places = [folder / "node_modules" / "@openai" / f"codex-{package}" for folder in (root, *root.parents)]
    for vendor in (*(place / "vendor" for place in places), root / "vendor"):
        program = vendor / triple / "bin" / "codex"
        if program.is_file():
            return str(program), {"CODEX_MANAGED_BY_NPM": "1", "CODEX_MANAGED_PACKAGE_ROOT": str(root)}
    return str(path), {}
