"""Session files that are JSON, a line each, as JavaScript and Rust programs write them: read with junk in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

Json = dict[str, Any]
Line = bytes | memoryview


def decode(text: Line) -> Any:
    """JSON as JavaScript writes it; lone surrogates (which msgspec refuses) included. ValueError when it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(bytes(text))


def encode(value: Any) -> bytes:
    """One line. Without raw U+2028 and U+2029: JavaScript counts them as line ends, and a reader of lines may too."""
    try:
        return one_line(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def one_line(text: bytes) -> bytes:
    if text.isascii() or b"\xe2\x80" not in text:  # nearly always; spares two copies of each line
        return text
    return text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def records(data: bytes) -> Iterator[tuple[Json | None, Line]]:
    """Each line that is not blank, as it is to be written again, with the object in it (None for junk)."""
    clean = one_line(data) is data
    view = memoryview(data)  # most lines are not touched: they are not copied either
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        raw = view[begin:end]
        bare = data.startswith(b"{", begin, end) and data.endswith(b"}", begin, end)
        line: Line = raw if bare else bytes(raw).strip(b"\0 \t\r")
        begin = end + 1
        if not line:
            if 0 in raw:
                yield None, raw
            continue
        try:
            value = decode(line)
        except (ValueError, RecursionError):
            value = None
        yield (value if isinstance(value, dict) else None), line if clean else one_line(bytes(line))


def whole(data: bytes) -> bytes:
    """Up to the last line that is complete; a torn tail is cut, with NULs that a crash may have left."""
    return data[: data.rfind(b"\n") + 1]
