"""Session files that are JSON, a line each, as JavaScript and Rust programs write them: read with junk in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

Json = dict[str, Any]
Line = bytes | memoryview

SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@+=-]{0,254}")
SessionId = Annotated[str, msgspec.Meta(pattern=rf"\A{SESSION.pattern}\Z")]
"""A session's id as hooks say it: it becomes part of paths, arguments and records. A module may want less."""
InnerId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{SESSION.pattern})?\Z")]
"""A subagent's, or ""."""

DEPTH = 200  # levels that are read; what is read must also be written again, some levels deeper, within 1000 frames
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def well_formed(payload: bytes) -> bytes:
    """JSON with U+FFFD for each half of a surrogate pair that stands alone: JavaScript writes such strings (cut emoji)
    as escapes, and strict readers, msgspec among them, refuse the whole text."""
    if b"\\ud" not in payload and b"\\uD" not in payload:
        return payload
    return _ESCAPE.sub(lambda m: b"\\ufffd" if m[1] else m[0], payload)


def decode_json(text: Line) -> Any:
    """JSON as JavaScript writes it; lone surrogates (which msgspec refuses) included. ValueError when it is none, or
    deeper than DEPTH."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = _loads(text)
    except RecursionError as e:
        raise ValueError("nested too deep") from e
    if len(text) > DEPTH and _deeper(value, DEPTH):
        raise ValueError("nested too deep")
    return value


def _loads(text: Line) -> Any:
    try:
        return json.loads(bytes(text))
    except RecursionError as e:
        raise ValueError("nested too deep") from e


def _deeper(value: Any, levels: int) -> bool:
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        below = (v for c in layer for v in (c.values() if isinstance(c, dict) else c))
        layer = [v for v in below if isinstance(v, dict | list)]
        if not layer:
            return False
    return True


def encode_json(value: Any) -> bytes:
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
            value = decode_json(line)
        except ValueError:
            value = None
        yield (value if isinstance(value, dict) else None), line if clean else one_line(bytes(line))


def whole_lines(data: bytes) -> bytes:
    """Up to the last line that is complete; a torn tail is cut, with NULs that a crash may have left."""
    return data[: data.rfind(b"\n") + 1]


def require_object(raw: msgspec.Raw) -> bytes:
    """A tool's input in the agent's own spelling. ValueError when it is not an object."""
    data = bytes(raw)
    if data[:1] != b"{":
        raise ValueError("the tool's input is not an object")
    return data
