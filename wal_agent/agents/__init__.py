"""The agents: one package for each coding-agent CLI, which implements the protocol of base.py or has an `agent` that
does, or one description of it (family.py), in one explicit table, and behind them those that a person has added
(added.py).

An agent is imported or read when it is first looked up, so a start loads only the chosen one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from wal_agent.agents.places import PLACES
from wal_agent.errors import UsageError, WalAgentError

if TYPE_CHECKING:
    from wal_agent.agents.base import Agent, Rehearsal
    from wal_agent.agents.family import Declared
    from wal_agent.agents.opencode.agent import OpenCode

NAMES = tuple(PLACES)


class _Agents(Mapping[str, "Agent"]):
    def __getitem__(self, name: str) -> Agent:
        if (described := _described(name)) is not None:
            return described
        if name not in NAMES:
            raise KeyError(name)
        module = import_module(f"{__name__}.{name}")
        return cast("Agent", getattr(module, "agent", module))

    def __contains__(self, name: object) -> bool:
        return name in NAMES or (isinstance(name, str) and _described(name) is not None)

    def __iter__(self) -> Iterator[str]:
        from wal_agent.agents import added

        yield from NAMES
        yield from (each.name for each in added.every(os.environ) if each.agent is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _described(name: str) -> Declared | None:
    if name in NAMES:
        return _shipped(name)
    from wal_agent.agents import added  # most commands name an agent of ours

    found = added.find(name, os.environ)
    return found.agent if found is not None else None


@cache
def _shipped(name: str) -> Declared | None:
    path = Path(__file__).with_name("declared") / f"{name}.toml"
    if not path.is_file():
        return None
    from wal_agent.agents.family import load

    return load(path)


AGENTS: Mapping[str, Agent] = _Agents()


def rehearsal_of(agent: Agent) -> Rehearsal | None:
    """Return how the agent runs with a scripted model; None for `generic`, which runs any command, and for an agent
    that has no such module."""
    if agent.capabilities.hookless is not None:
        return None
    if not isinstance(agent, ModuleType):
        return cast("Declared | OpenCode", agent).rehearsal
    module = f"{__name__}.{agent.name}.rehearsal"
    try:
        return cast("Rehearsal", import_module(module).rehearsal)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


def tools_of(name: str) -> str:
    """Return the agent by whose name the built-in rules know the tools of this one."""
    described = _described(name)
    return (described.about.tools_of if described is not None else "") or name


def faults() -> list[str]:
    """Return why what a person has added is no agent, a line for each."""
    from wal_agent.agents import added

    return [str(each.fault) for each in added.every(os.environ) if each.fault is not None]


def unknown_agent_error(name: str) -> WalAgentError:
    """Return the error for a name that is no agent's: why what was added by it is none, or the one that was probably
    meant, all names, and `generic`."""
    from difflib import get_close_matches

    from wal_agent.agents import added

    if (found := added.find(name, os.environ)) is not None and found.fault is not None:
        return found.fault
    meant = get_close_matches(name.lower(), AGENTS, 1)
    hint = f"Did you mean {meant[0]}? " if meant else ""
    return UsageError(
        f"{name[:60]!r} is not an agent that wal-agent knows.",
        f"{hint}Known: {', '.join(sorted(AGENTS))}. For any other command: wal-agent run generic -- COMMAND",
    )
