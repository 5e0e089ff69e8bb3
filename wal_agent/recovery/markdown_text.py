"""What stands where in a Markdown text: headings, the rows of tables, the text under a heading. Pure, linear in time.

Code blocks, comments and front matter hold nothing that a reader sees as such: their lines are empty here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_LINE = 4000  # characters; a longer line holds no rule

_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]+|>[ \t]?")
_CODE_SPAN = re.compile(r"(?<!`)(`{1,9})(?!`)(.*?)(?<!`)\1(?!`)")
_DASHES = re.compile(r":?-+:?")


@dataclass(frozen=True, slots=True)
class Heading:
    """`at`: index of its line; `end`: of the next one that is not below it. `title` is without marks; `above` is the
    title that it stands under, empty for none."""

    at: int
    level: int
    title: str
    above: str
    end: int


@dataclass(frozen=True, slots=True)
class Table:
    """`at`: index of the header's line; `rows`: the cells of the rows below the dashes, each with its line's index."""

    at: int
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A document's lines, those that hold nothing being empty, and the front matter's fields (plain ones only).
    `code`: the lines of code blocks, "" for their fences, None outside of them."""

    lines: tuple[str, ...]
    code: tuple[str | None, ...]
    front: dict[str, str]


def parse_markdown(text: str) -> Text:
    """Any text is a document."""
    lines = [
        line if len(line) <= MOST_LINE else "" for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    ]
    front = _read_front_matter(lines)
    code: list[str | None] = [None] * len(lines)
    fence, comment = "", False
    for i, line in enumerate(lines):
        bare = line.strip()
        opened = _FENCE.match(_BULLET.sub("", bare, count=1)) if not comment else None
        if fence:
            closes = bare.startswith(fence) and not bare.strip(fence[0])
            lines[i], code[i], fence = "", "" if closes else line, "" if closes else fence
        elif comment or bare.startswith("<!--"):
            lines[i], comment = "", "-->" not in bare
        elif opened and not (opened[1][0] == "`" and "`" in opened[2]):
            lines[i], code[i], fence = "", "", opened[1]
    return Text(tuple(lines), tuple(code), front)


def _read_front_matter(lines: list[str]) -> dict[str, str]:
    """Take the front matter out of `lines`. A line of dashes that begins a text may also be just that."""
    if len(lines) < 2 or lines[0].rstrip() != "---" or not re.match(r"[\w-]{1,60}:", lines[1]):
        return {}
    end = next((i for i in range(1, len(lines)) if lines[i].rstrip() in ("---", "...")), 0)
    found: dict[str, str] = {}
    for i in range(end + 1 if end else 0):
        key, colon, value = lines[i].partition(":")
        if colon and key == key.strip():
            found.setdefault(key, value.partition(" #")[0].strip().strip("'\""))
        lines[i] = ""
    return found


def find_headings(lines: Sequence[str]) -> tuple[Heading, ...]:
    found: list[tuple[int, int, str]] = []
    for i, line in enumerate(lines):
        bare = line.strip()
        level = len(bare) - len(bare.lstrip("#"))
        if 0 < level <= 6 and bare[level : level + 1] in ("", " ", "\t"):
            found.append((i, level, strip_marks(bare[level:].strip().rstrip("#"))))
        elif i and bare and bare[0] in "=-" and not bare.strip(bare[0]) and _paragraph(lines[i - 1]):
            found.append((i - 1, 1 if bare[0] == "=" else 2, strip_marks(lines[i - 1])))
    ends, end = [], [len(lines)] * 7  # by level: where the next heading of that level or above it stands
    for at, level, _ in reversed(found):
        ends.append(end[level])
        end[level:] = [at] * (7 - level)
    heads, titles = [], [""] * 7
    for (at, level, title), until in zip(found, reversed(ends), strict=True):
        heads.append(Heading(at, level, title, next((t for t in reversed(titles[:level]) if t), ""), until))
        titles[level:] = [title] + [""] * (6 - level)
    return tuple(heads)


def _paragraph(line: str) -> bool:
    bare = line.strip()
    return bool(bare) and "|" not in bare and not bare.startswith("#") and _BULLET.match(bare) is None


def strip_marks(text: str) -> str:
    """Without the marks of emphasis and code around it, on one line."""
    line = " ".join(text.split())
    for _ in range(10):
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "*_`":
            break
        line = line[1:-1].strip()
    return line


def without_bullet(line: str) -> str:
    bare = line.strip()
    return _BULLET.sub("", bare, count=1)


def is_item(line: str) -> bool:
    return _BULLET.match(line.strip()) is not None


def indent_width(line: str) -> int:
    """Columns before its first character, a tab being four."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))


def code_spans(text: str) -> tuple[str, ...]:
    """What stands in backticks."""
    return tuple(span[2].strip() for span in _CODE_SPAN.finditer(text))


def without_code(text: str) -> str:
    """The rest of it, a space for each span."""
    return _CODE_SPAN.sub(" ", text)


def strip_wrapping(text: str) -> str:
    """The text; what is one code span as a whole, without its backticks."""
    bare = text.strip()
    found = _CODE_SPAN.match(bare)
    return found[2].strip() if found and found.end() == len(bare) else bare


def find_tables(lines: Sequence[str]) -> Iterator[Table]:
    """Tables as GitHub reads them: a header, dashes, rows up to a line without a bar."""
    i = 0
    while i + 1 < len(lines):
        header = split_cells(lines[i]) if "|" in lines[i] else ()
        dashes = split_cells(lines[i + 1]) if header and "-" in lines[i + 1] else ()
        if not header or len(dashes) != len(header) or not all(_DASHES.fullmatch(c) for c in dashes):
            i += 1
            continue
        rows, j = [], i + 2
        while j < len(lines) and "|" in lines[j]:
            rows.append((j, split_cells(lines[j])))
            j += 1
        yield Table(i, header, tuple(rows))
        i = j


def split_cells(line: str) -> tuple[str, ...]:
    r"""The cells of a row; a bar that belongs to a cell is written \|, in code too."""
    row = line.strip().removeprefix("|")
    parts, part, escaped = [], [], False
    for c in row:
        if escaped:
            part.append(c if c == "|" else "\\" + c)
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == "|":
            parts.append("".join(part).strip())
            part = []
        else:
            part.append(c)
    last = "".join(part) + ("\\" if escaped else "")
    return tuple(parts) if parts and not last.strip() else (*parts, last.strip())
