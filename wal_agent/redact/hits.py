"""Look for secrets at the places of a text where one may begin, and put marks there."""

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
_WORD_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@cache
def compiled(regex: str, flags: int = 0) -> re.Pattern[str]:
    """Compiled when it is first needed: most texts need few of the patterns, and a start of the program none."""
    return re.compile(regex, flags)


def at_edge(text: str, at: int) -> bool:
    """Whether a word may begin here."""
    if at == 0 or text[at - 1] not in _WORD_CHARS:
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
