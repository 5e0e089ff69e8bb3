"""Find in the log what a person asks of a rewind, and have the job's own live run do it (live_rewind.py) where there is
one; the command waits for that over the run's socket."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.bucket.base import Bucket
from wal_agent.clock import SystemClock
from wal_agent.errors import Unavailable, UsageError
from wal_agent.operate.at_rest import require_lease
from wal_agent.operate.export import replay_at
from wal_agent.operate.rewrite import end_of
from wal_agent.records import Rewrite
from wal_agent.supervise import control
from wal_agent.supervise.live_rewind import DOING, FoundRewind
from wal_agent.supervise.pausing import PAUSE_BUDGET
from wal_agent.supervise.rewrite import (
    Home,
    RewindPlace,
    Rewritten,
    newest_rewrite,
)
from wal_agent.text import command, job_command, shorten
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.damage import sound_state
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State


class RewindRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One of `to` (a mark, or a record's number), `last` (turns) and `undo`. `compact`: words, or "auto"; `files`: the
    working tree goes back too."""

    to: str | None = None
    last: int = 0
    undo: bool = False
    compact: str | None = None
    files: bool = False


class JobLog(msgspec.Struct, frozen=True):
    """Where a request is looked up."""

    bucket: Bucket
    keys: Keys
    key_id: str
    blobs: Blobs

    def state(self, at: str | None = None) -> State:
        """As of a place that a person names, or of the end. Damaged, UsageError."""
        return sound_state(replay_at(self.bucket, self.keys, self.key_id, at, SystemClock().now()))


def find_place(log: JobLog, home: Home, asked: RewindRequest) -> RewindPlace:
    """Where the request leads; of an undo, only the working tree. UsageError: nowhere."""
    if asked.undo:
        return _files_before(log, newest_rewrite(log.state(), home.options).record) if asked.files else RewindPlace()
    if asked.to is None:
        return RewindPlace(last=asked.last)
    number = asked.to.isascii() and asked.to.isdigit()
    marked = None if number else log.state().marks.get(asked.to)
    if marked is None and not number:
        raise UsageError(f"No place is marked {shorten(asked.to, 60)}.", f"Its marks: {command('mark', home.options)}")
    if marked is not None and not asked.files:
        return RewindPlace(marked.record.session, marked.record.key)
    record = str(marked.seq) if marked is not None else asked.to
    state = log.state(record)
    if asked.files and state.workspace is None:
        raise UsageError(f"No working tree was saved up to record {record}.", f"See: {command('log', home.options)}")
    if marked is not None:
        place = RewindPlace(marked.record.session, marked.record.key)
    else:
        place = RewindPlace(state.session, end_of(state, log.blobs, home))
    return _with_files(place, state) if asked.files else place


def _with_files(place: RewindPlace, state: State) -> RewindPlace:
    return replace(place, tree=state.workspace, inside=state.inside)


def _files_before(log: JobLog, rewrite: Rewrite) -> RewindPlace:
    if not rewrite.tree:
        raise UsageError(f"Rewrite {rewrite.n} put no files back.", "Leave --files out.")
    return _with_files(RewindPlace(), log.state(str(rewrite.tree)))


def rewind_live(bucket: Bucket, keys: Keys, asked: FoundRewind) -> Rewritten | None:
    """Have the job's live run on this machine do it; None where none can be reached. UsageError, PersonNeeded,
    ConfigError: it refuses; Unavailable: it is not known whether it was done."""
    doc = require_lease(bucket, keys).doc
    at = (bucket.url, keys.job)
    if doc.state != "held" or control.ask_run(doc.host, doc.run, at, control.STATUS, {}) is None:
        return None
    question = msgspec.to_builtins(asked)
    said = control.ask_run(doc.host, doc.run, at, control.REWIND, question, PAUSE_BUDGET * 2 + DOING)
    if said is None:
        raise Unavailable(
            "The run ended before it answered.",
            f"Whether it was done: {job_command('trace list', keys.job, bucket.url)}",
        )
    control.unless_refused(said)
    placed = Path(str(said["placed"])) if said.get("placed") else None
    n, turns, tokens, left = (int(said[name]) for name in ("n", "turns", "tokens", "left"))
    return Rewritten(n, turns, tokens, left, placed, tuple(map(str, said["files"])))
