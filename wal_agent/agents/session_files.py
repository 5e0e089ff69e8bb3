"""Read and write session files: JSON Lines, walks below a session's folder, and texts for restored calls.

JavaScript and Rust programs write these lines, and a crash may leave junk among them. Walks follow no links and accept
no logical name that could lead out of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

import msgspec

from wal_agent.agents.base import LEFT_OUT, Agent, Env, LoggedCall, SessionFile
from wal_agent.safefs import Buffer, open_plain, release
from wal_agent.text import is_utf8

Json = dict[str, Any]
Line = bytes | memoryview

EPOCH = "1970-01-01T00:00:00.000Z"  # for records whose time nobody knows

SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@+=-]{0,254}")
SessionId = Annotated[str, msgspec.Meta(pattern=rf"\A{SESSION.pattern}\Z")]
"""A session's id in hooks: it becomes part of paths, arguments and records. An agent may accept fewer."""
InnerId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{SESSION.pattern})?\Z")]
"""A subagent's, or ""."""

DEPTH = 200  # levels that are read; what is read must also be written again, some levels deeper, within 1000 frames
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)

RELEASE = 8 << 20  # bytes of a mapped file that are read before they leave memory
_AROUND = 64 << 10  # bytes that come into memory with one that is read
DECODED = 8 << 20  # bytes of a session's lines that are kept in their decoded form too
_OPEN, _CLOSE = b"{}"
_PART = re.compile(r"[^/\0-\x1f\x7f]{1,255}")
MAX_FOLDERS = 6  # levels of folders
MAX_BELOW = 10_000  # files of one kind
MAX_RESULT = 40_000  # characters of one result, as in Gemini's own cut

LOST_PROMPT = "[wal-agent: the prompt that stood here was not saved]"
"""Stands where a conversation would begin with the model's words: an API refuses every request of it."""
HEAD_REPAIR = "The session file's first line was damaged and was written anew."


def well_formed(payload: bytes) -> bytes:
    """Return the JSON with U+FFFD for each lone half of a surrogate pair: JavaScript writes such strings (cut emoji) as
    escapes, and strict readers, msgspec among them, refuse the whole text."""
    if b"\\ud" not in payload and b"\\uD" not in payload:
        return payload
    return _ESCAPE.sub(lambda m: b"\\ufffd" if m[1] else m[0], payload)


def decode_json(text: Line) -> Any:
    """Decode JSON as JavaScript writes it, lone surrogates (which msgspec refuses) included. ValueError when it is not
    JSON, or nested deeper than DEPTH."""
    try:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = json.loads(bytes(text))
    except RecursionError as e:
        raise ValueError("nested too deep") from e
    if len(text) > DEPTH and _deeper(value, DEPTH):
        raise ValueError("nested too deep")
    return value


def _deeper(value: Any, levels: int) -> bool:
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        below = (v for c in layer for v in (c.values() if isinstance(c, dict) else c))
        layer = [v for v in below if isinstance(v, dict | list)]
        if not layer:
            return False
    return True


def encode_json(value: Any) -> bytes:
    """Encode as one line, without raw U+2028 and U+2029: JavaScript and other readers count them as line ends."""
    try:
        return one_line(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def as_object(value: Any) -> Json:
    """Return a JSON object; empty for anything else. So for the others: session files hold any JSON."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[Json]:
    """Return the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def find_main(agent: Agent, session: str, workspace: Path, env: Env) -> SessionFile | None:
    """Return the main file of a session on this machine; None where there is none, or `session` is ""."""
    files = agent.session_files(session, workspace, env) if session else []
    return next((file for file in files if file.name == agent.main_file), None)


def contains(data: Buffer, part: bytes) -> bool:
    """Whether a file's bytes hold `part`. For a mapped file `in` compares single bytes, and its pages leave memory."""
    if isinstance(data, bytes):
        return part in data
    for at in range(0, len(data), RELEASE):
        if data.find(part, at, at + RELEASE + len(part) - 1) >= 0:
            return True
        release(data)
    return False


def one_line(text: bytes) -> bytes:
    if text.isascii() or b"\xe2\x80" not in text:  # nearly always; spares two copies of each line
        return text
    return text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def records(data: Buffer) -> Iterator[tuple[Json | None, Line]]:
    """Yield each line that is not blank: the object in it (None for junk), and the line to write again. What is behind
    of a mapped file leaves memory."""
    clean = not contains(data, b"\xe2\x80")
    view = memoryview(data)  # most lines are not touched: they are not copied either
    begin = released = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        raw = view[begin:end]
        bare = end > begin and data[begin] == _OPEN and data[end - 1] == _CLOSE
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
        if begin - released > RELEASE:
            release(data)
            released = begin
    release(data)


def decode_lines(lines: Iterable[Line]) -> Iterator[tuple[Json | None, Line]]:
    """`records` of lines that were found before. What is behind of a mapped file leaves memory."""
    read = 0
    for line in lines:
        value = decode_json(line)
        yield (value if isinstance(value, dict) else None), line
        read = release_after(line, read)


def release_after(line: Line, read: int) -> int:
    """Let a mapped file leave memory where this line and the `read` bytes before it are many; return their bytes."""
    read += max(len(line), _AROUND)
    if read <= RELEASE or not isinstance(line, memoryview):
        return read
    release(line.obj)
    return 0


class LineRecord:
    """One object of a session file and its line, None once another object was assigned. The decoded form takes at least
    as much memory again: in a long session that of a shelved record is made anew at each look."""

    __slots__ = ("_news", "_value", "line")
    _looked_at: ClassVar[tuple[object, Json]] = (None, {})
    _read: ClassVar[int] = 0

    def __init__(self, value: Json, line: Line | None = None) -> None:
        self._value: Json | None = value
        self._news: Json | None = None
        self.line = line

    @property
    def value(self) -> Json:
        """Not to be changed in place: assign another one."""
        if self._value is not None or self.line is None:
            return self._value or {}
        whose, value = LineRecord._looked_at
        if whose is not self:
            value = {**decode_json(self.line), **(self._news or {})}
            LineRecord._looked_at = self, value
            LineRecord._read = release_after(self.line, LineRecord._read)
        return value

    @value.setter
    def value(self, value: Json) -> None:
        self._value, self._news, self.line = value, None, None

    def change(self, **news: Any) -> None:
        """Set fields. The line stays the record's memory: it is encoded anew, with them, as it is written."""
        if all(self.value.get(key, self) == value for key, value in news.items()):
            return
        if self._value is not None or self.line is None:
            self._value = {**self.value, **news}
        if self.line is not None:
            self._news = {**(self._news or {}), **news}
            LineRecord._looked_at = (None, {})

    @property
    def written(self) -> Line:
        """The line to write: the file's own where the object is unchanged."""
        return self.line if self.line is not None and self._news is None else encode_json(self.value)

    def shelve(self, size: int) -> int:
        """Forget the decoded form where the lines before, of `size` bytes, and this one are more than DECODED; return
        their bytes."""
        size += len(self.line or b"")
        if size > DECODED and self.line is not None:
            self._value = None
        return size


def whole_lines(data: Buffer) -> Buffer:
    """Return the data up to the last complete line, without a torn tail and NULs that a crash may have left."""
    end = data.rfind(b"\n") + 1
    return data if end == len(data) else data[:end]


class FileLines:
    """Lines and records as pieces of a file, each followed by its end. What has to be encoded is so as it is read."""

    def __init__(self, lines: Sequence[Line | LineRecord]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[Line]:
        read = 0
        for each in self._lines:
            line = each.written if isinstance(each, LineRecord) else each
            yield line
            yield b"\n"
            read = release_after(line, read)  # lines need not be in the file's order


def require_object(raw: msgspec.Raw) -> bytes:
    """Return a tool's input in the agent's own spelling. ValueError when it is not an object."""
    data = bytes(raw)
    if data[:1] != b"{":
        raise ValueError("the tool's input is not an object")
    return data


def name_parts(name: str, deep: int = MAX_FOLDERS) -> tuple[str, ...]:
    """Split a logical name. ValueError for one that wal-agent never saves."""
    path = PurePosixPath(name)
    parts = path.parts
    sane = all(_PART.fullmatch(part) and part not in (".", "..") and len(part.encode()) <= 255 for part in parts)
    if not parts or not sane or str(path) != name or len(parts) > deep + 1:
        raise ValueError(f"{name!r} is no file of a session")
    return parts


def walk_files(base: Path, deep: int = MAX_FOLDERS) -> Iterator[Path]:
    """Yield the regular files below a real folder."""
    try:
        if not stat.S_ISDIR(base.lstat().st_mode):
            return
        with os.scandir(base) as entries:
            inside = list(entries)
    except OSError:
        return
    for entry in inside:
        if not _PART.fullmatch(entry.name) or not is_utf8(entry.name):
            continue  # no name for the log, whose text is UTF-8
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif deep > 1 and entry.is_dir(follow_symlinks=False):
            yield from walk_files(Path(entry.path), deep - 1)


def files_below(kind: str, base: Path) -> list[SessionFile]:
    """Return the regular files below `base`, at most MAX_BELOW, under logical names `kind/...`."""
    paths = sorted(islice(walk_files(base), MAX_BELOW))
    return [SessionFile(f"{kind}/{p.relative_to(base).as_posix()}", p) for p in paths]


def is_file(path: Path) -> bool:
    """Return whether the path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_start(path: Path, size: int, line: bool = False) -> bytes:
    """Read at most `size` bytes of a regular file, or of its first `line`; nothing where there is none."""
    try:
        with open_plain(path) as file:
            return file.readline(size) if line else file.read(size)
    except OSError:
        return b""


def largest_file(paths: Iterable[Path]) -> Path | None:
    """Return the largest of those that still exist: an agent may delete one meanwhile."""
    sizes: dict[Path, int] = {}
    for path in paths:
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    return max(sizes, key=sizes.__getitem__, default=None)


def unknown_result(call: LoggedCall) -> str:
    """Return the result text of a call whose outcome is unknown."""
    return "outcome unknown: " + (call.note or "the machine was lost while this call ran.")


def noted_result(text: str, call: LoggedCall) -> str:
    """Return a result's text, capped, with the log's note on it."""
    text = capped_text(text, call.call)
    return f"{text}\n\n[wal-agent: {call.note}]" if call.note else text


def capped_text(text: str, call: int) -> str:
    if len(text) <= MAX_RESULT:
        return text
    head, tail = MAX_RESULT // 5, MAX_RESULT - MAX_RESULT // 5
    cut = len(text) - MAX_RESULT
    return f"{text[:head]}\n\n[wal-agent: {cut} characters left out; `wal-agent log` has call {call}]\n\n{text[-tail:]}"


def call_input(call: LoggedCall) -> Json:
    """Return a call's input as an object; empty where it cannot be read."""
    return as_object(logged_value(call.input))


def logged_value(data: bytes) -> Any:
    """Decode a result or an input of the log: its JSON value, or the text of truncated bytes."""
    try:
        return decode_json(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def canonical_json(value: Any) -> bytes:
    """Spell a value so that equal ones are equal: keys sorted, mended as hooks' payloads are when they are logged."""
    return well_formed(json.dumps(value, sort_keys=True).encode())


def input_digest(value: Any) -> bytes:
    """Return what is equal for equal inputs, and as short for long ones."""
    return hashlib.sha256(canonical_json(value)).digest()


def plain_text(content: Any, deep: int = 20) -> str:
    """Return the text of what the model got, from texts, parts with a text, and lists in lists of them. Images and the
    like are in the log, not in the session."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and deep:
        return "\n".join(plain_text(part, deep - 1) for part in content)
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    return "" if content is None else "[content that is not text: not put back]"


def junk_repair(junk: int) -> list[str]:
    return [f"{junk} damaged line(s) of the session file were {LEFT_OUT}"] if junk else []


def lost_calls_repair(results: int) -> list[str]:
    """`results`: how many had no call any more; the log's calls are put back with theirs."""
    return [f"{results} result(s) whose call was lost with a damaged line were {LEFT_OUT}"] if results else []


def time_of(timestamp: Any) -> datetime | None:
    """Parse an ISO time of a session file, UTC where it names no zone; None where it is none."""
    try:
        at = datetime.fromisoformat(str(timestamp))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def seconds_of(timestamp: Any) -> float:
    """Return an ISO time of a session file in seconds since 1970; 0 where it is none."""
    at = time_of(timestamp)
    return at.timestamp() if at else 0.0


def end_time(timestamp: Any) -> float:
    """Return when a call of a session file had ended, in seconds since 1970; unknown counts as late enough."""
    at = time_of(timestamp)
    return float("inf") if at is None else at.timestamp()
