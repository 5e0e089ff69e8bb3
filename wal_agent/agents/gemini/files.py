"""Where a session's files are and where restored ones belong.

Names in the log: `session.jsonl`, `tool-outputs/<file>`, `subagents/<file>.jsonl`, `plans/<path>`. Nothing else of
`~/.gemini` is ever named, so no credential can be. Links are not followed.

Hazards of the real program that this guards against: each resume leaves a stub of two lines under the same first
eight characters, and the next start of any other session deletes every file with them (S2); a resume in the minute of
the file's name appends the stub to the real file (S3); every start deletes each session file in which no prompt stands
yet, also one that is in use, whose Gemini then goes on in a new file without the head (S14).
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from wal_agent.agents.base import Env, SessionFile
from wal_agent.agents.gemini.inject import gemini_home
from wal_agent.agents.gemini.session import begins_session, is_headless, is_stub, session_id_of
from wal_agent.agents.gemini.slug import project_slug
from wal_agent.agents.walk import largest_file, name_parts, walk_files

MAIN = "session.jsonl"
_EXTRAS = ("tool-outputs", "subagents", "plans")
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
_MOST = 10_000  # files of one kind


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    project = _project(workspace, env)
    main = _main(session, project)
    if main is None:
        return []
    found = [SessionFile(MAIN, main, begins_session)]
    for kind in _EXTRAS:
        base = _base(kind, session, project)
        found += [
            SessionFile(f"{kind}/{p.relative_to(base).as_posix()}", p) for p in sorted(islice(walk_files(base), _MOST))
        ]
    return found


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    _check(session)
    project = _project(workspace, env)
    if name == MAIN:
        return project / "chats" / f"session-1970-01-01T00-00-{session[:8]}.jsonl"
    kind, *parts = name_parts(name)
    if kind not in _EXTRAS or not parts:
        raise ValueError(f"{name!r} is no file of a Gemini session")
    return _base(kind, session, project).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    """All of the same first eight characters: Gemini deletes them together, whichever session they are of."""
    return _twins(session, _project(workspace, env)) if _SESSION.fullmatch(session) else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Gemini refuses both to resume a session without a prompt (42) and to start another of its id."""
    return _real(session, _twins(session, _project(workspace, env))) is not None


def tidy(session: str, workspace: Path, env: Env) -> None:
    """S2: remove the stubs that resumes left beside the real file; only beside it, and only what holds nothing."""
    twins = _twins(session, _project(workspace, env))
    real = _real(session, twins)
    if real is None:
        return
    for twin in twins:
        if twin != real and is_stub(twin, session):
            twin.unlink(missing_ok=True)


def _check(session: str) -> None:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")


def _project(workspace: Path, env: Env) -> Path:
    home = gemini_home(env)
    return home / "tmp" / project_slug(home, workspace)


def _main(session: str, project: Path) -> Path | None:
    """The session's file. While a new session has no prompt yet, it looks like a stub; whatever holds more goes before
    it. One that lost its head (S14) has nothing but its name to tell whose it is."""
    twins = _twins(session, project)
    real = _real(session, twins)
    if real is not None:
        return real
    headless = largest_file(p for p in twins if is_headless(p))
    return headless or next((p for p in twins if session_id_of(p) == session), None)


def _real(session: str, twins: list[Path]) -> Path | None:
    """The one that Gemini finds, and finds something in."""
    return largest_file(p for p in twins if session_id_of(p) == session and not is_stub(p, session))


def _twins(session: str, project: Path) -> list[Path]:
    if not _SESSION.fullmatch(session):
        return []
    tail = f"-{session[:8]}.jsonl"
    chats = walk_files(project / "chats", deep=1)
    return sorted(p for p in chats if p.name.startswith("session-") and p.name.endswith(tail))


def _base(kind: str, session: str, project: Path) -> Path:
    match kind:
        case "tool-outputs":
            return project / "tool-outputs" / f"session-{session}"
        case "subagents":
            return project / "chats" / session
        case _:
            return project / session / "plans"
