"""The wire between the hook client (hooks/client.c or .py) and the supervisor's socket: frames from bytes, and back.

One connection is one hook call. A frame is one byte of kind, four bytes of length (big endian), then the body:

    client  H  hello: "wal-agent-hook/1" NUL run NUL agent NUL event NUL client pid NUL agent pid
            D  a piece of what the agent wrote to the hook (any number of them, in order)
            E  end of the payload, empty
    server  A  answer: exactly what the client prints; for Gemini it ends with a NUL, which proves that it is whole
    client  T  told, empty: the answer is out. No T means that nobody knows what the agent was told (R7).

No socket here. Whatever does not fit (order, size, version, numbers) raises `WireError`; the server then closes,
the client ends without a word, and the shell line denies.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from wal_agent.paths import shipped, shipped_program

VERSION = "wal-agent-hook/1"
LINE_SIGN = "wal-agent:allow) exit 0;;"  # every hook line has it, also those that were installed long ago
MAX_FRAME = 1 << 20  # of one frame's body, either way
MAX_PAYLOAD = 256 << 20
HEAD = struct.Struct(">cI")

HELLO, DATA, END, ANSWER, TOLD = b"H", b"D", b"E", b"A", b"T"


class WireError(Exception):
    """The peer does not speak this protocol."""


@dataclass(frozen=True, slots=True)
class Hello:
    run: str
    agent: str
    event: str
    pid: int  # of the client process
    agent_pid: int  # parent of the hook's shell; 0 = not known


@dataclass(slots=True)
class Call:
    """One connection, fed with what arrives. `payload` may be used once `complete`; `told` comes after the answer."""

    limit: int = MAX_PAYLOAD
    hello: Hello | None = None
    payload: bytearray = field(default_factory=bytearray)
    complete: bool = False
    told: bool = False
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes as they come, cut anywhere."""
        self._rest += data
        at = 0
        while len(self._rest) - at >= HEAD.size:
            kind, size = HEAD.unpack_from(self._rest, at)
            if size > MAX_FRAME:
                raise WireError(f"frame of {size} bytes")
            if len(self._rest) - at - HEAD.size < size:
                break
            start = at + HEAD.size
            at = start + size
            self._take(kind, memoryview(self._rest)[start:at])
        del self._rest[:at]

    def _take(self, kind: bytes, body: memoryview) -> None:
        with body:
            if kind == HELLO and self.hello is None:
                self.hello = decode_hello(bytes(body))
            elif kind == DATA and self.hello is not None and not self.complete:
                if len(self.payload) + len(body) > self.limit:
                    raise WireError(f"payload over {self.limit} bytes")
                self.payload += body
            elif kind == END and self.hello is not None and not self.complete and not body:
                self.complete = True
            elif kind == TOLD and self.complete and not self.told and not body:
                self.told = True
            else:
                raise WireError(f"frame {kind!r} out of order")


def frame(kind: bytes, body: bytes = b"") -> bytes:
    if len(body) > MAX_FRAME:
        raise WireError(f"frame of {len(body)} bytes")
    return HEAD.pack(kind, len(body)) + body


def answer(printed: bytes) -> bytes:
    """The server's one frame."""
    return frame(ANSWER, printed)


def encode_hello(hello: Hello) -> bytes:
    words = (VERSION, hello.run, hello.agent, hello.event, str(hello.pid), str(hello.agent_pid or ""))
    return "\0".join(words).encode()


def decode_hello(body: bytes) -> Hello:
    try:
        version, run, agent, event, pid, agent_pid = body.decode().split("\0")
        hello = Hello(run, agent, event, int(pid), int(agent_pid or 0))
    except ValueError as e:
        raise WireError(f"not a hello: {e}") from e
    if version != VERSION:
        raise WireError(f"version {version!r}, not {VERSION!r}")
    return hello


def client_command() -> tuple[str, ...]:
    """The hook client's argv on this machine: the native one, else a bare interpreter and the script."""
    native = native_client()
    return (str(native),) if native is not None else python_client()


def python_client() -> tuple[str, ...]:
    """The portable client's argv. The interpreter is not a venv's, which adds nothing but time."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    return (str(Path(base).resolve()), "-I", "-S", "-E", str(shipped("hooks/client.py")))


def native_client() -> Path | None:
    """The compiled client, if there is one that belongs to this installation, runs on this machine (a folder may be
    shared by several) and speaks this wire (a checkout moves on without a build)."""
    path = shipped_program("hooks/client")
    try:
        if path and subprocess.run([path, VERSION], stdin=subprocess.DEVNULL, timeout=5, check=False).returncode == 0:
            return path
    except (OSError, subprocess.SubprocessError):
        pass
    return None
