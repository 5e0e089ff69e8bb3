"""`python -m bench [NAME ...]`: all claims, or the named ones."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = ("hook", "flat", "start", "recovery", "capture", "evidence", "watchdog", "redact", "drain")


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        module = import_module(f"bench.{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        module.main()


if __name__ == "__main__":
    main()
