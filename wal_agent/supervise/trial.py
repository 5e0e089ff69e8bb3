"""A version that was not tested proves itself before its first tool: an allowed call runs, a denied one does not (I5).

That costs two starts of the agent, so what held is remembered, for just this program and this wal-agent. A version that
fails is not started.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from wal_agent import __version__
from wal_agent.agents.base import Agent, Cli
from wal_agent.errors import ConfigError
from wal_agent.places import state_dir
from wal_agent.plainfile import read_plain
from wal_agent.recovery.report import plain

QUIET = 1.0  # seconds before it is said what takes so long
MOST = 20  # programs of one agent that are remembered
_BIG = 64 << 10  # bytes; ours is smaller

Say = Callable[[str], None]


def on_trial(agent: Agent, cli: Cli, env: Mapping[str, str], say: Say) -> None:
    """Say that `cli` was not tested, and prove that it can be trusted, unless that was done. ConfigError: it cannot."""
    if cli.version == agent.tested:
        return
    what = f"{agent.name} {cli.version or 'of unknown version'}"
    say(f"{what} was not tested, {agent.tested} was.")
    from wal_agent.selftest import IN_PROOF, prove  # 20 ms

    if env.get(IN_PROOF) or agent.rehearsal() is None:
        return
    note = state_dir(env) / "proven" / f"{agent.name}.json"
    mark = _mark(cli)
    known = _known(note)
    if mark in known:
        return
    program = {f"WAL_AGENT_{agent.name.upper()}": str(cli.path)}
    with _after(QUIET, lambda: say(f"proving that the hooks of {what} allow and deny; once for this version ...")):
        failed = [proof for proof in prove(agent, {**env, **program}) if not proof.ok]
    if failed:
        seen = "; ".join(f"{proof.what}: no ({plain(proof.detail, 400)})" for proof in failed)
        raise ConfigError(
            f"{what} was not tested, and its hooks do not hold here: {seen}. Nothing was run.",
            f"Use {agent.tested}, or look at it: wal-agent doctor {agent.name}",
        )
    _remember(note, [*known, mark][-MOST:])


def _mark(cli: Cli) -> str:
    """What the proof holds for: another file, or another wal-agent, proves itself again."""
    real = Path(os.path.realpath(cli.path))
    info = real.stat()
    return f"{cli.version} {__version__} {info.st_mtime_ns} {info.st_size} {real}"


def _known(note: Path) -> list[str]:
    try:
        found = json.loads(read_plain(note, _BIG) or b"[]")
    except (ValueError, RecursionError):
        return []
    return [mark for mark in found if isinstance(mark, str)] if isinstance(found, list) else []


def _remember(note: Path, marks: list[str]) -> None:
    """A disk that does not take it means another proof at the next start, no more."""
    with suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = note.with_name(f".{note.name}.{os.getpid()}")
        new.write_text(json.dumps(marks))
        new.replace(note)


@contextmanager
def _after(seconds: float, what: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
