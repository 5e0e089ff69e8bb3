"""The ends of a long text, redacted: what is cut is longer than what is looked at, so that no key lies across a cut."""

from __future__ import annotations

from wal_agent.redact.whole import redact

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
