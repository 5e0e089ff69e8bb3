"""The rounds that `make bench-crash` plays: which kills, with which agents, models and peers, in this order.

A kill is a scenario and a kill point; its step and moment come from the seed, as in `wal-agent drill --seed 1`. Each
kill is played by all agents, models and peers of its wave before the next one, so that all of them meet the same load.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import msgspec

from wal_agent.drill.play import Round, plan_rounds
from wal_agent.drill.policy import Policy
from wal_agent.drill.scenario import AT_TERMINAL, POINTS, STOPS, Point, load

SEED: Final = 1
MAIN: Final = ("gemini", "claude", "codex")
OTHERS: Final = ("opencode", "qwen", "copilot", "pi")
FEW: Final = ("bare restart", "bare resume", "sdk eager", "ferrofaction", "wal-agent")
ALL: Final = ("retry loop", "tmux loop", "sdk batched", *FEW)

Kill = tuple[str, Point]
FIRST: Final[tuple[Kill, ...]] = (
    ("charge", "between"),
    ("charge", "before"),
    ("charge", "wrapper"),
    ("deploy", "before"),
    ("journal", "wrapper"),
)
SPREAD: Final[tuple[Kill, ...]] = (
    ("push", "between"),
    ("journal", "machine"),
    ("mail", "between"),
    ("push", "before"),
    ("publish", "recovery"),
    ("migrate", "thinking"),
    ("deploy", "after"),
    ("build", "machine"),
    ("charge", "machine"),
    ("migrate", "recovery"),
)
STOPPED: Final[tuple[Kill, ...]] = tuple(("charge", point) for point in STOPS if point not in AT_TERMINAL)
PERSON: Final[tuple[Kill, ...]] = tuple(("charge", point) for point in AT_TERMINAL)
LEARNED: Final[tuple[Policy, ...]] = ("respells", "talks", "deaf")  # what a small real model did
HEADLESS: Final = ("kimi",)  # takes no prompt at a terminal
AT_HAND: Final = ("bare restart", "bare resume", "wal-agent")  # peers that a person can start at a terminal


class Wave(msgspec.Struct, frozen=True):
    kills: tuple[Kill, ...]
    agents: tuple[str, ...]
    policies: tuple[Policy, ...]
    peers: tuple[str, ...]


PLAN: Final[tuple[Wave, ...]] = (
    Wave(FIRST[:3], MAIN, ("naive", "well"), FEW),
    Wave(FIRST[1:3], MAIN, ("badly",), FEW),
    Wave(FIRST[1:3], OTHERS, ("naive",), FEW),
    *(Wave((kill,), (MAIN[n % 3],), ("naive", "well"), FEW) for n, kill in enumerate(SPREAD)),
    Wave(FIRST, MAIN, ("naive", "well", "badly"), FEW),
    Wave(FIRST, OTHERS, ("naive", "well", "badly"), FEW),
    Wave(FIRST, MAIN, ("naive", "well", "badly"), ALL),
    Wave(SPREAD, MAIN, ("naive", "well"), FEW),
    Wave(SPREAD, MAIN, ("badly",), AT_HAND),
    Wave(STOPPED, (*MAIN, *OTHERS), ("naive", "well", "badly"), FEW),
    Wave(PERSON, (*MAIN, *OTHERS), ("naive", "well", "badly"), AT_HAND),
    Wave((*FIRST, *STOPPED), HEADLESS, ("naive", "well", "badly"), AT_HAND),
    Wave(
        (*FIRST, ("charge", "machine"), ("charge", "sigterm")),
        ("pi",),
        ("naive", "well", "badly"),
        ("pi durable", "wal-agent"),
    ),
    Wave(FIRST[:2], MAIN, LEARNED, ("bare resume", "wal-agent")),
    Wave((*FIRST, *SPREAD, *STOPPED, *PERSON), MAIN[:1], LEARNED, ("wal-agent",)),
)

# Codex ends what a command leaves in its process group, so no effect of it comes in the background.
NEVER: Final = (("background", "codex"),)

Case = tuple[Round, str, Policy, str]  # with the agent's name and the peer's


def rounds() -> dict[Kill, Round]:
    """Return the round of each kill."""
    known = [each for name in sorted({kill[0] for kill in (*FIRST, *SPREAD, *STOPPED, *PERSON)}) for each in load(name)]
    return {(each.scenario.name, each.point): each for each in plan_rounds(known, len(POINTS), SEED)}


def cases() -> Iterator[Case]:
    """Return what the plan holds, in order, each once."""
    played, seen = rounds(), set()
    for wave in PLAN:
        for kill, policy, agent, peer in itertools.product(wave.kills, wave.policies, wave.agents, wave.peers):
            if (kill, policy, agent, peer) not in seen and (kill[1], agent) not in NEVER:
                seen.add((kill, policy, agent, peer))
                yield played[kill], agent, policy, peer
