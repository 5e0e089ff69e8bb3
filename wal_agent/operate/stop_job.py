"""End a job's run in good order, for `wal-agent stop`: by a signal on this machine, else by a message in the bucket.

The message is a `drain` for one run by its id (docs/MESSAGES.md). A run that starts later does not obey it, so a
request that came too late stops nobody.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.clock import Clock
from wal_agent.errors import ConfigError, LeaseHeld, PersonNeeded, Unavailable, WalAgentError
from wal_agent.inbox import Message, address_to_run, default_sender, make_message
from wal_agent.operate.at_rest import JobAccess, act_unowned, require_lease
from wal_agent.recovery.lease_policy import Local, lease_age, owner_is_dead, same_kernel
from wal_agent.supervise import ancestry, control
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.text import command, duration, job_command, printable, quote_word, shorten
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.reader import Replay, continue_replay, replay
from wal_agent.wal.state import State

LOCAL_DEADLINE: Final = 120.0  # seconds for a run on this machine to save, end its agent and release the job
ASKING: Final = 10.0  # seconds for a run on this machine to say whose it is
FAR_DEADLINE: Final = 600.0  # the same elsewhere: a run that waits for a person looks every 5 minutes for messages
LOCAL_POLL: Final = 0.5  # seconds between two reads of the lease
FAR_POLL: Final = 2.0
PROGRESS: Final = 15.0  # seconds between two lines for the person who waits
RESTING: Final = "awaiting_user"  # the phase of a run whose agent waits for a person
SELDOM: Final = "Its agent waits for a person, so it looks for messages every 5 minutes. "


class StopRequest(msgspec.Struct, frozen=True):
    """What was typed. `options`: what a command for this job has to say; `folder`: where it was typed. `send` puts a
    message into the job's inbox; `report` gets a line where it takes long."""

    options: str
    folder: Path
    done: bool
    send: Callable[[Message], object]
    report: Callable[[str], None]


_Was = Literal["running", "cut_off", "at_rest"]


class Stopped(JsonAnswer, frozen=True, tag=schema_name("stop")):
    """`wal-agent stop`. `was`: running, if this ended its run, cut_off, or at_rest; `closed`: the next start begins a
    new session; `said`: for people."""

    job: str
    was: _Was
    closed: bool
    said: str


def stop_job(access: JobAccess, clock: Clock, request: StopRequest) -> Stopped:
    """End the job's live run in good order, wherever it is, and with `done` close the job, so that the next start
    begins anew.

    UsageError: there is no such job. ConfigError: the run's settings refuse it. LeaseHeld: the run does not end in
    time, or another one has the job meanwhile. PersonNeeded: `done`, and calls are in flight that are not resolved."""
    bucket, keys, env = access.bucket, access.keys, access.env
    seen = access.lease()
    here = this_host(env, Path(os.devnull))
    was: _Was = "at_rest"
    what = f"job {keys.job} is not running"
    if seen.doc.state == "held":
        known = probe_holder(seen, here, spools_dir(env), bucket.url)
        if owner_is_dead(seen, known):
            what, was = _died(seen), "cut_off"
        elif same_kernel(seen, known) and _answers(seen, bucket, keys):
            os.kill(seen.doc.host.pid, signal.SIGTERM)
            seen, what, was = _await_end(bucket, keys, seen, known, clock, request, near=True)
        else:
            seen, what, was = _ask_to_end(bucket, keys, seen, known, clock, request, access.key_id)
    if not request.done and seen.doc.state == "closed":
        return Stopped(keys.job, was, True, f"{what}: it has ended")
    if not request.done:
        at = Path(seen.doc.workspace)
        cd = "" if at == request.folder or seen.doc.host.name != here.name else f"cd {quote_word(str(at))} && "
        return Stopped(keys.job, was, False, f"{what}. To carry on: {cd}{command('resume', request.options)}")
    if seen.doc.state != "closed":
        act_unowned(access, seen, _close, lambda state: _check_answered(state, request.options))
    return Stopped(keys.job, was, True, f"{what} and is closed; the next start begins a new session")


def _answers(seen: StoredLease, bucket: Bucket, keys: Keys) -> bool:
    """Whether the process that the lease names is the run of this very job: who writes the bucket can name another."""
    doc, at = seen.doc, (bucket.url, keys.job)
    if not ancestry.is_supervisor(doc.host.pid, doc.run):
        return False
    said = control.ask_run(doc.host, doc.run, at, control.STATUS, {}, ASKING)
    return said is not None and "error" not in said


def _died(seen: StoredLease) -> str:
    doc = seen.doc
    age = duration(lease_age(seen))
    return f"job {doc.job} is not running: {doc.host.name} was cut off, its last heartbeat was {age} ago"


def _ask_to_end(
    bucket: Bucket, keys: Keys, seen: StoredLease, known: Local, clock: Clock, request: StopRequest, key_id: str
) -> tuple[StoredLease, str, _Was]:
    """As `_await_end`, for a run that no signal reaches from here. ConfigError: its settings refuse the message."""
    doc = seen.doc
    message = make_message(address_to_run(doc.run), default_sender(), control="drain")
    request.send(message)
    request.report(
        f"job {keys.job} runs on {doc.host.name}, which is asked to save and stop ({_heartbeat(seen)}). "
        f"{SELDOM if doc.phase == RESTING else ''}Ctrl-C leaves; the request stays."
    )
    readable = wrong_key_error(keys.job, doc.key, key_id) is None
    outcome = _Outcome(bucket, keys, message) if readable else None
    return _await_end(bucket, keys, seen, known, clock, request, outcome)


class _Outcome:
    """Reads why the run refused a message (docs/MESSAGES.md). A log that cannot be read says nothing."""

    def __init__(self, bucket: Bucket, keys: Keys, message: Message) -> None:
        self._bucket, self._keys, self._message, self._log = bucket, keys, message, Replay()

    def refused(self) -> str:
        """ "": it was not refused, or that is not known."""
        with suppress(WalAgentError):
            before = self._log
            go_on = (
                continue_replay(self._bucket, self._keys, before) if before.seq else replay(self._bucket, self._keys)
            )
            self._log = go_on
        found = (m for m in self._log.state.messages if (m.sender, m.id) == (self._message.sender, self._message.id))
        return next((m.refused for m in found), "")


def _await_end(
    bucket: Bucket,
    keys: Keys,
    seen: StoredLease,
    known: Local,
    clock: Clock,
    request: StopRequest,
    outcome: _Outcome | None = None,
    *,
    near: bool = False,
) -> tuple[StoredLease, str, _Was]:
    """Wait until the run has released the lease, or is dead; the lease then, and what happened, for a person."""
    run, began = seen.doc.run, clock.boot()
    changed = said = began
    deadline, poll = (LOCAL_DEADLINE, LOCAL_POLL) if near else (FAR_DEADLINE, FAR_POLL)
    while True:
        clock.sleep(poll)
        version, seen, now = seen.version, require_lease(bucket, keys), clock.boot()
        doc = seen.doc
        changed = now if seen.version != version else changed
        if doc.run != run:
            raise LeaseHeld(
                f"Job {keys.job} is run by {doc.host.name} (epoch {doc.epoch}) meanwhile, and was not stopped there.",
                f"Once more: {command('stop', request.options)}",
            )
        if doc.state != "held":
            return seen, f"job {keys.job} is saved and stopped", "running"
        if not near and owner_is_dead(seen, replace(known, unchanged=now - changed)):
            return seen, _died(seen), "cut_off"
        if outcome is not None and (why := outcome.refused()):
            raise _refused(seen, request.options, why)
        if now - began >= deadline:
            raise _still_runs(seen, request.options, now - began, near)
        if now - said >= PROGRESS:
            said = now
            seldom = f". {SELDOM.strip()}" if not near and doc.phase == RESTING else ""
            request.report(f"  waiting for {doc.host.name}: {_heartbeat(seen)}{seldom}")


def _heartbeat(seen: StoredLease) -> str:
    doc = seen.doc
    return ", ".join(filter(None, (doc.phase, doc.tool, f"last heartbeat {duration(lease_age(seen))} ago")))


def _refused(seen: StoredLease, options: str, why: str) -> ConfigError:
    doc = seen.doc
    return ConfigError(
        f"The run of job {doc.job} on {doc.host.name} refused to stop: {shorten(printable(why), 300)}. It goes on.",
        f"Stop it there, or take the job from it: {command('unlock', options)} --epoch {doc.epoch}",
    )


def _still_runs(seen: StoredLease, options: str, waited: float, near: bool) -> LeaseHeld:
    doc = seen.doc
    why = f"Job {doc.job} was asked to end {duration(waited)} ago and still runs on {doc.host.name}."
    if near:
        return LeaseHeld(why, f"See: {command('status', options)}")
    return LeaseHeld(
        f"{why} It may not look for messages (--inbox 0).",
        f"Stop it there, or take the job from it: {command('unlock', options)} --epoch {doc.epoch}",
    )


def _check_answered(state: State, options: str) -> None:
    if calls := ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in state.unlooked[:5]):
        first = state.unlooked[0].intent.call
        raise PersonNeeded(
            f"Calls are open ({calls}), so the job is not closed.",
            f"Check each, then `{command(f'ack {first}', options)} --done`, or the same with --not-done.",
        )
    if state.undecided_steps:
        name, *more = state.undecided_steps
        raise PersonNeeded(
            f"Steps were cut off and may have had their effect ({', '.join([name, *more][:5])}), so the job is not "
            "closed.",
            f"Check each, then `{command(f'ack {name}', options)} --done`, or the same with --not-done.",
        )


def _close(job: OpenedJob) -> None:
    if close_job(job, "closed", "") == "left":
        see = f"See: {job_command('status', job.keys.job, job.bucket.url)}"
        raise Unavailable("The bucket did not take it in time, so the job may be open still.", see)
