"""Counts verdicts against the truth, by kind of evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from wal_agent.records import Finding

FINDINGS: tuple[Finding, ...] = ("completed", "not_started", "partial", "unknown")

# "same": what would be there at the end was there at the start, so that both are true.
Truth = Literal["done", "untouched", "between", "same"]
RIGHT: dict[Finding, tuple[Truth, ...]] = {
    "completed": ("done", "same"),
    "not_started": ("untouched", "same"),
    "partial": ("between",),
    "unknown": ("done", "untouched", "between", "same"),
}


@dataclass(slots=True)
class Tally:
    """`seen`: by kind, finding and truth. `wrong`: each verdict that is not true, in words."""

    seen: Counter[tuple[str, Finding, Truth]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, kind: str, finding: Finding, truth: Truth, where: str) -> None:
        self.seen[kind, finding, truth] += 1
        if truth not in RIGHT[finding]:
            self.wrong.append(f"{where}: {finding}, and it was {truth}")

    def extend(self, other: Tally) -> None:
        self.seen += other.seen
        self.wrong += other.wrong

    def findings(self) -> Counter[Finding]:
        found: Counter[Finding] = Counter()
        for (_, finding, _), n in self.seen.items():
            found[finding] += n
        return found

    def table(self) -> str:
        """A line for each kind: runs, the share of each finding in percent, wrong ones."""
        rows = [f"{'kind':<16}{'runs':>7}" + "".join(f"{f:>13}" for f in FINDINGS) + f"{'wrong':>7}"]
        for kind in [*sorted({k for k, _, _ in self.seen}), "all"]:
            mine = Tally(Counter({k: n for k, n in self.seen.items() if kind in (k[0], "all")}))
            total, found = mine.seen.total(), mine.findings()
            wrong = sum(n for (_, finding, truth), n in mine.seen.items() if truth not in RIGHT[finding])
            shares = "".join(f"{100 * found[f] / total:>12.0f}%" for f in FINDINGS)
            rows.append(f"{kind:<16}{total:>7}{shares}{wrong:>7}")
        return "\n".join(rows)
