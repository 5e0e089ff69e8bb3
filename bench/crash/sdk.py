"""Claude through its Agent SDK, its session mirrored to a folder: `sdk.py FLUSH FOLDER PROGRAM TASK GO_ON`.

It runs with the SDK's own Python. Where the folder holds a session, that is resumed with the words GO_ON; else the
task is given. The folder is the adapter that the SDK's documentation asks for: append, load, list_sessions.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, query

Json = dict[str, Any]


class Folder:
    """A SessionStore: one JSONL file for each session."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(exist_ok=True)

    def _file(self, key: Json) -> Path:
        name = key["session_id"] + (f".{key['subpath'].replace('/', '.')}" if key.get("subpath") else "")
        return self.place / f"{name}.jsonl"

    async def append(self, key: Json, entries: list[Json]) -> None:
        with self._file(key).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)

    async def load(self, key: Json) -> list[Json] | None:
        path = self._file(key)
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else None

    async def list_sessions(self, project_key: str) -> list[Json]:
        found = (path for path in self.place.glob("*.jsonl") if path.name.count(".") == 1)
        return [{"session_id": path.stem, "mtime": int(path.stat().st_mtime * 1000)} for path in found]


async def main(flush: str, folder: str, program: str, task: str, go_on: str) -> None:
    store = Folder(Path(folder))
    known = sorted(await store.list_sessions(""), key=lambda each: int(each["mtime"]))
    options = ClaudeAgentOptions(
        cli_path=program,
        permission_mode="bypassPermissions",
        session_store=store,
        session_store_flush=flush,
        resume=known[-1]["session_id"] if known else None,
    )
    async for message in query(prompt=go_on if known else task, options=options):
        print(type(message).__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
