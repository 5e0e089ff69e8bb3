"""Encrypts what a job stores before it leaves this machine: AES-256-GCM, with a key that the bucket never sees.

What lies in a folder of a job (log, snapshots, blobs) is encrypted, and so is what may come to lie in another folder.
The lease is never encrypted: who holds a job must be visible without its key.

An object is MAGIC, a format byte, the key's id, a nonce, and the ciphertext with its tag. Magic, format, key id and the
object's own key in the bucket are authenticated, so that an object that was changed, renamed or swapped is not read.
The plaintext is what callers compare (R3): the same segment sent again has another nonce and other bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from wal_agent.bucket.base import Bucket, Entry, Object, Version, check_key
from wal_agent.bucket.encryption import GIVE_KEY, KEY_ID_SIZE, Key
from wal_agent.errors import Damaged, Denied, Newer

SEALED_MAGIC = b"WALE"
SEALED_FORMAT = 1
NONCE = 12  # bytes, random: one key is good for 2**32 objects (NIST SP 800-38D, 8.3)
TAG = 16
_HEAD_SIZE = len(SEALED_MAGIC) + 1 + KEY_ID_SIZE
SEALED_OVERHEAD = _HEAD_SIZE + NONCE + TAG


def is_covered(key: str) -> bool:
    """Whether the object belongs to the content of a job: `<job>/log/...`, not `<job>/lease.json`."""
    return key.count("/") >= 2


class EncryptedBucket:
    """With `key` None nothing is encrypted, and what is says so (Denied) instead of looking damaged.

    With a key, `get` raises Damaged for what is not encrypted or was tampered with, Denied for another key's objects,
    Newer for a later format's.
    """

    def __init__(self, inner: Bucket, key: Key | None, covers: Callable[[str], bool] = is_covered) -> None:
        self.url = inner.url
        self._inner = inner
        self._covers = covers
        self._sealer = _Sealer(key) if key else None

    def get(self, key: str) -> Object:
        found = self._inner.get(key)
        if not self._covers(key):
            return found
        if self._sealer is None:
            _refuse_encrypted(key, found.data)
            return found
        return replace(found, data=self._sealer.open(key, found.data))

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        if self._sealer is not None and self._covers(key):
            data = self._sealer.seal(key, data)
        return self._inner.put(key, data, if_version=if_version)

    def delete(self, *keys: str) -> None:
        self._inner.delete(*keys)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._inner.list(prefix, start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._inner.folders(prefix)

    def time(self) -> float:
        return self._inner.time()

    def close(self) -> None:
        self._inner.close()


class _Sealer:
    """Seals and opens objects with one key. Threads may share it."""

    def __init__(self, key: Key) -> None:
        # Here, so that only those who encrypt pay for it (15 to 50 ms, 8 MB).
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._id = key.id
        self._head = SEALED_MAGIC + bytes([SEALED_FORMAT]) + bytes.fromhex(key.id)
        self._cipher = AESGCM(key.secret)

    def seal(self, name: str, data: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        return self._head + nonce + self._cipher.encrypt(nonce, data, self._head + name.encode())

    def open(self, name: str, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if not data.startswith(SEALED_MAGIC):
            raise Damaged(f"{name} is not encrypted, but a key was given: it was not written with this key.")
        if len(data) < SEALED_OVERHEAD:
            raise Damaged(f"{name} is damaged: its {len(data)} bytes are too few for an encrypted object.")
        nonce, same_key = data[_HEAD_SIZE : _HEAD_SIZE + NONCE], data[:_HEAD_SIZE] == self._head
        damaged = Damaged(f"{name} is damaged: its bytes are not those that were encrypted under this name.")
        try:
            plain = self._cipher.decrypt(nonce, data[_HEAD_SIZE + NONCE :], self._head + name.encode())
        except InvalidTag:
            if (found := data[len(SEALED_MAGIC)]) > SEALED_FORMAT:
                raise Newer.of(name, f"encryption format {found}") from None
            if same_key or found != SEALED_FORMAT:
                raise damaged from None
            raise Denied(
                f"{name} is encrypted with key {_id_in(data)}; the key that was given is {self._id}.",
                "Give the right one.",
            ) from None
        if not same_key:
            raise damaged  # this key's object, with another's id or format written over
        return plain


def _refuse_encrypted(name: str, data: bytes) -> None:
    """Denied for an encrypted object. A blob's bytes are the user's and may begin with anything; its hash tells."""
    if data.startswith(SEALED_MAGIC) and name.split("/")[1:2] != ["blobs"]:
        raise Denied(f"{name} is encrypted with key {_id_in(data)}, and no key was given.", GIVE_KEY)


def _id_in(data: bytes) -> str:
    return data[len(SEALED_MAGIC) + 1 : _HEAD_SIZE].hex()
