"""Read rules out of a project's Markdown: tables with an idempotency column, and Recovery sections of skills and tools.

Only the Markdown that such rules use is read; all of it is hostile, and the work is bounded by the text's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from wal_agent.calls.checks import parse_done_if
from wal_agent.calls.rules.project import MAX_NAME, ProjectRule, RuleProblem, clean_sentence, parse_pattern
from wal_agent.records import Class

MAX_LINE = 4000  # characters; a longer line holds no rule

_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]+|>[ \t]?")
_CODE_SPAN = re.compile(r"(?<!`)(`{1,9})(?!`)(.*?)(?<!`)\1(?!`)")
_BAR = re.compile(r"(?<!\\)\|")

# The end of a link reference is searched for in quadratic time, and no rule needs one.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_YES: Class = "idempotent"
_ANSWERS = "yes, no, read-only, partial or unknown"
MAX_FIELD = 2000  # characters that are read
TOOL_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,99}")
_LETTERS = re.compile(r"[^a-z]+")  # what is none
_ARROW = re.compile(r"\s*(?:→|⇒|->|=>)\s*")
_SHELLS = re.compile(r"shell|bash|terminal|command|exec", re.IGNORECASE)
_CLASS_OF_ANSWER: dict[str, Class] = {
    **dict.fromkeys(("yes", "y", "true", "idempotent", "safe", "✅", "✓", "✔"), _YES),
    **dict.fromkeys(("no", "n", "not", "false", "never", "mutation", "nonidempotent", "❌", "✗", "✘"), "mutation"),
    **dict.fromkeys(("readonly", "read", "reads"), "read_only"),
    **dict.fromkeys(("unknown", "unclear", "unsure", "partial", "partially", "partly", "depends", "it"), "unknown"),
    **dict.fromkeys(("sometimes", "maybe", "conditional", "conditionally", "mostly", "?"), "unknown"),
}
_LABELS = {
    "idempotent": ("idempotent", "idempotency", "idempotence", "is idempotent", "is it idempotent"),
    "verify": ("verify completion", "verify", "verification", "verify with", "how to verify", "verifying"),
    "done_if": ("done if", "done when"),
    "risk": ("partial failure risk", "partial failure risks", "partial failure", "partial failures", "risk"),
    "ambiguous": ("on ambiguity", "if ambiguous", "when ambiguous", "if in doubt", "when in doubt"),
    "why": ("why", "reason"),
}
_FIELD = {label: field for field, labels in _LABELS.items() for label in labels}
_LABEL = re.compile(
    r"(#{1,6}\s+)?([*_]{0,3})([A-Za-z][A-Za-z ]{1,24}[A-Za-z])(\s?\?)?([*_]{0,3})\s?([:：])?([*_]{0,3})"
)

_OPERATION = frozenset(
    ("tool", "tools", "operation", "operations", "command", "commands", "call", "calls", "skill", "skills", "name")
) | {"or", "and"}


class Heading(msgspec.Struct, frozen=True):
    """`line` is the heading's own, counted from 1. The section's text is `lines[start:end]` of the document, up to the
    next heading that is not below this one. `title` is without marks; `parent`: the title above it, "" for none."""

    line: int
    level: int
    title: str
    parent: str
    start: int
    end: int


class Table(msgspec.Struct, frozen=True):
    """`rows`: the cells of the rows below the header, each with the index of its line."""

    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


class Document(msgspec.Struct, frozen=True):
    """What a reader of the rendered text sees. `lines`: those of code blocks and HTML are empty. `code`: the lines of
    code blocks, "" for their fences, None outside of them. `front`: the plain fields of the front matter."""

    lines: tuple[str, ...]
    code: tuple[str | None, ...]
    headings: tuple[Heading, ...]
    tables: tuple[Table, ...]
    front: dict[str, str]


def parse_markdown(text: str) -> Document:
    """Any text is a document."""
    flat = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", " ")
    lines = [line if len(line) <= MAX_LINE else "" for line in flat.split("\n")]
    front = _read_front_matter(lines)
    tokens: list[Token] = []
    _MARKDOWN.block.parse("\n".join(lines), _MARKDOWN, {}, tokens)
    tables = tuple(_find_tables(tokens, lines))
    code: list[str | None] = [None] * len(lines)
    for token in tokens:
        if token.type in ("fence", "code_block", "html_block"):
            first, end = _span(token)
            content = [*([""] if token.type == "fence" else []), *token.content.split("\n")]
            for n in range(first, end):
                lines[n] = ""
                if token.type != "html_block":
                    code[n] = content[n - first] if n - first < len(content) else ""
    return Document(tuple(lines), tuple(code), _find_headings(tokens, len(lines)), tables, front)


def _read_front_matter(lines: list[str]) -> dict[str, str]:
    """Take the front matter out of `lines`. A line of dashes that begins a text may also be a rule."""
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


def _span(token: Token) -> tuple[int, int]:
    """The lines of a block's token."""
    first, end = token.map or (0, 0)
    return first, end


def _find_headings(tokens: Sequence[Token], length: int) -> tuple[Heading, ...]:
    found = [
        (*_span(token), int(token.tag[1:]), strip_marks(tokens[i + 1].content))
        for i, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    ends, end = [], [length] * 7  # by level: the line of the next heading of that level or above
    for first, _, level, _ in reversed(found):
        ends.append(end[level])
        end[level:] = [first] * (7 - level)
    heads, titles = [], [""] * 7
    for (first, start, level, title), until in zip(found, reversed(ends), strict=True):
        parent = next((t for t in reversed(titles[:level]) if t), "")
        heads.append(Heading(first + 1, level, title, parent, start, until))
        titles[level:] = [title] + [""] * (6 - level)
    return tuple(heads)


def _find_tables(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[Table]:
    """A row ends with its table where it has no bar: to GitHub the line behind a table is one more row."""
    rows: list[tuple[int, list[str]]] | None = None
    for token in tokens:
        if token.type == "table_open":
            rows = []
        elif rows is None:
            continue
        elif token.type == "tr_open":
            rows.append((_span(token)[0], []))
        elif token.type == "inline":
            rows[-1][1].append(token.content.strip())
        elif token.type == "table_close":
            (_, header), *body = rows
            barred = takewhile(lambda row: "|" in lines[row[0]], body)
            yield Table(tuple(header), tuple((at, tuple(cells)) for at, cells in barred))
            rows = None


def strip_marks(text: str) -> str:
    """Return the text without marks of emphasis and code around it, on one line."""
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
    """Count the columns before the first character, a tab being four."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))


def code_spans(text: str) -> tuple[str, ...]:
    """Return the texts in backticks."""
    return tuple(span[2].strip() for span in _CODE_SPAN.finditer(text))


def without_code(text: str) -> str:
    """Replace each code span by a space."""
    return _CODE_SPAN.sub(" ", text)


def strip_wrapping(text: str) -> str:
    """Return the text; if all of it is one code span, without its backticks."""
    bare = text.strip()
    found = _CODE_SPAN.match(bare)
    return found[2].strip() if found and found.end() == len(bare) else bare


Found = tuple[tuple[ProjectRule, ...], tuple[RuleProblem, ...]]


def parse_answer(text: str) -> tuple[Class, str] | None:
    """Parse an answer to "Idempotent?" ("No. Deploying twice ...") into its class and the rest; None for no answer."""
    bare = strip_marks(text).replace("*", "").replace("`", "").replace("\ufe0f", "").strip(" \t")
    low = bare.lower()
    for phrase, cls in (("read-only", "read_only"), ("read only", "read_only"), ("non-idempotent", "mutation")):
        if low.startswith(phrase):
            return cls, bare[len(phrase) :].lstrip(" .,;:–—-")  # type: ignore[return-value]
    word = re.match(r"[^\W]+|\S", low)
    if word is None:
        return None
    key = word.group().replace("_", "")
    if low[word.end() :].startswith("/") or (key == "it" and not low.startswith("it depends")):
        return None
    cls_ = _CLASS_OF_ANSWER.get(key)
    return None if cls_ is None else (cls_, bare[word.end() :].lstrip(" .,;:–—-"))


# ---- the table ----------------------------------------------------------------------------------------------------


def table_rules(text: str, source: str) -> Found:
    """Read rules from tables "Tool / Operation | Idempotent? | Verify With | Done If | On Ambiguity": in any order of
    the columns, with further ones or without the last three."""
    rules: list[ProjectRule] = []
    problems: list[RuleProblem] = []
    document = parse_markdown(text)
    for table in document.tables:
        columns = _columns(table.header)
        if "operation" not in columns or "idempotent" not in columns:
            continue
        for at, cells in table.rows:
            if len(_BAR.split(document.lines[at].strip(" \t>").strip("|"))) > len(table.header):
                what = r"has more cells than the table's head (a bar inside a cell is written \|)"
                problems.append(RuleProblem(source, at + 1, f"this row {what}."))
                continue
            row = {name: cells[i] if i < len(cells) else "" for name, i in columns.items()}
            found, wrong = _parse_row(row, source, at + 1)
            rules += found
            problems += wrong
    return tuple(rules), tuple(problems)


def _columns(header: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, cell in enumerate(header):
        words = _LETTERS.sub(" ", cell.lower()).split()
        if any(w.startswith("idempoten") for w in words):
            found.setdefault("idempotent", i)
        elif words[:1] == ["done"]:
            found.setdefault("done_if", i)
        elif any(w.startswith("ambig") or w in ("doubt", "unsure", "unclear") for w in words):
            found.setdefault("ambiguous", i)
        elif any(w.startswith(("verif", "check")) for w in words):
            found.setdefault("verify", i)
        elif words and set(words) & {"why", "reason", "because", "notes", "note"}:
            found.setdefault("why", i)
        elif words and set(words) <= _OPERATION:
            found.setdefault("operation", i)
    return found


def _parse_row(row: dict[str, str], source: str, line: int) -> Found:
    operation, answer = row["operation"], parse_answer(row["idempotent"])
    if not operation and not any(row.values()):
        return (), ()
    if answer is None:
        what = f"Idempotent? of {_quoted(operation)} is {_quoted(row['idempotent'])}; it can be {_ANSWERS}."
        return (), (RuleProblem(source, line, what),)
    cls, rest = answer
    why = clean_sentence(row.get("why") or rest)
    rules: list[ProjectRule] = []
    done_if, problems = _parse_done_if(row.get("done_if", ""), source, line)
    for name, words, tool, wrong in _operations(operation):
        if wrong:
            problems.append(RuleProblem(source, line, f"{_quoted(name)} {wrong}."))
            continue
        rules.append(
            ProjectRule(
                name=clean_sentence(name, MAX_NAME),
                cls=cls,
                source=source,
                line=line,
                why=why,
                verify=clean_sentence(strip_wrapping(row.get("verify", ""))),
                done_if=done_if,
                ambiguous=clean_sentence(strip_wrapping(row.get("ambiguous", ""))),
                words=words,
                tool=tool,
            )
        )
    return tuple(rules), tuple(problems)


def _parse_done_if(text: str, source: str, line: int) -> tuple[str, list[RuleProblem]]:
    wanted = clean_sentence(strip_wrapping(text))
    if not wanted:
        return "", []
    try:
        return parse_done_if(wanted), []
    except ValueError as error:
        return "", [RuleProblem(source, line, f"Done if {_quoted(wanted)} {error}.")]


def _operations(cell: str) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Return (name, words, tool, what is wrong) of each operation in the cell."""
    if _ARROW.search(without_code(cell)):
        left, right = _ARROW.split(cell, maxsplit=1)
        tool = strip_wrapping(left)
        if not (_SHELLS.search(tool) or tool.lower() == "sh"):
            return [(tool, (), "", "is no shell, so nothing more can be said of its input; name the tool alone")]
        return [_command_operation(text) for text in code_spans(right) or (strip_marks(right),)]
    if spans := code_spans(cell):
        return [(s, (s,), s, "") if TOOL_NAME.fullmatch(s) else _command_operation(s) for s in spans]
    name = strip_marks(cell)
    if TOOL_NAME.fullmatch(name):
        return [(name, (name,), name, "")]  # a tool of the agent's or a program
    return [(name or "an empty cell", (), "", "is neither a tool's name nor a command in backticks")]


def _command_operation(text: str) -> tuple[str, tuple[str, ...], str, str]:
    try:
        return text, parse_pattern(text, placeholders=True), "", ""
    except ValueError as error:
        return text, (), "", str(error)


def _quoted(text: str) -> str:
    return f'"{clean_sentence(text, MAX_NAME)}"'


# ---- Recovery sections --------------------------------------------------------------------------------------------


def section_rules(
    text: str, source: str, default: str, folders: tuple[str, ...] = (), files: tuple[str, ...] = ()
) -> Found:
    """Read rules from sections with the title Recovery. A rule is named by the front matter, else, in a text of several
    tools (`folders` empty), by the heading above the section if that is a name, else `default`.

    In a skill's text (`folders` not empty) only the first such section counts."""
    document = parse_markdown(text)
    rules: list[ProjectRule] = []
    problems: list[RuleProblem] = []
    for head in document.headings:
        if not _is_recovery(head.title):
            continue
        line = head.line
        fields = _read_fields(document.lines[head.start : head.end], document.code[head.start : head.end])
        answer = parse_answer(fields["idempotent"]) if "idempotent" in fields else None
        if not fields:
            what = "this Recovery section has no field (Idempotent, Verify completion, Partial failure risk)."
            problems.append(RuleProblem(source, line, what))
        elif "idempotent" in fields and answer is None:
            what = f"Idempotent is {_quoted(fields['idempotent'])}; it can be {_ANSWERS}."
            problems.append(RuleProblem(source, line, what))
        elif rules and folders:
            problems.append(RuleProblem(source, line, "this is a second Recovery section; the first one counts."))
        else:
            cls, rest = answer or ("unknown", "")
            above = "" if folders or not TOOL_NAME.fullmatch(head.parent) else head.parent
            name = document.front.get("name") or above or default
            done_if, wrong = _parse_done_if(fields.get("done_if", ""), source, line)
            problems += wrong
            risk = f"Partial failure risk: {fields['risk']}" if fields.get("risk") else ""
            rules.append(
                ProjectRule(
                    name=clean_sentence(name, MAX_NAME),
                    cls=cls,
                    source=source,
                    line=line,
                    why=clean_sentence(fields.get("why") or rest),
                    verify=clean_sentence(strip_wrapping(fields.get("verify", ""))),
                    done_if=done_if,
                    ambiguous=clean_sentence(" ".join(s for s in (fields.get("ambiguous", ""), risk) if s)),
                    tool=clean_sentence(name, MAX_NAME),
                    folders=folders,
                    files=files,
                )
            )
    return tuple(rules), tuple(problems)


def _is_recovery(title: str) -> bool:
    return _LETTERS.sub(" ", title.lower()).strip() == "recovery"


def _read_fields(lines: Sequence[str], code: Sequence[str | None]) -> dict[str, str]:
    """Read the labelled values, the first of each. A value ends before the next label, item or empty line; lines of a
    code block in it count as code."""
    found: dict[str, str] = {}
    name, depth, parts, wanted = "", 0, [""], False

    def close() -> None:
        if name:
            found.setdefault(name, " ".join(parts).strip()[:MAX_FIELD])

    for line, quoted in zip(lines, code, strict=True):
        field, value, heading = _labelled(line)
        if quoted is not None:
            if quoted.strip():
                parts.append(f"`{quoted.strip()}`")
                wanted = False
        elif field:
            close()
            name, parts, wanted = field, [value], not value or heading
            depth = indent_width(line) if is_item(line) else -1
        elif not line.strip():
            if not wanted:
                close()
                name = ""
        elif line.lstrip().startswith("#") or (is_item(line) and indent_width(line) <= depth and not wanted):
            close()
            name = ""
        elif name:
            parts.append(without_bullet(line))
            wanted = False
    close()
    return {field: value for field, value in found.items() if value}


def _labelled(line: str) -> tuple[str, str, bool]:
    """Return (field, value, whether it is a heading) of a line that begins a field; ("", "", False) for any other."""
    bare = without_bullet(line)
    found = _LABEL.match(bare)
    if not found:
        return "", "", False
    heading, bold, label, asked, bold_end, colon, bold_after = found.groups()
    field = _FIELD.get(" ".join(label.lower().split()), "")
    rest = bare[found.end() :]
    marked = heading or colon or ((bold or asked) and (bold_end or asked)) or bold_after
    if not field or not (marked or re.match(r"\s*[–—-]\s", rest)):
        return "", "", False
    return field, rest.lstrip(" \t–—-:*_").strip(), bool(heading)
