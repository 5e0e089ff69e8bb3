"""Counts verdicts against the truth, by kind of evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

FINDINGS = ("completed", "not_started", "partial", "unknown")
TRUTHS = ("done", "untouched", "between")
RIGHT = {"completed": "done", "not_started": "untouched", "partial": "between"}


@dataclass(slots=True)
class Tally:
    """`seen`: by kind, finding and truth."""

    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, kind: str, finding: str, truth: str) -> None:
        self.seen[kind, finding, truth] += 1

    def wrong(self) -> dict[tuple[str, str, str], int]:
        return {k: n for k, n in self.seen.items() if k[1] != "unknown" and RIGHT[k[1]] != k[2]}

    def table(self) -> str:
        """A line for each kind: kills, the share of each finding in percent, wrong ones."""
        rows = [f"{'kind':<12}{'kills':>7}" + "".join(f"{f:>13}" for f in FINDINGS) + f"{'wrong':>7}"]
        for kind in sorted({k for k, _, _ in self.seen}):
            mine = {(f, t): n for (k, f, t), n in self.seen.items() if k == kind}
            total = sum(mine.values())
            shares = (100 * sum(n for (f, _), n in mine.items() if f == finding) / total for finding in FINDINGS)
            wrong = sum(n for (k, _, _), n in self.wrong().items() if k == kind)
            rows.append(f"{kind:<12}{total:>7}" + "".join(f"{s:>12.0f}%" for s in shares) + f"{wrong:>7}")
        return "\n".join(rows)


def report(progress: Callable[[str], None] = lambda text: None) -> str:
    """Kills every real operation of the trials at many places, and says how the verdicts compare with the truth."""
    from tests.faults.evidence.trials import kill_all

    return kill_all(progress).table()
