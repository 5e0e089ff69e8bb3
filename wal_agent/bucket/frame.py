"""How FileBucket stores an object: a header that says which put this is, then the payload, both under one checksum.

    0   8  magic "walobj\\r\\n"
    8   2  format, 1
    10  8  generation: 1 when created, one more with each replacement
    18  8  nonce, random: a key that was deleted and created again never repeats a version
    26  8  length of the payload in bytes
    34  32 SHA-256 of bytes 0-33 and the payload
    66     payload

All integers are unsigned and big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from wal_agent.bucket.base import Version
from wal_agent.errors import Damaged, Newer

_MAGIC = b"walobj\r\n"
_FORMAT = 1
_HEAD = struct.Struct(">8sHQ8sQ")
_CHECKSUM_SIZE = 32
FRAME_OVERHEAD = _HEAD.size + _CHECKSUM_SIZE
FRAME_NONCE = 8


@dataclass(frozen=True, slots=True)
class Frame:
    generation: int
    nonce: bytes
    payload: bytes

    @property
    def version(self) -> Version:
        return f"{self.generation}-{self.nonce.hex()}"


def generation_of(version: Version) -> int:
    """The generation that a version names; 0, which no object has, for a text that is no version of ours."""
    digits, _, nonce = version.partition("-")
    ours = digits.isascii() and digits.isdigit() and len(digits) < 20 and len(nonce) == 2 * FRAME_NONCE
    return int(digits) if ours else 0


def encode_frame(frame: Frame) -> bytes:
    head = _HEAD.pack(_MAGIC, _FORMAT, frame.generation, frame.nonce, len(frame.payload))
    return b"".join((head, _checksum(head, frame.payload), frame.payload))


def decode_frame(raw: bytes, name: str) -> Frame:
    """The frame in `raw`; Damaged, saying what is wrong with the object `name`, when it does not hold; Newer."""
    if len(raw) < FRAME_OVERHEAD:
        raise Damaged(f"{name} is cut off: {len(raw)} bytes are less than a header.")
    head, payload = raw[: _HEAD.size], raw[FRAME_OVERHEAD:]
    magic, form, generation, nonce, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise Damaged(f"{name} is not an object of wal-agent: it begins with other bytes.")
    if form != _FORMAT and not _is_flipped(head, payload, raw[_HEAD.size : FRAME_OVERHEAD]) and form > _FORMAT:
        raise Newer.of(name, f"format {form}")
    if form != _FORMAT:
        raise Damaged(f"{name} is damaged: there is no format {form}.")
    if length != len(payload):
        raise Damaged(f"{name} should hold {length} bytes and holds {len(payload)}.")
    if raw[_HEAD.size : FRAME_OVERHEAD] != _checksum(head, payload):
        raise Damaged(f"{name} does not match its checksum.")
    return Frame(generation, nonce, payload)


def _is_flipped(head: bytes, payload: bytes, stored: bytes) -> bool:
    """Whether it is a frame of this format but for the bytes that say so."""
    return stored == _checksum(head[: len(_MAGIC)] + _FORMAT.to_bytes(2, "big") + head[len(_MAGIC) + 2 :], payload)


def _checksum(head: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()
