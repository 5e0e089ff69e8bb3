"""Codex's command line: its options, the checks before a start, the start or resume, and its last error.

The options are those of `--help` (clap) of the tested version and its subcommands.

`hooks_off_reason` reads Codex's settings and arguments before the start (I5): would the hooks fire, in the folder that
is saved? What only a running Codex knows (cloud policies, a device's management) is left to the handshake.

The native program is started itself, since the launcher on npm may stand between it and signals. The recovery prompt is
not given on the command line, where `!` runs a command and `$x` brings in a skill: `resume.inject_prompt` writes it
into the restored session instead; the command line only asks to act on it.

Codex exits with 1 for every failure of its model. A rate limit with a retry time it waits for by itself, however long.
"""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import ACT, Cli, Command, Env, NewSession, ResumeSession
from wal_agent.agents.codex.hooks import MARKER, SOURCE, run_flags
from wal_agent.agents.codex.session import codex_home, is_session, private_index
from wal_agent.agents.program import (
    Arg,
    Broken,
    Program,
    Syntax,
    cause_from_last_error,
    is_given,
    last_value,
    read_object,
    served_by,
    to_words,
)
from wal_agent.safefs import real_path

SYNTAX = Syntax.of(
    value="""config enable disable remote remote-auth-token-env model local-provider profile sandbox cd add-dir
        ask-for-approval thread-source cyber-access-program output-schema color output-last-message base commit
        title""",
    flag="""strict-config oss approve-for-me dangerously-bypass-approvals-and-sandbox dangerously-bypass-hook-trust
        worktree search no-alt-screen no-daemon help version skip-git-repo-check trust ephemeral ignore-user-config
        ignore-rules json last all include-non-interactive uncommitted""",
    many="image",
    short="""c=config i=image m=model p=profile s=sandbox C=cd a=ask-for-approval o=output-last-message h=help
        V=version""",
)
TALKS = frozenset(("resume", "fork"))  # on a terminal
WORKS = frozenset(("exec", "e", "review"))  # headless
SERVES = frozenset(("agents", "app-server", "exec-server", "remote-control", "mcp-server"))  # sessions of others
_TOOLS = """login logout mcp plugin completion update doctor sandbox debug apply a queue archive delete
    migrate-rollouts migrate-nfs-db unarchive cloud features help"""
TOOLS = frozenset(_TOOLS.split())  # no session of this folder
INNER = frozenset(("resume", "fork", "review", "help"))  # of exec
PICKS = frozenset(
    ["last", "all", "include-non-interactive", "uncommitted", "base", "commit", "title"]
)  # what to resume or review

ETC = Path("/etc/codex")
_NAMES = ("hooks", "codex_hooks")  # the feature, and its older name
_NOTHING = "Nothing was run."
_UNLOGGED = f"so no tool call could be logged. {_NOTHING}"

PROGRAM = Program(
    "codex",
    "@openai/codex",
    # Seen on 0.144.6: no item_completed in its session files.
    (Broken("its sessions do not tell how calls ended, nor that a turn began while hooks are off.", below="0.145.0"),),
)
_TRIPLES = {
    ("linux", "x86_64"): ("linux-x64", "x86_64-unknown-linux-musl"),
    ("linux", "aarch64"): ("linux-arm64", "aarch64-unknown-linux-musl"),
    ("darwin", "x86_64"): ("darwin-x64", "x86_64-apple-darwin"),
    ("darwin", "arm64"): ("darwin-arm64", "aarch64-apple-darwin"),
}

ADAPTER = Program("codex-acp", "@agentclientprotocol/codex-acp")

_LAST = re.compile(rb"^ERROR: (.{1,600})$", re.MULTILINE)
# Of an account without credit ("Quota exceeded. Check your plan") no time makes more.
_WAIT = re.compile(r"hit your usage limit|rate limit|high demand|429 too many requests|at capacity", re.IGNORECASE)
_LONG = re.compile(r"ran out of room in the model's context window", re.IGNORECASE)


class ParsedArgs(msgspec.Struct, frozen=True):
    """A parsed command line. `before`: the number of options before the subcommand. `command` and `inner`: the
    subcommand and that of exec (empty: none). `session` and `prompt`: the words that are it, or ""."""

    options: list[Arg]
    before: int
    command: str
    inner: str
    session: str
    prompt: str

    @property
    def headless(self) -> bool:
        return self.command in WORKS


def parse_args(args: Sequence[str]) -> ParsedArgs:
    given = SYNTAX.read(args)
    said = [arg for arg in given if not arg.name]
    options = [arg for arg in given if arg.name]
    command = inner = session = ""
    before = 0
    if said and said[0].words[0] != "--" and said[0].value in TALKS | WORKS | SERVES | TOOLS:
        before = given.index(said[0])
        command = said.pop(0).value
    if command == "debug" and said and said[0].value == "app-server":  # sends messages too
        command = said.pop(0).value
    if command in ("exec", "e") and said and said[0].words[0] != "--" and said[0].value in INNER:
        inner = said.pop(0).value
    if "resume" in (command, inner) or "fork" in (command, inner):
        newest = is_given(options, "last") and len(said) < 2  # then the one word is the prompt
        session = said.pop(0).value if said and not newest else ""
    return ParsedArgs(options, before, command, inner, session, said[0].value if said else "")


Found = tuple[str, bool]  # the source, and its value


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = parse_args(args)
    return _elsewhere(given, workspace) or _in_the_way(given) or _switched_off(given, workspace, env) or _managed()


def _elsewhere(given: ParsedArgs, workspace: Path) -> str | None:
    if given.command in SERVES:
        return f"`codex {given.command}` serves sessions that wal-agent does not save. {_NOTHING}"
    if last_value(given.options, "remote") is not None:
        return f"--remote runs the session in another process, where wal-agent's hooks do not reach. {_NOTHING}"
    if is_given(given.options, "ephemeral"):
        return f"--ephemeral keeps no session, so there would be nothing to go on with. {_NOTHING}"
    if is_given(given.options, "worktree"):
        return (
            "--worktree makes Codex work in another folder than the one that wal-agent saves. Make the worktree first "
            f"and start wal-agent in it. {_NOTHING}"
        )
    folder = last_value(given.options, "cd")
    if folder is not None and real_path(workspace / folder) != real_path(workspace):
        return f"--cd {folder} is not the folder that wal-agent saves. Start wal-agent in it instead. {_NOTHING}"
    return None


def _in_the_way(given: ParsedArgs) -> str | None:
    for key, _ in _settings(given):
        if key.partition(".")[0].strip("\"' ") == "hooks":
            return (
                f"-c {key} stands where wal-agent's own hooks of this run must stand. Put your hooks into "
                f"~/.codex/hooks.json or config.toml: those run beside them. {_NOTHING}"
            )
    return None


def _switched_off(given: ParsedArgs, workspace: Path, env: Env) -> str | None:
    found: Found | None = None
    for shown, values in _settings_files(given, workspace, env):
        found = _said(shown, values.get("features"), found)
    for key, value in _settings(given):
        group, _, name = key.partition(".")
        if group.strip() == "features":
            found = _said(f"-c {key}", {name.strip("\"' "): value} if name else value, found)
    for word, on in (("enable", True), ("disable", False)):  # in this order, wherever they stand
        for name in (arg.value for arg in given.options if arg.name == word):
            found = (f"--{word} {name}", on) if name in _NAMES else found
    for name in ("managed_config.toml", "requirements.toml"):
        found = _said(str(ETC / name), (_read_toml(ETC / name) or {}).get("features"), found)
    if found is None or found[1]:
        return None
    return f"Codex's hooks are off ({found[0]}: features.hooks is false), {_UNLOGGED}"


def _managed() -> str | None:
    path = ETC / "requirements.toml"
    managed = ETC / "managed_config.toml"  # takes precedence over the command line
    if _ours_disabled((_read_toml(managed) or {}).get("hooks")):
        return f"A hook of wal-agent's own is off ({managed}: hooks.state), {_UNLOGGED}"
    if (_read_toml(path) or {}).get("allow_managed_hooks_only") is True:
        return f"Codex runs no hooks but its administrator's ({path}: allow_managed_hooks_only is true), {_UNLOGGED}"
    return None


def _ours_disabled(hooks: Any) -> bool:
    state = hooks.get("state") if isinstance(hooks, dict) else None
    return isinstance(state, dict) and any(
        key.startswith(f"{SOURCE}:") and isinstance(about, dict) and about.get("enabled") is False
        for key, about in state.items()
    )


def _said(shown: str, features: Any, before: Found | None) -> Found | None:
    for name in _NAMES if isinstance(features, dict) else ():
        value = features.get(name)
        if isinstance(value, bool):
            before = (shown, value)
    return before


def _settings(given: ParsedArgs) -> Iterator[tuple[str, Any]]:
    """Yield each `-c key=value`, in order; a value that is no TOML is text."""
    for arg in given.options:
        if arg.name == "config":
            key, _, text = arg.value.partition("=")
            try:
                yield key.strip(), tomllib.loads(f"value = {text}")["value"]
            except (ValueError, RecursionError, LookupError):
                yield key.strip(), text


def _settings_files(given: ParsedArgs, workspace: Path, env: Env) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the layers, lowest first: the machine's, the user's, the profile's, the project's. A project that is marked
    as not trusted has no effect; an unknown one may be trusted by the time that it counts."""
    home = codex_home(env)
    user = {} if is_given(given.options, "ignore-user-config") else _read_toml(home / "config.toml") or {}
    yield str(ETC / "config.toml"), _read_toml(ETC / "config.toml") or {}
    yield "~/.codex/config.toml", user
    profile = last_value(given.options, "profile")
    if profile and "/" not in profile:
        yield f"~/.codex/{profile}.config.toml", _read_toml(home / f"{profile}.config.toml") or {}
    root = next((p for p in (workspace, *workspace.parents) if (p / ".git").exists()), workspace)
    if any(_untrusted(user, p) for p in (workspace, root)):
        return
    for folder in reversed([p for p in (workspace, *workspace.parents) if p == root or root in p.parents]):
        if folder != home.parent:
            shown = ".codex/config.toml" if folder == workspace else str(folder / ".codex/config.toml")
            yield shown, _read_toml(folder / ".codex" / "config.toml") or {}


def _untrusted(user: dict[str, Any], folder: Path) -> bool:
    projects = user.get("projects")
    about = projects.get(str(folder)) if isinstance(projects, dict) else None
    return isinstance(about, dict) and about.get("trust_level") == "untrusted"


def _read_toml(path: Path) -> dict[str, Any] | None:
    """Read a settings file. None: absent; or damaged, and Codex itself refuses to start."""
    return read_object(path, lambda data: tomllib.loads(data.decode()))


locate = PROGRAM.locate


def passthrough(args: Sequence[str]) -> bool:
    """An unknown option may take the next word, and what looks like a subcommand be the prompt."""
    given = parse_args(args)
    early = given.options[: given.before] if given.command in TOOLS else given.options
    known = all(arg.name in SYNTAX.kinds for arg in early)
    if known and (given.command in TOOLS or given.inner == "help"):
        return True
    return any(is_given(given.options, name) for name in ("help", "version"))


def session_from_args(args: Sequence[str]) -> str | None:
    """Return the chosen session: its id, "" where only Codex knows it (the last, a name, a fork), else None."""
    given = parse_args(args)
    if "fork" in (given.command, given.inner):
        return ""
    if "resume" not in (given.command, given.inner):
        return None
    return given.session.lower() if is_session(given.session.lower()) else ""


def prompt_from_args(args: Sequence[str]) -> str | None:
    """Return the prompt among the arguments; `-`, and nothing at all, mean stdin."""
    prompt = parse_args(args).prompt
    return prompt if prompt not in ("", "-") else None


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    return not parse_args(args).headless


def command(cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env) -> Command:
    given = parse_args(args)
    program, own = native_program(cli.path)
    # A shared background server would run the session and its hooks out of wal-agent's reach.
    ours = [*run_flags(env), *(() if given.headless or is_given(given.options, "no-daemon") else ("--no-daemon",))]
    if isinstance(session, NewSession):
        return Command((program, *ours, *args), own)
    prompted = session.acts
    dropped = PICKS | {"cd", "image"}
    kept = [(arg, n < given.before) for n, arg in enumerate(given.options) if arg.name not in dropped]
    first = to_words(arg for arg, early in kept if early)
    then = to_words(arg for arg, early in kept if not early)
    if given.headless:
        words = [*first, "exec", *then, "resume"]
    else:
        # This folder; else Codex asks, for a session of another folder, which one to use.
        words = [*first, "resume", *then, "--cd", "."]
    images = (
        []
        if session.drops_prompt
        else [f for arg in given.options if arg.name == "image" for f in _image_files(arg.words)]
    )
    words += [word for file in images for word in ("--image", file)]  # last: they would take words for more of them
    prompt = ACT if prompted else "" if session.asked else given.prompt
    named = ["--", session.id, prompt] if prompt else ["--", session.id]
    own |= private_index(session.id, env)
    return Command((program, *ours, *words, *named), own, prompted and given.headless)


def acp_server(cli: Cli, args: Sequence[str], env: Env, folder: Path) -> Command:
    """Codex has no such mode; the protocol's own adapter starts `codex app-server`."""
    program, own = native_program(cli.path)
    flags = run_flags(env) if MARKER in env else ()
    served = served_by(ADAPTER, "CODEX_PATH", [program, *flags, *args], env, folder)
    return Command(served.argv, {**own, **served.env})


def _image_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of an image option, in any spelling."""
    if len(words) > 1:
        return words[1:]
    _, eq, file = words[0].partition("=")
    return (file,) if eq else (words[0][2:],)


def native_program(path: Path) -> tuple[str, dict[str, str]]:
    """Return the Rust program of an npm installation, and what its launcher adds to the environment."""
    real = real_path(path)
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


exit_cause = partial(cause_from_last_error, last=_LAST, waits=_WAIT, too_long=_LONG)
