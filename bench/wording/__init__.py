"""Score the words of a recovery with a small real model: what it does next, in each scenario (docs/WORDING.md)."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
