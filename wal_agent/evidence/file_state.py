"""What the evidence says of a call in flight (DESIGN 7, step 5): pure, over what was true before and what is found now.

`completed` and `not_started` are said only with proof, since the agent acts on them; everything else is `unknown`.
`not_started` needs more than equal bytes: every effect of the call must be in the file that was looked at, nothing else
may have changed that file back, and the process that ran the call must be gone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.evidence.model import Context, Outcome
from wal_agent.records import Fact
from wal_agent.shell.quote import inline

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


def judge_write(wanted: Sequence[bytes], before: Fact | None, now: FileNow, absolute: bool, around: Context) -> Outcome:
    """What became of a step that was to leave a file with one of the contents `wanted`. `absolute`: its path means
    this file and no other one."""
    path = inline(now.path)
    if now.value is None:
        return _not_known(path, now)
    # A relative path may have meant another folder (plan mode); that the file changed to just this content proves it.
    changed = before is not None and before.value != now.value
    if now.data is not None and now.data in wanted and (absolute or changed):
        return Outcome("completed", f"The file {path} holds exactly what the call was to write.", either=not changed)
    if before is None:
        return _not_known(path, now)
    if before.value == now.value:
        return judge_unchanged(path, absolute, around)
    begun = now.data is not None and any(w.startswith(now.data) for w in wanted)
    if begun and absolute and around.same_place and around.gone and around.alone:
        return Outcome("partial", f"The file {path} holds only the beginning of what the call was to write.")
    return Outcome("unknown", f"The file {path} is neither as it was before the call nor as the call would leave it.")


def _not_known(path: str, now: FileNow) -> Outcome:
    """One of the two sides that would be compared is missing."""
    if now.value is None:
        return Outcome("unknown", f"The file {path} could not be read.")
    return Outcome("unknown", f"Nothing is known of the file {path} before the call.")


def judge_replacement(
    old: str, new: str, before: Fact | None, now: FileNow, absolute: bool, around: Context
) -> Outcome:
    """What became of a step that was to put `new` in the place of `old` in a file."""
    path = inline(now.path)
    if before is None or now.value is None:
        return _not_known(path, now)
    if before.value == now.value:
        return judge_unchanged(path, absolute, around)
    if now.data is not None and any(sha256(d) == before.value for d in _undone(now.data, old, new)):
        if around.contested:
            return Outcome("unknown", f"The file {path} has the new text, but another call may have put it there.")
        why = f"The file {path} is what it was before the call, with the new text in place of the old."
        return Outcome("completed", why)
    return Outcome(
        "unknown", f"The file {path} is neither as it was before the call nor plainly what the call would leave."
    )


def judge_append(added: bytes, before: Fact | None, size: int | None, now: FileNow, around: Context) -> Outcome:
    """What became of a step that was to put `added` at the end of a file, `size` bytes long before it where known. A
    second call may add the same bytes, so nothing is said unless this one is alone."""
    path = inline(now.path)
    if before is None or now.value is None:
        return _not_known(path, now)
    if before.value == now.value:
        return judge_unchanged(path, True, around)
    if now.data is not None and added and around.alone:
        head = now.data[: len(now.data) - len(added)]
        if now.data.endswith(added) and _was(before, head):
            return Outcome("completed", f"The file {path} is what it was before the call, with what was to be added.")
        at = 0 if before.value == ABSENT else size
        sure = around.same_place and around.gone and at is not None and at <= len(now.data)
        if sure and _was(before, now.data[:at]) and added.startswith(now.data[at:]):
            return Outcome("partial", f"Only the beginning of what was to be added is in the file {path}.")
    return Outcome(
        "unknown", f"The file {path} is neither as it was before the call nor plainly as the call would leave it."
    )


def judge_unchanged(path: str, absolute: bool, around: Context) -> Outcome:
    """The finding for a file that is as it was before; `path` is safe to show."""
    return judge_as_before(f"The file {path} is as it was before the call", absolute, around)


def judge_as_before(same: str, absolute: bool, around: Context) -> Outcome:
    """`not_started` where nothing can have hidden what the call did; else unknown, and why. `same`: the sentence that
    says what is as it was, without its full stop."""
    if not around.same_place and not around.restored:
        return Outcome("unknown", f"{same}, but this is not the machine or folder that the call worked on.")
    if not around.gone:
        return Outcome("unknown", f"{same}, but the process that ran the call may still be there.")
    if not around.alone:
        return Outcome("unknown", f"{same}, but other calls may have changed it back.")
    if not absolute:
        return Outcome("unknown", f"{same}, but the call's path is relative and may mean another folder.")
    return Outcome("not_started", f"{same}{' in the working tree that was put back' if around.restored else ''}.")


def _was(before: Fact, data: bytes) -> bool:
    return before.value == sha256(data) or (before.value == ABSENT and not data)


def _undone(data: bytes, old: str, new: str) -> list[bytes]:
    """What the file may have been before `old` was replaced by `new` in it; empty where that cannot be said."""
    found = []
    for was, became in zip(line_end_variants(old), line_end_variants(new), strict=True):
        if became and was != became:
            found.append(data.replace(became, was))
            at = data.find(became)
            for _ in range(_MOST_PLACES):
                if at < 0:
                    break
                found.append(data[:at] + was + data[at + len(became) :])
                at = data.find(became, at + 1)
    return found


def line_end_variants(text: str) -> tuple[bytes, ...]:
    r"""As the agent writes it: with "\n", or with "\r\n" where the file had that; nothing for text that is no UTF-8."""
    try:
        plain = text.encode()
    except UnicodeEncodeError:
        return ()
    lines = text.replace("\r\n", "\n")
    return (plain, lines.encode(), re.sub("\n", "\r\n", lines).encode())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
