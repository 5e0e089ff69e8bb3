"""Make a restored Gemini session that resumes well (RECOVERY.md): put lost calls back, mend it, add the prompt.

Pure and idempotent, proven on the real program. Gemini writes the calls of a batch when all of them are over, and drops
what is open when it resumes: a crash loses calls that had ended. The log has them, so they are put back. Also
healed, each measured on the real program: a resume repeats every old result once more; a prompt that a cancelled
first turn, or another extension's SessionStart hook, glued to a context record is no longer seen; a damaged
first line gets the file deleted.

The recovery prompt becomes the user's last message. Given on the command line, Gemini would rewrite it: `@path` is
replaced by the file, `/` and `?` start commands; a hook's context gets its `<` and `>` escaped. In the session file it
arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env, LoggedCall, Reconciled
from wal_agent.agents.gemini.cli import parse_args
from wal_agent.agents.gemini.session import Message, Session, dump_session, find_file, load_session, session_pieces
from wal_agent.agents.session_files import (
    EPOCH,
    HEAD_REPAIR,
    Json,
    as_object,
    as_objects,
    call_input,
    canonical_json,
    capped_text,
    contains,
    decode_json,
    encode_json,
    end_time,
    junk_repair,
    logged_value,
    lost_calls_repair,
    noted_result,
    plain_text,
    unknown_result,
)
from wal_agent.safefs import Buffer, Pieces, read_plain, replace_file, swap_file

IGNORED = {"wait_for_previous"}  # scheduling only: not in every spelling of the same call

CONTEXTS = ("<session_context>", "<hook_context>")
TITLE = "[wal-agent recovery]"


def put_back(read: Session, session: str, calls: Sequence[LoggedCall]) -> int:
    """Add what is missing, in the log's order, as one batch of the last model message; return how many."""
    missing = calls_to_add(read, calls)
    if not missing:
        return 0
    time = _last_time(read)
    made = [tool_call(call, time) for call in missing]
    said = read.said()
    last = said[-1] if said else None
    if last is not None and last.kind == "gemini" and not last.calls and not _structured(last):
        last.value = {**last.value, "toolCalls": made}
    else:  # the model's own message was lost with the crash: only its calls are known
        new = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} put back from call {missing[0].call}"))
        value: Json = {"id": new, "timestamp": time, "type": "gemini", "content": "", "thoughts": []}
        read.messages[new] = Message({**value, "toolCalls": made})
    return len(missing)


def calls_to_add(read: Session, calls: Iterable[LoggedCall]) -> list[LoggedCall]:
    """Return the calls that the file lacks. Each call of the file stands for one of the log: the one put back under its
    number, else an equal one that did not start after the file's had ended."""
    ids: set[str] = set()
    written: dict[tuple[str, bytes], list[float]] = {}
    for message in read.messages.values():
        for call in message.calls:
            ids.add(str(call.get("id")))
            if "__wal_" not in str(call.get("id")):
                key = (str(call.get("name")), _canon(call.get("args")))
                written.setdefault(key, []).append(end_time(call.get("timestamp")))
    missing: list[LoggedCall] = []
    for logged in calls:
        key = (logged.tool, _canon(call_input(logged)))
        ended = [t for t in written.get(key, []) if t + 0.001 >= logged.started]
        if call_id(logged) in ids:
            continue
        if ended:
            written[key].remove(min(ended))
        else:
            missing.append(logged)
    return missing


def call_id(call: LoggedCall) -> str:
    return f"{call.tool}__wal_{call.call}"


def tool_call(call: LoggedCall, time: str) -> Json:
    response = call_result(call)
    function = {"id": call_id(call), "name": call.tool, "response": response}
    return {
        "id": call_id(call),
        "name": call.tool,
        "args": call_input(call),
        "result": [{"functionResponse": function}],
        "status": "error" if "error" in response else "success",
        "timestamp": time,
        "resultDisplay": next(iter(response.values()))[:1000],
        "displayName": call.tool,
        "description": "",
        "renderOutputAsMarkdown": False,
    }


def call_result(call: LoggedCall) -> dict[str, str]:
    if call.result is None:
        return {"error": unknown_result(call)}
    value = logged_value(call.result)
    value = value if isinstance(value, dict) else {"llmContent": value}
    text = noted_result(plain_text(value.get("llmContent")), call)
    error = value.get("error")
    if not call.failed and error is None:
        return {"output": text}
    message = error.get("message") if isinstance(error, dict) else None
    return {"error": capped_text(message, call.call) if isinstance(message, str) and message else text}


def _structured(message: Message) -> bool:
    """Return whether the content itself holds calls or thoughts: Gemini then ignores toolCalls."""
    return any(isinstance(p, dict) and ("functionCall" in p or "thought" in p) for p in message.parts())


def _canon(args: Any) -> bytes:
    known = {k: v for k, v in args.items() if k not in IGNORED} if isinstance(args, dict) else args
    return canonical_json(known)


def _last_time(read: Session) -> str:
    latest = reversed(read.messages.values())
    times = (t for m in latest if isinstance(t := m.value.get("timestamp"), str))
    return next(times, None) or str(read.meta.get("lastUpdated", "1970-01-01T00:00:00.000Z"))


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_session(main)
    repairs = junk_repair(read.junk)
    if mend_head(read, session, workspace):
        repairs.append(HEAD_REPAIR)
    if mend_contexts(read, session):
        repairs.append("A prompt that Gemini had merged into a context record stands by itself again.")
    mend_results(read)
    repairs += lost_calls_repair(drop_results(read))
    put = put_back(read, session, calls)
    put_prompt_back(read)
    if contains(main, b"/tool-outputs/session-"):
        repairs.append(
            "The session names its stored tool outputs by absolute paths; where this folder is another one, read the "
            f"files under tool-outputs/session-{session} of this machine instead."
        )
    prompts = None if any(map(_has_words, read.messages.values())) else ()
    return Reconciled(session_pieces(read), put, len(read.said()), tuple(repairs), prompts)


def put_prompt_back(read: Session) -> None:
    """Put a prompt back where nothing else is left. Gemini takes one out that was stopped before its answer, deletes
    such a session when it ends, and resumes none."""
    if any(_has_words(m) or (m.kind == "gemini" and (m.calls or m.parts())) for m in read.messages.values()):
        return
    for message in [m for m in read.taken if _has_words(m)][-1:]:
        read.messages[str(message.value["id"])] = message


def mend_head(read: Session, session: str, workspace: Path) -> bool:
    """Complete the head: without it the file is deleted. It names the workspace's hash."""
    broken = not read.headed
    times = [t for m in read.messages.values() if isinstance(t := m.value.get("timestamp"), str)]
    filled: Json = {"startTime": times[0] if times else EPOCH, "lastUpdated": times[-1] if times else EPOCH}
    must = {"sessionId": session, "projectHash": hashlib.sha256(str(workspace).encode()).hexdigest()}
    read.meta = must | filled | {"kind": "main"} | read.meta | must
    return broken


def mend_contexts(read: Session, session: str) -> int:
    """Cut a user's record after its context, behind which nothing is seen; what follows becomes a record of its own."""
    mended: dict[str, Message] = {}
    cut = 0
    for key, message in read.messages.items():
        mended[key] = message
        context, rest = split_context(message)
        if not rest:
            continue
        new = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {key} prompt"))
        mended[key] = Message({**message.value, "content": context})
        mended[new] = Message({**message.value, "id": new, "content": rest})
        cut += 1
    read.messages = mended
    return cut


def split_context(message: Message) -> tuple[list[Any], list[Any]]:
    """Return the leading context parts of a user's record, and the user's words after them (empty: leave it as is)."""
    parts = message.parts()
    lead = 0
    while lead < len(parts) and _text(parts[lead]).lstrip().startswith(CONTEXTS):
        lead += 1
    if message.kind != "user" or lead == 0:
        return parts, []
    context, rest = parts[:lead], parts[lead:]
    head, closed, tail = _text(context[-1]).partition("</hook_context>\n\n")
    if closed and head.lstrip().startswith("<hook_context>") and tail.strip():  # both in one text
        context[-1], rest = {"text": head + "</hook_context>"}, [{"text": tail}, *rest]
    return (context, rest) if "".join(_text(part) for part in rest).strip() else (parts, [])


def heal(args: Sequence[str], session: str, workspace: Path, env: Env, folder: Path) -> tuple[str, ...]:
    """Have a resume by Gemini itself send each result once: of the session's own file, or of a copy of the file that it
    forks from, which another Gemini may write. Return the arguments, with that copy's name."""
    here = find_file(session, workspace, env)
    held = read_plain(here) if here is not None else None
    if here is not None and (healed := _healed(held)) is not None:
        replace_file(here, healed, held)
    copy, words = folder / "forked.jsonl", list[str]()
    for arg in parse_args(args):
        if arg.name == "session-file" and (healed := _healed(read_plain(workspace / arg.value))) is not None:
            swap_file(copy, healed)
            words += ["--session-file", str(copy)]
        else:
            words += arg.words
    return tuple(words)


def _healed(main: bytes | None) -> bytes | None:
    """The session with each result once; None where it has no more."""
    read = load_session(main or b"")
    before = [message.value for message in read.messages.values()]
    mend_results(read)
    after = [message.value for message in read.messages.values()]
    return dump_session(read) if before != after else None


def mend_results(read: Session) -> None:
    """Keep each result once, in its own call; drop records that only repeat results."""
    written: set[str] = set()
    for message in read.messages.values():
        calls = message.calls
        ids = {str(c.get("id")) for c in calls}
        written |= {str(c.get("id")) for c in calls if c.get("result")}
        changed = [own_result(call, ids) for call in calls]
        if message.kind == "gemini" and changed != calls:
            message.value = {**message.value, "toolCalls": changed}
    for key, message in list(read.messages.items()):
        parts = message.parts()
        if message.kind != "user" or not any(_response_id(p) in written for p in parts):
            continue
        left = [p for p in parts if _response_id(p) not in written]
        if left:
            read.messages[key] = Message({**message.value, "content": left})
        else:
            del read.messages[key]


def drop_results(read: Session) -> int:
    """Drop the results whose call was lost: Gemini sends them, and the API refuses them. Return how many."""
    asked: set[str] = set()
    dropped = 0
    for key, message in list(read.messages.items()):
        asked |= {str(call.get("id")) for call in message.calls}
        parts = message.parts()
        asked |= {str(as_object(p["functionCall"]).get("id")) for p in as_objects(parts) if "functionCall" in p}
        left = [p for p in parts if (id := _response_id(p)) is None or id in asked]
        dropped += len(parts) - len(left)
        if not left and parts:
            del read.messages[key]
        elif len(left) < len(parts):
            read.messages[key] = Message({**message.value, "content": left})
    return dropped


def own_result(call: Json, batch: set[str]) -> Json:
    """Remove what a checkpoint adds: the results of the whole batch, and those of earlier resumes again."""
    result = call.get("result")
    if not isinstance(result, list):
        return call
    kept: list[Any] = []
    for part in result:
        owner = _response_id(part)
        if (owner in batch and owner != str(call.get("id"))) or part in kept:
            continue
        if owner is not None and any(_response_id(p) == owner for p in kept):
            continue
        kept.append(part)
    return call if len(kept) == len(result) else {**call, "result": kept}


def _has_words(message: Message) -> bool:
    """Return whether it holds a user's words, other than contexts and results of tools."""
    texts = (_text(part).lstrip() for part in message.parts())
    return message.kind == "user" and any(text and not text.startswith(CONTEXTS) for text in texts)


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _response_id(part: Any) -> str | None:
    response = part.get("functionResponse") if isinstance(part, dict) else None
    found = response.get("id") if isinstance(response, dict) else None
    return found if isinstance(found, str) else None


def inject_prompt(main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
    """Add the prompt at the end, once. `main` is empty or made by `reconcile`: only its end is read, and one line
    added. A prompt that Gemini would drop from the history gets a title before it."""
    main = main or _head(session, workspace)
    dropped = not prompt.strip() or prompt.lstrip().startswith(("/", "?", "<session_context>", "<hook_context>"))
    content = [{"text": TITLE + "\n"}, {"text": prompt}] if dropped else [{"text": prompt}]
    last: Json = next((r for r in _backwards(main) if r.get("type") in ("user", "gemini")), {})
    if last.get("type") == "user" and last.get("content") == content:
        return [main]
    # A free id: this record follows `last`, so while `last` is the last, it is not in the file.
    new = uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {last.get('id')} {prompt!r}")
    line = encode_json({"id": str(new), "timestamp": last.get("timestamp", EPOCH), "type": "user", "content": content})
    end = _scratchpad(main)
    return [memoryview(main)[:end], line, b"\n", memoryview(main)[end:]]


def _head(session: str, workspace: Path) -> bytes:
    read = load_session(b"")
    mend_head(read, session, workspace)
    return dump_session(read)


def _scratchpad(main: Buffer) -> int:
    """Return where the last line begins, if it is the memory scratchpad (which stays last), else where the file
    ends."""
    last = next(_backwards(main), {})
    return main.rfind(b"\n", 0, len(main) - 1) + 1 if "$set" in last and "id" not in last else len(main)


def _backwards(main: Buffer) -> Iterator[Json]:
    """Yield the records behind the head, from the last, of a file whose every line is one."""
    end = len(main) - 1
    while (begin := main.rfind(b"\n", 0, end) + 1) > 0:
        yield decode_json(main[begin:end])
        end = begin - 1
