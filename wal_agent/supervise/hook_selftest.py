"""Check that the agent's hooks hold, before the first tool and while it runs (I5).

A version that was not tested proves itself before its first tool: an allowed call runs, a denied one does not. That
costs two starts of the agent, so what held is remembered, for just this program and this wal-agent. A version that
fails, or cannot be proven, is not started; that is remembered for some minutes.

`HookSwitches` watches the files by which the hooks of a running agent can be switched off, at each tick of the main
thread: a few `stat` a tenth of a second. That needs no inotify, and an agent that reads its settings again waits longer
than that for a file to come to rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wal_agent import __version__, msgspec_compat
from wal_agent.agents import rehearsal_of
from wal_agent.agents.base import Agent, Cli
from wal_agent.errors import ConfigError
from wal_agent.paths import state_dir
from wal_agent.recovery.report import one_line
from wal_agent.safefs import read_plain, real_path, swap_file
from wal_agent.supervise.options import Screen

if TYPE_CHECKING:
    from wal_agent.rehearsal.selftest import Proof


AGAIN = 600.0  # seconds after which what failed is tried again
MOST = 20  # programs of one agent that are remembered
_FAILED = msgspec_compat.of_json(dict[str, tuple[float, str, str]])
_BIG = 64 << 10  # bytes; ours is smaller


def prove_untested_version(agent: Agent, cli: Cli, env: Mapping[str, str], screen: Screen) -> None:
    """Say that `cli` was not tested, and prove that it can be trusted, unless that was done. ConfigError: it cannot."""
    if cli.version in (agent.tested, *agent.also):
        return
    say, what = screen.say, f"{agent.name} {cli.version or 'of unknown version'}"
    say(f"{what} was not tested, {agent.tested} was.")
    from wal_agent.rehearsal.selftest import IN_PROOF, SECONDS, in_proof, prove  # 20 ms

    if in_proof(env) or rehearsal_of(agent) is None:
        return
    if env.get(IN_PROOF):
        say(f"{IN_PROOF} is ignored: it is no setting, wal-agent sets it for its own proofs.")
    note = state_dir(env) / "proven" / f"{agent.name}.json"
    mark = _program_mark(cli)
    known = _known(note)
    if mark in known:
        return
    failures = note.with_name(f"{agent.name}.failed.json")
    lately = _lately(failures)
    if mark in lately:
        again = f"It is tried again {AGAIN / 60:.0f} minutes after that; at once when {failures} is removed."
        raise ConfigError(f"{lately[mark][1]} (As it was found lately.)", f"{lately[mark][2]} {again}")
    program = {f"WAL_AGENT_{agent.name.upper()}": str(cli.path)}
    with screen.waiting_for(f"the proof that the hooks of {what} allow and deny; once for this version", 2 * SECONDS):
        failed = [proof for proof in prove(agent, {**env, **program}) if not proof.ok]
    if failed:
        said, hint = _refusal(agent, cli, what, failed)
        kept = [*lately.items(), (mark, (time.time(), said, hint))]
        _remember(failures, dict(kept[-MOST:]))
        raise ConfigError(said, hint)
    _remember(note, [*known, mark][-MOST:])


def _refusal(agent: Agent, cli: Cli, what: str, failed: Sequence[Proof]) -> tuple[str, str]:
    """What is wrong, and the way out. An agent that never got to its model says nothing about its hooks."""
    hint = f"Use {agent.tested}, or look at it: wal-agent doctor {agent.name}"
    from wal_agent.rehearsal.selftest import Unreached

    if all(isinstance(proof, Unreached) for proof in failed):
        cause = one_line(failed[0].detail, 400)
        name = f"WAL_AGENT_{agent.name.upper()}"
        return (
            f"{what} was not tested, and whether its hooks hold could not be proven here: in a home of its own, where "
            f"the proof runs it, it did not get as far as its model ({cause}). Nothing was run.",
            f"If {cli.path} is a launcher that needs your home, name the program itself: {name}=/real/program. {hint}",
        )
    seen = "; ".join(f"{proof.what}: no ({one_line(proof.detail, 400)})" for proof in failed)
    return f"{what} was not tested, and its hooks do not hold here: {seen}. Nothing was run.", hint


def _lately(note: Path) -> dict[str, tuple[float, str, str]]:
    """What failed not long ago, by its mark: when, what was said, the way out."""
    try:
        found = _FAILED.decode(read_plain(note, _BIG) or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    now = time.time()
    return {mark: seen for mark, seen in found.items() if 0 <= now - seen[0] < AGAIN}


def _program_mark(cli: Cli) -> str:
    """What the proof holds for: another file, or another wal-agent, proves itself again."""
    real = real_path(cli.path)
    info = real.stat()
    return f"{cli.version} {__version__} {info.st_mtime_ns} {info.st_size} {real}"


def _known(note: Path) -> list[str]:
    try:
        found = json.loads(read_plain(note, _BIG) or b"[]")
    except (ValueError, RecursionError):
        return []
    return [mark for mark in found if isinstance(mark, str)] if isinstance(found, list) else []


def _remember(note: Path, marks: object) -> None:
    """A disk that does not take it means another proof at the next start, no more."""
    with suppress(OSError):
        swap_file(note, json.dumps(marks).encode())


_FileMark = tuple[int, int, int, int] | None  # of a file, as `stat` gives it; None: there is none


class HookSwitches:
    def __init__(self, agent: Agent, args: Sequence[str], workspace: Path, env: Mapping[str, str]) -> None:
        self._watch = agent.capabilities.settings_watch
        self._name = agent.name
        self._at = (args, workspace, env)
        self._own = {path: _bytes(path) for path in self._watch.run_files(env)} if self._watch else {}
        self._marks = self._marked()

    def check(self) -> ConfigError | None:
        """Why the hooks are off, or are about to be, since the look before."""
        if self._watch is None or (marks := self._marked()) == self._marks:
            return None
        self._marks = marks
        changed = next((path for path, data in self._own.items() if _bytes(path) != data), None)
        why = (
            f"{changed}, which holds this run's hooks, was changed"
            if changed is not None
            else self._watch.switch_off_reason(*self._at)
        )
        if why is None:
            return None
        return ConfigError(
            f"{self._name}'s hooks were switched off while it ran: {why}. The run was stopped.",
            "See what its last calls did: wal-agent log",
        )

    def _marked(self) -> dict[Path, _FileMark]:
        if self._watch is None:
            return {}
        return {path: _file_mark(path) for path in (*self._own, *self._watch.user_files(*self._at))}


def _file_mark(path: Path) -> _FileMark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
