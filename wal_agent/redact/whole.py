"""All the rules, one after the other, over a text."""

from __future__ import annotations

from wal_agent.redact.chance import without_chance
from wal_agent.redact.context_rules import without_logins
from wal_agent.redact.formats import without_keys
from wal_agent.redact.names import without_named
from wal_agent.redact.pem import without_private_keys

_ROUNDS = 4  # a mark may uncover what stood beside it; one more round finds nothing as a rule


def redact(text: str) -> str:
    """The text without the secrets that are recognised in it."""
    for _ in range(_ROUNDS):
        before, text = text, without_chance(without_named(without_keys(without_logins(without_private_keys(text)))))
        if text == before:
            break
    return text
