"""What a capture does not hold, for people: bounded, in an order that does not jump about."""

from __future__ import annotations

from dataclasses import dataclass, field

from wal_agent.shown import shown

MOST = 20  # that are named; the others are counted
LENGTH = 160  # characters of each path


@dataclass(slots=True)
class LeftOut:
    """Paths (raw bytes, below the workspace) and why; a path counts once, the first reason stands."""

    why: dict[bytes, str] = field(default_factory=dict)

    def add(self, path: bytes, why: str) -> None:
        self.why.setdefault(path.rstrip(b"/"), why)

    def lines(self) -> tuple[str, ...]:
        """The first ones, by reason: what nobody chose to leave out comes first."""
        ordered = sorted(self.why.items(), key=lambda item: (item[1] in WISHED, item[1], item[0]))
        return tuple(f"{shown(path.decode(errors='backslashreplace'), LENGTH)}: {why}" for path, why in ordered[:MOST])

    @property
    def more(self) -> int:
        return max(0, len(self.why) - MOST)


IGNORED = "ignored"
NESTED = "a repository of its own; only which commit it is at is saved"
NESTED_EMPTY = "a repository of its own without a commit"
UNREADABLE = "cannot be read"
SPECIAL = "not a file, folder or link"
PRIVATE = "wal-agent's own, or the agent's"
WISHED = (IGNORED, PRIVATE)
FULL = "no room: the workspace is over its cap"


def too_big(most: int) -> str:
    return f"bigger than {most / (1 << 20):.3g} MiB"
