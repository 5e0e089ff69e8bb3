"""Qwen Code's session: its folders, its files, their records, and what appended records report.

The folders are found as Qwen finds them, and then named in the run's environment, where Qwen looks first: whatever its
files say, or come to say, it looks nowhere else than wal-agent does. `.env` files are read as Qwen reads them: by the
dotenv package's own pattern, and JavaScript's idea of blanks and lines.

The session file is a linked list of records by `parentUuid`. What the last one leads back to is the conversation; a
record whose parent is missing silently ends it there. A line that is not touched keeps its bytes.

Names in the log: `session.jsonl`, `todos.json`, `subagents/<file>`. No other file of `~/.qwen` is ever named, so no
credential can be. Links are not followed.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent import paths
from wal_agent.agents.base import Compacted, Env, SeenCall, SessionFile, Status
from wal_agent.agents.program import effective_setting, read_layer
from wal_agent.agents.session_files import (
    FileLines,
    Json,
    Line,
    LineRecord,
    as_object,
    as_objects,
    as_text,
    decode_json,
    encode_json,
    files_below,
    is_file,
    name_parts,
    plain_text,
    records,
    well_formed,
)
from wal_agent.errors import ConfigError
from wal_agent.safefs import Buffer, Pieces, open_plain

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SPACE = f"[{_BLANKS}]"
_BEGIN, _END = r"(?:\A|(?<=[\n\r\u2028\u2029]))", r"(?:\Z|(?=[\n\r\u2028\u2029]))"
_LINE = re.compile(
    rf"{_BEGIN}{_SPACE}*(?:export{_SPACE}+)?([A-Za-z0-9_.-]+)(?:{_SPACE}*={_SPACE}*?|:{_SPACE}+?)"
    rf"({_SPACE}*'(?:\\'|[^'])*'|{_SPACE}*\"(?:\\\"|[^\"])*\"|{_SPACE}*`(?:\\`|[^`])*`|[^#\r\n]+)?"
    rf"{_SPACE}*(?:#[^\n\r\u2028\u2029]*)?{_END}"
)
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_ENDS = re.compile(rf"\A{_SPACE}+|{_SPACE}+\Z")
_LIMIT = 1 << 20

HOME, RUNTIME = "QWEN_HOME", "QWEN_RUNTIME_DIR"
OUTPUT = "advanced.runtimeOutputDir"
_ADVICE = f"Name an absolute folder in {RUNTIME} in the environment. Nothing was run."
MAIN = "session.jsonl"
TODOS = "todos.json"
SUBAGENTS = "subagents"
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HEAD = 1 << 16  # bytes that are read at a time

_STATUS: dict[str, Literal["done", "failed", "cancelled"]] = {
    "success": "done",
    "error": "failed",
    "cancelled": "cancelled",
}

_KEPT = b"Persisted to "  # a durable job of cron_create: Qwen itself takes it up again, on the same machine
_COMES = re.compile(rb"Scheduled for: (\d{4}-\d\d-\d\dT[\d:.]+Z)")


def parse_dotenv(text: str) -> dict[str, str]:
    """Of two lines with one name the last counts."""
    found: dict[str, str] = {}
    for name, raw in _LINE.findall(re.sub(r"\r\n?", "\n", text)):
        value = _ENDS.sub("", raw)
        quote = value[:1]
        value = _QUOTED.sub(lambda m: m[2], value)
        found[name] = value.replace("\\n", "\n").replace("\\r", "\r") if quote == '"' else value
    return found


def read_dotenv(path: Path) -> dict[str, str]:
    """Empty where it cannot be read, as for Qwen."""
    try:
        with open_plain(path, follow=True) as f:
            return parse_dotenv(f.read(_LIMIT).decode(errors="replace"))
    except OSError:
        return {}


def qwen_home(env: Env) -> Path:
    """Settings, extensions, credentials. A `.env` file of the user's may name it too. ConfigError where it is another
    folder in each project, or cannot be told for certain; so for the others here."""
    return _home_of(configured_folders(env), env)


def runtime_folder(env: Env) -> Path:
    """Sessions. What a project's settings ask for, `settings.hooks_off` refuses."""
    names = configured_folders(env)
    home = _home_of(names, env)
    if text := names.get(RUNTIME):
        return _absolute(RUNTIME, text, env)
    user = read_layer("", home / "settings.json")
    found = effective_setting([user] if user else [], *OUTPUT.split("."))
    text = found[1] if found is not None and isinstance(found[1], str) else ""
    if "$" in text:
        raise ConfigError(f"{OUTPUT} in Qwen Code's settings has a variable in it ({text!r}): {_ADVICE}")
    return _absolute(OUTPUT, text, env) if text else home


def folder_variables(env: Env) -> dict[str, str]:
    """The variables by which Qwen uses these folders."""
    return {HOME: str(qwen_home(env)), RUNTIME: str(runtime_folder(env))}


def project_folder(env: Env, workspace: Path) -> Path:
    return runtime_folder(env) / "projects" / re.sub(r"[^a-zA-Z0-9]", "-", str(workspace))


def user_home(env: Env) -> Path:
    return _plain("HOME", env["HOME"] if "HOME" in env else str(paths.user_home(env)))


def configured_folders(env: Env) -> dict[str, str]:
    """The two variables: from the environment, where an empty one shuts out the files; else from the first file that
    has them."""
    found = {name: env[name] for name in (HOME, RUNTIME) if name in env}
    if found.get(HOME) and found.get(RUNTIME):
        return found
    first, redirected = _home_of(found, env), bool(found.get(HOME))
    _read_into(found, first)
    if not redirected:
        _read_into(found, first.parent)
        if (second := _home_of(found, env)) != first:
            _read_into(found, second)
    elif RUNTIME not in found and not (first / ".env").exists():
        _refuse_late(user_home(env))
    return found


def _read_into(found: dict[str, str], folder: Path) -> None:
    said = read_dotenv(folder / ".env")
    for name in (HOME, RUNTIME):
        if said.get(name):
            found.setdefault(name, said[name])


def _refuse_late(home: Path) -> None:
    """With QWEN_HOME in the environment, Qwen comes to these files only where no project on the way has a `.env`."""
    for file in (home / ".qwen/.env", home / ".env"):
        if read_dotenv(file).get(RUNTIME):
            raise ConfigError(
                f"{RUNTIME} stands in {file} and {HOME} in the environment: whether Qwen Code heeds the first depends "
                f"on the project. {_ADVICE}"
            )


def _home_of(found: dict[str, str], env: Env) -> Path:
    text = found.get(HOME)
    return _absolute(HOME, text, env) if text else user_home(env) / ".qwen"


def _absolute(name: str, text: str, env: Env) -> Path:
    if text == "~" or text.startswith(("~/", "~\\")):
        return _plain(name, "/".join([str(user_home(env)), *re.split(r"[/\\]+", text[2:])]))
    return _plain(name, text)


def _plain(name: str, text: str) -> Path:
    try:
        text.encode()  # Qwen would look under another name
        absolute = text.startswith("/") and "\0" not in text
    except UnicodeEncodeError:
        absolute = False
    if not absolute:
        raise ConfigError(
            f"Qwen Code's folder {name}={text!a} is no absolute path, so it would be another one in each project. "
            "Name an absolute one. Nothing was run."
        )
    return Path(os.path.normpath("/" + text.lstrip("/")))


class Record(LineRecord):
    """One record and its line."""

    __slots__ = ()

    @property
    def uuid(self) -> str:
        return str(self.value["uuid"])

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    def parts(self) -> list[Json]:
        return as_objects(as_object(self.value.get("message")).get("parts"))

    def inside(self, key: str) -> list[Json]:
        """Return the objects under this key in its parts: `functionCall` or `functionResponse`."""
        return [part[key] for part in self.parts() if isinstance(part.get(key), dict)]


class Chat(msgspec.Struct):
    records: list[Record] = msgspec.field(default_factory=list)
    junk: int = 0  # lines that are no record

    def live(self) -> list[Record]:
        """Return the conversation: the records that the last one leads back to, oldest first."""
        known: dict[str, Record] = {}
        for record in self.records:
            known.setdefault(record.uuid, record)
        chain: dict[str, Record] = {}
        at = self.records[-1] if self.records else None
        while at is not None and at.uuid not in chain:
            chain[at.uuid] = at
            at = known.get(str(at.value.get("parentUuid")))
        return list(reversed(chain.values()))

    def last(self, key: str) -> str:
        """Return the text under this key of the newest record that has one."""
        found = (record.value.get(key) for record in reversed(self.records))
        return next((text for text in found if isinstance(text, str)), "")


def load_chat(data: Buffer) -> Chat:
    chat, size = Chat(), 0
    for record, line in records(data):
        found = Record(record, line) if record is not None else _glued(line)
        if found is not None and isinstance(found.value.get("uuid"), str):
            chat.records.append(found)
            size = found.shelve(size)
        chat.junk += record is None or "uuid" not in record
    return chat


def _glued(line: Line) -> Record | None:
    """Return a whole record that was appended to the torn one before it."""
    text = bytes(line)
    at = text.rfind(b'{"uuid":')
    try:
        value = decode_json(text[at:]) if at > 0 else None
    except ValueError:
        return None
    return Record(value) if isinstance(value, dict) else None


def chat_pieces(chat: Chat) -> Pieces:
    """The file's lines: loading them gives the same records again."""
    return FileLines(chat.records)


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    if not _SESSION.fullmatch(session) or not is_file(main := _main(session, workspace, env)):
        return []
    found = [SessionFile(MAIN, main)]
    if is_file(todos := _todos(session, env)):
        found.append(SessionFile(TODOS, todos))
    base = _subagents(session, workspace, env)
    return found + files_below(SUBAGENTS, base)


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name == MAIN:
        return _main(session, workspace, env)
    if name == TODOS:
        return _todos(session, env)
    kind, *parts = name_parts(name)
    if kind != SUBAGENTS or not parts:
        raise ValueError(f"{name!r} is no file of a Qwen Code session")
    return _subagents(session, workspace, env).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    found = _SESSION.fullmatch(session) and os.path.lexists(main := _main(session, workspace, env))
    return [main] if found else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Qwen Code resumes a file whose first record was made in this folder; one without a record is no session."""
    if not _SESSION.fullmatch(session) or not is_file(main := _main(session, workspace, env)):
        return False
    for record, _ in records(_head(main)):
        if record is not None:
            return record.get("cwd") == str(workspace)
    return False


def _main(session: str, workspace: Path, env: Env) -> Path:
    return project_folder(env, workspace) / "chats" / f"{session}.jsonl"


def _todos(session: str, env: Env) -> Path:
    return runtime_folder(env) / "todos" / f"{session}.json"


def _subagents(session: str, workspace: Path, env: Env) -> Path:
    return project_folder(env, workspace) / "subagents" / session


def _head(path: Path) -> bytes:
    """Read the first line that is not blank, and the rest of its last piece."""
    data = b""
    with suppress(OSError), open_plain(path) as f:
        while b"\n" not in data.lstrip() and (piece := f.read(_HEAD)):
            data += piece
    return data


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Read the telemetry that Qwen Code keeps in the session for its own screen: one event for each call that is over,
    with its input, which a result alone lacks."""
    found: list[SeenCall] = []
    for record, _ in records(appended):
        event = _call_event(record)
        if record is None or event is None:
            continue
        status = _STATUS.get(str(event.get("status")))
        if status is not None:
            input = well_formed(encode_json(event.get("function_args") or {}))
            how = status if status == "done" else _unfinished(event, status)
            found.append(SeenCall(str(event.get("function_name", "")), input, how, str(record.get("uuid", ""))))
    return found


def _unfinished(event: Json, status: Literal["failed", "cancelled"]) -> Status:
    """Qwen Code says whether it had begun. Version 0.15.10 says so only of a person's No."""
    began = event.get("execution_status")
    if event.get("decision") == "reject" or began == "not_started":
        return "refused"
    return "stopped" if began == "cancelled" else status


def _call_event(record: Json | None) -> Json | None:
    event = as_object(as_object((record or {}).get("systemPayload")).get("uiEvent"))
    return event if event.get("event.name") == "qwen-code.tool_call" else None


def stopped_turn(appended: bytes) -> bool:
    """A call that a person cancelled, and no message behind it: the model is not asked on. Of an Esc while the model is
    asked Qwen Code writes nothing."""
    if b'"cancelled"' not in appended:
        return False
    newest = ""
    for record, _ in records(appended):
        if (event := _call_event(record)) is not None:
            newest = str(event.get("status"))
        elif record is not None and record.get("type") in ("user", "assistant"):
            newest = ""
    return newest == "cancelled"


def compactions(appended: bytes) -> list[Compacted]:
    """Read what Qwen Code keeps of a compression to build its history again at a resume."""
    found: list[Compacted] = []
    if b'"chat_compression"' not in appended:
        return found
    for record, _ in records(appended):
        if record is None or record.get("subtype") != "chat_compression":
            continue
        payload = as_object(record.get("systemPayload"))
        history = as_objects(payload.get("compressedHistory"))
        said = [plain_text(message.get("parts")) for message in history]
        tokens = as_object(payload.get("info")).get("originalTokenCount")
        summary = next((text for text in said if "<state_snapshot>" in text), said[0] if said else "")
        key = as_text(record.get("uuid"))
        found.append(Compacted(key, summary, "\n".join(said), tokens if isinstance(tokens, int) else 0))
    return found


def settled_length(appended: bytes) -> int:
    """Return the length up to a batch with fewer results than events. Qwen Code 0.15.10 queues its events, then its
    results, at once, and does not wait for their writing before its next hook: the file may end between any two of
    them. A record of another kind behind them shows that no result will come (a subagent's calls have none)."""
    begin = end = missing = 0
    for line in appended.splitlines(keepends=True):
        kind = _kind(line)
        if kind == "event":
            begin = begin if missing else end
            missing += 1
        elif missing:
            missing = missing - 1 if kind == "result" else 0
        end += len(line)
    return begin if missing else end


def _kind(line: bytes) -> Literal["event", "result", "other"]:
    if b"qwen-code.tool_call" not in line and b"tool_result" not in line:  # most lines are: they are not decoded twice
        return "other"
    record = next((record for record, _ in records(line)), None)
    if record is not None and record.get("type") == "tool_result":
        return "result"
    return "event" if _call_event(record) is not None else "other"


def proves_turn(appended: bytes) -> bool:
    """A user's record is written when the UserPromptSubmit hook is over, before the model is asked."""
    return any(r is not None and r.get("type") == "user" for r, _ in records(appended))


def due(result: bytes) -> float:
    """When what cron_create or loop_wakeup has scheduled comes, in seconds since 1970; inf: again and again, or not
    known; -inf: it is not gone with the process."""
    if _KEPT in result:
        return -math.inf
    comes = _COMES.search(result)
    try:
        return datetime.fromisoformat(comes[1].decode()).timestamp() if comes else math.inf
    except ValueError:
        return math.inf
