"""Encrypt what a job stores before it leaves this machine: AES-256-GCM, with a key that the bucket never sees.

Everything in a folder of a job (log, snapshots, blobs) is encrypted, and so is what may be stored in another folder.
The lease is never encrypted: who holds a job must be visible without its key.

An object is MAGIC, a format byte, the key's id, a nonce, and the ciphertext with its tag. Magic, format, key id and the
object's own key in the bucket are authenticated, so that an object that was changed, renamed or swapped is not read.
The plaintext is what callers compare (R3): the same segment sent again has another nonce and other bytes.

A key is 32 random bytes. It is never in a message, a log, a lease or a process's arguments; its id is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from wal_agent.bucket.base import Bucket, BucketDecorator, Object, Version, check_key
from wal_agent.errors import ConfigError, Damaged, Denied, Newer, UsageError
from wal_agent.extras import required

KEY_SIZE = 32  # bytes: AES-256
KEY_ID_SIZE = 8  # bytes
COMMAND_BUDGET = 30.0  # seconds
MAX_KEY_TEXT = 4096  # bytes; more is no key
FEWEST_DISTINCT = 16  # of 32 random bytes, fewer different ones come once in 10**15 keys: it is a placeholder
_HEX = re.compile(rb"[0-9A-Fa-f]{64}")
_MAKE_KEY = "Make one with: (umask 077; openssl rand -hex 32 > wal-agent.key)"
GIVE_KEY = "Give it with --encryption-key-file or --encryption-key-command."
SEALED_MAGIC = b"WALE"
SEALED_FORMAT = 1
NONCE = 12  # bytes, random: one key is good for 2**32 objects (NIST SP 800-38D, 8.3)
TAG = 16
_HEAD_SIZE = len(SEALED_MAGIC) + 1 + KEY_ID_SIZE
SEALED_OVERHEAD = _HEAD_SIZE + NONCE + TAG


@dataclass(frozen=True, slots=True)
class Key:
    """`id` names the key in leases and objects: 16 hex digits, from which the key cannot be found."""

    secret: bytes = field(repr=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_SIZE:
            raise ValueError(f"a key has {KEY_SIZE} bytes")
        digest = hmac.digest(self.secret, b"wal-agent key id", hashlib.sha256)
        object.__setattr__(self, "id", digest[:KEY_ID_SIZE].hex())


def key_id(key: Key | None) -> str:
    """The id as a lease has it: empty for no key."""
    return key.id if key else ""


def wrong_key_error(job: str, stored: str, given: str) -> Denied | None:
    """What is wrong when a job whose lease names the key `stored` is used with the key `given` (ids, empty for none).

    A job keeps its key, or its lack of one, also once it is closed: its log goes on."""
    if stored == given:
        return None
    name = stored[: 2 * KEY_ID_SIZE]
    if not given:
        return Denied(f"Job {job} is encrypted with key {name}, and no key was given.", GIVE_KEY)
    if not stored:
        return Denied(
            f"Job {job} is not encrypted, but a key was given (key {given}).",
            "Leave the key out, or use another --job: a job that began in the clear stays so.",
        )
    return Denied(f"Job {job} is encrypted with key {name}; the key that was given is {given}.", "Give the right one.")


def load_key(file: str, command: str, env: Mapping[str, str]) -> Key | None:
    """The key from a file or from what a command prints; None when neither is named.

    UsageError when both are; ConfigError for a file that cannot be used or is open to others, and for what is no key;
    Denied when the command gives none. No message holds any part of the key, nor the command, which may hold one.
    """
    if file and command:
        raise UsageError(
            "Both a key file and a key command are named.",
            "Give one of --encryption-key-file and --encryption-key-command (or their variables, WAL_AGENT_...).",
        )
    if file:
        return parse_key(_from_file(file), f"the key file {file}")
    if command:
        return parse_key(_from_command(command, env), "what the key command printed")
    return None


def parse_key(text: bytes, what: str) -> Key:
    """32 raw bytes, or 64 hex digits or base64 of them with white space around; ConfigError, which says `what`."""
    secret = text if len(text) == KEY_SIZE else _decoded(text.strip())
    if secret is None or len(secret) != KEY_SIZE:
        raise ConfigError(
            f"There is no key in {what}: a key is {KEY_SIZE} random bytes, raw, as 64 hex digits or as base64.",
            _MAKE_KEY,
        )
    # 32 characters that a person can type are a passphrase, or a shorter key in hex, and much easier to guess.
    if len(set(secret)) < FEWEST_DISTINCT or all(0x20 <= byte < 0x7F for byte in secret):
        raise ConfigError(f"The key in {what} is not made of random bytes, so it could be guessed.", _MAKE_KEY)
    return Key(secret)


def _decoded(text: bytes) -> bytes | None:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text.decode())
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _from_file(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error.strerror}.") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ConfigError(f"The key file {path} is not a file.", "For a pipe use --encryption-key-command.")
        # A group may read it where someone else owns it: so a container's user gets a mounted secret.
        closed_to = 0o077 if info.st_uid == os.geteuid() else 0o007
        if info.st_mode & closed_to:
            raise ConfigError(
                f"The key file {path} is open to others (mode {info.st_mode & 0o777:04o}), so it is not used.",
                f"Type: chmod 600 {shlex.quote(path)}",
            )
        return os.read(fd, MAX_KEY_TEXT)
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(fd)


def _from_command(command: str, env: Mapping[str, str]) -> bytes:
    # Not a session of its own: it may ask for a passphrase at the terminal. Standard input is the agent's.
    with subprocess.Popen(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(env)
    ) as process:
        try:
            text, _ = process.communicate(timeout=COMMAND_BUDGET)
        except subprocess.TimeoutExpired:
            _kill_tree(process.pid)
            raise Denied(
                f"The key command did not end within {COMMAND_BUDGET:g} s.", "Run it by hand to see what it waits for."
            ) from None
        except BaseException:
            _kill_tree(process.pid)
            raise
    if process.returncode != 0:
        raise Denied(
            f"The key command failed (exit code {process.returncode}).",
            "It says why above; run it by hand to see more.",
        )
    return text


def _kill_tree(pid: int) -> None:
    import psutil

    with suppress(psutil.Error):
        shell = psutil.Process(pid)
        for process in [*shell.children(recursive=True), shell]:
            with suppress(psutil.Error):
                process.kill()


def is_covered(key: str) -> bool:
    """Whether the object belongs to the content of a job: `<job>/log/...`, not `<job>/lease.json`."""
    return key.count("/") >= 2


class EncryptedBucket(BucketDecorator):
    """With `key` None nothing is encrypted, and what is says so (Denied) instead of looking damaged.

    With a key, `get` raises Damaged for what is not encrypted or was tampered with, Denied for another key's objects,
    Newer for a later format's.
    """

    def __init__(self, inner: Bucket, key: Key | None, covers: Callable[[str], bool] = is_covered) -> None:
        super().__init__(inner)
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


class _Sealer:
    """Seals and opens objects with one key. Threads may share it."""

    def __init__(self, key: Key) -> None:
        # Here, so that only those who encrypt pay for it (15 to 50 ms, 8 MB).
        with required("encryption", "An encryption key"):
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
    """Denied for an encrypted object. A blob's bytes are the user's and may begin with anything; its hash is
    checked."""
    if data.startswith(SEALED_MAGIC) and name.split("/")[1:2] != ["blobs"]:
        raise Denied(f"{name} is encrypted with key {_id_in(data)}, and no key was given.", GIVE_KEY)


def _id_in(data: bytes) -> str:
    return data[len(SEALED_MAGIC) + 1 : _HEAD_SIZE].hex()
