"""The recovery prompt as the user's last words in the restored session.

Given on the command line, Gemini would rewrite it: `@path` is replaced by the file, `/` and `?` start commands; a
hook's context gets its `<` and `>` escaped. In the session file it arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

from wal_agent.agents.gemini.resume import EPOCH, mend_head
from wal_agent.agents.gemini.session import dump_session, load_session
from wal_agent.agents.session_files import Json, decode_json, encode_json

TITLE = "[wal-agent recovery]"


def inject_prompt(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once. `main` is empty or what `reconcile` made: only its end is read, and one line added. A
    prompt that Gemini would drop from the history gets a title of its own before it."""
    main = main or _head(session, workspace)
    dropped = not prompt.strip() or prompt.lstrip().startswith(("/", "?", "<session_context>", "<hook_context>"))
    content = [{"text": TITLE + "\n"}, {"text": prompt}] if dropped else [{"text": prompt}]
    last = _last_said(main)
    if last.get("type") == "user" and last.get("content") == content:
        return main
    # Free: this one follows `last`, so while `last` is the last, it is not there.
    new = uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {last.get('id')} {prompt!r}")
    line = encode_json({"id": str(new), "timestamp": last.get("timestamp", EPOCH), "type": "user", "content": content})
    end = _scratchpad(main)
    return b"".join((memoryview(main)[:end], line, b"\n", memoryview(main)[end:]))


def _head(session: str, workspace: Path) -> bytes:
    read = load_session(b"")
    mend_head(read, session, workspace)
    return dump_session(read)


def _last_said(main: bytes) -> Json:
    """The last message of the user or the model; empty when there is none."""
    return next((r for r in _backwards(main) if r.get("type") in ("user", "gemini")), {})


def _scratchpad(main: bytes) -> int:
    """Where the last line begins, if it is the memory scratchpad (which stays the last), else where the file ends."""
    last = next(_backwards(main), {})
    return main.rfind(b"\n", 0, len(main) - 1) + 1 if "$set" in last and "id" not in last else len(main)


def _backwards(main: bytes) -> Iterator[Json]:
    """The records behind the head, from the last, of a file whose every line is one."""
    end = len(main) - 1
    while (begin := main.rfind(b"\n", 0, end) + 1) > 0:
        yield decode_json(main[begin:end])
        end = begin - 1
