"""What the evidence says of a call in flight (DESIGN 7, step 5): pure, over what was true before and what is found now.

`completed` and `not_started` are said only with proof, since the agent acts on them; everything else is `unknown`.
`not_started` needs more than equal bytes: every effect of the call must be in the file that was looked at, nothing else
may have changed that file back, and the process that ran the call must be gone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from wal_agent.records import Fact, Finding, Intent, Verdict
from wal_agent.recovery.classify import read_input
from wal_agent.recovery.quote import inline

FILE_TOOLS = ("write_file", "replace")
ABSENT = "absent"
_MOST_PLACES = 16  # occurrences of a replacement's new text that are tried


@dataclass(frozen=True, slots=True)
class FileNow:
    """The file that a call names, as it is on this machine: `data` None and not `absent`: it could not be read."""

    path: str
    data: bytes | None = None
    absent: bool = False

    @property
    def value(self) -> str | None:
        """As a Fact says it: hash or "absent"; None where nothing is known."""
        return ABSENT if self.absent else None if self.data is None else sha256(self.data)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known around a call. `same_place`: the files here are those that it worked on (same kernel, same folder).
    `gone`: the agent's process and what it started have ended. `alone`: no other call in flight or since could have
    changed its file. `ended_now`: its command still ran here and was ended by the recovery."""

    same_place: bool = False
    gone: bool = False
    alone: bool = False
    ended_now: bool = False


def verdict(intent: Intent, input: bytes | None, now: FileNow | None, around: Circumstances) -> Verdict:
    """What became of the call, with the reason in one sentence."""
    finding, why = _find(intent, input, now, around)
    return Verdict(call=intent.call, finding=finding, why=why)


def _find(intent: Intent, input: bytes | None, now: FileNow | None, around: Circumstances) -> tuple[Finding, str]:
    if around.ended_now:
        return "partial", "It still ran when this recovery began, and was ended then."
    fields = None if input is None else read_input(input)
    if intent.tool not in FILE_TOOLS or fields is None or now is None:
        return "unknown", ""
    if now.value is None:
        return "unknown", f"The file {inline(now.path)} could not be read."
    before = next((f for f in intent.before if f.what == "file"), None)
    named = fields.get("file_path")
    absolute = isinstance(named, str) and named.startswith("/")
    if intent.tool == "write_file":
        content = fields.get("content")
        return _written(content, before, now, absolute, around) if isinstance(content, str) else ("unknown", "")
    old, new = fields.get("old_string"), fields.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str) or old == new:
        return "unknown", ""
    if old == "":  # the agent then creates the file with the new text
        created = before is not None and before.value == ABSENT
        return _written(new, before, now, absolute, around) if created else ("unknown", "")
    return _replaced(old, new, before, now, absolute, around)


def _written(
    content: str, before: Fact | None, now: FileNow, absolute: bool, around: Circumstances
) -> tuple[Finding, str]:
    path = inline(now.path)
    wanted = _spellings(content)
    # A relative path may have meant another folder (plan mode); that the file changed to just this content proves it.
    if now.data in wanted and (absolute or (before is not None and before.value != now.value)):
        return "completed", f"The file {path} holds exactly what the call was to write."
    if before is None:
        return "unknown", f"Nothing is known of the file {path} before the call."
    if before.value == now.value:
        return _unchanged(path, absolute, around)
    begun = now.data is not None and any(w.startswith(now.data) for w in wanted)
    if begun and absolute and around.same_place and around.gone and around.alone:
        return "partial", f"The file {path} holds only the beginning of what the call was to write."
    return "unknown", f"The file {path} is neither as it was before the call nor as the call would leave it."


def _replaced(
    old: str, new: str, before: Fact | None, now: FileNow, absolute: bool, around: Circumstances
) -> tuple[Finding, str]:
    path = inline(now.path)
    if before is None:
        return "unknown", f"Nothing is known of the file {path} before the call."
    if before.value == now.value:
        return _unchanged(path, absolute, around)
    if now.data is not None and any(sha256(d) == before.value for d in _undone(now.data, old, new)):
        return "completed", f"The file {path} is what it was before the call, with the new text in place of the old."
    return "unknown", f"The file {path} is neither as it was before the call nor plainly what the call would leave."


def _unchanged(path: str, absolute: bool, around: Circumstances) -> tuple[Finding, str]:
    same = f"The file {path} is as it was before the call"
    if not around.same_place:
        return "unknown", f"{same}, but this is not the machine or folder that the call worked on."
    if not around.gone:
        return "unknown", f"{same}, but the process that ran the call may still be there."
    if not around.alone:
        return "unknown", f"{same}, but other calls may have changed it back."
    if not absolute:
        return "unknown", f"{same}, but the call's path is relative and may mean another folder."
    return "not_started", f"{same}."


def _undone(data: bytes, old: str, new: str) -> list[bytes]:
    """What the file may have been before `old` was replaced by `new` in it; empty where that cannot be said."""
    found = []
    for was, became in zip(_spellings(old), _spellings(new), strict=True):
        if became and was != became:
            found.append(data.replace(became, was))
            at = data.find(became)
            for _ in range(_MOST_PLACES):
                if at < 0:
                    break
                found.append(data[:at] + was + data[at + len(became) :])
                at = data.find(became, at + 1)
    return found


def _spellings(text: str) -> tuple[bytes, ...]:
    r"""As the agent writes it: with "\n", or with "\r\n" where the file had that; nothing for text that is no UTF-8."""
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        return ()
    lines = text.replace("\r\n", "\n")
    return (plain, lines.encode(), re.sub("\n", "\r\n", lines).encode())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
