"""A bucket that fails as stores and networks do: late, unanswered, or half away.

A plan decides what goes wrong with one call: a function of the operation's name (get, put, delete, list, time) and its
key (a listing's prefix; "" for time). `Faults` is a seeded plan; `FileFaults` reads one that another process writes.
`faulty_environment` lets a process fail in this way: tests/inject/sitecustomize.py wraps what it opens.
"""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from wal_agent import msgspec_compat
from wal_agent.bucket.base import Bucket, BucketDecorator, Entry, Object, Version, check_folder, check_key, check_prefix
from wal_agent.errors import BucketError, ConfigError, Damaged, Newer, Unavailable

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "TEST_BUCKET_FAULTS"  # names the file of faults


def faulty_environment(faults: Path) -> dict[str, Any]:
    """For a Python process whose buckets fail as the file says."""
    return {"PYTHONPATH": f"{ROOT / 'tests' / 'inject'}:{ROOT}", VARIABLE: str(faults)}


class Fault(msgspec.Struct, frozen=True):
    """What happens to one call: `delay` seconds first, then at most one of the others: each raises Unavailable."""

    delay: float = 0.0
    before: bool = False  # the request never arrives
    after: bool = False  # it is carried out and the reply is lost; a listing breaks off half-way
    late: int = 0  # of a put: it arrives only before the n-th later call through this bucket, or by land()


Plan = Callable[[str, str], Fault]


class Faults(msgspec.Struct, frozen=True):
    """A plan drawn from `rng`: the same seed and the same calls give the same faults.

    Probabilities are 0 to 1, latency is drawn between two numbers of seconds, `down` says what is away altogether.
    """

    rng: Random
    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    latency: tuple[float, float] = (0.0, 0.0)
    down: Callable[[str, str], bool] = lambda op, key: False

    def __call__(self, op: str, key: str) -> Fault:
        # Always the same number of draws, so that one changed rate does not shift all later faults.
        delay, before, after, late = (self.rng.random() for _ in range(4))
        low, high = self.latency
        return Fault(
            delay=low + (high - low) * delay,
            before=self.down(op, key) or before < self.error_before,
            after=after < self.error_after,
            late=1 + int(late / self.late * 8) if late < self.late else 0,
        )


class FaultBucket(BucketDecorator):
    """`sleep` is handed in so that a simulation can own the delays."""

    def __init__(self, inner: Bucket, plan: Plan, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(inner)
        self._plan = plan
        self._sleep = sleep
        self._lock = threading.Lock()
        self._under_way: list[tuple[int, Callable[[], object]]] = []

    def get(self, key: str) -> Object:
        check_key(key)
        return self._answer("get", key, lambda: self._inner.get(key))

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        return self._answer("put", key, lambda: self._inner.put(key, data, if_version=if_version))

    def delete(self, *keys: str) -> None:
        """One by one, so that a fault may leave some of them."""
        for key in [check_key(key) for key in keys]:
            self._answer("delete", key, partial(self._inner.delete, key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        check_prefix(prefix)
        return self._half(prefix, lambda: self._inner.list(prefix, start_after))

    def folders(self, prefix: str) -> Iterator[str]:
        """To the plan it is a listing too."""
        check_folder(prefix)
        return self._half(prefix, lambda: self._inner.folders(prefix))

    def time(self) -> float:
        return self._answer("time", "", self._inner.time)

    def land(self) -> None:
        """Let every put that is still under way arrive now, also one whose sender is long gone."""
        self._land(lambda left: True)

    def _half(self, prefix: str, ask: Callable[[], Iterator[T]]) -> Iterator[T]:
        """The answers to a listing, or half of them."""
        fault = self._before("list", prefix)
        found = [*ask()]
        if fault.after:
            yield from found[: len(found) // 2]
            raise _lost("list", prefix)
        yield from found

    def _answer(self, op: str, key: str, ask: Callable[[], T]) -> T:
        fault = self._before(op, key)
        if fault.late and op == "put":
            with self._lock:
                self._under_way.append((fault.late, ask))
            raise _lost(op, key)
        if not fault.after:
            return ask()
        try:
            ask()
        except (BucketError, Damaged, Newer) as refused:
            raise _lost(op, key) from refused
        raise _lost(op, key)

    def _before(self, op: str, key: str) -> Fault:
        with self._lock:
            fault = self._plan(op, key)
            self._under_way = [(left - 1, ask) for left, ask in self._under_way]
        self._land(lambda left: left <= 0)
        if fault.delay > 0:
            self._sleep(fault.delay)
        if fault.before:
            raise _lost(op, key)
        return fault

    def _land(self, due: Callable[[int], bool]) -> None:
        with self._lock:
            landing = [ask for left, ask in self._under_way if due(left)]
            self._under_way = [(left, ask) for left, ask in self._under_way if not due(left)]
        for ask in landing:
            try:
                ask()
            except (BucketError, Damaged, Newer):
                pass  # nobody waits for this answer


def _lost(op: str, key: str) -> Unavailable:
    return Unavailable(f"The bucket did not answer: {op} {key}".rstrip() + " (a fault injected on purpose).")


class FaultFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content, as TOML or JSON; what it leaves out does not happen. Units are those of `Faults`.

    `down` and the rates hit only the named `ops` and the keys that begin with one of `prefixes`; empty means all.
    """

    down: bool = False
    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    latency: tuple[float, float] = (0.0, 0.0)
    ops: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    seed: int = 0

    def hits(self, op: str, key: str) -> bool:
        # A listing above a prefix would show what is below it, so it is hit too.
        reaches = (key.startswith(prefix) or (op == "list" and prefix.startswith(key)) for prefix in self.prefixes)
        return (not self.ops or op in self.ops) and (not self.prefixes or any(reaches))


_faults = msgspec_compat.of_values(FaultFile)


def write_faults(path: Path, faults: FaultFile) -> None:
    """Replace the file in one step: the process that reads it never sees half of it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(json.dumps(msgspec.to_builtins(faults)).encode())
    new.replace(path)


class FileFaults:
    """A plan that reads its file again on every call, so that a test can switch an outage on and off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seed = 0
        self._rng = Random(self._seed)

    def __call__(self, op: str, key: str) -> Fault:
        faults = self._read()
        if faults.seed != self._seed:
            self._seed, self._rng = faults.seed, Random(faults.seed)
        if not faults.hits(op, key):
            return Fault()
        plan = Faults(
            self._rng, faults.error_before, faults.error_after, faults.late, faults.latency, lambda op, key: faults.down
        )
        return plan(op, key)

    def _read(self) -> FaultFile:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return FaultFile()
        try:
            raw = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
            return _faults(raw)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{VARIABLE} names {self._path}, which is no list of faults: {error}") from error
