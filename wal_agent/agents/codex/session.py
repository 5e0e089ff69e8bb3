"""Codex's session: its folder, its index of threads, the rollout files, and what appended lines report.

- Files: `sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl` in Codex's folder. Files that Codex compressed
  (`.jsonl.zst`; a feature that is off by default) are not looked for.
- Index of threads: it names each thread's file by an absolute path, and a resume uses it. Where it names another path
  than the restored file's, Codex finds no session, or continues in another file: a copied home, a file
  that was moved. The index belongs to Codex and to the user: it is only read.
- Outcomes: `item_completed` reports each command and patch, nested ones of code mode too, with the hooks' own id. A
  call whose tool failed before it began is only reported by the answer to the model: no after-hook fires then.
- Names in the log: `rollout.jsonl`, and `threads/<rollout's name>` for threads that belong to it: its subagents, and
  those that it was forked from, whose files hold its beginning. No other file of Codex's folder is ever named: no
  credential, and none of its databases, which only repeat the files and hold their absolute paths.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psutil

from wal_agent.agents.base import Env, SeenCall, SessionFile, Status
from wal_agent.agents.codex.hooks import MARKER, SHELL
from wal_agent.agents.session_files import (
    Json,
    Line,
    as_object,
    as_text,
    decode_json,
    encode_json,
    largest_file,
    read_start,
    records,
    walk_files,
    whole_lines,
)
from wal_agent.paths import user_home
from wal_agent.safefs import Buffer, real_path

ROLLOUT = re.compile(
    r"rollout-(\d{4})-(\d\d)-(\d\d)T\d\d-\d\d-\d\d-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl"
)
_SESSION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DAY = 86400

VARIABLE = "CODEX_SQLITE_HOME"
OUTPUTS = ("function_call_output", "custom_tool_call_output")
CALLS = ("function_call", "custom_tool_call")
EXITED = "Process exited with code"
RUNS_ON = "Process running with session ID"  # at the head of the output of a command that runs on
_KILLED = 128 + 9  # the exit code of a command that SIGKILL ended

SCRIPT = (
    "The run was lost while this script ran. What is known of the calls that it made, or one that still ran beside it, "
    "one by one; calls that are not listed were not made:"
)
LOST_SCRIPTS = (
    "[wal-agent] Calls that scripts made whose own records were lost with the run, and what is known of them:"
)

_MODELS = ("agent", "unified_exec_startup")  # others: a user's own commands, input typed into a running one
_TOOLS = dict.fromkeys(("exec_command", "shell_command", "shell"), SHELL)
_BLOCKED = ("Command blocked by PreToolUse hook",)
_REFUSED = ("rejected by user", "rejected the", "denied by")
MAIN = "rollout.jsonl"
THREADS = "threads"
_HEAD = 4096  # bytes of a file that name its family
_FIRST = 1 << 20  # bytes that hold the beginning of a first turn
_MOST = 1000
_FAMILY = re.compile(rb'"(session_id|forked_from_id)":"([0-9a-f-]{36})"')


def codex_home(env: Env) -> Path:
    """Return Codex's state folder, by its own rule."""
    return Path(env.get("CODEX_HOME") or user_home(env) / ".codex")


def is_session(id: str) -> bool:
    return _SESSION.fullmatch(id) is not None


def thread_time(id: str) -> float:
    """Return when a thread was made, in seconds, as its id contains it (UUID 7). 0 for another kind of id."""
    found = uuid.UUID(id)
    return (found.int >> 80) / 1000 if found.version == 7 else 0.0


def rollout_path(name: str) -> Path | None:
    """Return the path of a rollout's name under `sessions`; None for another name."""
    found = ROLLOUT.fullmatch(name)
    return None if found is None else Path(found[1], found[2], found[3], name)


def default_path(id: str) -> Path:
    """Return where Codex would have made it, by the clock of this machine."""
    at = time.localtime(thread_time(id)) if thread_time(id) else time.gmtime(0)
    return Path(time.strftime("%Y/%m/%d", at), time.strftime(f"rollout-%Y-%m-%dT%H-%M-%S-{id}.jsonl", at))


def rollouts_of(sessions: Path, id: str) -> list[Path]:
    """Return the files of one thread: those in the folders where Codex makes them; elsewhere only when none is
    there."""
    tail = f"-{id}.jsonl"
    days = {str(default_path(id).parent)}
    if made := thread_time(id):
        days |= {time.strftime("%Y/%m/%d", time.localtime(made + n * _DAY)) for n in (-1, 0, 1)}
    near = [p for day in sorted(days) if _real(sessions, day) for p in walk_files(sessions / day, deep=1)]
    found = [p for p in near if p.name.endswith(tail) and ROLLOUT.fullmatch(p.name)]
    if found or not made:
        return found
    return sorted(p for p in walk_files(sessions, deep=4) if p.name.endswith(tail) and ROLLOUT.fullmatch(p.name))


def rollouts_since(sessions: Path, seconds: float) -> Iterator[Path]:
    """Yield the rollouts of threads that were made then or later."""
    first = time.strftime("%Y/%m/%d", time.localtime(seconds - _DAY))
    for year in _folders(sessions):
        for month in _folders(year):
            for day in _folders(month):
                if f"{year.name}/{month.name}/{day.name}" >= first:
                    for path in walk_files(day, deep=1):
                        name = ROLLOUT.fullmatch(path.name)
                        if name and thread_time(name[4]) >= seconds:
                            yield path


def _folders(base: Path) -> list[Path]:
    try:
        return sorted(p for p in base.iterdir() if p.name.isdigit() and p.is_dir() and not p.is_symlink())
    except OSError:
        return []


def _real(sessions: Path, day: str) -> bool:
    """Return whether the folder exists and no part of its path is a link."""
    at = sessions
    for part in day.split("/"):
        at /= part
        if at.is_symlink():
            return False
    return at.is_dir()


def indexed_path(id: str, env: Env) -> Path | None:
    """Return the file that the index of this machine names for a thread."""
    home = _home(env)
    for base in sorted(home.glob("state_*.sqlite"), reverse=True):
        try:
            with closing(sqlite3.connect(f"{base.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as db:
                row = db.execute("select rollout_path from threads where id = ?", (id,)).fetchone()
        except (sqlite3.Error, ValueError):
            continue
        if row and isinstance(row[0], str):
            return Path(row[0])
    return None


def private_index(id: str, env: Env) -> dict[str, str]:
    """Return variables for a resume whose file is not where the index says: an index of this run's own. Codex makes it
    anew from the file; it is removed with the run, and the user's stays as it is."""
    known = indexed_path(id, env)
    if known is None or not (run := env.get(MARKER)):
        return {}
    here = rollouts_of(codex_home(env) / "sessions", id)
    if any(_same(known, path) for path in here):
        return {}
    own = Path(run) / "codex-index"
    own.mkdir(mode=0o700, exist_ok=True)
    return {VARIABLE: str(own)}


def _home(env: Env) -> Path:
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    try:
        named = tomllib.loads((codex_home(env) / "config.toml").read_text()).get("sqlite_home")
    except (OSError, ValueError, RecursionError):
        named = None
    return Path(named) if isinstance(named, str) and named else codex_home(env)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


class CallLine(msgspec.Struct, frozen=True):
    """A call of the model, and the index of its line."""

    at: int
    kind: str
    name: str
    namespaced: bool = False


class Rollout(msgspec.Struct):
    """What a file holds, by the indexes of its lines, which are decoded again where more is needed. `calls`: each call
    of the model by its id, in order; `items`: reports of ended calls, nested ones too; `last_turn`: the index of the
    last turn's first record."""

    lines: list[Line] = msgspec.field(default_factory=list)
    headed: bool = False
    junk: int = 0
    ordinal: int = -1
    time: str = ""
    calls: dict[str, CallLine] = msgspec.field(default_factory=dict)
    outputs: dict[str, int] = msgspec.field(default_factory=dict)
    items: dict[str, int] = msgspec.field(default_factory=dict)
    reports: list[str] = msgspec.field(default_factory=list)  # outputs and messages of earlier recoveries, on scripts
    last_turn: int = 0
    messages: int = 0
    asked: bool = False  # it has users' prompts
    last_said: Json = msgspec.field(default_factory=dict)

    def payload(self, at: int) -> Json:
        return as_object(decode_json(self.lines[at]).get("payload"))

    def item(self, id: str) -> Json:
        """Return the report of an ended call; empty where there is none."""
        return as_object(self.payload(self.items[id]).get("item")) if id in self.items else {}


def load_rollout(main: Buffer) -> Rollout:
    """Parse the complete lines; cut a torn tail, count junk and leave it out."""
    good = whole_lines(main)
    read = parse_lines(records(good))
    if len(main) > len(good) and main[len(good) :].strip(b"\0 \t\r"):
        read.junk += 1
    return read


def parse_lines(found: Iterable[tuple[Json | None, Line]]) -> Rollout:
    read = Rollout()
    for record, line in found:
        if record is None or not isinstance(record.get("payload"), dict):
            read.junk += 1
            continue
        _apply(read, record)
        read.lines.append(line)
    return read


def _apply(read: Rollout, record: Json) -> None:
    at = len(read.lines)
    payload = record["payload"]
    if isinstance(record.get("ordinal"), int):
        read.ordinal = max(read.ordinal, record["ordinal"])
    read.time = max(read.time, record["timestamp"]) if isinstance(record.get("timestamp"), str) else read.time
    if record.get("type") == "session_meta" and at == 0:
        read.headed = isinstance(payload.get("id"), str)
    if record.get("type") == "event_msg" and payload.get("type") == "task_started":
        read.last_turn = at
    item = completed_item(record)
    if isinstance(item.get("id"), str):
        read.items[item["id"]] = at
    said = model_payload(record)
    id = said.get("call_id")
    if said.get("type") in CALLS and isinstance(id, str):
        call = CallLine(at, as_text(said.get("type")), as_text(said.get("name")), bool(said.get("namespace")))
        read.calls.setdefault(id, call)
    elif said.get("type") in OUTPUTS and isinstance(id, str):
        read.outputs.setdefault(id, at)
        _note_report(read, output_text(said.get("output")))
    elif said.get("type") == "message":
        read.messages += said.get("role") == "assistant" or is_prompt(said)
        read.asked = read.asked or is_prompt(said)
        if said.get("role") == "user":
            _note_report(read, output_text(said.get("content")))
    if said:
        read.last_said = said


def _note_report(read: Rollout, text: str) -> None:
    if text.startswith((SCRIPT, LOST_SCRIPTS)):
        read.reports.append(text)


def ended_by_itself(exit_code: int) -> bool:
    """Codex ends a command with its turn; then it writes -1, or the kill's code if it saw that first."""
    return exit_code >= 0 and exit_code != _KILLED


def model_payload(record: Json) -> Json:
    """Return what goes to the model; empty for another record."""
    return as_object(record.get("payload")) if record.get("type") == "response_item" else {}


def completed_item(record: Json) -> Json:
    """Return the item of `item_completed`; empty for another record."""
    payload = as_object(record.get("payload")) if record.get("type") == "event_msg" else {}
    return as_object(payload.get("item")) if payload.get("type") == "item_completed" else {}


def is_prompt(message: Json) -> bool:
    """Return whether it is a user's prompt, not the context that Codex puts before it."""
    return message.get("role") == "user" and not output_text(message.get("content")).startswith("<environment_context>")


def output_text(output: Any) -> str:
    """Return the text of an output or of a message's content: text, or parts."""
    if isinstance(output, list):
        return "\n".join(output_text(part.get("text")) for part in output if isinstance(part, dict))
    return as_text(output)


def seen_calls(appended: bytes) -> list[SeenCall]:
    found: dict[str, SeenCall] = {}
    names: dict[str, str] = {}  # of calls in these bytes
    for record, _ in records(appended):
        if record is None:
            continue
        seen = _of_item(completed_item(record), names) or _of_output(model_payload(record), names)
        if seen is not None:
            found.setdefault(seen.id, seen)
    return list(found.values())


def _of_item(item: Json, names: Mapping[str, str]) -> SeenCall | None:
    id = item.get("id")
    if not isinstance(id, str) or not id:
        return None
    match item.get("type"):
        case "CommandExecution" if item.get("source") in _MODELS:
            command = item.get("command")
            last = command[-1] if isinstance(command, list) and command else ""
            return SeenCall(SHELL, encode_json({"command": last}), _status(item), id, id)
        case "FileChange":
            # A command that is a patch (`apply_patch <<'EOF'`) ends so too, and no after-hook fires. The id is the
            # hooks' even where the call's own line is not among these bytes.
            return SeenCall(_TOOLS.get(names.get(id, ""), "apply_patch"), b"{}", _status(item), id, id)
    return None


def _status(item: Json) -> Status:
    """A command that ended by itself is done, whatever its code."""
    if item.get("status") == "declined":
        return "refused"
    code = item.get("exit_code")
    if isinstance(code, int):
        return "done" if ended_by_itself(code) else "cancelled"
    return "done" if item.get("status") == "completed" else "failed"


def _of_output(payload: Json, names: dict[str, str]) -> SeenCall | None:
    """Read an output. Never "done" here: a call that ended by itself has an item, or its after-hook fired."""
    id = payload.get("call_id")
    if not isinstance(id, str) or not id:
        return None
    kind = payload.get("type")
    if kind in CALLS:
        names[id] = str(payload.get("name"))
        return None
    text = output_text(payload.get("output"))
    if kind not in OUTPUTS or names.get(id) == "exec":
        return None
    if RUNS_ON in text[:400]:  # the item that tells its end has the call's own id
        return SeenCall(SHELL, b"{}", "runs_on", f"{id} runs on", id, id)
    tool = _TOOLS.get(names.get(id, ""), names.get(id, ""))
    status: Status = "failed"
    if text.startswith(_BLOCKED) or any(word in text[:200] for word in _REFUSED):
        status = "refused"
    elif any(line.startswith("aborted") for line in text[:400].splitlines()[:3]):  # or refused before it ran
        status = "cancelled"
    return SeenCall(tool, b"{}", status, id, id)


def proves_turn(appended: bytes) -> bool:
    """The user's message is written when the hooks of the session's start and of the prompt are over."""
    return any(r is not None and completed_item(r).get("type") == "UserMessage" for r, _ in records(appended))


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    if not is_session(session):
        return []
    sessions = codex_home(env) / "sessions"
    main = _main(session, sessions) or _unannounced(sessions, env)
    if main is None:
        return []
    return [SessionFile(MAIN, main), *(SessionFile(f"{THREADS}/{p.name}", p) for p in _family(main, sessions))]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not is_session(session):
        raise ValueError(f"{session!r} is no session id")
    sessions = codex_home(env) / "sessions"
    if name == MAIN:
        return _home_of(session, sessions, env)
    kind, _, rest = name.partition("/")
    place = rollout_path(rest)
    if kind != THREADS or place is None or rest.endswith(f"-{session}.jsonl"):
        raise ValueError(f"{name!r} is no file of a Codex session")
    return sessions / place


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    return rollouts_of(codex_home(env) / "sessions", session) if is_session(session) else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Codex ignores a file without a turn."""
    main = _main(session, codex_home(env) / "sessions") if is_session(session) else None
    return main is not None and b'"response_item"' in read_start(main, _FIRST)


def _main(session: str, sessions: Path) -> Path | None:
    return largest_file(rollouts_of(sessions, session))


def _home_of(session: str, sessions: Path, env: Env) -> Path:
    """Return where the index of this machine looks for it, if that is a valid place; Codex finds no file elsewhere."""
    for path in (_main(session, sessions), indexed_path(session, env)):
        if path is not None and path.name.endswith(f"-{session}.jsonl"):
            place = rollout_path(path.name)
            if place is not None and path == sessions / place:
                return path
    return sessions / default_path(session)


def _family(main: Path, sessions: Path) -> list[Path]:
    name = ROLLOUT.fullmatch(main.name)
    if name is None:
        return []
    root = name[4]
    found: set[Path] = set()
    if made := thread_time(root):
        found = {p for p in rollouts_since(sessions, made) if p != main and _about(p).get("session_id") == root}
    for member in [main, *found]:
        found.update(_ancestors(member, sessions))
    return sorted(islice((p for p in sorted(found) if p != main), _MOST))


def _ancestors(path: Path, sessions: Path) -> Iterator[Path]:
    """Yield the files that a fork's file continues."""
    for _ in range(20):
        before = _about(path).get("forked_from_id", "")
        files = rollouts_of(sessions, before) if is_session(before) else []
        if not files:
            return
        path = files[0]
        yield path


def _about(path: Path) -> dict[str, str]:
    try:
        return _named(str(path), path.stat().st_ino)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=1 << 14)
def _named(path: str, inode: int) -> dict[str, str]:
    """Return the family ids of a file's first line, which is never written again. ValueError: it is not complete
    yet."""
    head = read_start(Path(path), _HEAD)
    if len(head) < _HEAD and b"\n" not in head:
        raise ValueError("not yet written")
    named: dict[str, str] = {}
    for key, value in _FAMILY.findall(head.partition(b"\n")[0]):
        named.setdefault(key.decode(), value.decode())
    return named


def _unannounced(sessions: Path, env: Env) -> Path | None:
    """Return the file of a Codex that has begun a turn without a handshake: its hooks are off, and only its open files
    (Linux) show which session is its own: the one that it writes; it might read any. Until then wal-agent's own id
    stands for the session."""
    try:
        started = psutil.Process(int((Path(env[MARKER]) / "agent.pid").read_text()))
        family = [started, *started.children(recursive=True)]  # a launcher may stand before Codex
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    for path in [link for process in family for link in _written_files(process.pid)]:
        name = ROLLOUT.fullmatch(path.name)
        if name is None or not path.is_relative_to(real_path(sessions)) or _about(path).get("session_id") != name[4]:
            continue
        if proves_turn(read_start(path, _FIRST)):
            return path
    return None


def _written_files(pid: int) -> list[Path]:
    """Return the files that a process has open for writing (proc_pid_fdinfo(5))."""
    found: list[Path] = []
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                flags = re.search(r"^flags:\s+([0-7]+)$", Path(f"/proc/{pid}/fdinfo/{file.name}").read_text(), re.M)
                if flags is not None and int(flags[1], 8) & os.O_ACCMODE:
                    found.append(file.readlink())
    return found
