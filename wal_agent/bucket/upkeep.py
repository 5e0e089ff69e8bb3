"""What a bucket does by itself with what wal-agent keeps there: versions that pile up, and rules that delete.

Not part of the contract: only some stores say so, and only to whom they allow it. Nothing but advice rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from wal_agent.bucket.base import Bucket, BucketDecorator
from wal_agent.text import quote

TIME = 3.0  # seconds that a command waits for it
_OLD = {"numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"}
_PLACE = {"matchesPrefix", "isLive", "age", *_OLD}


class Rule(msgspec.Struct, frozen=True):
    """A lifecycle rule that deletes: what it is for (`prefix` of names in the store), and which versions."""

    prefix: str = ""
    current: bool = False
    noncurrent: bool = False
    narrowed: bool = False  # to objects with tags, of some size ...: not to all below the prefix


class Upkeep(msgspec.Struct, frozen=True):
    """`root`: of wal-agent's names in the store. None: the store does not say."""

    root: str
    versioning: bool | None = None
    rules: tuple[Rule, ...] | None = None


@runtime_checkable
class Kept(Protocol):
    def upkeep(self) -> Upkeep:
        """What the store says. Raises nothing."""


def upkeep_of(bucket: Bucket) -> Upkeep | None:
    """None: a store without such things."""
    while isinstance(bucket, BucketDecorator):
        bucket = bucket.wrapped
    return bucket.upkeep() if isinstance(bucket, Kept) else None


def advise(found: Upkeep) -> list[str]:
    """What a person should change, in sentences. Pure."""
    if found.rules is None:
        return []
    said = []
    for rule in found.rules:
        if rule.current and (found.root.startswith(rule.prefix) or rule.prefix.startswith(found.root)):
            where = f"below {quote(rule.prefix)}" if rule.prefix else "of the whole bucket"
            said.append(f"a lifecycle rule deletes objects {where}: a log in use loses records; end it, or narrow it")
    kept = [r for r in found.rules if r.noncurrent and not r.narrowed and found.root.startswith(r.prefix)]
    if found.versioning and not kept:
        said.append("versioning keeps each heartbeat for ever: add a lifecycle rule that deletes noncurrent versions")
    return said


def s3_rules(rules: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """As `get_bucket_lifecycle_configuration` names them. Total."""
    found = []
    for rule in rules:
        filter = rule.get("Filter") or {}
        both = filter.get("And") or filter
        expires = rule.get("Expiration") or {}
        made = Rule(
            str(both.get("Prefix") or rule.get("Prefix") or ""),
            current="Days" in expires or "Date" in expires,
            noncurrent=bool(rule.get("NoncurrentVersionExpiration")),
            narrowed=bool(both.keys() - {"Prefix"}),
        )
        if rule.get("Status") == "Enabled":
            found.append(made)
    return tuple(found)


def gs_rules(rules: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """As a bucket's metadata name them. Total."""
    found = []
    for rule in rules:
        when = rule.get("condition") or {}
        if (rule.get("action") or {}).get("type") != "Delete":
            continue
        old = when.get("isLive") is False or bool(_OLD & when.keys())
        narrowed = bool(when.keys() - _PLACE)
        found += [Rule(str(prefix), not old, old, narrowed) for prefix in when.get("matchesPrefix") or [""]]
    return tuple(found)
