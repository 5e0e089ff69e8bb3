"""Make docs/AGENTS.md: the text is page.md, the facts are the agents' modules and traits.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import Agent
from wal_agent.msgspec_compat import of_values

TEMPLATE = Path(__file__).with_name("page.md")
COLUMNS = ("hooks", "intent", "fail_closed", "reconcile", "resume", "interactive", "subagents")
HEADS = {"fail_closed": "fail-closed"}


class Traits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user gets with an agent, as traits.toml explains it."""

    start: str
    hooks: str
    intent: str
    fail_closed: str
    reconcile: str
    resume: str
    interactive: str
    subagents: str
    limits: tuple[str, ...] = ()


@cache
def traits() -> dict[str, Traits]:
    return of_values(dict[str, Traits])(tomllib.loads(TEMPLATE.with_name("traits.toml").read_text()))


def facts(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    found = []
    for agent in agents:
        told = {k: v for k, v in msgspec.to_builtins(traits()[agent.name]).items() if k != "start"}
        found.append({"name": agent.name, "tested": agent.tested, "also": list(agent.also), **told})
    return found


def versions(agent: Agent) -> str:
    return ", ".join(filter(None, (agent.tested, *agent.also)))


def markdown(agents: Sequence[Agent]) -> str:
    page = TEMPLATE.read_text()
    starts = "".join(f"    wal-agent run {agent.name} -- {traits()[agent.name].start}\n" for agent in agents)
    for mark, text in {"@STARTS@": starts, "@TABLE@": _table(agents), "@LIMITS@": _limits(agents)}.items():
        page = page.replace(f"{mark}\n", text)
    return page


def _table(agents: Sequence[Agent]) -> str:
    rows = [["agent", *(HEADS.get(name, name) for name in COLUMNS), "tested"]]
    rows.append(["---"] * len(rows[0]))
    for agent in agents:
        cells = (getattr(traits()[agent.name], name) for name in COLUMNS)
        rows.append([agent.name, *cells, versions(agent) or "any command"])
    return "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _limits(agents: Sequence[Agent]) -> str:
    blocks = []
    for agent in agents:
        limits = traits()[agent.name].limits or ("Nothing that is known.",)
        blocks.append(f"**{agent.name}**\n\n" + "".join(f"- {_line(text)}\n" for text in limits))
    return "\n".join(blocks)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())


def rows(agents: Sequence[Agent]) -> list[str]:
    """Return the same for a terminal."""
    out: list[str] = []
    for agent in agents:
        known = traits()[agent.name]
        out.append(f"{agent.name}  ({f'tested with {versions(agent)}' if agent.tested else 'any command'})")
        out += [f"  {HEADS.get(name, name):<12} {getattr(known, name)}" for name in COLUMNS]
        out += [f"  {'not held' if n == 0 else '':<12} {text}" for n, text in enumerate(known.limits)]
    return out
