"""Find out whether a store keeps the contract that safety rests on, and how well it serves from here.

A store that ignores conditions is refused (I2). `examine` also measures how long a put takes and how the store's clock
runs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec

from wal_agent.bucket.base import Bucket, Version
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.bucket.upkeep import advise, upkeep_of
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import (
    BucketError,
    ConfigError,
    Conflict,
    Denied,
    Misconfigured,
    NotFound,
    Unavailable,
    Unmounted,
    WalAgentError,
)

T = TypeVar("T")
Operation = Literal["create", "read", "list", "replace", "delete"]
PAUSE = 1.1  # seconds; GCS takes one write a second to one name, and may count one that it refuses
PATIENCE = 20.0  # seconds that a start or check waits in all for what a store does not answer, pauses included
WARM_UP = 3  # puts that open connections
PUTS = 20
BODY = b"\0" * 1024  # about the size of a tool call's intent
QUICK = 0.2  # seconds between two puts to different names
CLOSE = 2.0  # seconds; a store may give its time in whole ones
APART = 60.0


class Finding(msgspec.Struct, frozen=True):
    """One thing that was tried. `detail` says in a sentence what the store did instead; empty when `ok`.

    `denied`: a permission is missing, for the operations that it `lacks`; the checks that need one are left out."""

    check: str
    ok: bool
    detail: str = ""
    denied: Denied | None = None
    lacks: tuple[Operation, ...] = ()


def probe(bucket: Bucket, prefix: str = "", clock: Clock | None = None) -> list[Finding]:
    """Try conditions, listing and deletion with objects of its own under `prefix`, which it removes.

    Unavailable says nothing about the contract: it is raised once PATIENCE is used up. Misconfigured."""
    stem = f"{prefix.rstrip('/')}/probe-{secrets.token_hex(8)}".lstrip("/")
    store = _Store(bucket, _Patience(clock or SystemClock()))
    try:
        findings = [*_checks(store, stem)]
    finally:
        with suppress(BucketError):
            store.delete(*store.made)
    left = f" Left there: {', '.join(sorted(store.made))}." if store.made else ""
    if len(store.denied) > 1 and len({_reason(error) for error in store.denied.values()}) == 1:  # no credentials
        error = next(iter(store.denied.values()))
        lacks = tuple(store.denied)
        return [*findings, Finding(", ".join(lacks), False, f"permission missing: {error}{left}", error, lacks)]
    for operation, error in store.denied.items():
        kind = "" if isinstance(error, Misconfigured) else "permission missing: "
        detail = f"{kind}{error}{left if operation == 'delete' else ''}"
        findings.append(Finding(operation, False, detail, error, (operation,)))
    return findings


def _reason(error: Denied) -> str:
    """The cause, without the object that was asked for."""
    return str(error).partition(": ")[2] or str(error)


def require_conditions(bucket: Bucket, prefix: str = "", clock: Clock | None = None) -> None:
    """For a bucket's first use: ConfigError, naming what failed, unless every check of `probe` holds; Denied."""
    findings = probe(bucket, prefix, clock)
    failed = [f"{finding.check}: {finding.detail}" for finding in findings if not finding.ok and not finding.denied]
    if failed:
        raise ConfigError(
            f"{bucket.url} does not keep what is stored there safe from a second writer ({'; '.join(failed)}).",
            "Use another bucket: file://, or a store with conditional puts.",
        )
    for finding in findings:
        if finding.denied:
            raise finding.denied


class _Patience:
    """Asks again for what was not answered, while the seconds that this took are no more than PATIENCE, over all
    requests: a store that is away ends it soon, one that fails now and then does not."""

    def __init__(self, clock: Clock, pause: float = PAUSE) -> None:
        self._clock, self._pause, self._left = clock, pause, PATIENCE

    def ask(self, request: Callable[[], T], lost: Callable[[], object] = lambda: None) -> T:
        """The answer to `request`. `lost` is called after each try that got none: a put may have landed."""
        while True:
            began = self._clock.boot()
            try:
                return request()
            except Unavailable as error:
                lost()
                self._left -= self._clock.boot() - began + self._pause
                if self._left < 0 or isinstance(error, Unmounted):
                    raise
                self._clock.sleep(self._pause)


class _Store:
    """The bucket as the checks use it: what is not answered is asked again, what is denied is noted.

    `made`: keys that may stand there."""

    def __init__(self, bucket: Bucket, patience: _Patience) -> None:
        self._bucket, self._patience = bucket, patience
        self.denied: dict[Operation, Denied] = {}
        self.made: set[str] = set()

    def create(self, key: str, data: bytes) -> Version:
        return self._put("create", key, data, due=True)

    def create_again(self, key: str, data: bytes) -> Version:
        """Where creating was allowed, what is denied now is to overwrite."""
        return self._put("replace", key, data)

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        return self._put("replace", key, data, version)

    def replace_current(self, key: str, data: bytes, version: Version) -> Version:
        return self._put("replace", key, data, version, due=True)

    def read(self, key: str) -> bytes | None:
        try:
            return self._ask("read", lambda: self._bucket.get(key)).data
        except NotFound:
            return None

    def keys(self, prefix: str) -> list[str]:
        return self._ask("list", lambda: [entry.key for entry in self._bucket.list(prefix)])

    def delete(self, *keys: str) -> None:
        if keys:
            self._ask("delete", lambda: self._bucket.delete(*keys))
            self.made.difference_update(keys)

    def examine(self, check: str, needs: set[Operation], problem: Callable[[], str]) -> Iterator[Finding]:
        """The finding of a check that ends in a sentence on what is wrong; none where a permission is missing."""
        if needs & self.denied.keys():
            return
        try:
            found = problem()
        except Denied:
            return
        yield Finding(check, not found, found)

    def _put(
        self, operation: Operation, key: str, data: bytes, version: Version | None = None, *, due: bool = False
    ) -> Version:
        """Conflict, NotFound. Where the put is `due` to succeed, or a try was not answered, it may have met itself, as
        we or a proxy sent it again: then the stored object is our own."""
        lost: list[str] = []

        def note() -> None:
            lost.append(key)
            self.made.add(key)

        def put() -> Version:
            return self._noted(operation, lambda: self._bucket.put(key, data, if_version=version))

        try:
            made = self._patience.ask(put, note)
        except Conflict:
            if due or lost:
                with suppress(NotFound):
                    found = self._ask("read", lambda: self._bucket.get(key))
                    if found.data == data:
                        self.made.add(key)
                        return found.version
            raise
        self.made.add(key)
        return made

    def _ask(self, operation: Operation, ask: Callable[[], T]) -> T:
        return self._patience.ask(lambda: self._noted(operation, ask))

    def _noted(self, operation: Operation, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Denied as error:
            self.denied.setdefault(operation, error)
            raise


def _checks(store: _Store, stem: str) -> Iterator[Finding]:
    """Each name is written as seldom as a check allows, and as late after its last time.

    A store may deny reading an absent object to whoever may not list (S3), so such checks need the listing. A replace
    that succeeds comes before those that are refused: else an S3 store is asked more, to find out what it refused."""
    first, second, third, absent = (f"{stem}-{letter}" for letter in "abcd")
    try:
        version = store.create(first, b"one")
        store.create(second, b"two")
        old = store.create(third, b"three")
    except Misconfigured:
        raise
    except Denied:
        _try_permissions(store, stem)
        return
    yield from store.examine(
        "a listing shows what was put", {"list"}, lambda: _same(store.keys(stem), [first, second, third])
    )
    yield from store.examine(
        "a second create is refused", set(), lambda: _refused(lambda: store.create_again(first, b"four"))
    )
    yield from store.examine(
        "what was refused changed nothing", {"read", "replace"}, lambda: _same(store.read(first), b"one")
    )
    yield from store.examine(
        "the current version can be replaced",
        {"replace"},
        lambda: _replaced(lambda: store.replace_current(third, b"six", old), old),
    )
    yield from store.examine(
        "a replace of another version is refused",
        {"replace"},
        lambda: _refused(lambda: store.replace(second, b"five", version)),
    )
    yield from store.examine(
        "a replaced object reads as the newer one", {"read", "replace"}, lambda: _same(store.read(third), b"six")
    )
    yield from store.examine(
        "a replace of an absent object is refused",
        {"list", "replace"},
        lambda: _refused(lambda: store.replace(absent, b"seven", version)),
    )
    with suppress(Denied):
        store.delete(first)
    yield from store.examine(
        "what was deleted is gone", {"delete", "read", "list"}, lambda: _same(store.read(first), None)
    )
    yield from store.examine(
        "a listing leaves out what was deleted",
        {"delete", "list"},
        lambda: _same([key for key in store.keys(stem) if key != absent], [second, third]),
    )
    yield from store.examine(
        "a replace of an old version is refused",
        {"replace"},
        lambda: _refused(lambda: store.replace(third, b"eight", old)),
    )


def _try_permissions(store: _Store, stem: str) -> None:
    """Without anything made, what else is denied."""
    with suppress(Denied):
        store.keys(stem)
    with suppress(Denied):
        if "list" not in store.denied:
            store.read(stem)
    with suppress(Denied):
        store.delete(stem)


def _refused(put: Callable[[], object]) -> str:
    try:
        put()
    except Conflict:
        return ""
    except NotFound:
        return "it was answered with not found instead of a conflict"
    return "it was carried out"


def _replaced(put: Callable[[], Version], old: Version) -> str:
    try:
        return "same version" if put() == old else ""
    except (Conflict, NotFound) as error:
        return f"it was refused ({error})"


def _same(seen: object, wanted: object) -> str:
    return "" if seen == wanted else f"{seen!r} instead of {wanted!r}"


def examine(bucket: Bucket, prefix: str, clock: Clock) -> Iterator[Finding]:
    """Try it all with objects of its own under `prefix`, which it removes. Errors are findings."""
    metered = MeterBucket(bucket)
    try:
        findings = probe(metered, prefix, clock)
        yield from findings
        denied = {name for finding in findings for name in finding.lacks}
        if not denied & {"create", "delete"}:
            yield put_times(metered, prefix, clock)
        if "list" not in denied:  # stores give their time with a listing
            yield clock_offset(metered, clock)
    except WalAgentError as error:
        yield Finding("it can be used", False, str(error))
    yield unanswered(metered)
    found = upkeep_of(bucket)
    yield from (Finding(advice, True) for advice in (advise(found) if found else ()))


def unanswered(metered: MeterBucket) -> Finding:
    """How many requests got no answer, or one that says "later" (409, 429, 5xx). Never a failure: we ask again."""
    usage = metered.snapshot()
    every = (usage.get, usage.put, usage.delete, usage.list, usage.time)
    lost, asked = sum(op.errors.get(Unavailable.__name__, 0) for op in every), usage.requests
    if not lost:
        return Finding(f"it answered each of {asked} requests", True)
    return Finding(f"it left {lost} of {asked} requests unanswered ({lost / asked:.0%}); these are made again", True)


def put_times(bucket: Bucket, prefix: str, clock: Clock) -> Finding:
    """How long PUTS puts took, each to a name of its own, one after the other; those that got no answer left out."""
    stem = f"{prefix.rstrip('/')}/put-{secrets.token_hex(8)}".lstrip("/")
    patience, keys, took = _Patience(clock, QUICK), list[str](), list[float]()

    def put() -> float:
        keys.append(f"{stem}-{len(keys):02}")
        began = clock.boot()
        with suppress(Conflict):  # with itself, as a proxy sent it again
            bucket.put(keys[-1], BODY)
        return clock.boot() - began

    try:
        took = [patience.ask(put) for _ in range(WARM_UP + PUTS)]
    finally:
        with suppress(BucketError):
            patience.ask(lambda: bucket.delete(*keys))
    p50, p95 = (quantile(took[WARM_UP:], q) for q in (0.5, 0.95))
    return Finding(f"a changing tool call waits about {_ms(p50)} (put: p50 {_ms(p50)}, p95 {_ms(p95)}, n={PUTS})", True)


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest of `values` that at least a share `q` of them does not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def clock_offset(bucket: Bucket, clock: Clock) -> Finding:
    """How far the store's clock is ahead of this machine's. Never a failure: no decision compares the two."""

    def ask() -> tuple[float, float]:
        before = clock.now()
        stored = bucket.time()
        return stored, (before + clock.now()) / 2

    stored, here = _Patience(clock).ask(ask)
    return Finding(_offset_words(stored - here, whole=stored == int(stored)), True)


def _offset_words(ahead: float, whole: bool) -> str:
    """`whole`: the store gives whole seconds, so half a second is missing on average."""
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
