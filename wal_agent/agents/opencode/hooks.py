"""OpenCode's plugin (hooks/opencode.js): its messages, the answers, and its place in one run.

The plugin is three files in the run's own folder, made known by OPENCODE_CONFIG_CONTENT (no file of the user's). As
soon as there is any plugin, OpenCode waits for npm to install its plugin package into each of its configuration
folders: 75 s without a network, and files in the user's own. So npm has to stay offline until the plugin runs, unless
the user has plugins or tools of their own, which may need that package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents import base
from wal_agent.agents.base import Allow, Decision, Env, HookSetup, Injected, McpServer
from wal_agent.agents.hook_line import CLIENT_SECONDS, GONE, MCP_NAME, on, parser
from wal_agent.agents.opencode import database, session
from wal_agent.agents.opencode.edition import Edition
from wal_agent.agents.program import without_comments
from wal_agent.agents.session_files import InnerId, SessionId, require_object
from wal_agent.errors import ConfigError
from wal_agent.paths import shipped, user_home
from wal_agent.safefs import read_plain

SHELL = "bash"

_LIMIT = 1 << 22  # bytes of a settings file
_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
_OWN = ("plugin", "plugins", "tool", "tools")

# These also override a `.env` of the workspace, and ..._EXPERIMENTAL, which code mode follows by default.
PLAIN = {"PURE": "0", "EXPERIMENTAL_CODE_MODE": "0"}
OFFLINE = {"npm_config_offline": "true", "npm_config_fetch_retries": "0"}


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


class _Summary(_Said):
    id: str
    text: str


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


def _ended(p: _Ended) -> base.ToolEnded:
    code = _RESULT.decode(p.result).metadata.get("exit")
    clean = not p.wrong and (p.tool != SHELL or (code == 0 and not isinstance(code, bool)))
    # OpenCode ended the command, at its time limit or because it was told to: there is no code, and no error either.
    cut = "it was stopped before it had ended" if p.tool == SHELL and code is None else ""
    return base.ToolEnded(p.session, p.tool, require_object(p.input), bytes(p.result), p.wrong, p.call, clean, cut)


EVENTS = {
    "session": on(_Started, lambda p: base.SessionStarted(p.session, p.source)),
    "turn": on(_Turn, lambda p: base.TurnStarted(p.session, p.prompt)),
    "request": on(_Said, lambda p: base.ModelRequest(p.session)),
    "before": on(_Tool, lambda p: base.ToolStarting(p.session, p.tool, require_object(p.input), p.call, p.inner)),
    "after": on(_Ended, _ended),
    "approval": on(_Approval, lambda p: base.AwaitingApproval(p.session, p.what)),
    "compacting": on(_Compact, lambda p: base.Compacting(p.session, p.done)),
    "summary": on(_Summary, lambda p: base.ContextRequested(p.session, base.Compacted(p.id, p.text.strip(), p.text))),
    "completed": on(_Said, lambda p: base.TurnCompleted(p.session)),
    "stopped": on(_Said, lambda p: base.TurnStopped(p.session)),
}
parse = parser(EVENTS)


def render(event: str, decision: Decision) -> bytes:
    if event in ("after", "compacting", "summary") and isinstance(decision, Allow):
        return json.dumps({"decision": "allow", "words": decision.words}).encode()
    if isinstance(decision, Allow) or event != "before":
        return b'{"decision":"allow"}'
    return json.dumps({"decision": "deny", "reason": decision.reason, "stop": decision.stop}).encode()


def parse_config(text: bytes) -> Any:
    """Parse JSON with comments and trailing commas. ValueError."""
    return json.loads(_COMMA.sub(lambda m: m[1] or "", without_comments(text.decode())))


def own_plugins(edition: Edition, env: Env) -> bool:
    """Return whether the user has plugins or tools, or configuration that cannot be read."""
    home = user_home(env)
    here = Path(env.get("PWD") or Path.cwd())
    projects = (here, *here.parents)
    roots = [session.config_home(edition, env), *(at / name for at in (*projects, home) for name in edition.folders)]
    if folder := env.get(edition.variable("CONFIG_DIR")):
        roots.append(Path(folder))
    files = [root / name for root in roots for name in edition.files]
    files += [project / name for project in projects for name in edition.files[1:]]
    if file := env.get(edition.variable("CONFIG")):
        files.append(Path(file))
    texts = [env.get(edition.content, "").encode(), *(read_plain(f, _LIMIT) or b"" for f in files)]
    return any(_lists_plugins(text) for text in texts) or any(_has_code(root / name) for root in roots for name in _OWN)


def _lists_plugins(text: bytes) -> bool:
    if b"plugin" not in text:
        return False
    try:
        value = parse_config(text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, dict) or bool(value.get("plugin"))


def _has_code(folder: Path) -> bool:
    try:
        return any(path.suffix in (".js", ".ts", ".mjs", ".mts") for path in folder.iterdir())
    except OSError:
        return False


def inject(edition: Edition, setup: HookSetup, env: Env) -> Injected:
    path, title, content = session.database_path(edition, env), edition.title, edition.content
    if lacks := database.schema_problem(path):
        moved = database.belongs_to_next(path)
        raise ConfigError(
            f"{title}'s database {path} is not as wal-agent knows it: it lacks {lacks}. "
            "No session in it could be saved.",
            "OpenCode 2 has migrated it, for good. Let 1.x have one of its own: export OPENCODE_DB=opencode-1.db"
            if moved
            else f"If it is an old one, start `{edition.name}` once by itself: that brings it up to date.",
        )
    session.clear_dead_locks(edition, env)
    folder = setup.run_dir / edition.name
    offline = {} if own_plugins(edition, env) else {k: v for k, v in OFFLINE.items() if k not in env}
    parameters = {
        "socket": str(setup.run_dir / "hook.sock"),
        "run": setup.run,
        "skip": list(setup.skip),
        "seconds": CLIENT_SECONDS[False],
        "firm_seconds": CLIENT_SECONDS[True],
        "clear": sorted(offline),
        "gone": GONE,
        "owner": str(folder / "owner"),
        "agent": edition.name,
        "content": content,
        "users": env.get(content, ""),
    }
    plugin = shipped("hooks/opencode.js").read_text().replace('"@SETUP@"', _literal(parameters))
    files = {"wire.js": shipped("hooks/wire.js").read_text(), "wal-agent.js": plugin, "protocol.md": setup.protocol}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    except OSError as e:
        raise ConfigError(f"{title}'s plugin could not be placed in {folder}: {e.strerror or e}.") from e
    settings = config_content(content, env.get(content, ""), folder, setup.mcp)
    return Injected(env={content: settings, **edition.variables({**PLAIN, **edition.run}), **offline})


def config_content(variable: str, users: str, folder: Path, mcp: McpServer | None = None) -> str:
    """Return the user's own value of the variable with the plugin and the protocol behind what it lists, and the run's
    MCP server, if any, beside its own; the plugin is the last of all, so it sees each call as the others left it.
    ConfigError when it is no JSON."""
    try:
        value: Any = parse_config(users.encode()) if users.strip() else {}
    except ValueError as e:
        raise ConfigError(f"{variable} is not what the agent could read: {e}.") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{variable} holds no JSON object.")
    ours = {"plugin": (folder / "wal-agent.js").as_uri(), "instructions": str(folder / "protocol.md")}
    for key, one in ours.items():
        listed = value.get(key, [])
        if not isinstance(listed, list):
            raise ConfigError(f"{variable}: {key} is no list.")
        value[key] = [*(item for item in listed if item != one), one]
    if mcp is not None:
        servers = value.get("mcp", {})
        if not isinstance(servers, dict):
            raise ConfigError(f"{variable}: mcp is no object.")
        value["mcp"] = {**servers, MCP_NAME: {"type": "local", "command": list(mcp.argv), "enabled": True}}
    return json.dumps(value, ensure_ascii=False)


def _literal(value: object) -> str:
    """Return its JSON as a JavaScript string literal, without raw U+2028, which older readers treat as a line's end."""
    return re.sub("[\u2028\u2029]", lambda m: f"\\u{ord(m[0]):04x}", json.dumps(json.dumps(value)))
