"""`.env` files as Qwen Code reads them: the dotenv package's own pattern, and JavaScript's idea of blanks and lines."""

from __future__ import annotations

import re
from pathlib import Path

_BLANKS = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SPACE = f"[{_BLANKS}]"
_BEGIN, _END = r"(?:\A|(?<=[\n\r\u2028\u2029]))", r"(?:\Z|(?=[\n\r\u2028\u2029]))"
_LINE = re.compile(
    rf"{_BEGIN}{_SPACE}*(?:export{_SPACE}+)?([A-Za-z0-9_.-]+)(?:{_SPACE}*={_SPACE}*?|:{_SPACE}+?)"
    rf"({_SPACE}*'(?:\\'|[^'])*'|{_SPACE}*\"(?:\\\"|[^\"])*\"|{_SPACE}*`(?:\\`|[^`])*`|[^#\r\n]+)?"
    rf"{_SPACE}*(?:#[^\n\r\u2028\u2029]*)?{_END}"
)
_QUOTED = re.compile(rf"{_BEGIN}(['\"`])(.*)\1{_END}", re.DOTALL)
_ENDS = re.compile(rf"\A{_SPACE}+|{_SPACE}+\Z")
_LIMIT = 1 << 20


def parse_dotenv(text: str) -> dict[str, str]:
    """Of two lines with one name the last counts."""
    found: dict[str, str] = {}
    for name, raw in _LINE.findall(re.sub(r"\r\n?", "\n", text)):
        value = _ENDS.sub("", raw)
        quote = value[:1]
        value = _QUOTED.sub(lambda m: m[2], value)
        found[name] = value.replace("\\n", "\n").replace("\\r", "\r") if quote == '"' else value
    return found


def read_dotenv(path: Path) -> dict[str, str]:
    """Empty where it cannot be read, as for Qwen."""
    try:
        with path.open("rb") as f:
            return parse_dotenv(f.read(_LIMIT).decode(errors="replace"))
    except OSError:
        return {}
