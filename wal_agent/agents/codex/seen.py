"""What bytes appended to a session file tell: calls with an outcome, and that a turn began.

`item_completed` tells of each command and patch, nested ones of code mode too, with the hooks' own id. Of a call whose
tool failed before it began only the answer to the model tells: no after-hook fires then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from wal_agent.agents.base import SeenCall
from wal_agent.agents.codex.events import SHELL
from wal_agent.agents.codex.rollout import (
    CALLS,
    OUTPUTS,
    RUNS_ON,
    completed_item,
    ended_by_itself,
    model_payload,
    output_text,
)
from wal_agent.agents.session_files import Json, encode_json, records

Status = Literal["done", "failed", "refused", "cancelled"]
_MODELS = ("agent", "unified_exec_startup")  # others: a person's own commands, words typed into a running one
_TOOLS = dict.fromkeys(("exec_command", "shell_command", "shell"), SHELL)
_BLOCKED = ("Command blocked by PreToolUse hook",)
_REFUSED = ("rejected by user", "rejected the", "denied by")


def seen_calls(appended: bytes) -> list[SeenCall]:
    found: dict[str, SeenCall] = {}
    names: dict[str, str] = {}  # of calls that these bytes tell of
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
            # A command that is a patch (`apply_patch <<'EOF'`) ends so too, and no after-hook fires. The hooks' id is
            # right all the same where the call's own line is not among these bytes.
            return SeenCall(_TOOLS.get(names.get(id, ""), "apply_patch"), b"{}", _status(item), id, id)
    return None


def _status(item: Json) -> Status:
    """A command that came to its own end is done, whatever its code."""
    if item.get("status") == "declined":
        return "refused"
    code = item.get("exit_code")
    if isinstance(code, int):
        return "done" if ended_by_itself(code) else "cancelled"
    return "done" if item.get("status") == "completed" else "failed"


def _of_output(payload: Json, names: dict[str, str]) -> SeenCall | None:
    """Never "done": a call that came to its own end has an item, or an after-hook that has told."""
    id = payload.get("call_id")
    if not isinstance(id, str) or not id:
        return None
    kind = payload.get("type")
    if kind in CALLS:
        names[id] = str(payload.get("name"))
        return None
    text = output_text(payload.get("output"))
    if kind not in OUTPUTS or names.get(id) == "exec" or RUNS_ON in text[:400]:
        return None
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
