"""The agents: one package for each coding-agent CLI, which implements the protocol of base.py, or one description of it
(family.py), in one explicit table.

An agent is imported or read when it is first looked up, so a start loads only the chosen one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from wal_agent.agents.places import PLACES
from wal_agent.errors import UsageError

if TYPE_CHECKING:
    from wal_agent.agents.base import Agent, Rehearsal
    from wal_agent.agents.family import Declared

NAMES = tuple(PLACES)


class _Agents(Mapping[str, "Agent"]):
    def __getitem__(self, name: str) -> Agent:
        if name not in NAMES:
            raise KeyError(name)
        return _described(name) or cast("Agent", import_module(f"{__name__}.{name}"))

    def __contains__(self, name: object) -> bool:
        return name in NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


@cache
def _described(name: str) -> Declared | None:
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
    if (described := _described(agent.name)) is not None:
        return described.rehearsal
    module = f"{__name__}.{agent.name}.rehearsal"
    try:
        return cast("Rehearsal", import_module(module).rehearsal)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return None


def unknown_agent_error(name: str) -> UsageError:
    """Return the error for a name that is no agent's: the one that was probably meant, all names, and `generic`."""
    from difflib import get_close_matches

    meant = get_close_matches(name.lower(), AGENTS, 1)
    hint = f"Did you mean {meant[0]}? " if meant else ""
    return UsageError(
        f"{name[:60]!r} is not an agent that wal-agent knows.",
        f"{hint}Known: {', '.join(sorted(AGENTS))}. For any other command: wal-agent run generic -- COMMAND",
    )
