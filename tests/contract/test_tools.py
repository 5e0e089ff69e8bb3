"""The tools that each real CLI declares to its model are those that the rules were written for: a new version with
another tool, or another field, is noticed here, and its meaning looked up, before anybody relies on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.unit.calls
from tests.contract.agent_box import Box
from tests.tiers import tier
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.agents.base import Agent
from wal_agent.rehearsal.model import Json, Turn

TABLE = Path(tests.unit.calls.__path__[0]) / "agents_tools.json"
HOOKED = [agent for agent in AGENTS.values() if rehearsal_of(agent) is not None]


@pytest.mark.parametrize(
    ("agent", "version"),
    [pytest.param(agent, v, marks=tier(agent.name, v)) for agent in HOOKED for v in ("", *agent.also)],
    ids=lambda value: value if isinstance(value, str) else str(value.name),
)
def test_the_declared_tools_are_those_that_are_known(
    agent: Agent, version: str, agent_cli: Callable[..., Path], tmp_path: Path
) -> None:
    """An older version may lack fields and tools that the tested one has."""
    box = Box(tmp_path, agent_cli(agent.name, version), agent)
    with box.model(Turn(text="Done.")) as model:
        process = box.start(model, "go")
        model.wait_for(1, 240)
        declared = {name: fields for body in model.requests for name, fields in _declared(body)}
        box.kill(process)
    known = {t["tool"]: t["fields"] for t in json.loads(TABLE.read_text("utf-8")) if t["agent"] == agent.name}
    assert len(declared) > 3
    if version:
        assert {name: fields for name, fields in declared.items() if not {*fields} <= {*known.get(name, [])}} == {}
    else:
        assert {name: known.get(name) for name in declared} == declared


def _declared(body: Json) -> Iterator[tuple[str, list[str]]]:
    """Names and fields, whatever the API. Codex has namespaces, and in code mode its tools are the first item."""
    items = body.get("input") or [{}]
    more = items[0].get("tools") if isinstance(items, list) and items[0].get("type") == "additional_tools" else None
    for tool in [*(body.get("tools") or []), *(more or [])]:
        inner = tool.get("functionDeclarations") or tool.get("tools") or [tool.get("function") or tool]
        for one in inner:
            name = str(one.get("name") or one["type"])
            yield (f"{tool['name']}.{name}" if tool.get("type") == "namespace" else name), _fields(one)


def _fields(tool: Json) -> list[str]:
    schema: dict[str, Any] = next(
        (tool[k] for k in ("input_schema", "parameters", "parametersJsonSchema") if k in tool), {}
    )
    return sorted(schema.get("properties") or {})
