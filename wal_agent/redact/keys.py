"""Redact private keys in PEM, keys of known issuers, and JWTs.

key_formats.json has the formats of gitleaks' public rule set (scripts/update_key_formats.py). issuers.toml has what
that set lacks, and what it knows more narrowly: of one length, or with a threshold of entropy.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from functools import cache, partial
from importlib.resources import files
from math import log2

import msgspec

from wal_agent.redact.hits import MARK, Hit, at_edge, compiled, replace_each

_B = r"[0-9A-Za-z_-]"  # base64url, without padding
_JWT = rf"(?P<found>eyJ{_B}{{8,}}+\.eyJ{_B}{{4,}}+\.{_B}*+)|{_B}*+"  # what is none is passed over in one step
_MAILGUN = (r"(?<!-)key-[0-9a-f]{32}(?![0-9A-Za-z])", "key-")  # `cache-key-` begins none

_BEGIN = r"(-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
_BODY = r"((?>(?:[A-Za-z0-9+/=\s\\:,.()\"']|-(?!----))*))"
_PEM_END = r"-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\ \t\r\n"
_LINE = 16  # characters of a body that are taken for one


def redact_private_keys(text: str) -> str:
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


class IssuerFormats(msgspec.Struct, frozen=True):
    """The content of issuers.toml. `keys`: patterns and what a key begins with; `around`: what stands in the middle of
    a key, and patterns; `services`: schemes of URLs, and the length of the `longest`."""

    keys: tuple[tuple[str, str], ...]
    around: tuple[tuple[str, str], ...]
    services: frozenset[str]
    longest: int


@cache
def issuer_formats() -> IssuerFormats:
    """The content of issuers.toml, read once."""
    rows = tomllib.loads(files("wal_agent.redact").joinpath("issuers.toml").read_text("utf-8"))

    def pattern(text: str) -> str:
        return re.sub("<([A-Z]+)>", lambda m: rows["parts"][m[1]], text)

    keys = ((re.escape(start) + pattern(after), start) for after, all in rows["keys"] for start in all.split())
    around = tuple((middle, pattern(whole)) for middle, whole in rows["around"])
    services = frozenset(rows["services"].split())
    return IssuerFormats((*keys, _MAILGUN), around, services, max(map(len, services)))


def redact_keys(text: str) -> str:
    """The text without the keys whose own shape tells what they are."""
    for regex, start in issuer_formats().keys:
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex))})
    for start, regex, entropy in _public_formats():
        if start in text:
            text = replace_each(text, {start: partial(_key, compiled(regex), entropy=entropy)})
    for middle, regex in issuer_formats().around:
        if middle in text:
            text = compiled(regex).sub(_at_edge, text)
    return replace_each(text, {"eyJ": _jwt})


def _at_edge(m: re.Match[str]) -> str:
    """Tried here, since a pattern that begins with it is much slower."""
    return MARK if at_edge(m.string, m.start()) else m[0]


def _key(regex: re.Pattern[str], text: str, at: int, entropy: float = 0.0) -> Hit | None:
    m = regex.match(text, at) if at_edge(text, at) else None
    return (at, m.end(), MARK) if m and (not entropy or _entropy(m[0]) > entropy) else None


def _entropy(text: str) -> float:
    """Shannon's, in bits a character, as gitleaks counts it."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())


@cache
def _public_formats() -> list[tuple[str, str, float]]:
    """What a key begins with, its pattern, and the entropy that it has at least."""
    rows = json.loads(files("wal_agent.redact").joinpath("key_formats.json").read_bytes())["formats"]
    return [(start, row["regex"], row.get("entropy", 0.0)) for row in rows for start in row["starts"]]


def _jwt(text: str, at: int) -> Hit | None:
    if not at_edge(text, at) or (m := compiled(_JWT).match(text, at)) is None:
        return None
    return (at, m.end(), MARK) if m["found"] else (m.end(), m.end(), "")
