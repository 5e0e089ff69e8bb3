"""Read what a check of an open call printed: whether it shows that the call happened. Pure.

`done_if` may be a stranger's text, so it is no regular expression: it takes time in proportion to what it is held
against. Only a hit says something; whatever else a check prints is no proof of the opposite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

ANYTHING = "*"  # matches any text of a line
ENDS_WELL = "exit 0"
MAX_LINES = 2000  # of a result
MAX_LINE = 2000  # characters; a longer line is not read
MAX_SHOWN = 600  # characters of what a check printed
MAX_RESULT = 1 << 20  # bytes
_EXIT = re.compile(r"exit\b.{0,20}", re.IGNORECASE)
_LABEL = re.compile(r"(?:Output|Stdout): ")  # of Gemini CLI and Qwen Code, in front of the first line
_SAID = re.compile(r"(?:Command|Directory): |</?untrusted_context>$")  # lines of theirs that the check did not print
_ASKED = frozenset(("command", "description", "title", "input", "type"))  # fields that say nothing of what it printed
_DEPTH = 6


class Reading(msgspec.Struct, frozen=True):
    """How to read what `command` prints: `done_if` (`parse_done_if`). `source`: the project's file that says so, "" for
    the built-in rules."""

    command: str
    done_if: str
    source: str = ""


class Shown(msgspec.Struct, frozen=True):
    """A check that showed that a call happened: its number and command, the line that says so ("" for its exit), the
    beginning of what it printed, and the file of the project that reads it so ("": the built-in rules)."""

    call: int
    command: str
    line: str
    output: str
    source: str = ""


def parse_done_if(text: str) -> str:
    """Return `done_if` in one spelling: "exit 0" (the check ends with 0), or a whole line of its output, in which *
    stands for anything. ValueError says what is wrong, as the end of a sentence that began with the text."""
    flat = " ".join(text.split())
    if _EXIT.fullmatch(flat):
        if flat.lower() != ENDS_WELL:
            raise ValueError(f'is no exit code that can be seen; it can be "{ENDS_WELL}"')
        return ENDS_WELL
    if not flat.replace(ANYTHING, "").strip():
        raise ValueError("names no text that a line has to have")
    return flat


def shows_done(reading: Reading, well: bool, result: bytes) -> str | None:
    """Return the line of a check's result that shows that its call happened, "" where its exit does; None for neither.
    `well`: it ended with 0, as far as the agent says."""
    if reading.done_if == ENDS_WELL:
        return "" if well else None
    return next((line for line in printed_lines(reading.command, result) if line_is(reading.done_if, line)), None)


def beginning(command: str, result: bytes) -> str:
    """Return the beginning of what a command printed, its lines in one."""
    found = ""
    for line in printed_lines(command, result):
        found = f"{found} | {line}" if found else line
        if len(found) > MAX_SHOWN:
            break
    return found[:MAX_SHOWN]


def line_is(wanted: str, line: str) -> bool:
    """Whether a whole line is `wanted`, * being anything."""
    first, *rest = wanted.split(ANYTHING)
    if not rest:
        return line == wanted
    *between, last = rest
    end = len(line) - len(last)
    if len(first) > end or not line.startswith(first) or not line.endswith(last):
        return False
    at = len(first)
    for piece in between:
        at = line.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def printed_lines(command: str, result: bytes) -> Iterator[str]:
    """Yield the lines that a command printed, spaces in one spelling, as far as a tool's result shows them. A line that
    repeats the command is none."""
    if len(result) > MAX_RESULT:
        return
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return
    left = MAX_LINES
    for text in _texts(value, _DEPTH):
        for line in text.splitlines()[:left]:
            left -= 1
            flat = _LABEL.sub("", " ".join(line.split()), count=1) if len(line) <= MAX_LINE else ""
            if flat and command not in flat and not _SAID.match(flat):
                yield flat


def _texts(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list):
        for item in value:
            yield from _texts(item, depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            if key not in _ASKED:
                yield from _texts(item, depth - 1)
