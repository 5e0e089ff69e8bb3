"""How often evidence for git knows: verdicts by command and truth, collected while tests run and printed at the end."""

from __future__ import annotations

from collections import Counter, defaultdict

COUNTS: defaultdict[str, Counter[str]] = defaultdict(Counter)


def count(command: str, truth: str, finding: str) -> None:
    COUNTS[command][f"{truth}>{finding}"] += 1


def table() -> str:
    """A line for each command: how many runs, the share of unknown, and what was found where."""
    lines = []
    for command, found in sorted(COUNTS.items()):
        runs = sum(found.values())
        unknown = sum(n for key, n in found.items() if key.endswith(">unknown"))
        lines.append(f"{command:24} {runs:5} runs, {100 * unknown // runs:3} % unknown   {dict(sorted(found.items()))}")
    return "\n".join(lines)
