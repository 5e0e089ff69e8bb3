"""Evidence for `sed -i`: what a script of plain words makes of a text proves that it has run.

sed writes a new file beside the old one and renames it over that. Another new file there may be anybody's, so only the
content proves anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wal_agent.evidence.file_state import (
    Entry,
    PathFacts,
    PathState,
    compare_paths,
    is_untouched,
    judge_paths,
    path_facts,
    read_file,
    sha256,
)
from wal_agent.evidence.model import Budget, Context, Kind, Outcome, Reach, Step, fact_value, resolve_paths
from wal_agent.records import Fact

MAX_TEXT = 256 << 10  # bytes: every line is looked at, on the way of a call
_MOST_LINE = 1000  # bytes: a pattern with a star takes the square of a line's length
_MOST_PATTERN = 200

_PLACE = r"(?:[0-9]+|\$|/(?:\\[^\n]|[^/\\\n])*/)"
# One address or two, and a substitution or deletion. No flag or command that writes elsewhere or executes (w, e, r).
SCRIPT = re.compile(
    rf"(?:(?P<one>{_PLACE})(?:,(?P<two>{_PLACE}))?)?(?:(?P<delete>d)|s(?P<by>[/|#,@:])"
    r"(?P<old>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)(?P<new>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)"
    r"(?P<flags>[gIi0-9]*));?"
)
# What a dot is in UTF-8, which no locale but C reads in another way.
_ANY = r"(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})"
_ITSELF = frozenset(".*[]^$/\\")  # behind a backslash, in basic and extended expressions


@dataclass(frozen=True, slots=True)
class _Edit:
    """One script. `at`: whether it is for a line, by number, whether it is the last one, and text. `change`: None for a
    deletion."""

    at: Callable[[int, bool, bytes], bool]
    change: Callable[[bytes], bytes] | None


def apply_sed(scripts: Sequence[str], extended: bool, text: bytes, budget: Budget) -> bytes | None:
    """What sed leaves of `text`; None where that is not known here, or not in time."""
    edits = [_edit(s, extended) for s in scripts]
    known = [e for e in edits if e is not None]
    if len(known) != len(edits) or len(text) > MAX_TEXT:
        return None
    lines = text.split(b"\n")
    ended = lines[-1] == b""
    lines = lines[:-1] if ended else lines
    out: list[bytes] = []
    for n, line in enumerate(lines, 1):
        last = n == len(lines)
        if budget.over or len(line) > _MOST_LINE:
            return None
        made = _line(known, n, last, line)
        if made is not None:
            out.append(made if last and not ended else made + b"\n")
    return b"".join(out)


def _line(edits: Sequence[_Edit], n: int, last: bool, line: bytes) -> bytes | None:
    for e in edits:
        if e.at(n, last, line):
            if e.change is None:
                return None
            line = e.change(line)
    return line


def _edit(script: str, extended: bool) -> _Edit | None:
    parts = SCRIPT.fullmatch(script)
    at = None if parts is None else _at(parts["one"], parts["two"], extended)
    if parts is None or at is None:
        return None
    if parts["delete"]:
        return _Edit(at, None)
    flags = parts["flags"]
    everywhere = "g" in flags
    old, new = _pattern(parts["old"], parts["by"], extended, "i" in flags.lower()), _new(parts["new"])
    if old is None or new is None or not set(flags) <= set("gIi") or (everywhere and old.match(b"")):
        return None
    pattern, parted = old, new

    def change(line: bytes) -> bytes:
        return pattern.sub(lambda m: m[0].join(parted), line, count=0 if everywhere else 1)

    return _Edit(at, change)


def _at(one: str | None, two: str | None, extended: bool) -> Callable[[int, bool, bytes], bool] | None:
    if one is None:
        return lambda n, last, line: True
    if two is not None:
        begin = int(one) if one.isdigit() else 0
        end = int(two) if two.isdigit() else begin if two == "$" else 0
        if not begin or not end:
            return None
        return lambda n, last, line: n == begin or (n > begin and (two == "$" or n <= end))
    if one == "$":
        return lambda n, last, line: last
    if one.isdigit():
        wanted = int(one)
        return (lambda n, last, line: n == wanted) if wanted else None
    pattern = _pattern(one[1:-1], "/", extended, False)
    return None if pattern is None else lambda n, last, line: pattern.search(line) is not None


def _pattern(text: str, by: str, extended: bool, any_case: bool) -> re.Pattern[bytes] | None:
    """Of the atoms at most one has a star, so the longest match is the greedy one, and a search stays short."""
    begins, ends = text.startswith("^"), text.endswith("$") and not text.endswith("\\$")
    rest = list(text[begins : len(text) - ends])
    if not text or len(text) > _MOST_PATTERN or not text.isascii():
        return None
    special = set("*[^$+?(){}|") if extended else set("*[^$")
    atoms: list[str] = []
    stars = 0
    while rest:
        c = rest.pop(0)
        if c == "\\":
            c = rest.pop(0) if rest else ""
            if not c or (c not in _ITSELF and (c != by or c == "|")):
                return None
            atoms.append(re.escape(c))
        elif c in special:
            return None
        else:
            atoms.append(_ANY if c == "." else re.escape(c))
        if rest[:1] == ["*"]:
            stars += 1
            atoms.append(rest.pop(0))
    if stars > 1:
        return None
    source = "".join((r"\A" * begins, *atoms, r"\Z" * ends))
    return re.compile(source.encode(), re.DOTALL | (re.IGNORECASE if any_case else 0))


def _new(text: str) -> list[bytes] | None:
    """The new text, split where it repeats the match."""
    parts, rest = [""], list(text)
    while rest:
        c = rest.pop(0)
        if c == "&":
            parts.append("")
            continue
        if c == "\\":
            c = rest.pop(0) if rest else "n"
            if c.isalnum():
                return None
        parts[-1] += c
    try:
        return [p.encode() for p in parts]
    except UnicodeEncodeError:
        return None


@dataclass(frozen=True, slots=True)
class _Sed:
    paths: tuple[str, ...]
    scripts: tuple[str, ...]
    extended: bool


class SedEdits(Kind[_Sed]):
    def parse(self, step: Step) -> _Sed | None:
        return _parse_sed(step)

    def reach(self, step: Step, how: _Sed) -> Reach | None:
        return Reach(how.paths)

    def facts_before(self, step: Step, how: _Sed, budget: Budget) -> tuple[Fact, ...]:
        found = path_facts(how.paths, budget)
        for path in how.paths if found else ():
            was = read_file(path, budget)
            if was.value is not None:
                found += (Fact(what="file", where=path, value=was.value),)
            after = None if was.data is None else apply_sed(how.scripts, how.extended, was.data, budget)
            if after is not None:
                found += (Fact(what="sed", where=path, value=sha256(after)),)
        return found

    def judge_step(self, step: Step, how: _Sed, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        def state(was: PathFacts, now: Entry) -> PathState:
            if was.entry.kind != "file":
                return "unknown"
            if is_untouched(was, now, around, budget):
                return "untouched"
            if not around.same_place or not around.alone or now.kind != "file":
                return "unknown"
            wanted = fact_value(facts, "sed", was.path)
            other = now.inode != was.entry.inode and now.device == was.entry.device and now.mtime >= was.entry.mtime
            return "done" if other and wanted is not None and read_file(was.path, budget).value == wanted else "unknown"

        done = f"{'holds' if len(how.paths) == 1 else 'hold'} what sed makes of the text before"
        return judge_paths(compare_paths(how.paths, facts, state), around, done, "edited")


def _parse_sed(step: Step) -> _Sed | None:
    """`sed -i [-E|-r] (SCRIPT | -e SCRIPT...) FILE...`."""
    scripts: list[str] = []
    rest, files, inplace, extended = list(step.words[1:]), [], False, False
    while rest:
        word = rest.pop(0)
        if word in ("-i", "-E", "-r"):  # anything behind -i is a suffix: two files would change
            inplace, extended = inplace or word == "-i", extended or word != "-i"
        elif word == "-e" and rest:
            scripts.append(rest.pop(0))
        elif word.startswith("-"):
            return None
        else:
            files.append(word)
    if not scripts and files:
        scripts.append(files.pop(0))
    if not inplace or not files or not all(SCRIPT.fullmatch(s) for s in scripts):
        return None
    paths = resolve_paths(step, files)
    return None if paths is None else _Sed(paths, tuple(scripts), extended)
