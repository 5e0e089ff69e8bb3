"""Define the data between calls and kinds of evidence: the steps of a call, the paths that their words mean, and what
evidence says of one step. The sentences for it stand in wording/findings.py."""

from __future__ import annotations

import math
import os
import re
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from wal_agent.calls.argv import program_name
from wal_agent.calls.shell.syntax import Redirect
from wal_agent.clock import Clock
from wal_agent.records import Fact, Finding

MAX_FILES = 8  # whose content is read for one call
MAX_BYTES = 4 << 20  # of their content together
CWD = "cwd"  # a fact: where the agent reports that the call runs

_OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})


class FileChange(msgspec.Struct, frozen=True):
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


class Step(msgspec.Struct, frozen=True):
    """One thing that a call does: what a file tool does to one file (`file`; `words` empty), or one plain command of a
    shell call, all of whose words are literal. `words` have no wrapper in front (sudo, env, timeout, ...). `cwd`:
    absolute, on this machine. `moved`: the workspace that the call worked in and the one here, where they differ: paths
    in the first mean the same place in the second (`resolve_path`); facts name the place here. `input`:
    the text of a heredoc, where it is literal."""

    tool: str
    words: tuple[str, ...]
    redirects: tuple[Redirect, ...]
    cwd: Path
    moved: tuple[Path, Path] | None = None
    input: str | None = None
    file: FileChange | None = None

    @property
    def program(self) -> str:
        """The name of its program; "" where it is some file of the project's."""
        return (program_name(self.words[0]) or "") if self.words else ""


class NestedRun(msgspec.Struct, frozen=True):
    """A run that a step starts, by the log of its job. `began`: the step's call began it. `state`: of the job's lease;
    `cut_off`: its owner is known to be dead."""

    job: str
    began: bool
    state: Literal["closed", "released", "cut_off", "held"] = "held"


def no_nested_run(step: Step) -> NestedRun | None:
    """Nothing is known of it."""
    return None


class Context(msgspec.Struct, frozen=True):
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


class Outcome(msgspec.Struct, frozen=True):
    """What became of a step; `why` in one sentence (foreign text in it through quote.inline), "" for nothing to say.

    `either`: completed only in the sense that all was so before, whether the step ran or not."""

    finding: Finding
    why: str = ""
    either: bool = False


class Budget(msgspec.Struct):
    """Looking may take until `until` (boot time), and may read so many files and bytes. Kinds give up (no fact,
    unknown) once `over`. `work`: seconds that this thread has worked, of which it may reach `most_work`."""

    clock: Clock
    until: float
    files: int = msgspec.field(default=MAX_FILES)
    size: int = msgspec.field(default=MAX_BYTES)
    work: Callable[[], float] = time.thread_time
    most_work: float = math.inf

    @property
    def over(self) -> bool:
        return self.clock.boot() > self.until or self.work() > self.most_work


class Reach(msgspec.Struct, frozen=True):
    """Absolute paths that a step may change and that its evidence rests on; a folder means all that is in it."""

    changes: tuple[str, ...]
    reads: tuple[str, ...] = ()


How = TypeVar("How")


class Kind(ABC, Generic[How]):
    """One kind of evidence. It only reads, runs no program of the project's and follows no link out of its way.

    `how`: what `parse` made of the step."""

    @abstractmethod
    def parse(self, step: Step) -> How | None:
        """What the step is to do; None when the step is not of this kind."""

    @abstractmethod
    def reach(self, step: Step, how: How) -> Reach | None:
        """What the step may change; None where that is not known."""

    @abstractmethod
    def facts_before(self, step: Step, how: How, budget: Budget) -> tuple[Fact, ...]:
        """What is true before the step. Facts of different steps of one call are kept apart by their `where`: where two
        steps reach one thing, no kind is asked."""

    @abstractmethod
    def assess_step(self, step: Step, how: How, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        """What became of the step, from the call's facts and what is true now. `completed` and `not_started` only with
        proof."""


def fact_value(facts: Iterable[Fact], what: str, where: str | None) -> str | None:
    return next((f.value for f in facts if (f.what, f.where) == (what, where)), None)


def resolve_path(step: Step, named: str) -> str | None:
    """The absolute path of an operand of a step. A ".." behind a link means one thing to a shell's cd and another one
    to the kernel: None."""
    if not named or "\0" in named:
        return None
    try:
        named.encode()
    except UnicodeEncodeError:
        return None
    joined = str(step.cwd / named)
    if ".." in Path(joined).parts:
        folder = joined if joined.endswith("/..") else str(Path(joined).parent)
        if os.path.realpath(folder) != os.path.realpath(os.path.normpath(folder)):
            return None
    return relocate(step.moved, os.path.normpath(joined))


def resolve_paths(step: Step, named: Sequence[str]) -> tuple[str, ...] | None:
    """The absolute paths of operands; None where one of them cannot be resolved, or two are the same."""
    paths = [p for word in named if (p := resolve_path(step, word)) is not None]
    return tuple(paths) if len(set(paths)) == len(named) else None


def folder_fact(cwd: str) -> tuple[Fact, ...]:
    """The fact of an agent's word on where a call runs; nothing for a word that is no plain absolute path."""
    plain = (
        cwd.startswith("/") and cwd[1:2] != "/" and os.path.normpath(cwd) == cwd and "\0" not in cwd and len(cwd) < 4096
    )
    return (Fact(what=CWD, where=cwd, value=""),) if plain and cwd == cwd.encode(errors="replace").decode() else ()


def call_folder(facts: Sequence[Fact]) -> Path | None:
    """Where the agent reported that the call runs, if it did."""
    return next((Path(f.where) for f in facts if f.what == CWD), None)


def relocate(way: tuple[Path, Path] | None, path: str) -> str:
    """A path in the workspace that the call worked in as the same place in the one here."""
    if way is None or not Path(path).is_relative_to(way[0]):
        return path
    return str(way[1] / Path(path).relative_to(way[0]))


def paths_overlap(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether a path of the one is, holds, or is in a path of the other, also where links give them other names: equal
    names anywhere on the way count."""
    ones, others = [_names(p) for p in one], [_names(p) for p in other]
    return any(a[-1] in b or b[-1] in a for a in ones for b in others)


def _names(path: str) -> tuple[str, ...]:
    plain = unicodedata.normalize("NFC", path.casefold())  # some file systems take such names for one
    return ("/", *(part for part in plain.split("/") if part))


def resolve_reach(reach: Reach) -> tuple[str, ...]:
    """What a step changes, by its names and by what these are now, links followed."""
    return tuple(dict.fromkeys((*reach.changes, *map(os.path.realpath, reach.changes))))


def times_settled(changed: int, now: int) -> bool:
    """Whether a change from `now` on shows in the times of a file that changed last at `changed` (both ns since 1970).
    File systems count in ticks of up to 10 ms, some in whole seconds: a change in the tick of the one before leaves no
    mark."""
    return now - changed > (2_000_000_000 if changed % 1_000_000_000 == 0 else 20_000_000)


def output_redirects(step: Step) -> tuple[Redirect, ...]:
    """The redirections of a step that may change a file."""
    return tuple(r for r in step.redirects if r.op in _OUTPUTS and not _is_descriptor(r))


def _is_descriptor(redirect: Redirect) -> bool:
    text = redirect.to.text if redirect.to is not None else None
    return text == "/dev/null" or (redirect.op == ">&" and text is not None and bool(re.fullmatch(r"\d+|-", text)))
