"""Settings files of an agent, lowest first, as JSON with comments: which of them says what of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIMIT = 1 << 22
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*(?:"|\Z))|//[^\n\r]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Layer:
    """One settings file that exists, with the name that a person knows it by."""

    shown: str
    values: dict[str, Any]


def read_layer(shown: str, path: Path) -> Layer | None:
    """None where it is absent; or damaged, and then the agent itself says so or starts without it."""
    try:
        with path.open("rb") as f:
            text = f.read(_LIMIT).decode()
        values = json.loads(_COMMENT.sub(lambda m: m[1] or " ", text))
    except (OSError, ValueError, RecursionError):
        return None
    return Layer(shown, values) if isinstance(values, dict) else None


def effective_setting(layers: Sequence[Layer], *keys: str) -> tuple[Layer, Any] | None:
    """The last file that says something of this key, and what. A group that is no object has no keys at all."""
    found: tuple[Layer, Any] | None = None
    *groups, key = keys
    for each in layers:
        values: Any = each.values
        for group in groups:
            if group not in values:
                break
            values = values[group]
            if not isinstance(values, dict):
                found = (each, None)
                break
        else:
            if key in values:
                found = (each, values[key])
    return found
