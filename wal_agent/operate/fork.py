"""A new job that goes on from a place in another one's log (`wal-agent run --from`). The source is only read.

What the log says there is written anew under the new job's own epoch. The record that makes it a job which has run
comes last: a fork that was cut off is a job that never ran, and nobody takes it for the whole one.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent import __version__
from wal_agent.agents.base import Agent, Env
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
from wal_agent.capture.session import FileTracker
from wal_agent.clock import Clock, SystemClock
from wal_agent.config import MAX_JOB
from wal_agent.errors import ConfigError, LeaseHeld, NotYourJob, Unavailable, UsageError
from wal_agent.operate.export import replay_at
from wal_agent.paths import state_dir
from wal_agent.records import AgentStarted, AnyRecord, Host, Pack, Payload, Turn, Workspace
from wal_agent.recovery.lease_policy import Decline, admit
from wal_agent.recovery.plan import prior_args
from wal_agent.recovery.restore_target import RestoreTarget, request_restore
from wal_agent.safefs import real_path
from wal_agent.supervise import provenance
from wal_agent.supervise.identity import make_owner, make_person_key, read_owner
from wal_agent.supervise.machine import RunDir, probe_holder, runtime_dir, spools_dir, this_host
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.provenance import SessionOwner
from wal_agent.text import job_command, timestamp
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.damage import sound_state
from wal_agent.wal.job import NO_KEY, OpenedJob, Opener, OpeningFields, close_job, open_job, send_spooled
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import Replay, is_signed
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore

BUDGET = 60.0  # seconds without any progress after which a fork is given up


class Source(msgspec.Struct, frozen=True):
    """The job to fork, read up to the place; `found` is sound."""

    bucket: Bucket
    keys: Keys
    found: Replay
    blobs: Blobs


def fork_job(options: RunOptions, at: str, screen: Screen) -> RunOptions:
    """Fork the job of `options` at a place as a person names it (operate/export.py); the same options for the new job.

    UsageError: no such place; ConfigError: nobody vouches for its arguments; LeaseHeld, Denied, Damaged, BucketError.
    """
    settings, env, clock = options.settings, options.env, SystemClock()
    key = load_key(settings.encryption_key_file, settings.encryption_key_command, env)
    bucket = EncryptedBucket(open_bucket(settings.bucket), key)
    run_dir = RunDir.create(runtime_dir(env), secrets.token_hex(8), state_dir(env))
    try:
        keys = Keys(settings.job)
        found = replay_at(bucket, keys, key_id(key), at, clock.now())
        state = sound_state(found)
        if not provenance.is_job_typed(options) and not provenance.is_persons_job(env, settings, found):
            raise NotYourJob(
                f"Only the bucket says that job {keys.job} is yours: this machine has no note of it. Nothing was done.",
                f"If it is, name it: --job={keys.job}",
            )
        if not (state.ran or state.files):
            raise UsageError(
                f"Up to record {found.seq} job {keys.job} had done nothing.",
                f"See: {job_command('log', keys.job, bucket.url)}",
            )
        home = found.state.home_opening
        if home is None or home.agent != options.agent.name:
            raise ConfigError(
                f"Job {keys.job} is not one of {options.agent.name}'s.",
                f"See: {job_command('status', keys.job, bucket.url)}",
            )
        typed = prior_args(found.state)
        openings = [o.opening for o in found.state.openings]
        if not options.args:
            provenance.admit_args(options, openings, typed, screen)
        here = this_host(env, run_dir.lock)
        source = Source(bucket, keys, found, Blobs(JobStore(bucket, keys)))
        refuse_beside(source, here, options.workspace, spools_dir(env))
        refuse_to_take(options.agent, found.state.session, options.workspace, env)
        new = free_name(bucket, keys.job, found.seq)
        claim = LeaseRequest(
            run=run_dir.run,
            host=here,
            agent=options.agent.name,
            workspace=str(options.workspace),
            ttl=settings.ttl,
            key=key_id(key),
            owner=read_owner(options.workspace, env),
        )
        fields = OpeningFields(home.agent_version, __version__, typed)
        if not options.args or provenance.is_vouched(env, settings.bucket, keys.job, openings, typed):
            provenance.remember_args(env, settings.bucket, new.job, run_dir.run, typed)
        whose = SessionOwner(state_dir(env), found.state.session, options.workspace)
        if not whose.known():
            whose.give(keys.job)
        sign = make_person_key(env)
        fork(source, JobStore(bucket, new), claim, fields, Opener(sign if is_signed(found, sign) else b""))
        make_owner(options.workspace, env)
        _put_tree_back_first(found.state.workspace, options, new.job)
    finally:
        run_dir.end()
        bucket.close()
    # The folder's default job stays the one that it had.
    forked = replace(options, settings=replace(settings, job=new.job, sources={**settings.sources, "job": "flag"}))
    screen.say(
        f"job {new.job} begins where job {keys.job} was at record {found.seq} ({timestamp(found.time)}). "
        f"After a crash: {provenance.resume_command(forked)}"
    )
    return forked


def _put_tree_back_first(captured: Workspace | None, options: RunOptions, job: str) -> None:
    """The fork's tree was captured in this very folder perhaps; it does not stand here all the same."""
    if captured is not None:
        request_restore(
            RestoreTarget(options.workspace, state_dir(options.env), options.env).shadow(), job, captured.commit
        )


def free_name(bucket: Bucket, job: str, record: int) -> Keys:
    """`<job>-from-<record>`, with a number behind it where there is such a job already."""
    for n in range(1, 1000):
        tail = f"-from-{record}" + (f"-{n}" if n > 1 else "")
        keys = Keys(job[: MAX_JOB - len(tail)] + tail)
        if leases.read_lease(bucket, keys) is None:
            return keys
    raise UsageError(f"Record {record} of job {job} was forked a thousand times.", "Fork another record.")


def refuse_beside(source: Source, here: Host, workspace: Path, spools: Path) -> None:
    """LeaseHeld when the source runs in this very folder: two agents would work in one tree."""
    seen = leases.read_lease(source.bucket, source.keys)
    if seen is None or seen.doc.workspace != str(workspace):
        return
    local = probe_holder(seen, here, spools, source.bucket.url)
    if seen.doc.host.same_kernel(here.boot, here.pidns) and isinstance(admit(seen, local), Decline):
        raise LeaseHeld(
            f"Job {source.keys.job} runs in this folder now, and a fork would change its files.",
            "Stop it first, or fork in another folder.",
        )


def refuse_to_take(agent: Agent, session: str, workspace: Path, env: Env) -> None:
    """Refuse a fork of a session that the agent's database here has for another folder: the fork would move it.
    ConfigError."""
    stored_folder = agent.capabilities.stored_folder
    folder = stored_folder(session, env) if stored_folder is not None else None
    if folder is not None and folder.is_dir() and real_path(folder) != real_path(workspace):
        raise ConfigError(
            f"{agent.name} has this session for {folder}, and has it only once: a fork here would take it over.",
            f"Fork in {folder}, or on another machine.",
        )


def fork(
    source: Source,
    to: JobStore,
    claim: LeaseRequest,
    fields: OpeningFields,
    opener: Opener = NO_KEY,
) -> None:
    """Write the job `to`, which does not exist.

    LeaseHeld: somebody was faster; Damaged: bytes of the source are not whole; BucketError."""
    job = open_job(to, claim=claim, fields=fields, seen=None, cause="first", opener=opener)
    for record in _records(source, job, to.clock):
        job.writer.append(record)
        send_spooled(job.writer, replace(to, budget=BUDGET), opener.check_stop)
    reason = f"forked from {source.keys.job} at record {source.found.seq}"
    if close_job(job, "released", reason) == "left":
        raise Unavailable("The fork could not be saved: the bucket cannot be reached.", "Try again later.")


def _records(source: Source, job: OpenedJob, clock: Clock) -> Iterator[AnyRecord]:
    state = source.found.state
    copies = _Copies(source.blobs, job.blobs)
    with tempfile.TemporaryDirectory(prefix="wal-agent-fork-") as scratch:
        for n, (name, file) in enumerate(sorted(state.files.items())):
            path = Path(scratch) / str(n)
            write_file(source.blobs, file, path)
            delta = FileTracker(path, name, file.session).capture(job.blobs.put_payload, clock.now())
            path.unlink()
            if delta is not None:
                yield delta
    for tree in (*state.inside.values(), *([state.workspace] if state.workspace is not None else [])):
        yield copies.workspace(tree)
    for ended in state.unsettled:
        yield copies.record(ended.intent)
        yield copies.record(ended.end)
    for open in state.open:
        # Without what was noted before: it was true of another run's machine, and the fork's own must not pass for it.
        yield copies.record(msgspec.structs.replace(open.intent, before=()))
    yield from _conversation(state, copies, clock.now())
    if state.ended is not None:
        yield state.ended


def _conversation(state: State, copies: _Copies, now: float) -> Iterator[AnyRecord]:
    if state.prompt is not None:
        yield copies.record(state.prompt)
    elif state.turn != "none":
        yield Turn(time=now, state="started", session=state.session)
    if state.turn == "completed":
        yield Turn(time=now, state="completed", session=state.session)
    yield AgentStarted(time=now, pid=0, session=state.session, resumed=True)


class _Copies:
    """Records whose bulk bytes are the new job's own."""

    def __init__(self, source: Blobs, target: Blobs) -> None:
        self._source, self._target = source, target
        self._known: dict[str, Payload] = {}

    def payload(self, payload: Payload) -> Payload:
        if payload.blob is None:
            return payload
        if payload.blob not in self._known:
            self._known[payload.blob] = self._target.put_payload(self._source.fetch(payload))
        return self._known[payload.blob]

    def record(self, record: AnyRecord) -> AnyRecord:
        changed: Mapping[str, Payload] = {
            name: self.payload(value)
            for name in record.__struct_fields__
            if isinstance(value := getattr(record, name), Payload)
        }
        return msgspec.structs.replace(record, **changed)

    def workspace(self, captured: Workspace) -> Workspace:
        packs = tuple(
            Pack(size=pack.size, sha256=pack.sha256, parts=tuple(self.payload(part) for part in pack.parts))
            for pack in captured.packs
        )
        return msgspec.structs.replace(captured, packs=packs, whole=True, replaces=0)
