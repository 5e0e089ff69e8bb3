"""zstd over MessagePack with bounded output: how segments and snapshots become bytes and back.

Bytes from a bucket are untrusted: whatever they are, `unpack` gives a valid value or raises Damaged, or Newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import zstandard
from msgspec import inspect

from wal_agent import decoders
from wal_agent.errors import Damaged, Newer
from wal_agent.records import FORMAT
from wal_agent.shown import shown

T = TypeVar("T")

LEVEL = 3
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,39}")  # a name that a version of wal-agent may give


class _FormatField(msgspec.Struct):
    format: int


_FORMAT_FIELD: msgspec.msgpack.Decoder[_FormatField] = decoders.of_msgpack(_FormatField)


def pack(value: object) -> bytes:
    """One zstd frame with content size and checksum around the MessagePack of `value`."""
    return compress(msgspec.msgpack.encode(value))


def compress(raw: bytes) -> bytes:
    # A compressor is not safe to share between threads; making one costs microseconds.
    made = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True).compress(raw)
    return bytes(memoryview(made))  # a copy: what the library gives keeps as much memory as `raw` takes (I9)


def decompress(data: bytes, limit: int) -> bytes:
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


def unpack(data: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int, name: str) -> T:
    """The value in `data`, at most `limit` bytes of MessagePack. Damaged says what is wrong with it; Newer: a newer
    wal-agent wrote the object `name`."""
    raw = decompress(data, limit)
    try:
        value = decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if what := find_newer(raw, decoder.type):
            raise Newer.of(name, what) from error
        raise Damaged(f"not what was written ({shown(str(error))})") from error
    if what := find_newer_format(raw):
        raise Newer.of(name, what)
    return value


# --- what an older reader cannot know


def find_newer_format(raw: bytes) -> str:
    try:
        found = _FORMAT_FIELD.decode(raw).format
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return f"format {found}" if found > FORMAT else ""


def find_newer(raw: bytes, type: Any) -> str:
    """What `raw`, which is no `type`, has that a later version may have added: a higher format, or a record type, a
    field or a word of a list of words that is not known; "" where it is none for another reason."""
    if what := find_newer_format(raw):
        return what
    try:
        return _unknown(msgspec.msgpack.decode(raw), inspect.type_info(type))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return ""


def _unknown(value: object, info: inspect.Type) -> str:
    """The first such thing in a decoded value. Only a plain name counts: anything else is damage."""
    match info:
        case inspect.StructType():
            return _unknown_in(value, info) if isinstance(value, dict) else ""
        case inspect.UnionType():
            structs = [each for each in info.types if isinstance(each, inspect.StructType)]
            if isinstance(value, dict) and structs:
                return _unknown_of(value, structs)
            others = [each for each in info.types if not isinstance(each, inspect.StructType | inspect.NoneType)]
            return _unknown(value, others[0]) if len(others) == 1 and value is not None else ""
        case inspect.VarTupleType() | inspect.ListType():
            return _first(_unknown(each, info.item_type) for each in value) if isinstance(value, list) else ""
        case inspect.DictType():
            values = value.values() if isinstance(value, dict) else ()
            return _first(_unknown(each, info.value_type) for each in values)
        case inspect.LiteralType():
            return f"word `{value}`" if _plain(value) and value not in info.values else ""
        case _:
            return ""


def _unknown_of(value: dict[object, object], structs: list[inspect.StructType]) -> str:
    """Of a value that is one of several structs, told apart by their tags."""
    by_tag = {each.tag: each for each in structs}
    if len(structs) == 1 and structs[0].tag is None:
        return _unknown_in(value, structs[0])
    tag = value.get(structs[0].tag_field)
    if isinstance(tag, str) and tag in by_tag:
        return _unknown_in(value, by_tag[tag])
    return f"record type `{tag}`" if _plain(tag) else ""


def _unknown_in(value: dict[object, object], info: inspect.StructType) -> str:
    fields = {each.encode_name: each.type for each in info.fields}
    if not all(each.encode_name in value for each in info.fields if each.required):
        return ""  # an object of another kind, or damage: a later version adds fields
    for name, part in value.items():
        if name == info.tag_field and info.tag_field is not None:
            continue
        if name not in fields:
            if info.forbid_unknown_fields and _plain(name):
                return f"field `{name}`"
        elif what := _unknown(part, fields[str(name)]):
            return what
    return ""


def _first(found: Iterable[str]) -> str:
    return next(filter(None, found), "")


def _plain(name: object) -> bool:
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None
