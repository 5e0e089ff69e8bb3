"""Takes secrets out of text that leaves the machine for people: prompts, status, notifications, logs, reports.

The resumable copy in the bucket is not redacted; everything else is (DESIGN 6). Rules go by the shape of known keys, by
places where credentials stand (URLs, headers, command lines), by names that say "secret", and by words that only chance
makes. Hashes, UUIDs, ids, paths and ordinary code pass. What is found is replaced by `[redacted]`, its place stays.
The time is linear in the text, and redacting what was redacted changes nothing.
"""

from __future__ import annotations

from wal_agent.redact.chance import without_chance
from wal_agent.redact.find import MARK
from wal_agent.redact.formats import without_keys
from wal_agent.redact.names import without_named
from wal_agent.redact.pem import without_private_keys
from wal_agent.redact.places import without_logins

__all__ = ["MARK", "redact"]

_ROUNDS = 4  # a mark may uncover what stood beside it; one more round finds nothing as a rule


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    for _ in range(_ROUNDS):
        before, text = text, without_chance(without_named(without_keys(without_logins(without_private_keys(text)))))
        if text == before:
            break
    return text
