"""The agents: one package for each coding-agent CLI, which implements the protocol of base.py, in one explicit table.

An agent's module is imported when it is first looked up, so a start loads only the chosen agent's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from wal_agent.agents.base import Agent, Rehearsal

NAMES = ("gemini", "claude", "codex", "copilot", "pi", "opencode", "qwen", "generic")


class _Agents(Mapping[str, "Agent"]):
    def __getitem__(self, name: str) -> Agent:
        if name not in NAMES:
            raise KeyError(name)
        return cast("Agent", import_module(f"{__name__}.{name}"))

    def __contains__(self, name: object) -> bool:
        return name in NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


AGENTS: Mapping[str, Agent] = _Agents()


def rehearsal_of(agent: Agent) -> Rehearsal | None:
    """Return how the agent runs with a scripted model; None for `generic`, which runs any command."""
    if agent.capabilities.hookless is not None:
        return None
    return cast("Rehearsal", import_module(f"{__name__}.{agent.name}.rehearsal").rehearsal)
