"""Files with several names (hard links): what is done by one name is done to the others, which no path tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, parse_entry, stat_entry


def have_other_names(paths: Sequence[str], facts: Iterable[Fact]) -> bool:
    """Whether a file at or noted below one of the paths has, or had before the call, another name besides. Folders are
    not searched."""
    noted = [f for f in facts if f.what in ("entry", "fresh") and any(_within(f.where, p) for p in paths)]
    return any(_several(e) for e in (*(parse_entry(f.value) for f in noted), *map(stat_entry, paths)))


def share_a_file(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether a path of the one and a path of the other are now names of one file."""
    return bool(_files(one) & _files(other))


def _files(paths: Iterable[str]) -> set[tuple[int, int]]:
    found = (stat_entry(p) for p in paths)
    return {(e.device, e.inode) for e in found if e is not None and _several(e)}


def _several(found: Entry | None) -> bool:
    return found is not None and found.kind not in ("dir", "absent") and found.links > 1


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
