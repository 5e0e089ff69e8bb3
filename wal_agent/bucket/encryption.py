"""The key that a job may be encrypted with: where it comes from, and whether it is the job's.

A key is 32 random bytes. It never stands in a message, a log, a lease or a process's arguments; its id does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from wal_agent.errors import ConfigError, Denied, UsageError

KEY_SIZE = 32  # bytes: AES-256
KEY_ID_SIZE = 8  # bytes
COMMAND_BUDGET = 30.0  # seconds
MAX_KEY_TEXT = 4096  # bytes; more is no key
FEWEST_DISTINCT = 16  # of 32 random bytes, fewer different ones come once in 10**15 keys: it is a placeholder
_HEX = re.compile(rb"[0-9A-Fa-f]{64}")
_MAKE_KEY = "Make one with: (umask 077; openssl rand -hex 32 > wal-agent.key)"
GIVE_KEY = "Give it with --encryption-key-file or --encryption-key-command."


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
    with suppress(psutil.Error):
        shell = psutil.Process(pid)
        for process in [*shell.children(recursive=True), shell]:
            with suppress(psutil.Error):
                process.kill()
