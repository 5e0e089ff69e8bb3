"""Where on this machine a word of a call points to; None where that cannot be said for sure."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from wal_agent.evidence.model import Reach, Step
from wal_agent.records import Fact

CWD = "cwd"  # a fact: where the agent said that the call runs


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


def folder_fact(cwd: str) -> tuple[Fact, ...]:
    """The fact of an agent's word on where a call runs; nothing for a word that is no plain absolute path."""
    plain = (
        cwd.startswith("/") and cwd[1:2] != "/" and os.path.normpath(cwd) == cwd and "\0" not in cwd and len(cwd) < 4096
    )
    return (Fact(what=CWD, where=cwd, value=""),) if plain and cwd == cwd.encode(errors="replace").decode() else ()


def call_folder(facts: Sequence[Fact]) -> Path | None:
    """Where the agent said that the call runs, if it did."""
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
