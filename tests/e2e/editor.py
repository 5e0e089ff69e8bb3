"""A client of the Agent Client Protocol, by the protocol's own SDK, for `wal-agent acp` on a machine of scene.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import acp
import psutil
from acp.schema import AllowedOutcome, ClientCapabilities, FileSystemCapabilities, RequestPermissionResponse

from tests.conftest import TESTS
from tests.e2e.scene import TTL, Machine, Scene, opened
from wal_agent.agents import AGENTS
from wal_agent.paths import PROGRAM
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import read_lease
from wal_agent.wal.reader import replay

ABLE = sorted(name for name, agent in AGENTS.items() if agent.capabilities.serves_acp)
ADAPTERS = {
    f"WAL_AGENT_{name.upper().replace('-', '_')}": str(TESTS.parent / ".tools/acp/node_modules/.bin" / name)
    for name in ("claude-agent-acp", "codex-acp")
} | {"INITIAL_AGENT_MODE": "agent-full-access"}  # the sandbox of Codex would leave a /tmp/.git on this machine
NOTICE = "[wal-agent recovery] "


class Editor:
    """The client: it keeps what it is told, allows every call and writes every file, but never answers what it
    `hesitates` at ("permission", "file"). `writes`: it offers to write files."""

    def __init__(self, hesitates: str = "", writes: bool = False) -> None:
        self.told: list[Any] = []
        self.hesitates, self.writes, self.asked = hesitates, writes, asyncio.Event()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        await self._answers("permission")
        allowed = next(option for option in options if option.kind.startswith("allow"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=allowed.option_id))

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:
        await self._answers("file")
        Path(path).write_text(content)

    async def _answers(self, kind: str) -> None:
        if self.hesitates == kind:
            self.asked.set()
            await asyncio.Event().wait()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.told.append((session_id, update))

    async def ext_method(self, method: str, params: Any) -> Any:
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: Any) -> None:
        pass

    def on_connect(self, conn: Any) -> None:
        pass

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(
            getattr(each.content, "text", "") for _, each in self.told if each.session_update == kind and each.content
        )


@asynccontextmanager
async def connected(
    machine: Machine, editor: Editor, initialize: bool = True
) -> AsyncIterator[tuple[Any, psutil.Process]]:
    """`wal-agent acp` with this client, which has said initialize."""
    command = (*PROGRAM, "acp", machine.agent, "--ttl", TTL)
    err = (machine.root / f"{machine.name}.err").open("ab")
    spawned = acp.spawn_agent_process(
        editor,  # type: ignore[arg-type]
        command[0],
        *command[1:],
        env={**machine.env(), **ADAPTERS},
        cwd=machine.root,
        transport_kwargs={"stderr": err.fileno(), "shutdown_timeout": 60.0, "limit": 64 << 20},
    )
    with err:
        async with spawned as (agent, process):
            if initialize:
                await greet(agent, editor)
            yield agent, psutil.Process(process.pid)


async def greet(agent: Any, editor: Editor) -> Any:
    able = ClientCapabilities(fs=FileSystemCapabilities(write_text_file=editor.writes), terminal=True)
    return await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=able)


def say(text: str) -> list[Any]:
    return [acp.text_block(text)]


def kill(process: psutil.Process) -> None:
    """All of it at once, as a machine that is lost."""
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            each.kill()


def jobs(scene: Scene) -> list[str]:
    with opened(scene.url) as bucket:
        return sorted(name for name in bucket.folders("") if name.startswith("job-"))


def state_of(scene: Scene, job: str) -> Any:
    with opened(scene.url) as bucket:
        return replay(bucket, Keys(job)).state


def lease_of(scene: Scene, job: str) -> str:
    with opened(scene.url) as bucket:
        seen = read_lease(bucket, Keys(job))
    assert seen is not None
    return seen.doc.state
