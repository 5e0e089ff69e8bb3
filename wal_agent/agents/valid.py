"""Whether a model's API takes a restored conversation, whichever agent sends it."""

from __future__ import annotations

from collections.abc import Iterable

from wal_agent.agents.base import Unit
from wal_agent.api_rules import Json, check_anthropic, check_responses


def conversation_faults(units: Iterable[Unit], by_id: bool = False) -> list[str]:
    """Return what an API would refuse of the ids and pairs in a conversation, by the strictest of them. `by_id`:
    `Capabilities.pairs_by_id`.

    Calls without a result are no faults: each agent answers them by itself, or leaves them out. None does so for a
    result without its call."""
    messages: list[Json] = [{"role": "user", "content": "."}]
    items: list[Json] = []
    for unit in units:
        if unit.asks:
            uses = [{"type": "tool_use", "id": call.id, "name": call.tool, "input": {}} for call in unit.asks]
            messages.append({"role": "assistant", "content": uses})
            items += [_item("function_call", call.id) for call in unit.asks]
        elif unit.prompt:
            messages.append({"role": "user", "content": unit.prompt})
        if unit.answers:
            results = [{"type": "tool_result", "tool_use_id": id} for id in unit.answers]
            messages.append({"role": "user", "content": results})
            items += [_item("function_call_output", id) for id in unit.answers]
    if by_id:
        return [fault for fault in check_responses({"input": items}) if "No tool output" not in fault]
    return [fault for fault in check_anthropic({"messages": messages}) if "were found without" not in fault]


def _item(kind: str, id: str) -> Json:
    return {"type": kind, "call_id": id, "name": "tool", "arguments": "{}"}
