"""Takes secrets out of text that leaves the machine for people: prompts, status, notifications, logs, reports.

The resumable copy in the bucket is not redacted; everything else is (DESIGN 6). Rules go by the shape of known keys, by
places where credentials stand (URLs, headers, command lines), by names that say "secret", and by words that only chance
makes. Hashes, UUIDs, ids, paths and ordinary code pass. What is found is replaced by `[redacted]`, its place stays.
The time is linear in the text, and redacting what was redacted changes nothing.
"""

from __future__ import annotations

from wal_agent.redact.find import MARK
from wal_agent.redact.text import redact, redact_ends, redact_head

__all__ = ["MARK", "redact", "redact_ends", "redact_head"]
