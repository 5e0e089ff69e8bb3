"""Private keys in PEM (SSH, TLS, PGP), whole or with beginning or end cut off, also inside a quoted string."""

from __future__ import annotations

import re

from wal_agent.redact.find import MARK, compiled

_BEGIN = r"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
_BODY = r"((?:[A-Za-z0-9+/=\s\\:,.()\"']|-(?!----))*+)"
_PEM_END = r"-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n"
_LINE = 16  # characters of a body that are taken for one


def without_private_keys(text: str) -> str:
    """The text without the bodies of private keys."""
    if "PRIVATE KEY" not in text:
        return text
    whole = compiled(f"{_BEGIN}(?!-){_BODY}({_PEM_END})?")
    return _headless(whole.sub(_without, text))


def _without(m: re.Match[str]) -> str:
    return f"{m[1]} {MARK} {m[3] or ''}".rstrip() if m[2].strip("\\nr \t\r\n\"'") else m[0]


def _headless(text: str) -> str:
    """Bodies that stand before an end without a beginning."""
    parts: list[str] = []
    done = 0
    for m in compiled(_PEM_END).finditer(text):
        before = text[done : m.start()]
        kept = before.rstrip(_LETTERS)
        body = before[len(kept) :]
        if len(body.strip()) >= _LINE and not kept.endswith(("-----", MARK)):
            # The first word may be of the line before: only what is in base64 goes, from the first long word on.
            first = compiled(rf"[A-Za-z0-9+/=]{{{_LINE},}}").search(body)
            if first:
                before = f"{kept}{body[: first.start()]}{MARK} "
        parts += (before, m[0])
        done = m.end()
    return "".join((*parts, text[done:])) if parts else text
