"""Finds out whether a store keeps the contract that safety rests on; one that ignores conditions is refused (I2)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from wal_agent.bucket.base import Bucket
from wal_agent.errors import BucketError, ConfigError, Conflict, NotFound


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `detail` says in a sentence what the store did instead; empty when `ok`."""

    check: str
    ok: bool
    detail: str = ""


def probe(bucket: Bucket, prefix: str = "") -> list[Finding]:
    """Try conditions, listing and deletion with two objects of its own under `prefix`, which it removes.

    Unavailable and Denied are raised, not reported: they say nothing about the contract. No name is written twice
    without other requests between, since stores limit writes to one name.
    """
    stem = f"{prefix.rstrip('/')}/probe-{secrets.token_hex(8)}".lstrip("/")
    first, second = f"{stem}-a", f"{stem}-b"
    try:
        return [*_probe(bucket, stem, first, second)]
    finally:
        for key in (first, second):
            with suppress(BucketError):
                bucket.delete(key)


def require_conditions(bucket: Bucket, prefix: str = "") -> None:
    """ConfigError, naming what failed, unless every check of `probe` holds. For a bucket's first use."""
    failed = [f"{finding.check}: {finding.detail}" for finding in probe(bucket, prefix) if not finding.ok]
    if failed:
        raise ConfigError(
            f"{bucket.url} does not keep what is stored there safe from a second writer ({'; '.join(failed)}).",
            "Use another bucket: file://, or a store with conditional puts.",
        )


def _probe(bucket: Bucket, stem: str, first: str, second: str) -> Iterator[Finding]:
    bucket.put(first, b"one")
    yield _refused("a second create is refused", lambda: bucket.put(first, b"two"))
    yield _same("what was refused changed nothing", _content(bucket, first), b"one")
    version = bucket.put(second, b"three")
    yield _refused("a replace of another version is refused", lambda: bucket.put(first, b"four", if_version=version))
    yield _same("a listing shows what was put", [entry.key for entry in bucket.list(stem)], [first, second])
    try:
        newer = bucket.put(second, b"five", if_version=version)
    except (Conflict, NotFound) as error:
        yield Finding("the current version can be replaced", False, f"it was refused ({error})")
    else:
        yield Finding(
            "the current version can be replaced", newer != version, "" if newer != version else "same version"
        )
    yield _refused("a replace of an old version is refused", lambda: bucket.put(second, b"six", if_version=version))
    yield _same("a replaced object reads as the newer one", _content(bucket, second), b"five")
    bucket.delete(first)
    yield _same("what was deleted is gone", _content(bucket, first), None)
    yield _same("a listing leaves out what was deleted", [entry.key for entry in bucket.list(stem)], [second])
    yield _refused("a replace of an absent object is refused", lambda: bucket.put(first, b"seven", if_version=version))


def _refused(check: str, put: Callable[[], object]) -> Finding:
    try:
        put()
    except Conflict:
        return Finding(check, True)
    except NotFound:
        return Finding(check, False, "it was answered with not found instead of a conflict")
    return Finding(check, False, "it was carried out")


def _same(check: str, seen: object, wanted: object) -> Finding:
    return Finding(check, seen == wanted, "" if seen == wanted else f"{seen!r} instead of {wanted!r}")


def _content(bucket: Bucket, key: str) -> bytes | None:
    try:
        return bucket.get(key).data
    except NotFound:
        return None
