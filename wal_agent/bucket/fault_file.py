"""Faults steered from outside the process: an end-to-end test switches an outage on and off while wal-agent runs.

WAL_AGENT_BUCKET_FAULTS names the file (see open_bucket); it is read again on every call, and absent it means no faults.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from random import Random

import msgspec

from wal_agent import decoders
from wal_agent.bucket.faults import Fault, Faults
from wal_agent.errors import ConfigError


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


_faults = decoders.of_values(FaultFile)


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
            raise ConfigError(
                f"WAL_AGENT_BUCKET_FAULTS names {self._path}, which is no list of faults: {error}"
            ) from error
