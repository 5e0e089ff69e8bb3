"""Text from a bucket inside a message of ours: one line, nothing that a terminal obeys, of bounded length."""

from __future__ import annotations


def printable(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def shown(text: str, most: int = 200) -> str:
    """`printable`, and at most about `most` characters: both ends of it, since what to do next often stands last."""
    if len(text) > most:
        text = f"{text[: most * 2 // 3]}…{text[len(text) - most // 3 :]}"
    return printable(text)
