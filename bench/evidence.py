"""How often can evidence tell what became of a call that was killed? `python -m bench evidence`.

Real commands of the shell, file tools, npm and git run on real files and are killed in front of their calls that change
a file: at every one of a short command, at some of npm's and git's; each also runs to its end. A line for each kind:
runs, the shares of each verdict, and how many verdicts were not true. `output`: commands whose output goes to a file.
"""

from __future__ import annotations

import sys

from bench.measure import scaled
from tests.faults.evidence.report import ALL, FEW, report


def main() -> None:
    tally = report(scaled(ALL, FEW), lambda name: print(f"\r  {name[:70]!r:<74}", end="", file=sys.stderr, flush=True))
    print("\r" + " " * 78 + "\r", end="", file=sys.stderr)
    print("\n".join(f"  {line}" for line in [*tally.table().splitlines(), *tally.wrong]))


if __name__ == "__main__":
    main()
