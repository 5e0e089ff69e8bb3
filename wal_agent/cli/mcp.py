"""`wal-agent mcp`: a server of the Model Context Protocol on stdin and stdout, for an agent whose shell is closed.

Source: modelcontextprotocol.io, versions 2024-11-05 to 2025-11-25: JSON-RPC 2.0, one message a line, of which a server
of tools alone needs four methods (docs/decisions/067-four-methods-need-no-library.md). Each tool is a command of
wal-agent in a process of its own, below the agent as what its shell would start: what the command may do, and says, is
the same. No tool runs what the agent names, and none is a person's (I8).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any, Final

import msgspec

from wal_agent import __version__, msgspec_compat
from wal_agent.errors import UsageError
from wal_agent.paths import MARKER, PROGRAM, SOCKET
from wal_agent.text import printable

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MAX_LINE: Final = 4 << 20  # bytes of one message
MAX_SAID: Final = 40_000  # characters of one answer
PATIENCE: Final = 300.0  # seconds for one tool
NO_METHOD, NO_PARAMS = -32601, -32602

Json = dict[str, Any]
Answers = tuple[int, str]
Runs = Callable[[list[str], str], Answers]
"""(argv of wal-agent, its stdin) -> the exit code and what it printed."""

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}


class Recall(msgspec.Struct, forbid_unknown_fields=True):
    words: str = ""
    call: int = 0

    def argv(self) -> list[str]:
        return ["recall", *([f"--call={self.call}"] if self.call else []), "--", *self.words.split()]


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    call: int
    because: str

    def argv(self) -> list[str]:
        return ["settle", f"--because={self.because}", "--", str(self.call)]


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    title: str = ""
    progress: int | None = None
    note: str = ""
    plan: str = ""

    def argv(self) -> list[str]:
        given = {"title": self.title, "note": self.note, "plan": self.plan and "-"}
        words = [f"--{name}={value}" for name, value in given.items() if value]
        return ["checkpoint", *words, *([f"--progress={self.progress}"] if self.progress is not None else [])]


class Status(msgspec.Struct, forbid_unknown_fields=True):
    def argv(self) -> list[str]:
        return ["status"]


class Inbox(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""

    def argv(self) -> list[str]:
        return ["inbox", *(["--", self.id] if self.id else [])]


Arguments = Recall | Settle | Checkpoint | Status | Inbox


class Tool(msgspec.Struct, frozen=True):
    """`fields`: JSON Schema of each argument; `needs`: those without which it does nothing."""

    takes: Callable[[object], Arguments]
    about: str
    fields: Mapping[str, Json] = {}
    needs: tuple[str, ...] = ()
    reads: bool = True

    def described(self, name: str) -> Json:
        """As `tools/list` has it."""
        schema: Json = {"type": "object", "properties": dict(self.fields), "additionalProperties": False}
        hints = {"readOnlyHint": self.reads, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
        needs = {"required": list(self.needs)} if self.needs else {}
        return {"name": name, "description": self.about, "inputSchema": schema | needs, "annotations": hints}


_lenient = partial(msgspec_compat.of_values, strict=False)  # models write numbers as text
TOOLS: Final[Mapping[str, Tool]] = {  # read by a model in each request: few words
    "recall": Tool(
        _lenient(Recall),
        "Search all of this job's conversation, also before compactions and crashes; or show one call by its number.",
        {"words": _TEXT, "call": _NUMBER},
    ),
    "settle": Tool(
        _lenient(Settle),
        "Report what you found out about a call that the recovery notice asks about. Look first.",
        {"call": _NUMBER, "because": {**_TEXT, "description": "What you found, and how."}},
        ("call", "because"),
        reads=False,
    ),
    "checkpoint": Tool(
        _lenient(Checkpoint),
        "Save where the work stands, for whoever goes on. What you leave out stays as it was.",
        {
            "title": _TEXT,
            "progress": {**_NUMBER, "description": "percent"},
            "note": _TEXT,
            "plan": {**_TEXT, "description": "Markdown list; '- [x]' is done"},
        },
        reads=False,
    ),
    "status": Tool(_lenient(Status), "Show this job: its state, open calls, what is saved."),
    "inbox": Tool(_lenient(Inbox), "List messages to this job, or show one whole.", {"id": _TEXT}),
}


class _Message(msgspec.Struct):
    method: str = ""
    id: str | int | None = None
    params: Json = {}


_MESSAGE = msgspec_compat.of_json(_Message)


def mcp() -> None:
    """Serve this run's own tools to its agent over the Model Context Protocol, on stdin and stdout.

    For an agent whose shell is closed: recall, settle, checkpoint, status and inbox, each as the command of its name.
    `wal-agent run --mcp` starts it beside the agent; nobody needs to type it.
    """
    import os

    if not (os.environ.get(SOCKET) and os.environ.get(MARKER)):
        raise UsageError(
            "`wal-agent mcp` is started by an agent in a run, and this is none.",
            "Start the run with it: wal-agent run AGENT --mcp",
        )
    for answer in answers(sys.stdin.buffer, run_command):
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def answers(lines: IO[bytes], run: Runs) -> Iterator[bytes]:
    """Yield the answer to each request, one line each, until the client is gone."""
    while line := lines.readline(MAX_LINE):
        if line.strip() and (said := _answer(line, run)) is not None:
            yield msgspec.json.encode({"jsonrpc": "2.0", **said})


def _answer(line: bytes, run: Runs) -> Json | None:
    """None for a notification, and for what is no message."""
    try:
        message = _MESSAGE.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if message.id is None or not message.method:
        return None
    params = message.params
    match message.method:
        case "initialize":
            wanted = params.get("protocolVersion")
            version = wanted if wanted in VERSIONS else VERSIONS[0]
            about = {"name": "wal-agent", "version": __version__}
            return _result(message.id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
        case "ping":
            return _result(message.id, {})
        case "tools/list":
            return _result(message.id, {"tools": [tool.described(name) for name, tool in TOOLS.items()]})
        case "tools/call" if params.get("name") in TOOLS:
            return _result(message.id, _call(TOOLS[params["name"]], params.get("arguments") or {}, run))
        case "tools/call":
            return _error(message.id, NO_PARAMS, "There is no such tool.")
    return _error(message.id, NO_METHOD, f"{message.method[:80]} is not served here.")


def _call(tool: Tool, arguments: object, run: Runs) -> Json:
    try:
        given = tool.takes(arguments)
    except msgspec.ValidationError as error:  # the model's mistake, so the model is told
        return _told(str(error), failed=True)
    code, text = run(given.argv(), given.plan if isinstance(given, Checkpoint) else "")
    return _told(text, failed=code != 0)


def run_command(argv: list[str], stdin: str) -> Answers:
    """Run a command of wal-agent, and return its exit code with all that it printed."""
    if any("\0" in word for word in argv):
        return 64, "An argument holds a NUL."
    try:
        done = subprocess.run(
            [*PROGRAM, *argv],
            input=stdin.encode("utf-8", "replace"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 75, f"wal-agent {argv[0]} did not end within {PATIENCE:.0f} s."
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _told(text: str, failed: bool) -> Json:
    shown = "\n".join(map(printable, text.strip().split("\n")))
    cut = f"{shown[:MAX_SAID]}\n(cut here)" if len(shown) > MAX_SAID else shown
    return {"content": [{"type": "text", "text": cut}], "isError": failed}


def _result(at: str | int, result: Json) -> Json:
    return {"id": at, "result": result}


def _error(at: str | int, code: int, why: str) -> Json:
    return {"id": at, "error": {"code": code, "message": why}}
