"""The two tiers of tests. `make test` proves each promise once; `make test-all` adds the tests that are marked `deep`,
and tries the property tests again, at depth (CONTRIBUTING.md says what is deep)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

DEPTH = int(os.environ.get("WAL_AGENT_DEPTH", "1"))  # 1 in `make test`, 4 in `make test-all`, more in `make fuzz`
deep = pytest.mark.deep


def examples(count: int) -> int:
    """How many examples a property test tries, of the `count` of the second tier."""
    return max(count * DEPTH // 4, 3)


def once(every: Iterable[Any], *first: Any) -> list[Any]:
    """Parameters: a promise of all of them, which the first tier proves on the `first`."""
    values = list(every)
    assert first and all(one in values for one in first)
    return [value if value in first else pytest.param(value, marks=deep) for value in values]


SAME_CODE = ("kilo",)  # agents by another one's code, of which the first tier makes sure that they run
# Each hooks and keeps its session in another way. They stand for all agents in the tests of what the supervisor
# promises; pi stands for OpenCode too, whose start takes three times as long. What an agent does itself is tried on
# each.
KINDS = ("claude", "codex", "gemini", "pi")


def each(agents: Iterable[Any]) -> pytest.MarkDecorator:
    """Parameters: the agents, of which the first tier has those with code of their own."""
    values = [pytest.param(a, marks=deep if a.name in SAME_CODE else (), id=a.name) for a in agents]
    return pytest.mark.parametrize("agent", values)


def tier(agent: str, version: str) -> list[pytest.MarkDecorator]:
    """The marks of a test on one version of an agent; empty: on the pinned one."""
    return [deep] if version or agent in SAME_CODE else []
