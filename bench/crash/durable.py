"""An agent on Pi Durable, by its Python port: `durable.py STORE TASK`.

It runs with the port's own Python. Its tools are the port's own; the model is where pi's settings say. Each start
sends the task with the same id, so that the harness goes on with the one that it has.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pi_durable import Harness, Model, create_registry
from pi_durable.context import BACKGROUND_CONTEXT as CONTEXT
from pi_durable.env.posix import PosixExecutionEnv
from pi_durable.providers.anthropic import AnthropicModels
from pi_durable.storage.sqlite.posix import open_posix_sqlite_storage
from pi_durable.tools import CodingTools


async def main(store: Path, task: str) -> None:
    store.parent.mkdir(exist_ok=True)
    settings = json.loads((Path.home() / ".pi/agent/models.json").read_text("utf-8"))
    model = Model(provider="anthropic", model_id="scripted", context_window=200_000, max_tokens=8_000, reasoning=False)
    url = settings["providers"]["scripted"]["baseUrl"]
    registry = create_registry()
    registry.install(CodingTools)
    options = {
        "models": AnthropicModels([model], api_key="fake", base_url=url),
        "registry": registry,
        "env": lambda *_: PosixExecutionEnv(),
    }
    harness = await Harness.open(await open_posix_sqlite_storage(str(store)), options, CONTEXT)
    try:
        agent = {"model": {"provider": model.provider, "modelId": model.model_id}}
        root = await harness.root(CONTEXT, {"agent": agent})
        request = await root.submit({"type": "input", "content": task, "requestId": "task"}, CONTEXT)
        print((await request.wait(CONTEXT))["status"])
    finally:
        await harness.close(CONTEXT)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
