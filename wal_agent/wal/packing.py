"""zstd over MessagePack with bounded output: how segments and snapshots become bytes and back.

Bytes from a bucket are untrusted: whatever they are, `unpack` gives a valid value or raises Damaged.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import zstandard

from wal_agent import decoders
from wal_agent.errors import Damaged
from wal_agent.records import FORMAT
from wal_agent.shown import shown

T = TypeVar("T")

LEVEL = 3


class _Head(msgspec.Struct):
    format: int


_HEAD: msgspec.msgpack.Decoder[_Head] = decoders.of_msgpack(_Head)


def pack(value: object) -> bytes:
    """One zstd frame with content size and checksum around the MessagePack of `value`."""
    return squeeze(msgspec.msgpack.encode(value))


def squeeze(raw: bytes) -> bytes:
    # A compressor is not safe to share between threads; making one costs microseconds.
    made = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compress(raw)
    return bytes(memoryview(made))  # a copy: what the library gives keeps as much memory as `raw` takes (I9)


def inflate(data: bytes, limit: int) -> bytes:
    """The content of the one frame in `data`; Damaged when it is none, or says or has more than `limit` bytes."""
    try:
        size = zstandard.frame_content_size(data)
        # An unknown size (-1) is not ours. A size above the limit would be allocated before a byte is checked.
        if not 0 <= size <= limit:
            raise Damaged(f"it says it holds {size} bytes, {limit} are allowed")
        if size == 0:
            return b""
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damaged(f"not a whole zstd frame ({error})") from error


def unpack(data: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int) -> T:
    """The value in `data`, at most `limit` bytes of MessagePack; Damaged says what is wrong with it."""
    raw = inflate(data, limit)
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(_newer(raw) or f"not what was written ({shown(str(error))})") from error


def _newer(raw: bytes) -> str:
    try:
        found = _HEAD.decode(raw).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return f"written by a newer wal-agent (format {found}, this one reads {FORMAT})" if found > FORMAT else ""
