"""A person's word on a call (I8): given to the live run where there is one here, else written under an own epoch."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from typing import Literal

from wal_agent import __version__
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.clock import SystemClock
from wal_agent.errors import LeaseHeld, Unavailable, UsageError
from wal_agent.records import End
from wal_agent.recovery.damage import damaged_log_error, missing_lease_error
from wal_agent.recovery.lease_policy import (
    Acquire,
    Decline,
    Wait,
    admit,
    classify_stop,
    pause_left,
    paused_until,
    replays_spool,
)
from wal_agent.supervise import machine
from wal_agent.supervise.hook_server import ACK, ask_run
from wal_agent.supervise.machine import probe_holder
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease_doc import LeaseRequest, StoredLease
from wal_agent.wal.reader import KnownEnd, Replay, check_end, replay
from wal_agent.wal.state import State


def acknowledged_end(state: State, call: int, done: bool, now: float) -> End:
    """The record that settles an open call; UsageError when it is not open."""
    if all(o.intent.call != call for o in state.open):
        known = ", ".join(f"#{o.intent.call}" for o in state.open) or "none"
        raise UsageError(f"Call #{call} is not open, so there is nothing to settle.", f"Open calls: {known}.")
    return End(
        time=now,
        call=call,
        how="acknowledged",
        by="person",
        finding="completed" if done else "not_started",
        why=f"a person looked and says that it was {'done' if done else 'not done'}",
    )


def acknowledge_call(
    bucket: Bucket, keys: Keys, ttl: float, call: int, done: bool, env: Mapping[str, str], key_id: str = ""
) -> None:
    """Settle the call durably. UsageError: it is not open; LeaseHeld: a run that cannot be reached from here has it, or
    this machine's spool holds records that come before it;
    Denied: the job is not encrypted with the key `key_id` that `bucket` has."""
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        if missing := missing_lease_error(bucket, keys):
            raise missing
        raise UsageError(f"There is no job {keys.job} in {bucket.url}.", "See --job and --bucket.")
    if problem := wrong_key_error(keys.job, seen.doc.key, key_id):
        raise problem
    run_dir = machine.RunDir.create(machine.runtime_dir(env), secrets.token_hex(8))
    try:
        here = machine.this_host(env, run_dir.lock)
        known = probe_holder(seen, here, machine.spools_dir(env), bucket.url)
        match admit(keys.job, seen, known, pauses="ignore"):
            case Acquire() if replays_spool(seen, known):
                raise not_carried(seen)
            case Acquire(cause):
                found = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
                acknowledged_end(sound_state(found), call, done, 0.0)  # refuses before anything is opened
                claim = LeaseRequest(
                    run=run_dir.run,
                    host=here,
                    agent=seen.doc.agent,
                    workspace=seen.doc.workspace,
                    ttl=ttl,
                    key=key_id,
                )
                fields = OpeningFields(agent_version="", version=__version__)
                job = open_job(
                    bucket, keys, SystemClock(), random.Random(), claim=claim, fields=fields, seen=seen, cause=cause
                )
                rests = pause_left(seen) if paused_until(seen) else None
                _settle(job, call, done, rests, seen.doc.reason)
            case Decline(sentence, hint):
                _ask_owner(seen, call, done, LeaseHeld(sentence, hint))
            case Wait(_, why):
                raise LeaseHeld(f"{why[:1].upper()}{why[1:]}.", "Try again then.")
    finally:
        run_dir.end()


def not_carried(seen: StoredLease) -> LeaseHeld:
    """R9: an opening that left the spool behind would make it stale."""
    doc = seen.doc
    return LeaseHeld(
        f"Job {doc.job} may have records that only {doc.spool} on this machine has, so no call is settled before them.",
        "Run it here first: `wal-agent run AGENT` carries in what this machine's spool holds.",
    )


def sound_state(found: Replay) -> State:
    """The state of a log that could be read to its end; Damaged."""
    if found.damage is not None:
        raise damaged_log_error(found.damage)
    return found.state


def _settle(job: OpenedJob, call: int, done: bool, rests: float | None, reason: str) -> None:
    """A job that is paused stays so for the `rests` seconds that are left (0: it is due, and stays that), for its
    `reason`."""
    state, now = job.replay.state, SystemClock().now()
    try:
        job.writer.append(acknowledged_end(sound_state(job.replay), call, done, now))
    finally:
        if rests is not None:
            ended = close_job(job, "released", reason, until=now + rests)
        else:
            wanted: Literal["closed", "released"] = "closed" if state.turn == "completed" else "released"
            ended = close_job(job, wanted, kept(reason))
    if ended == "left":
        raise Unavailable(
            "The bucket did not take it in time, so it is not known whether the call is settled.",
            "See: wal-agent status",
        )


def kept(reason: str) -> str:
    """Why the job was settled before, unless for want of the person who came now."""
    return reason if reason and classify_stop(reason) != "halted" else "a call was settled by a person"


def _ask_owner(seen: StoredLease, call: int, done: bool, refusal: LeaseHeld) -> None:
    answer = ask_run(seen.doc.host, seen.doc.run, ACK, {"call": call, "done": done})
    if answer is None:
        raise refusal
    if "error" in answer:
        raise UsageError(str(answer["error"]))
