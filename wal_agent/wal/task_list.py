"""Follow Claude Code's list of tasks, which its calls add to and change one by one, as one plan in the form of `todos`.

Foreign text: what is in no known form changes nothing, and the list stays within MOST_LIST bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

MOST_LIST: Final = 16 << 10  # bytes
_MOST_WORDS: Final = 400  # characters of a task, from which secrets are taken before it is cut for people
_STATES: Final = ("pending", "in_progress", "completed")


def merge_call(listed: bytes, tool: str, given: bytes, result: bytes) -> bytes | None:
    """The list behind a call of TaskCreate or TaskUpdate that was done; None where it stays as it is."""
    rows: list[dict[str, str]] = []
    with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
        rows = [dict(row) for row in json.loads(listed)["todos"] if "id" in row]
    with suppress(ValueError, RecursionError, AttributeError, KeyError, TypeError):
        said: Mapping[str, Any] = json.loads(given)
        if tool == "TaskCreate":
            row = {"id": str(json.loads(result)["task"]["id"]), "content": said["subject"][:_MOST_WORDS]}
            known = any(other["id"] == row["id"] for other in rows)  # ids only rise: this is another session's list
            rows = [*([] if known else rows), {**row, "status": "pending"}]
        elif said.get("status") == "deleted":
            rows = [row for row in rows if row["id"] != str(said["taskId"])]
        else:
            (row,) = (row for row in rows if row["id"] == str(said["taskId"]))
            if isinstance(subject := said.get("subject"), str):
                row["content"] = subject[:_MOST_WORDS]
            if (status := said.get("status")) in _STATES:
                row["status"] = str(status)
        made = json.dumps({"todos": rows}, ensure_ascii=False).encode("utf-8", "replace")
        return made if len(made) <= MOST_LIST else None
    return None
