"""pi's command line: its options, the checks before a start, the start or resume, and its last error.

The options are read as pi itself reads them (1.6: cli/args.js), which is like no other parser: no `--name=value` for
its own options, letters in twos and threes, `-p` takes the next word, and so does any long option that it does not
know. Behind `--` are only messages and files.

`hooks_off_reason` reads what would keep a run from being saved before anything is started (I5). No setting keeps an
extension of the command line from being loaded, `--no-extensions` neither, and without it pi does not start; so this is
about where its sessions go.

A new session's id is pi's own, but for `--session-id`: the handshake reports it. The recovery prompt is not given on
the command line: there `@` and `-` at its beginning are pi's, and `/` may be an extension's command.
`resume.inject_prompt` writes it into the session, as the user's last message; the command line only asks to act on it.

pi exits with 1 when it gives up on its model. For a conversation that is too long it prints nothing, and exits with 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wal_agent.agents.base import ACT, Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.pi import session
from wal_agent.agents.pi.hooks import MARKER
from wal_agent.agents.program import Arg, Broken, Program, cause_from_last_error, last_value, to_words
from wal_agent.safefs import real_path

COMMANDS = ("install", "remove", "uninstall", "update", "list", "config", "auth", "mcp")
NO_SESSION = ("help", "version", "export", "list-models")
SESSION_OPTIONS = ("session", "session-id", "continue", "resume", "fork")
PROMPT, FILE = "", "@"  # names of words that are no options: a message; a file that becomes part of one

_LETTERS = """h=help v=version p=print c=continue r=resume t=tools e=extension nt=no-tools nbt=no-builtin-tools
    ne=no-extensions ns=no-skills np=no-prompt-templates nc=no-context-files n=name xt=exclude-tools a=approve
    na=no-approve"""
_SHORT = dict(each.split("=") for each in _LETTERS.split())
_VALUE = {
    *("mode", "provider", "model", "api-key", "system-prompt", "append-system-prompt", "session", "fork"),
    *("session-dir", "models", "tools", "thinking", "export", "extension", "skill", "prompt-template", "theme"),
    *("session-id", "name", "exclude-tools", "use-theme", "tui-mode"),
}
_FLAG = {*_SHORT.values(), "no-session", "no-themes", "no-mcp", "verbose", "offline"} - _VALUE - {"print"}

_LATE = "it does not wait for its extensions at the end of a turn, so a turn that is complete may look cut off."
PROGRAM = Program("pi", "@earendil-works/pi-coding-agent", (Broken(_LATE, below="1.0.0"),))
FLAG = "--wal-agent"  # without wal-agent's extension, pi does not know it and does not start
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_LAST = re.compile(rb"^(\S.{0,600})\s*\Z", re.MULTILINE)
# A provider that is away for a while, or cut its answer off.
_WAIT = re.compile(
    r"\A(?:429|5\d\d) |stream ended (?:before|without)|\Aterminated\b|connection (?:error|lost|closed|refused)"
    r"|fetch failed|socket hang up|\bE(?:CONN[A-Z]+|TIMEDOUT|PIPE|AI_AGAIN)\b",
    re.IGNORECASE,
)


def parse_args(args: Sequence[str]) -> list[Arg]:
    out: list[Arg] = []
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            out += [Arg(FILE if rest[:1] == FILE else PROMPT, rest, ("--", rest)) for rest in args[at + 1 :]]
            break
        following = args[at + 1] if at + 1 < len(args) else None
        name, taken = _parse_one(word, following)
        value = word if name in (PROMPT, FILE) else ""
        if taken and following is not None:
            out.append(Arg(name, following, (word, following)))
        else:
            out.append(Arg(name, value, (word,)))
        at += 1 + taken
    return out


def _parse_one(word: str, following: str | None) -> tuple[str, bool]:
    """Return the name of the option that the word is, and whether it takes the following one."""
    if word.startswith("@"):
        return FILE, False
    if not word.startswith("-"):
        return PROMPT, False
    long = word[2:] if word.startswith("--") else _SHORT.get(word[1:], "")
    if not long and not word.startswith("--"):
        return "?", False  # pi refuses to start
    if long == "print":
        takes = following is not None and following[:1] != "@" and (following[:1] != "-" or following[:3] == "---")
        return long, takes
    if long in _FLAG:
        return long, False
    if long in _VALUE and following is not None:
        return long, True
    if "=" in long:
        return "?", False  # some extension's
    takes = following is not None and following[:1] not in ("-", "@")
    return (long if long == "list-models" else "?"), takes


def output_mode(given: Sequence[Arg]) -> str | None:
    """Return the last valid mode: pi ignores others."""
    return next((a.value for a in reversed(given) if a.name == "mode" and a.value in ("text", "json", "rpc")), None)


def prompt_words(given: Sequence[Arg]) -> list[str]:
    """Return the words that make up the prompt, in order."""
    return [arg.value for arg in given if arg.name in (PROMPT, FILE) or (arg.name == "print" and len(arg.words) > 1)]


def without_prompt(given: Sequence[Arg]) -> list[Arg]:
    return [
        Arg("print", "", arg.words[:1]) if arg.name == "print" else arg
        for arg in given
        if arg.name not in (PROMPT, FILE)
    ]


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    if last_value(given, "no-session") is not None:
        return "--no-session keeps pi from saving its session, so nothing could be resumed. Nothing was run."
    if output_mode(given) == "rpc":
        return "pi in RPC mode takes its orders from another program; wal-agent does not save those. Nothing was run."
    if last_value(given, "session-dir") is not None:
        return (
            "--session-dir puts pi's session where wal-agent does not look. Set PI_CODING_AGENT_SESSION_DIR to an "
            "absolute path instead. Nothing was run."
        )
    if not session.is_id(last_value(given, "session-id") or "new"):
        return "--session-id takes letters, digits, -, _ and . within, at most 128. Nothing was run."
    return _moved_folder(workspace, env) or _other_folder(last_value(given, "session"), workspace, env)


def _moved_folder(workspace: Path, env: Env) -> str | None:
    own = session.own_folder(env)
    if own is not None and not own.is_absolute():
        return f"pi's folder for sessions ({own}) is not an absolute path: give one. Nothing was run."
    project = workspace / ".pi" / "settings.json"
    if not env.get("PI_CODING_AGENT_SESSION_DIR") and session.read_settings(project).get("sessionDir"):
        return (
            "The project puts pi's sessions where wal-agent does not look (.pi/settings.json: sessionDir). Set "
            "PI_CODING_AGENT_SESSION_DIR to an absolute path, which goes before it. Nothing was run."
        )
    return None


def _other_folder(chosen: str | None, workspace: Path, env: Env) -> str | None:
    """Refuse another folder's session that is named by its path: pi would work in that folder, wherever it starts."""
    if chosen is None or not ("/" in chosen or "\\" in chosen or chosen.endswith(".jsonl")):
        return None
    path = workspace / chosen
    if real_path(path.parent) != real_path(session.workspace_sessions(workspace, env)):
        return f"The session {chosen} is not in this project's folder of pi's sessions. Nothing was run."
    cwd = session.read_head(path).get("cwd")
    if isinstance(cwd, str) and cwd != str(workspace):
        return f"The session {chosen} belongs to {cwd}: start wal-agent there. Nothing was run."
    return None


locate = PROGRAM.locate


def passthrough(args: Sequence[str]) -> bool:
    return (len(args) > 0 and args[0] in COMMANDS) or any(a.name in NO_SESSION for a in parse_args(args))


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only pi knows it (the newest, a path, a part of an id), else None."""
    given = parse_args(args)
    if not any(arg.name in SESSION_OPTIONS for arg in given):
        return None
    if any(arg.name == "fork" for arg in given):
        return ""
    whole, maybe = last_value(given, "session-id") or "", last_value(given, "session") or ""
    return whole if session.is_id(whole) else maybe if _ID.fullmatch(maybe) else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    return "\n\n".join(prompt_words(parse_args(args))) or None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    given = parse_args(args)
    return tty and not any(a.name == "print" for a in given) and output_mode(given) not in ("json", "rpc")


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    ours: list[str] = []
    prompted = isinstance(session, ResumeSession) and session.acts
    if isinstance(session, ResumeSession):
        given = [arg for arg in given if arg.name not in SESSION_OPTIONS]
        ours = ["--session", session.id]
        if session.drops_prompt:
            given = without_prompt(given)
        if prompted:
            ours.append(ACT)  # in front: behind an option of an extension's it would be taken for its value
    argv = (str(cli.path), *ours, *to_words(_with_hooks(given, env[MARKER])))
    return Command(argv, {}, prompted and not interactive)


def _with_hooks(given: list[Arg], extension: str) -> list[Arg]:
    """Insert wal-agent's extension behind the user's own `-e`, whose extensions may rewrite calls before they are
    logged; else in front of all: a last option without its value would take it."""
    at = max((n + 1 for n, arg in enumerate(given) if arg.name == "extension"), default=0)
    ours = [Arg("?", "", (FLAG,)), Arg("extension", extension, ("-e", extension))]  # the flag takes no word that is one
    return [*given[:at], *ours, *given[at:]]


exit_cause = partial(cause_from_last_error, last=_LAST, waits=_WAIT)
