"""What one call does, step by step, and what evidence says of one step: the data between `evidence` and its kinds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from wal_agent.clock import Clock
from wal_agent.records import Fact, Finding
from wal_agent.shell.syntax import Redirect

MOST_FILES = 8  # whose content is read for one call
MOST_BYTES = 4 << 20  # of their content together


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a file tool is to do to the file that it calls `path`: write it whole (`content`, not None), or put `new` in
    the place of `old`. `keeps`: the bytes written are the content's own; else the file's line ends may be kept.
    `creates`: where `old` is empty, a new file is made of `new`. `sure`: a relative path means the step's folder."""

    path: str
    content: str | None = None
    old: str = ""
    new: str = ""
    keeps: bool = False
    creates: bool = False
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a call does: what a file tool does to one file (`file`; `words` empty), or one plain command of a
    shell call, all of whose words are literal. `words` have no wrapper in front (sudo, env, timeout, ...). `cwd`:
    absolute, on this machine. `moved`: the workspace that the call worked in and the one here, where they differ: paths
    in the first mean the same place in the second (`evidence.paths.place`); facts are told by the place here. `input`:
    the text of a heredoc, where it is literal."""

    tool: str
    words: tuple[str, ...]
    redirects: tuple[Redirect, ...]
    cwd: Path
    moved: tuple[Path, Path] | None = None
    input: str | None = None
    file: FileChange | None = None


@dataclass(frozen=True, slots=True)
class NestedRun:
    """A run that a step starts, by the log of its job. `began`: the step's call began it. `state`: of the job's lease;
    `cut_off`: its owner is known to be dead."""

    job: str
    began: bool
    state: Literal["closed", "released", "cut_off", "held"] = "held"


def no_nested_run(step: Step) -> NestedRun | None:
    """Nothing is known of it."""
    return None


@dataclass(frozen=True, slots=True)
class Context:
    """What is known around a step.

    `same_place`: the files here are those that it worked on (same kernel, same folder). `restored`: all that it changes
    is in the working tree here that was put back from a capture; what is outside of that is another machine's.
    `gone`: the agent's process and all that it started have ended. `alone`: no other call in flight or since can have
    changed what this one changes; `contested`: one is known to change it, too. `running`: its command still ran here
    when the recovery began, and was ended then. `inner`: looks up a run that the step starts."""

    same_place: bool = False
    restored: bool = False
    gone: bool = False
    alone: bool = False
    contested: bool = False
    running: bool = False
    inner: Callable[[Step], NestedRun | None] = no_nested_run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step; `why` in one sentence (foreign text in it through quote.inline), "" for nothing to say.

    `either`: completed only in the sense that all was so before, whether the step ran or not."""

    finding: Finding
    why: str = ""
    either: bool = False


@dataclass(slots=True)
class Budget:
    """Looking may take until `until` (boot time), and may read so many files and bytes. Kinds give up (no fact,
    unknown) once `over`. `work`: seconds that this thread has worked, of which it may reach `most_work`."""

    clock: Clock
    until: float
    files: int = field(default=MOST_FILES)
    size: int = field(default=MOST_BYTES)
    work: Callable[[], float] = time.thread_time
    most_work: float = math.inf

    @property
    def over(self) -> bool:
        return self.clock.boot() > self.until or self.work() > self.most_work


@dataclass(frozen=True, slots=True)
class Reach:
    """Absolute paths that a step may change and that its evidence rests on; a folder stands for all that is in it."""

    changes: tuple[str, ...]
    reads: tuple[str, ...] = ()


class Kind(Protocol):
    """One kind of evidence. It only reads, runs no program of the project's and follows no link out of its way."""

    def reach(self, step: Step) -> Reach | None:
        """What the step may change; None where that cannot be said, or when the step is not of this kind."""

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        """What is true before the step; None when the step is not of this kind. Facts of different steps of one call
        are kept apart by their `where`: where two steps reach one thing, no kind is asked."""

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        """What became of the step, from the call's facts and what is true now; None when it is not of this kind.
        `completed` and `not_started` only with proof."""
