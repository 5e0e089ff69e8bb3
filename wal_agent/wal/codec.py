"""The bytes of segments and snapshots: zstd over MessagePack, with bounded output.

A segment is an immutable, numbered object with a batch of records, chained to the one before by hash (I2, I3). A
snapshot is the whole state as of one segment, with that segment's hash (R5). Bytes from a bucket are untrusted:
whatever they are, decoding gives a valid value or raises Damaged, or Newer for what a newer wal-agent wrote.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from wal_agent import msgspec_compat
from wal_agent.budget import FOREIGN
from wal_agent.errors import Damaged, Newer
from wal_agent.records import FORMAT, AnyRecord, Opening
from wal_agent.text import shorten
from wal_agent.wal.keys import MAX_SEQ
from wal_agent.wal.state import State, exceeded_limit, upgrade_state

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

LEVEL = 3
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: True,
    zstd.CompressionParameter.content_size_flag: True,
}
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,39}")  # a name that a version of wal-agent may give
TAG_SIZE = 32
MAX_SEGMENT = 1 << 20  # bytes of MessagePack that a writer puts into one segment
OVERHEAD = 1024  # generous: everything in a segment but its records (job <= 100, run <= 200 bytes)
_TAG = b"\xa3tag\xc4" + bytes((TAG_SIZE,))  # the last field of a map: its name, and the head of its bytes
START = bytes(32)  # `prev` of segment 1


class _FormatField(msgspec.Struct):
    format: int


_FORMAT_FIELD: msgspec.msgpack.Decoder[_FormatField] = msgspec_compat.of_msgpack(_FormatField)


def pack(value: object) -> bytes:
    """One zstd frame with content size and checksum around the MessagePack of `value`."""
    return compress(msgspec.msgpack.encode(value))


def compress(raw: bytes) -> bytes:
    return zstd.compress(raw, options=_OPTIONS)


def decompress(data: bytes, limit: int) -> bytes:
    """The content of the one frame in `data`; Damaged when it is none, or says or has more than `limit` bytes."""
    try:
        size = zstd.get_frame_info(data).decompressed_size
        # An unknown size (None) is none that we write. A size above the limit would be allocated before a byte is
        # checked.
        if size is None or size > limit:
            raise Damaged(f"it says it holds {size} bytes, {limit} are allowed")
        decompressor = zstd.ZstdDecompressor()
        raw = decompressor.decompress(data, max_length=size + 1)  # a frame that holds more than it says is not read
    except zstd.ZstdError as error:
        raise Damaged(f"not a whole zstd frame ({error})") from error
    if not decompressor.eof or decompressor.unused_data or len(raw) != size:
        raise Damaged("not a whole zstd frame (its length is not what it says)")
    return raw


def unpack(data: bytes, decoder: msgspec.msgpack.Decoder[T], limit: int, name: str) -> T:
    """The value in `data`, at most `limit` bytes of MessagePack. Damaged says what is wrong with it; Newer: a newer
    wal-agent wrote the object `name`."""
    raw = decompress(data, limit)
    try:
        value = decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if what := find_newer(raw, decoder.type):
            raise Newer.of(name, what) from error
        raise Damaged(f"not what was written ({shorten(str(error))})") from error
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
    if len(raw) > FOREIGN.loose:
        return ""
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
    """Of a value that is one of several structs, distinguished by their tags."""
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


# --- whose bytes they are


def _tag_of(body: bytes, key: bytes, kind: str) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=TAG_SIZE, person=kind.encode()).digest()


def _add_tag(raw: bytes, key: bytes, kind: str) -> bytes:
    """`raw`, the MessagePack of a small map, with a field more: the tag of all the others under a person's `key`."""
    return bytes((raw[0] + 1,)) + raw[1:] + _TAG + _tag_of(raw[1:], key, kind) if key else raw


def is_tagged(data: bytes, key: bytes, kind: Literal["segment", "snapshot"]) -> bool:
    """Whether whoever made this object had the person's `key`: the tag is right. Damaged."""
    raw = decompress(data, FOREIGN.segment if kind == "segment" else FOREIGN.of_snapshot(len(data)))
    end = len(raw) - TAG_SIZE
    body, head, tag = raw[1 : end - len(_TAG)], raw[end - len(_TAG) : end], raw[end:]
    return bool(key) and head == _TAG and hmac.compare_digest(tag, _tag_of(body, key, kind))


Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Tag = Annotated[bytes, msgspec.Meta(max_length=TAG_SIZE)]


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`prev` is the sha256 of the previous segment's *bytes* in the bucket; `time` is for people. `carried`: the epoch
    of the run that made the records, where they came into the log from its spool, under a later epoch (R9). `tag`: of
    the person whose run wrote it; empty: of nobody."""

    format: int
    job: str
    epoch: Count
    seq: Count
    run: str
    prev: Hash
    time: float
    records: tuple[AnyRecord, ...]
    carried: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)] = 0
    tag: Tag = b""

    @property
    def origin(self) -> int:
        """The epoch that the records are of."""
        return self.carried or self.epoch

    @property
    def opening(self) -> Opening | None:
        """The opening record that begins this segment, if it is an opening segment."""
        first = self.records[0] if self.records else None
        return first if isinstance(first, Opening) else None


class Author(msgspec.Struct, frozen=True):
    """The run that writes segments of `job`. `sign`: the person's key, empty for none."""

    job: str
    epoch: int
    run: str
    sign: bytes = b""


class _OutgoingSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment on its way out; its records are MessagePack already."""

    format: int
    job: str
    epoch: int
    seq: int
    run: str
    prev: bytes
    time: float
    records: Sequence[msgspec.Raw]
    carried: int = 0


_SEGMENT: msgspec.msgpack.Decoder[Segment] = msgspec_compat.of_msgpack(Segment)
_RECORD: msgspec.msgpack.Decoder[AnyRecord] = msgspec_compat.of_msgpack(AnyRecord)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def encode_record(record: AnyRecord) -> tuple[bytes, AnyRecord]:
    """The record's MessagePack, and the record as every later reader will see it.

    ValueError when it could not be read back (a field of a wrong type) or fits no segment: such a record in the log
    would make the log unreadable for ever, so the writer's caller hears of it before anything is written."""
    raw = msgspec.msgpack.encode(record)
    if len(raw) > MAX_SEGMENT - OVERHEAD:
        raise ValueError(f"a {type(record).__name__} of {len(raw)} bytes fits no segment; bulk goes into blobs")
    try:
        return raw, _RECORD.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a {type(record).__name__} that cannot be read back: {error}") from error


def batch_length(sizes: Iterable[int], limit: int = MAX_SEGMENT - OVERHEAD) -> int:
    """How many of the queue's items (of `sizes` bytes each, in order) go into the next segment; at least one."""
    taken = total = 0
    for size in sizes:
        total += size
        if taken and total > limit:
            break
        taken += 1
    return taken


def encode_segment(
    by: Author, *, seq: int, prev: bytes, time: float, records: Sequence[bytes], carried: int = 0
) -> bytes:
    """The segment's bytes. Called once for each segment: what is sent again are these bytes (R3)."""
    made = _OutgoingSegment(
        format=FORMAT,
        job=by.job,
        epoch=by.epoch,
        seq=seq,
        run=by.run,
        prev=prev,
        time=time,
        records=[msgspec.Raw(r) for r in records],
        carried=carried,
    )
    return compress(_add_tag(msgspec.msgpack.encode(made), by.sign, "segment"))


def decode_segment(data: bytes, *, job: str, seq: int) -> Segment:
    """The segment at `seq` of `job`; Damaged names the record number and what is wrong; Newer."""
    try:
        segment = unpack(data, _SEGMENT, FOREIGN.segment, f"Record {seq} of job {job}")
        if segment.format != FORMAT:
            raise Damaged(f"there is no format {segment.format}")
        if segment.job != job or segment.seq != seq:
            raise Damaged(f"it calls itself record {segment.seq} of job {shorten(repr(segment.job))}")
    except Damaged as error:
        raise Damaged(f"record {seq} of job {job} is damaged: {error.what}.") from error
    return segment


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`hash` is the sha256 of segment `seq`'s bytes, `time` that segment's time. `tag`: as a segment's."""

    format: Literal[1]
    job: str
    seq: Count
    hash: Hash
    state: State
    time: float
    tag: Tag = b""


_SNAPSHOT: msgspec.msgpack.Decoder[Snapshot] = msgspec_compat.of_msgpack(Snapshot)


def encode_snapshot(snapshot: Snapshot, sign: bytes = b"") -> bytes:
    """The snapshot's bytes; ValueError when no reader would take it. `sign`: as a segment's."""
    raw = _add_tag(msgspec.msgpack.encode(snapshot), sign, "snapshot")
    data = compress(raw)
    if len(raw) > (most := FOREIGN.of_snapshot(len(data))):
        raise ValueError(f"a snapshot of {len(raw)} bytes is more than readers take ({most})")
    return data


def decode_snapshot(data: bytes, *, job: str, seq: int) -> Snapshot:
    """Damaged; Newer."""
    try:
        snapshot = unpack(data, _SNAPSHOT, FOREIGN.of_snapshot(len(data)), f"Snapshot {seq} of job {job}")
        if snapshot.job != job or snapshot.seq != seq:
            raise Damaged(f"it calls itself snapshot {snapshot.seq} of job {shorten(repr(snapshot.job))}")
        if why := exceeded_limit(snapshot.state):
            raise Damaged(why)
    except Damaged as error:
        raise Damaged(f"snapshot {seq} of job {job} is damaged: {error.what}.") from error
    return msgspec.structs.replace(snapshot, state=upgrade_state(snapshot.state))
