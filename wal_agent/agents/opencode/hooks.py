"""OpenCode's plugin (hooks/opencode.js): its messages, the answers, its place in one run, and what would keep it out.

The plugin is three files in the run's own folder, made known by OPENCODE_CONFIG_CONTENT (no file of the user's). As
soon as there is any plugin, OpenCode waits for npm to install its plugin package into each of its configuration
folders: 75 s without a network, and files in the user's own. So npm has to stay offline until the plugin runs, unless
the user has plugins or tools of their own, which may need that package.

`hooks_off_reason` reads arguments, environment and configuration before anything is started (I5): would the plugin run?
The options are those of `opencode --help` and `opencode run --help` (yargs) of the tested version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    Decision,
    Env,
    HookEvent,
    HookSetup,
    Injected,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import CLIENT_SECONDS, GONE
from wal_agent.agents.opencode import database, session
from wal_agent.agents.program import Arg, Kind, Syntax, is_given, last_value, to_words
from wal_agent.agents.session_files import InnerId, SessionId, require_object
from wal_agent.errors import ConfigError
from wal_agent.resources import shipped
from wal_agent.safefs import read_plain

__all__ = ["PASS", "SERVERS", "Arg", "is_given", "last_value", "parse_args", "subcommand", "to_words"]


SHELL = "bash"


class _Said(msgspec.Struct):
    session: SessionId


class _Started(_Said):
    source: str = ""


class _Turn(_Said):
    prompt: str = ""


class _Approval(_Said):
    what: str = ""


class _Compact(_Said):
    done: bool = False


class _Tool(_Said):
    tool: str
    call: str
    input: msgspec.Raw
    inner: InnerId = ""


class _Result(msgspec.Struct):
    metadata: dict[str, Any] = {}


class _Ended(_Tool, kw_only=True):
    result: msgspec.Raw
    wrong: bool = False


_RESULT = msgspec_compat.of_json(_Result)
_DECODERS = msgspec_compat.of_events(
    {
        "session": _Started,
        "turn": _Turn,
        "request": _Said,
        "before": _Tool,
        "after": _Ended,
        "approval": _Approval,
        "compacting": _Compact,
        "completed": _Said,
    }
)


def parse(event: str, payload: bytes) -> HookEvent:
    """ValueError when the payload is not what this event carries: the caller then denies."""
    if event not in _DECODERS:
        return OtherEvent(event)
    try:
        said: Any = _DECODERS[event].decode(payload)
        match event:
            case "session":
                return SessionStarted(said.session, said.source)
            case "turn":
                return TurnStarted(said.session, said.prompt)
            case "request":
                return ModelRequest(said.session)
            case "before":
                return ToolStarting(said.session, said.tool, require_object(said.input), said.call, said.inner)
            case "after":
                result = _RESULT.decode(said.result)
                clean = not said.wrong and (said.tool != SHELL or _exit(result) == 0)
                input = require_object(said.input)
                return ToolEnded(said.session, said.tool, input, bytes(said.result), said.wrong, said.call, clean)
            case "approval":
                return AwaitingApproval(said.session, said.what)
            case "compacting":
                return Compacting(said.session, said.done)
            case _:
                return TurnCompleted(said.session)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"{event} hook: {e}") from e


def _exit(result: _Result) -> object:
    code = result.metadata.get("exit")
    return None if isinstance(code, bool) else code


def render(event: str, decision: Decision) -> bytes:
    if isinstance(decision, Allow) or event != "before":
        return b'{"decision":"allow"}'
    return json.dumps({"decision": "deny", "reason": decision.reason, "stop": decision.stop}).encode()


_VALUE = """log-level port hostname mdns-domain model session prompt agent replay-limit command format title attach
    password username dir variant"""
_FLAG = "help version print-logs pure mdns continue fork auto mini no-replay share thinking interactive yolo"

KINDS: dict[str, Kind] = {
    **dict.fromkeys(_VALUE.split(), "value"),
    **dict.fromkeys(_FLAG.split(), "flag"),
    "file": "many",
    "cors": "many",
}
SHORT = {
    "h": "help",
    "v": "version",
    "m": "model",
    "c": "continue",
    "s": "session",
    "f": "file",
    "p": "password",
    "u": "username",
    "i": "interactive",
}
# Those of them that run no model in this folder.
PASS = frozenset(
    [
        "completion",
        "mcp",
        "debug",
        "providers",
        "auth",
        "agent",
        "upgrade",
        "uninstall",
        "models",
        "stats",
        "export",
        "import",
        "session",
        "plugin",
        "plug",
        "db",
    ]
)
# Their sessions are begun by another program, or in another folder.
SERVERS = frozenset(["acp", "attach", "serve", "web", "github", "pr"])

parse_args = Syntax(KINDS, SHORT, yargs=True).read


def subcommand(args: Sequence[str]) -> tuple[str, list[Arg]]:
    """The subcommand ("": the TUI) and all that is given beside its name."""
    given = parse_args(args)
    for i, arg in enumerate(given):
        if not arg.name:
            known = arg.words[0] != "--" and arg.value in {"run", *PASS, *SERVERS}
            return (arg.value, given[:i] + given[i + 1 :]) if known else ("", given)
    return "", given


_LIMIT = 1 << 22
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\Z))|//[^\n\r]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
NO_VALUES = ("", "0", "false", "no", "off")  # OpenCode takes many words for yes
_OWN = ("plugin", "plugins", "tool", "tools")


def parse_jsonc(text: str) -> Any:
    """JSON with comments and trailing commas. ValueError."""
    bare = _COMMENT.sub(lambda m: m[1] or " ", text)
    return json.loads(_COMMA.sub(lambda m: m[1] or "", bare))


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    command, given = subcommand(args)
    if command in SERVERS or last_value(given, "attach") is not None:
        shown = f"opencode {command}" if command in SERVERS else "--attach"
        return (
            f"{shown} works in sessions that another program begins, or in another folder; wal-agent saves those of "
            "`opencode` and `opencode run` in this one. Nothing was run."
        )
    if any(is_given(given, name) for name in ("mini", "interactive")):
        return "OpenCode's --mini and --interactive are not known to wal-agent yet. Nothing was run."
    if is_given(given, "pure") or env.get("OPENCODE_PURE", "").lower() not in NO_VALUES:
        where = "--pure" if is_given(given, "pure") else "OPENCODE_PURE"
        return f"{where} starts OpenCode without plugins, so no tool call could be logged. Nothing was run."
    if env.get("OPENCODE_EXPERIMENTAL_CODE_MODE", "").lower() not in NO_VALUES:
        return (
            "OPENCODE_EXPERIMENTAL_CODE_MODE lets OpenCode run MCP tools inside one call, of which hooks do not tell. "
            "Nothing was run."
        )
    if env.get("OPENCODE_DB") == ":memory:":
        return "OPENCODE_DB keeps the session in memory only, so it could not be saved. Nothing was run."
    return _elsewhere(command, given, workspace)


def _elsewhere(command: str, given: Sequence[Arg], workspace: Path) -> str | None:
    words = [arg.value for arg in given if not arg.name]
    folder = last_value(given, "dir") if command == "run" else next(iter(words), None)
    if not folder or os.path.realpath(workspace / folder) == os.path.realpath(workspace):
        return None
    return (
        f"OpenCode is told to work in {folder}, which is another folder than the one that wal-agent saves. Start "
        "wal-agent there. Nothing was run."
    )


def own_plugins(env: Env) -> bool:
    """Has the user plugins or tools, or configuration that cannot be read to tell?"""
    home = Path(env.get("HOME") or Path.home())
    here = Path(env.get("PWD") or Path.cwd())
    roots = [session.config_home(env), *(folder / ".opencode" for folder in (here, *here.parents)), home / ".opencode"]
    if env.get("OPENCODE_CONFIG_DIR"):
        roots.append(Path(env["OPENCODE_CONFIG_DIR"]))
    files = [root / name for root in roots for name in ("config.json", "opencode.json", "opencode.jsonc")]
    files += [folder / name for folder in (here, *here.parents) for name in ("opencode.json", "opencode.jsonc")]
    if env.get("OPENCODE_CONFIG"):
        files.append(Path(env["OPENCODE_CONFIG"]))
    texts = [env.get("OPENCODE_CONFIG_CONTENT", "").encode(), *(read_plain(f, _LIMIT) or b"" for f in files)]
    return any(_lists_plugins(text) for text in texts) or any(_has_code(root / name) for root in roots for name in _OWN)


def _lists_plugins(text: bytes) -> bool:
    if b"plugin" not in text:
        return False
    try:
        value = parse_jsonc(text.decode())
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, dict) or bool(value.get("plugin"))


def _has_code(folder: Path) -> bool:
    try:
        return any(path.suffix in (".js", ".ts", ".mjs", ".mts") for path in folder.iterdir())
    except OSError:
        return False


CONTENT = "OPENCODE_CONFIG_CONTENT"
OFFLINE = {"npm_config_offline": "true", "npm_config_fetch_retries": "0"}
FOLDER = "opencode"
# Also against a `.env` of the workspace, and OPENCODE_EXPERIMENTAL: code mode follows it where nothing is said.
PLAIN = {"OPENCODE_PURE": "0", "OPENCODE_EXPERIMENTAL_CODE_MODE": "0"}


def inject(setup: HookSetup, env: Env) -> Injected:
    if lacks := database.schema_problem(session.database_path(env)):
        raise ConfigError(
            f"OpenCode's database {session.database_path(env)} is not as wal-agent knows it: it lacks {lacks}. "
            "No session in it could be saved.",
            "If it is an old one, start `opencode` once by itself: that brings it up to date.",
        )
    session.clear_dead_locks(env)
    folder = setup.run_dir / FOLDER
    offline = {} if own_plugins(env) else {k: v for k, v in OFFLINE.items() if k not in env}
    told = {
        "socket": str(setup.run_dir / "hook.sock"),
        "run": setup.run,
        "skip": list(setup.skip),
        "seconds": CLIENT_SECONDS[False],
        "firm_seconds": CLIENT_SECONDS[True],
        "clear": sorted(offline),
        "gone": GONE,
        "owner": str(folder / "owner"),
        "users": env.get(CONTENT, ""),
    }
    plugin = shipped("hooks/opencode.js").read_text().replace('"@SETUP@"', _literal(told))
    files = {"wire.js": shipped("hooks/wire.js").read_text(), "wal-agent.js": plugin, "protocol.md": setup.protocol}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as e:
        raise ConfigError(f"OpenCode's plugin could not be placed in {folder}: {e.strerror or e}.") from e
    return Injected(env={CONTENT: config_content(env.get(CONTENT, ""), folder), **PLAIN, **offline})


def config_content(users: str, folder: Path) -> str:
    """The user's own value of the variable with the plugin and the protocol behind what it lists; the plugin is the
    last of all, so it sees each call as the others left it. ConfigError when it is no JSON."""
    try:
        value: Any = parse_jsonc(users) if users.strip() else {}
    except ValueError as e:
        raise ConfigError(f"{CONTENT} is not what OpenCode could read: {e}.") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{CONTENT} holds no JSON object.")
    ours = {"plugin": (folder / "wal-agent.js").as_uri(), "instructions": str(folder / "protocol.md")}
    for key, one in ours.items():
        listed = value.get(key, [])
        if not isinstance(listed, list):
            raise ConfigError(f"{CONTENT}: {key} is no list.")
        value[key] = [*(item for item in listed if item != one), one]
    return json.dumps(value, ensure_ascii=False)


def _literal(value: object) -> str:
    """A JavaScript string literal of its JSON. Without raw U+2028, which older readers take for a line's end."""
    return re.sub("[\u2028\u2029]", lambda m: f"\\u{ord(m[0]):04x}", json.dumps(json.dumps(value)))
