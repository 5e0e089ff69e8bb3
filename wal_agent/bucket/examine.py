"""What a bucket is worth from here: permissions, conditions, how long a put takes, how its clock goes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.check import Finding, probe
from wal_agent.clock import Clock
from wal_agent.errors import BucketError, WalAgentError

WARM_UP = 3  # puts that open connections
PUTS = 20
BODY = b"\0" * 1024  # about the size of a tool call's intent
CLOSE = 2.0  # seconds; a store may tell its time in whole ones
APART = 60.0


def examine(bucket: Bucket, prefix: str, clock: Clock) -> Iterator[Finding]:
    """Try it all with objects of its own under `prefix`, which it removes. Errors are findings."""
    try:
        findings = probe(bucket, prefix, clock.sleep)
        yield from findings
        denied = {finding.check for finding in findings if finding.denied}
        if not denied & {"create", "delete"}:
            yield put_times(bucket, prefix, clock)
        if "list" not in denied:  # stores tell the time with a listing
            yield clock_offset(bucket, clock)
    except WalAgentError as error:
        yield Finding("it can be used", False, str(error))


def put_times(bucket: Bucket, prefix: str, clock: Clock) -> Finding:
    """How long PUTS puts took, each to a name of its own, one after the other."""
    stem = f"{prefix.rstrip('/')}/put-{secrets.token_hex(8)}".lstrip("/")
    keys = [f"{stem}-{n:02}" for n in range(WARM_UP + PUTS)]
    took = []
    try:
        for key in keys:
            began = clock.boot()
            bucket.put(key, BODY)
            took.append(clock.boot() - began)
    finally:
        with suppress(BucketError):
            bucket.delete(*keys)
    p50, p95 = (quantile(took[WARM_UP:], q) for q in (0.5, 0.95))
    return Finding(f"a changing tool call waits about {_ms(p50)} (put: p50 {_ms(p50)}, p95 {_ms(p95)}, n={PUTS})", True)


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest of `values` that at least a share `q` of them does not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def clock_offset(bucket: Bucket, clock: Clock) -> Finding:
    """How far the store's clock is ahead of ours. Never a failure: no decision compares the two."""
    before = clock.now()
    told = bucket.time()
    return Finding(_offset_words(told - (before + clock.now()) / 2, whole=told == int(told)), True)


def _offset_words(ahead: float, whole: bool) -> str:
    """`whole`: the store tells whole seconds, so half a second is missing on average."""
    ahead += 0.5 if whole else 0.0
    if abs(ahead) <= CLOSE:
        return f"its clock and this machine's agree within {CLOSE:g} s"
    side = "ahead of" if ahead > 0 else "behind"
    words = f"its clock is {abs(ahead):.0f} s {side} this machine's; the lease goes by the store's alone"
    if abs(ahead) <= APART:
        return words
    return f"{words}, but set this machine's: signed requests and TLS fail from some minutes on (S3: 15)"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
