"""`python -m bench [--short] [NAME ...]`: all claims, or the named ones.

`--short` runs each with just enough rounds to see that it works; its figures mean nothing. Tests run it so.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

NAMES = (
    *("hook", "flat", "follow", "parallel", "start", "recovery", "memory"),
    *(
        "capture",
        "evidence",
        "watchdog",
        "redact",
        "drain",
        "fleet",
        "checkpoint",
        "recall",
        "counts",
        "conversation",
        "messages",
        "scale",
        "load",
        "worktree",
        "cpu",
    ),
)


def main() -> None:
    words = sys.argv[1:]
    if "--short" in words:
        os.environ["WAL_AGENT_BENCH"] = "short"  # before a bench is imported: measure.scaled reads it
    for name in [word for word in words if word != "--short"] or NAMES:
        module = import_module(f"bench.{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
        module.main()


if __name__ == "__main__":
    main()
