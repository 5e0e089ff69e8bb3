"""What do `task` and `compact` leave of a conversation, and what does it cost? `python -m bench conversation`.

First the real Claude Code with a scripted model: an investigation of 60 calls in the conversation itself, and the same
one as a task. Then a Claude Code session of 50 MB, held against reading it: each line parsed once.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measure import scaled
from bench.start import TOOLS
from tests.e2e.scene import Scene
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.agents.base import Rewriting
from wal_agent.agents.session_files import decode_json
from wal_agent.conversation.rewrite import CompactionPolicy, aged, compact_form, tokens_of
from wal_agent.rehearsal.model import Model, Turn

CALLS = scaled(60, 3)
LOOK = "seq 1 400"  # about 1.5 KB of output
SIZE = scaled(50 << 20, 1 << 20)
SESSION = "0197a9be-1111-7000-8000-000000000001"


def main() -> None:
    inline, task = asked_tokens(as_task=False), asked_tokens(as_task=True)
    print(f"  {CALLS} calls in the conversation   {inline:9,} tokens in its next request")
    print(f"  the same as a task          {task:9,} tokens  {task / inline:6.3f} x")
    compaction()


def asked_tokens(*, as_task: bool) -> int:
    """The size of the caller's last request, in bytes by four."""
    rehearsal = rehearsal_of(AGENTS["claude"])
    assert rehearsal is not None
    scratch = tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp", ignore_cleanup_errors=True)
    with scratch as folder, Model(rehearsal.dialect) as model:
        scene = Scene(Path(folder), TOOLS.with_name("claude"), model, "claude")
        machine = scene.machine("vm-1")
        investigation = [Turn(calls=[rehearsal.shell(f"{LOOK}; : {n}")]) for n in range(CALLS)]
        found = Turn("The login test fails since the clock of the container is an hour late.")
        typed = f"{shlex.quote(sys.executable)} -m wal_agent task 'find out why the login test fails'"
        turns = [*investigation, found]
        scene.script(*([Turn(calls=[rehearsal.shell(typed)]), *turns, Turn("Done.")] if as_task else turns))
        run = machine.run(*rehearsal.args("why does the login test fail?"), wait=True)
        if run.process.returncode or model.turns:
            raise RuntimeError(run.stderr())
        size = len(json.dumps(model.requests[-1]))
        scene.close()
        return size // 4


def compaction() -> None:
    """The steps of `wal-agent compact` but for the bucket's."""
    how = AGENTS["claude"].capabilities.rewriting
    assert isinstance(how, Rewriting)
    main = claude_session()
    began = time.monotonic()
    for line in main.splitlines():
        decode_json(line)
    parsed = time.monotonic() - began
    began = time.monotonic()
    units = how.units(main)
    turns = aged(units, CompactionPolicy(turns=1), time.time())
    text = compact_form(units, turns, 1)
    new = how.compact(main, SESSION, Path("/work"), turns[0].first, turns[-1].last, text)
    took = time.monotonic() - began
    left = tokens_of(how.units(main + new))
    print(
        f"  a session of {len(main) >> 20} MB: parsed {parsed:6.2f} s; compacted {took:6.2f} s  {took / parsed:5.2f} x"
    )
    before = tokens_of(units)
    print(f"  tokens before {before:,}, after {left:,}: {left / before:.4f} x; {len(new):,} bytes added")


def claude_session() -> bytes:
    """Turns of ten calls with 4 KB of output each."""
    lines: list[bytes] = []
    size, parent = 0, None
    output = "x y " * 1024
    while size < SIZE:
        turn: list[tuple[str, Any]] = [("user", f"ask {len(lines)}")]
        for n in range(10):
            call = {"type": "tool_use", "id": f"c{len(lines)}.{n}", "name": "Bash", "input": {"command": f"make {n}"}}
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": False}
            turn += [("assistant", [call]), ("user", [result])]
        turn.append(("assistant", [{"type": "text", "text": "done"}]))
        for kind, content in turn:
            about = {"parentUuid": parent, "type": kind, "message": {"role": kind, "content": content}}
            parent = f"u{len(lines)}"
            line = {**about, "uuid": parent, "timestamp": "2026-11-24T09:00:00.000Z", "sessionId": SESSION}
            lines.append(json.dumps(line).encode())
            size += len(lines[-1]) + 1
    return b"\n".join(lines) + b"\n"


if __name__ == "__main__":
    main()
