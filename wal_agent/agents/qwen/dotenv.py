"""`.env` files as Qwen Code reads them: the dotenv package's own pattern, and JavaScript's idea of blanks and lines."""

from __future__ import annotations

import re
from pathlib import Path

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_S = f"[{_BLANKS}]"
_BEGIN, _END = r"(?:\A|(?<=[\n\r\u2028\u2029]))", r"(?:\Z|(?=[\n\r\u2028\u2029]))"
_LINE = re.compile(
    rf"{_BEGIN}{_S}*(?:export{_S}+)?([A-Za-z0-9_.-]+)(?:{_S}*={_S}*?|:{_S}+?)"
    rf"({_S}*'(?:\\'|[^'])*'|{_S}*\"(?:\\\"|[^\"])*\"|{_S}*`(?:\\`|[^`])*`|[^#\r\n]+)?"
    rf"{_S}*(?:#[^\n\r\u2028\u2029]*)?{_END}"
)
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_ENDS = re.compile(rf"\A{_S}+|{_S}+\Z")
_LIMIT = 1 << 20


def parse(text: str) -> dict[str, str]:
    """Of two lines with one name the last counts."""
    found: dict[str, str] = {}
    for name, raw in _LINE.findall(re.sub(r"\r\n?", "\n", text)):
        value = _ENDS.sub("", raw)
        quote = value[:1]
        value = _QUOTED.sub(lambda m: m[2], value)
        found[name] = value.replace("\\n", "\n").replace("\\r", "\r") if quote == '"' else value
    return found


def read(path: Path) -> dict[str, str]:
    """Empty where it cannot be read, as for Qwen."""
    try:
        with path.open("rb") as f:
            return parse(f.read(_LIMIT).decode(errors="replace"))
    except OSError:
        return {}
