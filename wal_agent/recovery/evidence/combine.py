"""What the steps of a call say together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.evidence.model import Outcome

_WORDS = {  # of one, of several
    "completed": ("completed", "completed"),
    "not_started": ("has not begun", "have not begun"),
    "partial": ("was begun", "were begun"),
}


@dataclass(frozen=True, slots=True)
class NamedOutcome:
    """A step's finding; `name` is the step in a few words, safe to show."""

    name: str
    found: Outcome


def combine_outcomes(steps: Sequence[NamedOutcome]) -> Outcome:
    """One finding for a call whose changing steps are all here, in their order.

    Steps whose `completed` holds either way fit to whatever the others say. Steps run one after the other, so what has
    begun must stand in front of what has not; anything else is unknown.
    """
    if not steps:
        return Outcome("unknown")
    if len(steps) == 1:
        return steps[0].found
    told = [s for s in steps if not s.found.either] or list(steps)
    findings = [s.found.finding for s in told]
    if len(set(findings)) == 1 and findings[0] in ("completed", "not_started"):
        whys = list(dict.fromkeys(s.found.why for s in told if s.found.why))
        return Outcome(findings[0], " ".join(whys[:3]), either=all(s.found.either for s in told))
    if "unknown" not in findings and _in_order(findings):
        return Outcome("partial", _said(told))
    known = [s for s in told if s.found.finding != "unknown"]
    if not known:
        return Outcome("unknown", next((s.found.why for s in told if s.found.why), ""))
    dark = [s.name for s in told if s.found.finding == "unknown"]
    return Outcome("unknown", f"{_said(known)}{f' Of {_join(dark)} nothing can be told.' if dark else ''}")


def _in_order(findings: Sequence[str]) -> bool:
    """completed, then at most one partial, then not_started."""
    rank = {"completed": 0, "partial": 1, "not_started": 2}
    ranks = [rank[f] for f in findings]
    return ranks == sorted(ranks) and ranks.count(1) <= 1


def _said(steps: Sequence[NamedOutcome]) -> str:
    parts = []
    for finding, words in _WORDS.items():
        if names := [s.name for s in steps if s.found.finding == finding]:
            parts.append(f"{_join(names)} {words[len(names) > 1]}")
    return "; ".join(parts) + "."


def _join(names: Sequence[str]) -> str:
    shown = [*names[:4], *([f"{len(names) - 4} more"] if len(names) > 4 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
