"""OpenCode's command line: its options, the checks before a start, the start or resume, and its last error.

The options are those of `--help` and `run --help` (yargs) of the tested versions of all editions. `hooks_off_reason`
reads arguments and environment before anything is started (I5): would the plugin run?

OpenCode chooses the ids of new sessions by itself; a hook reports them. `opencode run` rewrites a prompt (quotes around
blanks; a word that is a number ends it with an error), and the TUI takes one only for a new session. So the plugin
sends the recovery prompt (hooks/opencode.js); the command line only holds its place.

OpenCode exits with 1 when it gives up on its model. A rate limit with a retry time it waits for by itself, however
long.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wal_agent.agents.base import ACT, Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.opencode import resume
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.program import Arg, Syntax, cause_from_last_error, is_given, last_value, to_words
from wal_agent.safefs import real_path

SYNTAX = Syntax.of(
    value="""log-level port hostname mdns-domain model session prompt agent replay-limit command format title attach
        password username dir variant worktree""",
    flag="""help version print-logs pure mdns continue fork cloud-fork auto mini no-replay share thinking interactive
        yolo""",
    many="file cors",
    short="h=help v=version m=model c=continue s=session f=file p=password u=username i=interactive",
    yargs=True,
)
# Subcommands that run no model in this folder.
_PASSES = (
    """completion mcp debug providers auth agent upgrade uninstall models stats export import session plugin plug db"""
)
PASSES = frozenset(_PASSES.split())
# Another program begins their sessions, or they are in another folder.
SERVES = frozenset(("acp", "attach", "serve", "web", "github", "pr"))
NO_VALUES = ("", "0", "false", "no", "off")  # OpenCode takes many words for yes

SAY = "WAL_AGENT_OPENCODE_SAY"
_SESSION = frozenset(("session", "continue", "fork", "cloud-fork"))
_PROMPT = frozenset(("", "prompt", "command", "file", "title"))

_LAST = re.compile(rb"^(?:\x1b\[\d+m)*Error: (?:\x1b\[\d+m)*(.{1,600})$", re.MULTILINE)
_LONG = re.compile(r"context window|context length|prompt is too long", re.IGNORECASE)
_WAIT = re.compile(r"rate limit|too many requests|overloaded|usage limit", re.IGNORECASE)


def subcommand(edition: Edition, args: Sequence[str]) -> tuple[str, list[Arg]]:
    """Return the subcommand ("": the TUI) and all arguments beside its name."""
    given = SYNTAX.read(args)
    for i, arg in enumerate(given):
        if not arg.name:
            known = arg.words[0] != "--" and arg.value in {"run", *PASSES, *SERVES, *edition.passes, *edition.serves}
            return (arg.value, given[:i] + given[i + 1 :]) if known else ("", given)
    return "", given


def hooks_off_reason(edition: Edition, args: Sequence[str], workspace: Path, env: Env) -> str | None:
    why = _hooks_off(edition, args, workspace, env)
    return why and f"{why} Nothing was run."


def _hooks_off(edition: Edition, args: Sequence[str], workspace: Path, env: Env) -> str | None:
    command, given = subcommand(edition, args)
    name, title, serves = edition.name, edition.title, {*SERVES, *edition.serves}
    pure, code_mode, database = map(edition.variable, ("PURE", "EXPERIMENTAL_CODE_MODE", "DB"))
    if command in serves or last_value(given, "attach") is not None:
        if command == "acp":
            return f"`{name} acp` takes its sessions from an editor: start `wal-agent acp {name}`."
        shown = f"{name} {command}" if command in serves else "--attach"
        return (
            f"{shown} works in sessions that another program begins, or in another folder; wal-agent saves those of "
            f"`{name}` and `{name} run` in this one."
        )
    if any(is_given(given, option) for option in ("mini", "interactive")):
        return f"{title}'s --mini and --interactive are not known to wal-agent yet."
    if is_given(given, "pure") or env.get(pure, "").lower() not in NO_VALUES:
        where = "--pure" if is_given(given, "pure") else pure
        return f"{where} starts {title} without plugins, so no tool call could be logged."
    if env.get(code_mode, "").lower() not in NO_VALUES:
        return f"{code_mode} lets {title} run MCP tools inside one call, of which hooks do not tell."
    if env.get(database) == ":memory:":
        return f"{database} keeps the session in memory only, so it could not be saved."
    words = [arg.value for arg in given if not arg.name]
    folder = last_value(given, "dir") if command == "run" else next(iter(words), last_value(given, "worktree"))
    if not folder or os.path.realpath(workspace / folder) == os.path.realpath(workspace):
        return None
    return f"{title} would work in {folder}, but wal-agent saves another folder. Start wal-agent there."


def passthrough(edition: Edition, args: Sequence[str]) -> bool:
    command, given = subcommand(edition, args)
    return command in (*PASSES, *edition.passes) or any(is_given(given, name) for name in ("help", "version"))


def session_from_args(edition: Edition, args: Sequence[str]) -> str | None:
    given = subcommand(edition, args)[1]
    if is_given(given, "fork") or is_given(given, "cloud-fork"):
        return ""
    if (chosen := last_value(given, "session")) is not None:
        return chosen
    return "" if is_given(given, "continue") else None


def prompt_from_args(edition: Edition, args: Sequence[str]) -> str | None:
    command, given = subcommand(edition, args)
    if command != "run":
        return last_value(given, "prompt") or None
    prompt = " ".join(arg.value for arg in given if not arg.name)
    if (name := last_value(given, "command")) is not None:
        prompt = f"/{name} {prompt}".strip()
    return prompt or None


def is_interactive(edition: Edition, args: Sequence[str], tty: bool, env: Env) -> bool:
    command, given = subcommand(edition, args)
    if command == "run":
        return is_given(given, "interactive") or is_given(given, "mini")
    return True


def command(
    edition: Edition,
    cli: Cli,
    args: Sequence[str],
    session: NewSession | ResumeSession,
    interactive: bool,
    env: Env,
) -> Command:
    word, given = subcommand(edition, args)
    # It prefers the folder in PWD to the one that it is started in.
    more = {"PWD": ""} if "PWD" in env else {}
    ours: list[str] = []
    behind: list[str] = []
    prompted = isinstance(session, ResumeSession) and session.acts
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in _SESSION]
        known = resume.resumable(edition, session.id, Path(), env)  # else only the prompt: its session was not saved
        ours = ["--session", session.id] if known else []
        if prompted and word == "run":
            given = [arg for arg in given if arg.name not in _PROMPT]
            behind = ACT.split(" ")
            more[SAY] = json.dumps({"text": session.prompt}, ensure_ascii=False)
        elif session.asked:
            given = [arg for arg in given if arg.name not in (_PROMPT if word == "run" else ("prompt",))]
            if session.prompt:
                more[SAY] = json.dumps({"text": session.prompt, "front": True}, ensure_ascii=False)
        elif prompted:
            given = [arg for arg in given if arg.name != "prompt"]
            if known:
                more[SAY] = json.dumps(
                    {"session": session.id, "text": session.prompt, "send": True}, ensure_ascii=False
                )
            else:
                ours = [f"--prompt={session.prompt}"]
    head = [word] if word else []
    argv = (str(_native_program(edition, cli.path)), *head, *ours, *to_words(given), *behind)
    return Command(argv, more, prompted and word == "run")


def _native_program(edition: Edition, path: Path) -> Path:
    """Return the program that an npm script would start: without the script one process gets the signals."""
    found = real_path(path).with_name(edition.native) if edition.native else path
    return found if found.is_file() else path


exit_cause = partial(cause_from_last_error, last=_LAST, waits=_WAIT, too_long=_LONG)
