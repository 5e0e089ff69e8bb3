"""HTTP/1.1 messages read whole from a socket, as much of it as a proxy needs. Bodies keep their framing: a chunked one
is passed on as it came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import BinaryIO

BODYLESS = (204, 304)


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a reply. `start` is its first line, `body` what follows its headers on the wire."""

    start: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str:
        """The header's value, "" when there is none."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def method(self) -> str:
        return self.start.split(" ")[0]

    @property
    def path(self) -> str:
        return self.start.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.start.split(" ")[1])

    @property
    def expects(self) -> bool:
        return self.header("expect").lower() == "100-continue"

    @property
    def chunked(self) -> bool:
        return "chunked" in self.header("transfer-encoding").lower()

    @property
    def length(self) -> int | None:
        """The body's size in bytes as announced."""
        return int(self.header("content-length")) if self.header("content-length") else None

    @property
    def last(self) -> bool:
        """Whether the sender closes the connection behind this message."""
        said = self.header("connection").lower()
        return "close" in said or ("HTTP/1.0" in self.start and "keep-alive" not in said)

    @property
    def content(self) -> bytes:
        """The body without its framing."""
        return unchunked(self.body) if self.chunked else self.body

    def without(self, *names: str) -> Message:
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].lower() not in names))

    def with_content(self, content: bytes) -> Message:
        bare = self.without("transfer-encoding", "content-length")
        return replace(bare, headers=(*bare.headers, ("Content-Length", str(len(content)))), body=content)

    def wire(self) -> bytes:
        lines = [self.start, *(f"{key}: {value}" for key, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


def read_head(file: BinaryIO) -> Message | None:
    """The next message's first line and headers; None at the end of the stream. EOFError inside of them."""
    start = file.readline()
    if not start:
        return None
    headers = []
    while (line := file.readline()) not in (b"\r\n", b"\n"):
        if not line:
            raise EOFError("the headers end in the middle")
        key, _, value = line.decode("latin-1").partition(":")
        headers.append((key.strip(), value.strip()))
    return Message(start.decode("latin-1").strip(), tuple(headers))


def read_request(file: BinaryIO, head: Message) -> Message:
    """The request whose head was read, with its body."""
    return replace(head, body=_chunks(file) if head.chunked else _exactly(file, head.length or 0))


def read_reply(file: BinaryIO, method: str) -> Message:
    """The final reply to a request; one without a length goes on to the end of the stream."""
    while (head := read_head(file)) is not None:
        if head.status >= 200:
            return replace(head, body=_reply_body(file, head, method))
    raise EOFError("no reply")


def _reply_body(file: BinaryIO, head: Message, method: str) -> bytes:
    if method == "HEAD" or head.status in BODYLESS:
        return b""
    if head.chunked:
        return _chunks(file)
    return file.read() if head.length is None else _exactly(file, head.length)


def unchunked(body: bytes) -> bytes:
    content, rest = b"", body
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not (count := int(size.split(b";")[0], 16)):
            return content
        content, rest = content + rest[:count], rest[count + 2 :]


def _chunks(file: BinaryIO) -> bytes:
    body = b""
    while True:
        body += (line := file.readline())
        count = int(line.split(b";")[0] or b"0", 16)
        if not count:
            break
        body += _exactly(file, count + 2)
    while (line := file.readline()) not in (b"\r\n", b"\n"):
        if not line:
            raise EOFError("a chunked body ends in the middle")
        body += line
    return body + line


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError(f"{count} bytes were announced and {len(data)} came")
    return data
