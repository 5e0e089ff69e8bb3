"""Decoders of msgspec, made one at a time.

msgspec works out a class at its first use and notes on it what it found before that is whole; another thread that
decodes into the class meanwhile dies by SIGSEGV (seen in 0.22.0). So whoever decodes into a type makes the decoder
here, once, where its module is imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_making = threading.Lock()


def of_json(type: type[T]) -> msgspec.json.Decoder[T]:
    with _making:
        return msgspec.json.Decoder(type)


def of_events(types: Mapping[str, Any]) -> dict[str, msgspec.json.Decoder[Any]]:
    """For each event's payload."""
    return {event: of_json(type) for event, type in types.items()}


def of_msgpack(type: Any) -> msgspec.msgpack.Decoder[Any]:
    """`type`: a class or a union."""
    with _making:
        return msgspec.msgpack.Decoder(type)


def of_values(type: type[T], strict: bool = True) -> Callable[[object], T]:
    """Takes what a parser of TOML or JSON gave; not `strict`: also numbers that are text. It raises
    msgspec.ValidationError."""
    of_json(type)
    return partial(msgspec.convert, type=type, strict=strict)
