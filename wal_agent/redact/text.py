"""Redact a whole text, or the ends of one that is cut."""

from __future__ import annotations

from wal_agent.redact.context_rules import redact_credentials
from wal_agent.redact.formats import redact_keys, redact_private_keys
from wal_agent.redact.names import redact_named_values
from wal_agent.redact.random_words import redact_random_words

_ROUNDS = 4  # a mark may uncover what stood beside it; one more round finds nothing as a rule


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    for _ in range(_ROUNDS):
        before, text = (
            text,
            redact_random_words(redact_named_values(redact_keys(redact_credentials(redact_private_keys(text))))),
        )
        if text == before:
            break
    return text


MARGIN = 8_000  # characters beyond the cut that are looked at: more than the longest key, a private one in PEM, has


def redact_head(text: str, most: int) -> str:
    """At most `most` characters of the redacted text's beginning; the time does not grow with the rest of it."""
    if len(text) <= most + MARGIN:
        return redact(text)[:most]
    return redact(text[: most + MARGIN])[:-MARGIN][:most]


def redact_ends(text: str, most: int) -> str:
    """At most `most` characters of the redacted text, half of them from its beginning and half from its end; the time
    does not grow with what lies between them."""
    if len(text) <= most + 2 * MARGIN:
        whole = redact(text)
        return whole if len(whole) <= most else whole[: most // 2] + whole[len(whole) - most // 2 :]
    half = most // 2
    return redact_head(text, half) + redact(text[-half - MARGIN :])[MARGIN:][-half:]
