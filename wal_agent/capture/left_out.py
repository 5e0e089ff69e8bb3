"""What a capture does not hold, for people: bounded, in an order that does not jump about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wal_agent.shown import shown

MAX_NAMED = 20  # that are named; the others are counted
MAX_PATH_LENGTH = 160  # characters of each path
MAX_PATHS_SIZE = 1 << 20  # bytes of a list of paths that goes into a capture


@dataclass(slots=True)
class LeftOut:
    """Paths (raw bytes, below the workspace) and why; a path counts once, the first reason stands."""

    why: dict[bytes, str] = field(default_factory=dict)
    later: list[bytes] = field(default_factory=list)  # new files that a later capture saves

    def add(self, path: bytes, why: str) -> None:
        self.why.setdefault(path.rstrip(b"/"), why)

    def lines(self) -> tuple[str, ...]:
        """The first ones, by reason: what nobody chose to leave out comes first."""
        ordered = sorted(self.why.items(), key=lambda item: (item[1] in WISHED, item[1], item[0]))
        return tuple(f"{display_path(path)}: {why}" for path, why in ordered[:MAX_NAMED])

    @property
    def more(self) -> int:
        return max(0, len(self.why) - MAX_NAMED)

    @property
    def stays(self) -> tuple[bytes, ...]:
        """What a restore must leave alone: nobody chose to leave it out, and the tree does not have it. Where the names
        are too many, the folders that they are in."""
        paths = sorted([*(path for path, why in self.why.items() if why not in (IGNORED, NESTED)), *self.later])
        if sum(map(len, paths)) > MAX_PATHS_SIZE:
            paths = sorted({path.partition(b"/")[0] for path in paths})
        return bound_paths(paths)


def display_path(path: bytes) -> str:
    """A path for people."""
    return shown(path.decode(errors="backslashreplace"), MAX_PATH_LENGTH)


def bound_paths(paths: Iterable[bytes]) -> tuple[bytes, ...]:
    """The first of them, MOST_PATHS bytes in all."""
    room, chosen = MAX_PATHS_SIZE, []
    for path in paths:
        room -= len(path)
        if room < 0:
            break
        chosen.append(path)
    return tuple(chosen)


IGNORED = "ignored"
NESTED = "a repository of its own; only which commit it is at is saved"
NESTED_EMPTY = "a repository of its own without a commit"
UNREADABLE = "cannot be read"
SPECIAL = "not a file, folder or link"
PRIVATE = "wal-agent's own, or the agent's"
WISHED = (IGNORED, PRIVATE)
FULL = "no room: the workspace is over its cap"


def describe_unexpected(lines: Sequence[str], more: int, shown: int = 3) -> str:
    """Of what a capture left out, the files that a person may take for saved: the first ones, and how many more. "" for
    none. `lines` and `more`: as in records.Workspace, where what is ignored comes last."""
    wished = tuple(f": {why}" for why in WISHED)
    found = [line for line in lines if not line.endswith((*wished, f": {NESTED}"))]
    count = len(found) + (0 if lines and lines[-1].endswith(wished) else more)
    return ", ".join(found[:shown]) + (f" and {count - shown} more" if count > shown and found else "")


def too_big_reason(most: int) -> str:
    return f"bigger than {most / (1 << 20):.3g} MiB"
