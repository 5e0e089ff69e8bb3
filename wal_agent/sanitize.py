"""Text from a bucket, or from its store, inside a message of ours: one line, nothing that a terminal obeys, of bounded
length."""

from __future__ import annotations

from wal_agent.redact import redact_head

HEARD = 10_000  # characters of a stranger's words that are looked at


def printable(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def shorten(text: str, most: int = 200) -> str:
    """`printable`, and at most about `most` characters: both ends of it, since what to do next often stands last."""
    if len(text) > most:
        text = f"{text[: most * 2 // 3]}…{text[len(text) - most // 3 :]}"
    return printable(text)


def quote(text: str, most: int = 200) -> str:
    """The beginning of what a server or a library said, for a sentence of ours: without secrets, on one line of single
    spaces, `most` characters of it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in redact_head(text, HEARD)).split())
    return line if len(line) <= most else f"{line[:most]}..."
