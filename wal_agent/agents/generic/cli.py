"""Starting a command that we know nothing of: as it was typed, and to go on, with the words of `[generic] resume`.

The recovery prompt is also put into a file that WAL_AGENT_RECOVERY_PROMPT names, so that a command without such words
can have it. The command is always the one that was typed for this start: what stands in a bucket never chooses a
program.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wal_agent.agents.base import Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.generic import session as files
from wal_agent.agents.generic import settings
from wal_agent.errors import ConfigError

PROMPT = "WAL_AGENT_RECOVERY_PROMPT"  # the path of the recovery prompt; empty, or not set, where there is none
SESSION = "WAL_AGENT_SESSION"
SOCKET = "WAL_AGENT_SOCKET"  # it lies in the run's own folder
MOST_WORD = 120_000  # bytes; Linux takes no argument over 128 KiB
_HOLE = re.compile(r"\{(prompt|session)\}")


def start_problem(args: Sequence[str], env: Env) -> str | None:
    """Why these words cannot be started, in a sentence."""
    if not args:
        return "generic has no command to run. Name it: wal-agent run generic -- aider --yes"
    if shutil.which(args[0], path=env.get("PATH", os.defpath)) is None:
        return f"{args[0]} was not found on PATH, so there is nothing to run."
    return None


def locate() -> Cli:
    """There is no one program; each start names its own."""
    return Cli(Path(os.devnull), "")


def command(args: Sequence[str], session: NewSession | ResumeSession, env: Env) -> Command:
    if problem := start_problem(args, env):
        raise ConfigError(problem)
    more = {SESSION: session.id}
    if env.get(PROMPT):
        more[PROMPT] = ""  # of a run around this one
    words: tuple[str, ...] = ()
    if isinstance(session, ResumeSession):
        if session.prompt and (path := _hand_over(session.prompt, env)) is not None:
            more[PROMPT] = str(path)
        if files.note_path(session.id, env).is_file():  # else nothing of the session was saved: the task begins again
            words = settings.load_settings(Path.cwd().resolve(), env).resume or ()
    return Command((*args, *(_filled(word, session) for word in words)), more)


def _filled(word: str, session: NewSession | ResumeSession) -> str:
    values = {"session": session.id, "prompt": session.prompt if isinstance(session, ResumeSession) else ""}
    filled = _HOLE.sub(lambda hole: values[hole[1]], word)
    if len(filled.encode("utf-8", "replace")) > MOST_WORD:
        raise ConfigError(f"The recovery prompt is too long for a command line ({len(filled)} characters).")
    return filled


def prompt_folder(run_dir: Path) -> Path:
    """Where the prompt's file is; it goes with the run."""
    return run_dir / "recovery"


def _hand_over(prompt: str, env: Env) -> Path | None:
    if not env.get(SOCKET):
        return None
    path = prompt_folder(Path(env[SOCKET]).parent) / "prompt.md"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(prompt.encode("utf-8", "surrogatepass"))
    return path
