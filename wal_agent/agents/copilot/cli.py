"""Copilot's command line: its options, the checks before a start, the start or resume, and its last error.

The options are those of `copilot --help` (clap) of the tested version, and the hidden ones.

`hooks_off_reason` reads the arguments and the project's settings before anything is started (I5): would the hooks fire?
What only a running Copilot can know (settings that an administrator sends) is left to the handshake.

The version that runs: Copilot's program hands over to the newest complete one that it finds unpacked, unless it is told
not to. It is found here as its loader does it, but without a start; arguments that choose a version are ignored.

A new session gets an id from wal-agent. Copilot hands a prompt of its command line on byte for byte, with the time
before it; only one that begins with the name of a command of its own (`/compact`) is taken for that, so it gets a
title.

Copilot exits with 1 for every failure of its model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from wal_agent.agents.base import Cli, Command, Env, ExitCause, NewSession, ResumeSession
from wal_agent.agents.copilot.hooks import PLUGIN, SESSION, platform_builds, program_caches
from wal_agent.agents.copilot.session import resumable
from wal_agent.agents.hook_line import mcp_args
from wal_agent.agents.program import (
    TOO_LONG,
    Program,
    Syntax,
    cause_from_last_error,
    effective_setting,
    last_value,
    read_layers,
    read_object,
    starts_no_session,
    to_words,
)
from wal_agent.safefs import real_path

SYNTAX = Syntax.of(
    value="""interactive prompt model reasoning-effort context auto-tier agent name session-id log-dir log-level
        extension-sdk-path stream output-format add-dir attachment disable-mcp-server add-github-mcp-toolset
        add-github-mcp-tool plugin-dir additional-mcp-config mcp-github-auth max-autopilot-continues mode directory
        environment-host environment-compute-id dynamic-retrieval enable-mcp-server max-ai-credits usage-output-file""",
    maybe="resume connect share bash-env mouse worktree",
    many="allow-tool deny-tool available-tools excluded-tools secret-env-vars allow-url deny-url",
    short="C=directory h=help i=interactive n=name p=prompt r=resume s=silent v=version",
)
_COMMANDS = """app login help init config update version workflow sessions memories plugin mcp skill instruction lsp
    sandbox completion"""
COMMANDS = frozenset(_COMMANDS.split())
NO_SESSION = frozenset(("version", "help"))
SESSION_OPTIONS = frozenset(("resume", "continue", "session-id"))
PROMPT_OPTIONS = frozenset(("prompt", "interactive", "attachment"))
FIRST = frozenset(("name", "trust-folder"))
"""Copilot takes these only where a session begins, and then refuses `--resume` beside them."""
ELSEWHERE = ("acp", "server", "headless", "connect", "environment-host", "worktree", "directory")

parse_args = SYNTAX.read


# Lowest first. Copilot reads them of the folder that it works in, not of those above, once that is trusted; the user's
# own `disableAllHooks` leaves the hooks of a plugin alone.
_FILES = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".github/copilot/settings.json",
    ".github/copilot/settings.local.json",
)
_WHY = {
    "directory": "-C makes Copilot work in another folder than the one that wal-agent saves. Start wal-agent there.",
    "worktree": "--worktree makes Copilot work in another folder than the one that wal-agent saves. Make the worktree "
    "first and start wal-agent in it.",
    "acp": "Copilot in ACP mode takes its sessions from an editor: start `wal-agent acp copilot`.",
    "connect": "--connect joins a session on another machine, where wal-agent's hooks do not run.",
}
_SERVED = "Copilot as a server takes its sessions from others; wal-agent does not save those."

_NUMBER = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([^+]+))?", re.ASCII)
PROGRAM = Program("copilot", "@github/copilot")
TITLE = "[wal-agent recovery]\n"
_LAST = re.compile(rb"(?:^|Last error: )((?:429|5\d\d) .{1,600})$", re.MULTILINE)
_LONG = b"The provider rejected the prompt as too long"


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    for name in ELSEWHERE:
        if last_value(given, name) is not None:
            return f"{_WHY.get(name, _SERVED)} Nothing was run."
    found = effective_setting(read_layers(*((f, workspace / f) for f in _FILES)), "disableAllHooks")
    if found is None or found[1] is not True:
        return None
    return (
        f"Copilot's hooks are off in this project ({found[0].shown}: disableAllHooks is true), "
        "so no tool call could be logged. Nothing was run."
    )


VersionOrder = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]


def running_version(installed: str, env: Env) -> str:
    """Return the version that a start hands over to; `installed` where it runs itself."""
    given = env.get("COPILOT_CLI_DIST_DIR")
    if given and os.access(Path(given) / "index.js", os.R_OK):
        return _printed_version(Path(given)) or installed
    own = version_order(installed)
    if own is None or env.get("COPILOT_AUTO_UPDATE", "").lower() == "false":
        return installed
    newer: list[tuple[VersionOrder, Path]] = []
    for cache in program_caches(env):
        for build in ("universal", *platform_builds()):
            try:
                folders = list((cache / "pkg" / build).iterdir())
            except OSError:
                continue
            newer += [
                (at, f) for f in folders if (at := version_order(f.name)) is not None and at > own and _complete(f)
            ]
    return _printed_version(max(newer)[1]) or max(newer)[1].name if newer else installed


def version_order(version: str) -> VersionOrder | None:
    """Return a key that compares versions as npm does; None for what is no version."""
    found = _NUMBER.match(version)
    if found is None:
        return None
    parts = found[4].split(".") if found[4] else []
    early = tuple((False, int(p), "") if re.fullmatch(r"[0-9]{1,99}", p) else (True, 0, p) for p in parts)
    return tuple(map(int, found.groups()[:3])), not parts, early


def _complete(folder: Path) -> bool:
    files = _manifest(folder).get("files")
    needed = ("app.js", "cli-main.js") if isinstance(files, list) and "cli-main.js" in files else ()
    return all(os.access(folder / name, os.R_OK) for name in ("index.js", *needed))


def _printed_version(folder: Path) -> str:
    version = _manifest(folder).get("version")
    return version if isinstance(version, str) else ""


def _manifest(folder: Path) -> dict[str, object]:
    return read_object(folder / "package.json") or {}


def locate(env: Env) -> Cli:
    found = PROGRAM.locate(env)
    return replace(found, version=running_version(found.version, env))


def passthrough(args: Sequence[str]) -> bool:
    return starts_no_session(parse_args(args), COMMANDS, NO_SESSION)


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only Copilot knows it (the last one, a name), else None."""
    given = parse_args(args)
    for name in ("session-id", "resume"):
        if (chosen := last_value(given, name)) is not None:
            return chosen if SESSION.fullmatch(chosen) else ""
    return "" if last_value(given, "continue") is not None else None


def prompt_from_args(args: Sequence[str]) -> str | None:
    given = parse_args(args)
    return last_value(given, "prompt") or last_value(given, "interactive") or None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    return tty and last_value(parse_args(args), "prompt") is None


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    ours = ["--plugin-dir", env[PLUGIN]] if env.get(PLUGIN) else []
    ours += mcp_args(env, "--allow-tool=wal-agent")
    if isinstance(session, NewSession):
        # With --trust-folder it takes no id: the handshake reports it.
        if session.id and not any(arg.name in SESSION_OPTIONS or arg.name == "trust-folder" for arg in given):
            ours += ["--session-id", session.id]
        return Command((str(native_program(cli.path)), *ours, *to_words(given)), {})
    prompted = session.acts
    left_out = SESSION_OPTIONS | FIRST | (PROMPT_OPTIONS if session.drops_prompt else frozenset())
    given = [arg for arg in given if arg.name not in left_out]
    # Without a session only the prompt tells the agent what happened: its own was not saved.
    known = resumable(session.id, Path(), env)
    ours += [f"--resume={session.id}"] if known else ["--session-id", session.id]
    if prompted:
        ours += [f"--{'interactive' if interactive else 'prompt'}={prompt_argument(session.prompt)}"]
    # Else it would change to the folder where the session was, if this machine has such a folder too.
    stay = {"COPILOT_DISABLE_RESUME_AUTO_CD": "1"}
    return Command((str(native_program(cli.path)), *ours, *to_words(given)), stay, prompted and not interactive)


def prompt_argument(prompt: str) -> str:
    """Return the prompt as an argument that Copilot takes for nothing else."""
    prompt = prompt.replace("\0", "\ufffd")
    return TITLE + prompt if not prompt.strip() or prompt.lstrip()[0] in "/!?#&" else prompt


def native_program(program: Path) -> Path:
    """Return the binary that npm's loader would start: without the loader one process gets the signals."""
    loader = real_path(program)
    if loader.name != "npm-loader.js":
        return program
    for build in platform_builds():
        for folder in loader.parents:
            found = folder / "node_modules" / "@github" / f"copilot-{build}" / "copilot"
            if found.is_file():
                return found
    return program


def exit_cause(stderr: bytes, now: float) -> ExitCause | None:
    return TOO_LONG if _LONG in stderr else cause_from_last_error(stderr, now, last=_LAST)
