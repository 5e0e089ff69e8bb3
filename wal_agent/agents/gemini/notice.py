"""The recovery prompt in the session file. (being written)"""

from __future__ import annotations

from pathlib import Path


def tell(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    raise NotImplementedError
