"""What would keep a run of pi from being saved, read before anything is started (I5).

No setting keeps an extension of the command line from being loaded, `--no-extensions` neither; without it pi does not
start. So this is about where its sessions go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Env
from wal_agent.agents.pi import cli, files


def hooks_off_reason(args: Sequence[str], workspace: Path, env: Env) -> str | None:
    given = cli.parse_args(args)
    if cli.last_value(given, "no-session") is not None:
        return "--no-session keeps pi from saving its session, so nothing could be resumed. Nothing was run."
    if cli.output_mode(given) == "rpc":
        return "pi in RPC mode takes its orders from another program; wal-agent does not save those. Nothing was run."
    if cli.last_value(given, "session-dir") is not None:
        return (
            "--session-dir puts pi's session where wal-agent does not look. Set PI_CODING_AGENT_SESSION_DIR to an "
            "absolute path instead. Nothing was run."
        )
    return _moved_folder(workspace, env) or _other_folder(cli.last_value(given, "session"), workspace, env)


def _moved_folder(workspace: Path, env: Env) -> str | None:
    own = files.own_folder(env)
    if own is not None and not own.is_absolute():
        return f"pi's folder for sessions ({own}) is not an absolute path: give one. Nothing was run."
    project = workspace / ".pi" / "settings.json"
    if not env.get("PI_CODING_AGENT_SESSION_DIR") and files.read_settings(project).get("sessionDir"):
        return (
            "The project puts pi's sessions where wal-agent does not look (.pi/settings.json: sessionDir). Set "
            "PI_CODING_AGENT_SESSION_DIR to an absolute path, which goes before it. Nothing was run."
        )
    return None


def _other_folder(chosen: str | None, workspace: Path, env: Env) -> str | None:
    """A session that is named by its path: pi works in the folder that it belongs to, wherever it was started."""
    if chosen is None or not ("/" in chosen or "\\" in chosen or chosen.endswith(".jsonl")):
        return None
    path = workspace / chosen
    if path.parent.resolve() != files.workspace_sessions(workspace, env).resolve():
        return f"The session {chosen} is not in this project's folder of pi's sessions. Nothing was run."
    cwd = files.read_head(path).get("cwd")
    if isinstance(cwd, str) and cwd != str(workspace):
        return f"The session {chosen} belongs to {cwd}: start wal-agent there. Nothing was run."
    return None
