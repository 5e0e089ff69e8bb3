"""Start any command: as it was typed, and to continue, with the words of `[generic] resume`.

The recovery prompt is also put into a file that WAL_AGENT_RECOVERY_PROMPT names, so that a command without such words
can read it. The command is always the one that was typed for this start: data in a bucket never chooses a program.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wal_agent.agents.base import Cli, Command, Env, HookSetup, Injected, NewSession, ResumeSession
from wal_agent.agents.generic.session import load_settings, note_path, user_file
from wal_agent.errors import ConfigError

PROMPT = "WAL_AGENT_RECOVERY_PROMPT"  # the path of the recovery prompt; empty, or not set, where there is none
SESSION = "WAL_AGENT_SESSION"
SOCKET = "WAL_AGENT_SOCKET"  # its folder is the run's own
MAX_WORD = 120_000  # bytes; Linux takes no argument over 128 KiB
_HOLE = re.compile(r"\{(prompt|session)\}")


def start_problem(args: Sequence[str], env: Env) -> str | None:
    """Return why these words cannot be started, in a sentence, or None."""
    if not args:
        return "generic has no command to run. Name it: wal-agent run generic -- aider --yes"
    if shutil.which(args[0], path=env.get("PATH", os.defpath)) is None:
        return f"{args[0]} was not found on PATH, so there is nothing to run."
    return None


def locate(env: Env) -> Cli:
    """Return no program: each start names its own."""
    return Cli(Path(os.devnull), "")


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    load_settings(workspace, env)
    return start_problem(args, env)


def start_lines(workspace: Path, env: Env) -> list[str]:
    given = load_settings(workspace, env)
    saved = "the session files and this folder's are saved" if given.session else "only this folder's files are saved"
    again = "the command resumes its session"
    if given.resume is None:
        again = f"the command starts again unchanged, with the recovery notice in the file that {PROMPT} names"
    lacks = [name for name, value in (("session", given.session), ("resume", given.resume)) if not value]
    more = f" More: [generic] {' and '.join(lacks)} in {user_file(env)}." if lacks else ""
    said = f"no tool call is logged before it runs, so nothing is known of one that a crash cuts off; {saved}"
    return [f"generic: {said}; after a crash {again}.{more}"]


def inject(setup: HookSetup, env: Env) -> Injected:
    return Injected(paths=(prompt_folder(setup.run_dir),))


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    if problem := start_problem(args, env):
        raise ConfigError(problem)
    more = {SESSION: session.id}
    if env.get(PROMPT):
        more[PROMPT] = ""  # of a run around this one
    words: tuple[str, ...] = ()
    if isinstance(session, ResumeSession):
        if session.prompt and (path := _hand_over(session.prompt, env)) is not None:
            more[PROMPT] = str(path)
        if note_path(session.id, env).is_file():  # else nothing of the session was saved: the task begins again
            words = load_settings(Path.cwd().resolve(), env).resume or ()
    return Command((*args, *(_filled(word, session) for word in words)), more)


def _filled(word: str, session: NewSession | ResumeSession) -> str:
    values = {"session": session.id, "prompt": session.prompt if isinstance(session, ResumeSession) else ""}
    filled = _HOLE.sub(lambda hole: values[hole[1]], word)
    if len(filled.encode("utf-8", "replace")) > MAX_WORD:
        raise ConfigError(f"The recovery prompt is too long for a command line ({len(filled)} characters).")
    return filled


def prompt_folder(run_dir: Path) -> Path:
    """Return the folder of the prompt's file; it is removed with the run."""
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
