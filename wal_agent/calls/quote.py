"""Foreign text (tool input, names, paths) as data that cannot pose as instructions: redacted, escaped, cut, fenced."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wal_agent.redact import MARK, redact, redact_ends
from wal_agent.text import quote_word

if TYPE_CHECKING:
    from wal_agent.calls.call import ReadCall

_LONG = 10_000  # characters; of anything longer only both ends are looked at
_MAX_FIELDS = 20
_MAX_PATCH = 600  # characters
_PATHS = ("file_path", "filePath", "notebook_path", "path")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: .*", re.MULTILINE)


def escape(text: str) -> str:
    r"""Controls, line separators, bidi and other invisible characters shown as \x1b or \u202e; "\n" stays."""
    return "".join(c if c == "\n" or _visible(c) else _shown(c) for c in text)


def _visible(c: str) -> bool:
    return " " <= c <= "~" or (c > "~" and unicodedata.category(c)[0] not in "CZ") or c == "\u3000"


def _shown(c: str) -> str:
    if c in "\t\r":
        return "\\t" if c == "\t" else "\\r"
    n = ord(c)
    return f"\\x{n:02x}" if n < 0x100 else f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: the head, what was left out, the tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def safe(text: str, most: int = _LONG) -> str:
    """Foreign text for reading: redacted, escaped, and of bounded length."""
    return escape(redact_ends(text, most))


def show_words(words: Sequence[str], most: int = 100) -> str:
    """A command's words for reading, quoted as a shell reads them."""
    return safe(" ".join(map(quote_word, words)), most)


def inline(text: str, limit: int = 120) -> str:
    """Foreign text inside a sentence: one line, in backticks that it cannot close."""
    flat = " ".join(safe(text, 1000).split())
    if len(flat) > limit:
        flat = flat[: limit * 2 // 3] + "…" + flat[len(flat) - limit // 3 :]
    ticks = "`" * (_longest_run(flat) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") or not flat else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def fenced(text: str, limit: int, indent: str = "   ") -> str:
    """Text that is `safe` already as a fenced block, each line behind `indent`; no line of it can close the fence."""
    short = cut(text, limit)
    fence = "`" * max(3, _longest_run(short) + 1)
    return "\n".join(f"{indent}{line}" for line in (f"{fence}text", *short.split("\n"), fence))


def show_input(tool: str, input: bytes | None) -> str:
    """A call's input for reading, safe: a command as it is, a patch without its field's name, other objects a line for
    each field, the path first, the rest as text."""
    from wal_agent.calls.call import ReadCall  # late: with the rules, a third of the start of `status`

    return "(its input could not be read)" if input is None else show_call(ReadCall(tool, input))


def show_call(call: ReadCall) -> str:
    """As `show_input`."""
    from wal_agent.calls.rules.table import load_rules  # late, as above

    fields = call.fields
    if fields is None:
        return safe(call.input.decode("utf-8", "replace"))
    rules = load_rules()
    shell = rules.shells.get(call.tool)
    if shell is not None and isinstance(command := fields.get(shell.field), str):
        silent = (shell.field, "description")
        rest = {k: v for k, v in fields.items() if k not in silent and v not in (None, False, "")}
        return "\n".join([safe(command), *_fields(rest)])
    patches = (fields.get(f.content) for f in rules.files.get(call.tool, ()) if f.kind == "patch")
    if (patch := next((p for p in patches if isinstance(p, str)), None)) is not None:
        return "\n".join(_patch(patch))
    first = {k: v for k, v in fields.items() if k in _PATHS}
    return "\n".join(_fields({**first, **fields})) or "(no input)"


def _patch(text: str) -> list[str]:
    """The files of a patch that is too long to be shown whole, and both ends of it."""
    files = _PATCHED.findall(text)[:_MAX_FIELDS] if len(text) > _MAX_PATCH else []
    lines = (safe(cut(redact_ends(line, 400), 200)) for line in files)
    return [*lines, safe(cut(redact_ends(text, _LONG), _MAX_PATCH))]


def _fields(fields: dict[str, object]) -> list[str]:
    shown = list(fields.items())[:_MAX_FIELDS]
    texts = ((k, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in shown)
    return [safe(f"{cut(redact_ends(k, 120), 60)}: {cut(_value(k, v), 300)}") for k, v in texts]


def _value(name: str, text: str) -> str:
    """Redacted, and wholly so where the name says that it is secret: behind its name, without quotes and cut, only a
    part of it would be taken for it."""
    quoted = {name[-100:]: text[:500]}
    if redact(json.dumps(quoted, ensure_ascii=False)) == json.dumps({name[-100:]: MARK}, ensure_ascii=False):
        return MARK
    return redact_ends(text, _LONG)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
