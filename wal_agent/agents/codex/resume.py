"""Make a restored rollout that Codex resumes well (RECOVERY.md): put lost outcomes back and add the prompt.

Pure and idempotent. Codex writes the outputs of a batch in the order of its calls, and tells the model "aborted" for
every call without one: for those that had ended, and for those that never began. Of a script of code mode
it says only that, and nothing of what its calls did. The log and the file's own items have the outcomes; they are added
at the end. A session whose first line was lost or never saved gets one.

The recovery prompt becomes the user's last message: in the session file it arrives byte for byte, and stays for later
resumes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.codex.hooks import SHELL
from wal_agent.agents.codex.session import (
    EXITED,
    LOST_SCRIPTS,
    RUNS_ON,
    SCRIPT,
    CallLine,
    Rollout,
    ended_by_itself,
    load_rollout,
    output_text,
    parse_lines,
)
from wal_agent.agents.session_files import (
    EPOCH,
    HEAD_REPAIR,
    FileLines,
    Json,
    as_object,
    capped_text,
    decode_json,
    decode_lines,
    encode_json,
    junk_repair,
    logged_value,
    lost_calls_repair,
    noted_result,
    unknown_result,
    well_formed,
)
from wal_agent.safefs import Buffer, Pieces

# A call that only reads may run before its intent is saved, and the intent be lost.
NOT_BEGUN = "no record of its start was saved: if it began before the run was lost, it was one that only reads."
DECLINED = "declined: it did not run."
SCRIPTS = "The run was lost while several scripts ran. What is known of their calls, together, follows in a message."
MOVED_ON = "\n[wal-agent: it runs no more."
_SHELLS = ("exec_command", "shell_command", "shell")
_HOOKED = (*_SHELLS, "apply_patch")  # tools of which it is known that no call begins without its before-hook
_NESTED = "exec-"
_RUNNING = re.compile(RUNS_ON + r" (\d+)")
_TAG = re.compile(r"^- \[([^\]\n]+)\] ", re.MULTILINE)


def head_line(session: str, workspace: Path, time: str) -> bytes:
    about = {
        "session_id": session,
        "id": session,
        "timestamp": time or EPOCH,
        "cwd": str(workspace),
        "originator": "codex_exec",
        "cli_version": "0.0.0",
        "source": "exec",
        "model_provider": None,
    }
    return encode_json({"timestamp": time or EPOCH, "ordinal": 0, "type": "session_meta", "payload": about})


class Child(msgspec.Struct):
    """The rollout, and the records that are added to it."""

    read: Rollout
    added: list[bytes] = msgspec.field(default_factory=list)
    put: int = 0

    def add(self, payload: Json, kind: str = "response_item") -> None:
        self.read.ordinal += 1
        record = {"timestamp": self.read.time, "ordinal": self.read.ordinal, "type": kind, "payload": payload}
        self.added.append(well_formed(encode_json(record)))

    def answer(self, call_id: str, kind: str, text: str) -> None:
        """`kind`: of the call."""
        kind = "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output"
        self.add({"type": kind, "call_id": call_id, "output": text})
        self.read.outputs[call_id] = len(self.read.lines)

    def reload(self) -> None:
        """Parse the lines again after some were inserted."""
        self.read = parse_lines(decode_lines(self.read.lines))

    def pieces(self) -> Pieces:
        return FileLines([*self.read.lines, *self.added])


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_rollout(main)
    repairs = junk_repair(read.junk)
    child = Child(read)
    if not read.headed:
        read.lines.insert(0, head_line(session, workspace, read.time))
        repairs.append(HEAD_REPAIR)
        child.reload()
        read = child.read
    _orphans(child, calls)
    repairs += lost_calls_repair(_drop_outputs(child))
    _plain(child, calls)
    _scripts(child, calls)
    return Reconciled(child.pieces(), child.put, read.messages, tuple(repairs), None if read.asked else ())


def _orphans(child: Child, calls: Sequence[LoggedCall]) -> None:
    """Restore the call of an output whose call's line was damaged: Codex would drop the output."""
    read = child.read
    logged = {c.call_id: c for c in calls if c.call_id in read.outputs and c.call_id not in read.calls}
    if not logged:
        return
    before = {read.outputs[id]: _call(call) for id, call in logged.items()}
    for at in sorted(before, reverse=True):
        output = decode_json(read.lines[at])
        kind = "custom_tool_call" if output["payload"]["type"] == "custom_tool_call_output" else "function_call"
        if before[at]["type"] == kind:
            read.lines.insert(at, well_formed(encode_json({**output, "payload": before[at]})))
            child.put += 1
    child.reload()


def _drop_outputs(child: Child) -> int:
    """Drop the outputs whose call was lost; return how many."""
    dropped = 0
    while lost := {at for id, at in child.read.outputs.items() if _lost_call(child.read, id, at)}:
        child.read.lines = [line for at, line in enumerate(child.read.lines) if at not in lost]
        child.reload()
        dropped += len(lost)
    return dropped


def _lost_call(read: Rollout, id: str, output: int) -> bool:
    call = read.calls.get(id)
    return call is None or call.at > output


def _plain(child: Child, calls: Sequence[LoggedCall]) -> None:
    """Answer the model's own calls: in the file's order, then those that the file lacks."""
    read = child.read
    logged = {c.call_id: c for c in calls if c.call_id and not c.call_id.startswith(_NESTED)}
    for id, call in list(read.calls.items()):
        if id in read.outputs or call.name == "exec":
            _runs_on(child, id, logged.get(id))
            continue
        if id in logged:
            child.answer(id, call.kind, _describe_result(logged[id], read.item(id)))
            child.put += 1
        elif id in read.items:
            child.answer(id, call.kind, _of_item(read.item(id)))
        elif call.at >= read.last_turn and call.name in _HOOKED and not call.namespaced:
            child.answer(id, call.kind, NOT_BEGUN)
    for id, logged_call in logged.items():
        if id not in read.calls and id not in read.outputs:
            made = _call(logged_call)
            child.add(made)
            child.answer(id, made["type"], _describe_result(logged_call, {}))
            read.calls[id] = CallLine(len(read.lines), made["type"], made["name"])
            child.put += 1


def _runs_on(child: Child, id: str, logged: LoggedCall | None) -> None:
    """Complete the output of a command that ran on: it says only that it runs. Its outcome is put behind that, unless
    the model followed it to its end."""
    at = child.read.outputs.get(id)
    if at is None or logged is None:
        return
    record = decode_json(child.read.lines[at])
    text = record["payload"].get("output")
    if not isinstance(text, str) or RUNS_ON not in text[:400] or MOVED_ON in text:
        return
    if _followed(child.read, at, text):
        return
    item = child.read.item(id)
    record["payload"]["output"] = f"{text}{MOVED_ON} {_describe_result(logged, item)}]"
    child.read.lines[at] = well_formed(encode_json(record))
    child.put += 1


def _followed(read: Rollout, at: int, text: str) -> bool:
    """Return whether a later `write_stdin` reported that the command exited."""
    running = _RUNNING.search(text)
    for id, call in read.calls.items() if running else ():
        if call.name != "write_stdin" or call.at < at or id not in read.outputs:
            continue
        try:
            of = decode_json(str(read.payload(call.at).get("arguments")).encode())["session_id"]
            output = output_text(read.payload(read.outputs[id]).get("output"))
        except (ValueError, LookupError, TypeError):
            continue
        if running and str(of) == running[1] and EXITED in output[:400]:
            return True
    return False


def _scripts(child: Child, calls: Sequence[LoggedCall]) -> None:
    """Answer code mode's scripts: one without an output gets one that reports its calls. Calls that a script which ran
    on made after its output are reported in a message."""
    read = child.read
    said = _said_before(read)
    logged = {_tag(c): c for c in calls if not c.call_id or c.call_id.startswith(_NESTED)}
    logged = {tag: call for tag, call in logged.items() if tag not in said}
    open_scripts = {id: c.at for id, c in read.calls.items() if c.name == "exec" and id not in read.outputs}
    # Calls that ended before the first of them were reported by their own script.
    newest = max((at for at in read.outputs.values() if at < len(read.lines)), default=-1)  # but those put back
    since = min(open_scripts.values()) if open_scripts else newest
    ends = {id: at for id, at in read.items.items() if id in logged and _ended(read.item(id))}
    logged = {tag: call for tag, call in logged.items() if ends.get(tag, since + 1) > since}
    items = [id for id, at in read.items.items() if id.startswith(_NESTED) and at > since]
    lines = []
    for tag, call in logged.items():
        what = f"{call.tool} {capped_text(call.input.decode('utf-8', 'replace'), call.call)}"
        lines.append(_line(tag, what, _describe_result(call, read.item(tag))))
    if open_scripts:
        found = ((id, read.item(id)) for id in items if id not in logged)
        unlogged = [_line(id, _command(item), _of_item(item)) for id, item in found]
        lines = [*unlogged, *lines]
    together = bool(lines) and len(open_scripts) != 1  # which script made which call is unknown
    for id in open_scripts:
        child.answer(id, read.calls[id].kind, SCRIPTS if together else "\n\n".join([SCRIPT, *(lines or ["(none)"])]))
    if together:
        content = [{"type": "input_text", "text": "\n\n".join([LOST_SCRIPTS, *lines])}]
        child.add({"type": "message", "role": "user", "content": content})
    child.put += len(logged)


def _said_before(read: Rollout) -> set[str]:
    """Return the nested calls that were put back earlier."""
    return {tag for text in read.reports for tag in _TAG.findall(text)}


def _tag(call: LoggedCall) -> str:
    return call.call_id or f"call {call.call}"


def _describe_result(call: LoggedCall, item: Json) -> str:
    if call.result is None:
        return _of_item(item) if _ended(item) else unknown_result(call)
    return noted_result(_result(call.result), call)


def _ended(item: Json) -> bool:
    """Return whether it has the outcome of its call."""
    code = item.get("exit_code")
    if item.get("type") == "CommandExecution" and item.get("status") != "declined":
        return isinstance(code, int) and ended_by_itself(code)
    return item.get("status") in ("completed", "declined")


def _result(result: bytes) -> str:
    """Return what the after-hook reported: text, or a command's output and code."""
    value = logged_value(result)
    if isinstance(value, dict) and set(value) == {"exit_code", "output"}:
        return _exited(value["exit_code"], value["output"])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _of_item(item: Json) -> str:
    if item.get("status") == "declined":
        return DECLINED
    if item.get("type") == "CommandExecution":
        code = item.get("exit_code")
        ended = isinstance(code, int) and ended_by_itself(code)
        return capped_text(_exited(code if ended else "unknown", item.get("aggregated_output") or ""), 0)
    said = "\n".join(str(item[k]) for k in ("stdout", "stderr") if item.get(k))
    return capped_text(said or f"status: {item.get('status')}", 0)


def _exited(code: object, output: object) -> str:
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return f"{EXITED} {code}\nOutput:\n{text}"


def _line(tag: str, what: str, outcome: str) -> str:
    return f"- [{tag}] {what}\n  {outcome}"


def _command(item: Json) -> str:
    command = item.get("command")
    if isinstance(command, list) and command:
        return f"{SHELL} {encode_json({'command': command[-1]}).decode()}"
    return f"{item.get('type')} {encode_json(item.get('changes') or {}).decode()[:2000]}"


def _call(call: LoggedCall) -> Json:
    """Return the call as the model made it, as far as the hooks' spelling shows."""
    raw = well_formed(call.input)
    command = as_object(logged_value(raw)).get("command")
    if call.tool == "apply_patch" and isinstance(command, str):
        return {"type": "custom_tool_call", "name": call.tool, "input": command, "call_id": call.call_id}
    name, arguments = call.tool, raw.decode("utf-8", "replace")
    if call.tool == SHELL and isinstance(command, str):
        name, arguments = "exec_command", encode_json({"cmd": command}).decode()
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call.call_id}


def inject_prompt(main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
    """Add the prompt at the end, once. `main` is empty or made by `reconcile`."""
    prompt = prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # Codex drops a line with half a pair
    main = main or head_line(session, workspace, "") + b"\n"
    read = load_rollout(main)
    content = [{"type": "input_text", "text": prompt}]
    last = read.last_said
    if last.get("role") == "user" and output_text(last.get("content")) == prompt:
        return [main]
    message: Json = {"type": "message", "role": "user", "content": content}
    record = {"timestamp": read.time or EPOCH, "ordinal": read.ordinal + 1, "type": "response_item", "payload": message}
    return [main, encode_json(record), b"\n"]
