"""Scan text for secrets: hits, word boundaries, and what is known to be harmless."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

MARK = "[redacted]"

# From, to, and what to put there; nothing between `to` and `to` is what a look-up gives that wants to go on from there.
Hit = tuple[int, int, str]
Look = Callable[[str, int], Hit | None]

# A key may stand behind an escape that ends with a letter or a digit.
_ESCAPE = re.compile(r"(?:\\[nrtbfv0]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2}|\x1b\[[0-9;]{0,9}m)\Z")
_DIGEST = re.compile(r"(?:sha-?[0-9]{1,3}|md5|h1)[-=:]\Z", re.IGNORECASE)  # what follows is of chance, and is no key
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@cache
def compiled(regex: str, flags: int = 0) -> re.Pattern[str]:
    """Compiled when it is first needed: most texts need few of the patterns, and a start of the program none."""
    return re.compile(regex, flags)


def at_edge(text: str, at: int) -> bool:
    """Whether a word may begin here."""
    if at == 0 or text[at - 1] not in _WORD:
        return at == 0 or text[at - 1] not in "-=:" or _DIGEST.search(text[max(0, at - 8) : at]) is None
    return _ESCAPE.search(text[max(0, at - 12) : at]) is not None


def lower_same_length(text: str) -> str:
    """In small letters, of the same length."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "I").lower()  # the one letter that grows


def replace_each(text: str, looks: Mapping[str, Look], low: bool = False) -> str:
    """The text with what is found at the places of each beginning by its look. With `low` the beginnings are in small
    letters, and stand for capitals too."""
    within = lower_same_length(text) if low else text
    for beginning, look in looks.items():
        if (at := within.find(beginning)) < 0:
            continue
        parts: list[str] = []
        done = 0
        while at >= 0:
            hit = look(text, at)
            if hit is not None and hit[0] >= done:
                parts += (text[done : hit[0]], hit[2])
                done = hit[1]
            at = within.find(beginning, max(at + 1, done))
        if done:
            text = "".join((*parts, text[done:]))
            within = lower_same_length(text) if low else text
    return text


_HARMLESS = (
    r"[\"']?(?:\$|\$[A-Za-z_][A-Za-z0-9_]*|\$\$?\{.*|\$\(.*|\{+[^{}]*\}+|<[^>]*>|%[A-Za-z0-9_]+%|\*+|(?i:x){3,}|\.{2,}|"
    r"[0-9]{1,7}|.{0,2}|\#[0-9a-fA-F]{3,8}|https?://[^\s?@]{0,500}|[\^~<>=v]{0,3}[0-9]{1,9}(?:\.[0-9]{1,9}){1,3}(?:[-+.][a-z0-9.]{1,20})?|(?:~|\.{1,2})?(?:/[A-Za-z0-9_.@-]{1,40}){2,}/?|(?i:true|false|null|none|nil|undefined|yes|no|on|off|"
    r"required|optional|missing|invalid|expired|empty|unset|write|read|inherit|"
    r"typeof|new|await|async|function|lambda|void|self|this|import|return|if|else|not|the|this|is|are|was|for|from|with|"
    r"and|must|should|may|can|your|cannot|could|has|had|expected|got|basic|bearer)|(?:os|process\.env|env|secrets|"
    r"self|this|config|settings|var|local|data|module)\.\S*|\[redacted\].*)?[\"']?"
)
_TYPES = (
    r"(?i:str|string|int|integer|number|bool|boolean|bytes|any|object|dict|list|void|char|unknown|"
    r"secretstr|final)[?;!]?"
)


def is_harmless(value: str) -> bool:
    return value.startswith(MARK) or compiled(_HARMLESS, re.DOTALL).fullmatch(value) is not None


# What source code says where a file of settings would have the secret itself.
_CALLED = r"[A-Za-z_][A-Za-z0-9_.]*"
_DOTTED = r"[A-Za-z_]+(?:(?:\.|->|::|\?\.)[A-Za-z_]+)+[;!]?"
_OF_WORDS = r"_{0,2}[A-Za-z]+(?:_[A-Za-z]+)+|_?[a-z]+(?:[A-Z][a-z]+)+|(?:[A-Z][a-z]+){2,}"
_SAYS_SO = r"(?i)\w{0,40}(?:pass|secret|token|key|cred|auth|cookie|hash)\w{0,20}"


def is_code(value: str, follows: str) -> bool:
    """Whether a bare value is the name of something: `read(` of a call, `self.token`, `user_password`, `str`."""
    return (
        (follows in ("(", "[", "{") and compiled(_CALLED).fullmatch(value) is not None)
        or compiled(_TYPES).fullmatch(value) is not None
        or compiled(_DOTTED).fullmatch(value) is not None
        or compiled(_OF_WORDS).fullmatch(value) is not None
        or (
            compiled(_SAYS_SO).fullmatch(value) is not None
            and value.isidentifier()
            and not any(c.isdigit() for c in value)
        )
    )
