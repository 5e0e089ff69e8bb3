"""Redact secrets in text that leaves the machine for people: prompts, status, notifications, logs, reports.

The resumable copy in the bucket is not redacted; everything else is (RECOVERY.md). Rules go by known key formats, by
context (URLs, headers, command lines), by names that say "secret", and by words that look random. Hashes, UUIDs, ids,
paths and ordinary code pass. What is found is replaced by `[redacted]`. The time is linear in the text, and redacting
twice changes nothing.
"""

from __future__ import annotations

from wal_agent.redact.find import MARGIN, MARK, redact, redact_ends, redact_head

__all__ = ["MARGIN", "MARK", "redact", "redact_ends", "redact_head"]
