"""What one call does, step by step, and what evidence says of one step: the data between `evidence` and its kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wal_agent.clock import Clock
from wal_agent.records import Fact, Finding
from wal_agent.recovery.bash import Redirect


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a call does: the whole call of a file tool (`words` empty), or one plain command of a shell call,
    all of whose words are literal. `words` have no wrapper in front (sudo, env, timeout, ...). `cwd`: absolute."""

    tool: str
    fields: Mapping[str, object]
    words: tuple[str, ...]
    redirects: tuple[Redirect, ...]
    cwd: Path


@dataclass(frozen=True, slots=True)
class Around:
    """What is known around a call.

    `same_place`: the files here are those that it worked on (same kernel, same folder). `restored`: the working tree
    here was put back from a capture that the call may have outlived; what is outside of it is another machine's.
    `gone`: the agent's process and all that it started have ended. `alone`: no other call in flight or since could have
    changed what this one changes. `running`: its command still ran here when the recovery began, and was ended then."""

    same_place: bool = False
    restored: bool = False
    gone: bool = False
    alone: bool = False
    running: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a step; `why` in one sentence (foreign text in it through quote.inline), "" for nothing to say."""

    finding: Finding
    why: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """Looking may take until `until` (boot time). Kinds give up (no fact, unknown) once `over`."""

    clock: Clock
    until: float

    @property
    def over(self) -> bool:
        return self.clock.boot() > self.until


class Kind(Protocol):
    """One kind of evidence. It only reads, runs no program of the project's and follows no link out of its way."""

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        """What is true before the step; None when the step is not of this kind. Facts of different steps of one call
        are kept apart by their `where`, so two steps that touch one thing make it say nothing."""

    def judge(self, step: Step, facts: Sequence[Fact], around: Around, budget: Budget) -> Found | None:
        """What became of the step, from the call's facts and what is true now; None when it is not of this kind.
        `completed` and `not_started` only with proof."""
