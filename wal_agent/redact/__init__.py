"""Redact secrets in text that leaves the machine for people: prompts, status, notifications, logs, reports.

The resumable copy in the bucket is not redacted; everything else is (RECOVERY.md). Rules go by known key formats, by
context (URLs, headers, command lines), by names that say "secret", and by words that look random. Hashes, UUIDs, ids,
paths and ordinary code pass. What is found is replaced by `[redacted]`. The time is linear in the text, and redacting
twice changes nothing.
"""

from __future__ import annotations

from wal_agent.redact.hits import MARK

__all__ = ["MARGIN", "MARK", "redact", "redact_ends", "redact_head"]

MARGIN = 8_000  # characters beyond the cut that are looked at: more than the longest key, a private one in PEM, has
_ROUNDS = 4  # a mark may uncover what stood beside it; one more round finds nothing as a rule


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    # only here: most commands import this module, and `--help` has nothing to redact
    from wal_agent.redact.credentials import redact_credentials
    from wal_agent.redact.keys import redact_keys, redact_private_keys
    from wal_agent.redact.named_values import redact_named_values
    from wal_agent.redact.random_words import redact_random_words

    for _ in range(_ROUNDS):
        before, text = (
            text,
            redact_random_words(redact_named_values(redact_keys(redact_credentials(redact_private_keys(text))))),
        )
        if text == before:
            break
    return text


def redact_head(text: str, most: int) -> str:
    """At most `most` characters of the redacted text's beginning; the time does not grow with the rest of it."""
    if len(text) <= most + MARGIN:
        return redact(text)[:most]
    return redact(text[: most + MARGIN])[:-MARGIN][:most]


def redact_ends(text: str, most: int) -> str:
    """At most `most` characters of the redacted text, half of them from its beginning and half from its end, with "…"
    for what lies between them; the time does not grow with that."""
    half = max(0, most - 1) // 2
    if len(text) <= most + 2 * MARGIN:
        whole = redact(text)
        if len(whole) <= most:
            return whole
        head, tail = whole[:half], whole
    else:
        head, tail = redact_head(text, half), redact(text[-half - MARGIN :])[MARGIN:]
    return f"{head}…{tail[max(0, len(tail) - half) :]}"[:most]
