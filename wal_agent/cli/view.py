"""A job as people and scripts see it: data for `status`, made from the lease, the log and, where it can be asked, the
live run. Pure but for `look`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encryption import wrong_key_error
from wal_agent.calls.quote import show_words
from wal_agent.records import CHANGING, CallState, Cut, Intent, Opening, Payload, RewriteKind, call_state
from wal_agent.records import Late as LateFor
from wal_agent.recovery.lease_policy import (
    CRASH_CLASSES,
    LeaseView,
    StopKind,
    classify_stop,
    describe_lease,
    lease_age,
    may_have_spooled,
    owner_is_dead,
    pause_left,
    paused_until,
)
from wal_agent.redact import redact
from wal_agent.supervise.control import STATUS, ask_run
from wal_agent.supervise.machine import probe_holder, spools_dir, this_host
from wal_agent.text import printable
from wal_agent.wal import lease as leases
from wal_agent.wal.damage import (
    CheckedBlobs,
    damaged_log_error,
    find_missing_blobs,
    lost_blobs_error,
    missing_lease_error,
    needed_blobs,
    newest_restorable,
)
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.reader import KnownEnd, Replay, check_end, continue_replay, replay
from wal_agent.wal.state import State

JobState = LeaseView | Literal["none"]
PREVIEW = 200  # characters of a tool's input
_OF_A_TOOL = ("executing_tools", "awaiting_approval")  # phases; in others the newest tool is an old one
MAX_COUNTED = 1000  # messages of a job at rest
LOOK_TIMEOUT = 3.0  # seconds: who looks at a run that hangs is not to hang with it
MAX_TO_GO = 5  # files that wait to be saved and are named


Held = Literal["", "cut", "runs_on", "serves"]


class Call(msgspec.Struct, frozen=True):
    """A call without an end, or one that ran before it was logged."""

    call: int
    tool: str
    input: str  # redacted, shortened
    cls: str
    since: float
    finding: str = ""  # of the newest recovery that looked (records.Finding); "": none has
    answered: bool = False  # a recovery has asked the agent, and no later one asks again
    looked: tuple[int, ...] = ()  # calls that the agent looked with
    because: str = ""  # the agent's own words, which prove nothing
    held: Held = ""  # why it is open although the agent is done with it
    state: CallState = "open"

    @property
    def asks(self) -> bool:
        """Whether a person is to look: a recovery has, in vain, and it may have changed something."""
        return self.finding == "unknown" and self.cls in CHANGING


class Step(msgspec.Struct, frozen=True):
    """A step without an end. `running`: the live run began it; else it was cut off."""

    step: str
    command: str  # redacted, shortened
    since: float
    attempt: int
    running: bool = False


class Crash(msgspec.Struct, frozen=True):
    """An epoch whose owner or agent died: where, since when it ran, and when it was taken over, or when the agent did.
    `cls`: of what the agent died (records.ExitClass), "" where the whole run was cut off."""

    host: str
    epoch: int
    began: float
    taken_over: float
    cls: str = ""
    same_host: bool = False  # who took over was on the same machine, and that had not been started anew


class Unsaved(msgspec.Struct, frozen=True):
    """What the live run has not saved yet."""

    bytes: int
    age: float
    spooled: int = 0  # segments of it that are on this machine's disk (R9)
    lost: str = ""  # that the session has no file, as a sentence


class Late(msgspec.Struct, frozen=True):
    """What the run waits for longer than it should take (records.Late)."""

    what: LateFor
    seconds: float
    tool: str = ""  # redacted


class Files(msgspec.Struct, frozen=True):
    """The saved working tree. `saved`: when, 0 for never; `holds`: with the changes of calls up to this number.
    `behind`: calls that ended since, whose changes it lacks; `behind_more` counts the others. `to_go`: files that are
    not saved yet, `to_go_bytes` of them, some of them named in `to_go_names`. `left_out`: what is not saved, and why.
    `problem`: why the newest try failed, where the live run was asked; `off`: it saves no files."""

    saved: float = 0.0
    files: int = 0
    bytes: int = 0
    holds: int = 0
    behind: tuple[int, ...] = ()
    behind_more: int = 0
    to_go: int = 0
    to_go_bytes: int = 0
    to_go_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_more: int = 0
    problem: str = ""
    off: bool = False


_late = msgspec_compat.of_values(tuple[Late, ...])


class LastRewrite(msgspec.Struct, frozen=True):
    """The newest rewind or compaction of the conversation: estimates of its tokens before and after, and its trace."""

    n: int
    kind: RewriteKind
    turns: int
    tokens: int
    left: int
    time: float


class View(JsonAnswer, frozen=True, tag=schema_name("status")):
    """`wal-agent status`. Times are seconds since 1970; ages are seconds."""

    job: str
    bucket: str
    state: JobState
    name: str = ""  # its display name (`wal-agent rename`)
    agent: str = ""
    agent_version: str = ""
    workspace: str = ""
    host: str = ""
    pid: int = 0
    epoch: int = 0
    started: float = 0.0
    owner_now: float = 0.0  # the owner's clock now: at its last heartbeat, and the store's since; 0: not known
    heartbeat_age: float = 0.0
    ttl: float = 0.0
    spool: str = ""  # folder on `host` that may hold records which are not in the bucket
    key: str = ""  # id of the key that the job is encrypted with
    reason: str = ""
    way: StopKind = ""  # how it was settled, as the reason says
    until: float = 0.0  # when its pause is over, or was, by the store's clock
    left: float = 0.0  # of it; 0: it is due, or was never paused
    phase: str = ""
    phase_age: float = 0.0  # 0: not known
    late: tuple[Late, ...] = ()
    tool: str = ""
    record: int = 0
    last_record: float = 0.0
    waiting: Unsaved | None = None  # None: the run cannot be asked from here
    mute: bool = False  # its supervisor lives on this machine, and does not answer
    messages: int | None = None  # that wait for the agent's next boundary, or the next start; None: as above
    files: Files | None = None  # None: the job has run nothing yet, or the log was not read
    session: str = ""
    session_bytes: int = 0
    calls: int = 0
    recoveries: int = 0
    crashes: tuple[Crash, ...] = ()
    unsettled: tuple[Call, ...] = ()
    unproven: int = 0  # those of them that the agent looked at, which showed nothing
    steps: tuple[Step, ...] = ()  # without an end
    rewritten: LastRewrite | None = None  # None: the conversation never was
    unlogged: tuple[Call, ...] = ()  # ran before they were logged; until a later run has completed a turn
    damage: str = ""
    advice: tuple[str, ...] = ()  # what a person should change in the bucket's own settings, as far as it says so
    locked: str = ""  # why the log was not read: it is encrypted. What is only in the log is then not known, not absent


def read_view(bucket: Bucket, keys: Keys, env: Mapping[str, str], key_id: str = "", options: str = "") -> View:
    """One look: read lease and log (without the job's key the lease alone), and look whether the blobs are there that a
    restore needs; ask the live run, if it is here. `options`: see damage.restore_hint.
    Damaged: the lease cannot be read, or is missing while there is a log."""
    return continue_view(bucket, keys, env, key_id, Replay(), options=options)[0]


def continue_view(
    bucket: Bucket,
    keys: Keys,
    env: Mapping[str, str],
    key_id: str,
    before: Replay,
    known: CheckedBlobs | None = None,
    options: str = "",
) -> tuple[View, Replay]:
    """A look that reads on from what the one `before` found, and what it found itself. `known`: of blobs; added to."""
    known = CheckedBlobs() if known is None else known
    seen = leases.read_lease(bucket, keys)
    if seen is None:
        if missing := missing_lease_error(bucket, keys):
            raise missing
        return View(job=keys.job, bucket=redact(bucket.url), state="none"), Replay()
    from pathlib import Path

    here = this_host(env, Path(os.devnull))
    local = probe_holder(seen, here, spools_dir(env), bucket.url)
    dead = seen.doc.state == "held" and owner_is_dead(seen, local)
    asked = seen.doc.state == "held" and not dead and seen.doc.host.same_kernel(here.boot, here.pidns)
    at = (bucket.url, keys.job)
    answer = ask_run(seen.doc.host, seen.doc.run, at, STATUS, {}, LOOK_TIMEOUT) if asked else None
    answer = None if answer is not None and "error" in answer else answer  # it is another job's run
    mute = asked and answer is None and local.lock == "alive"
    if problem := wrong_key_error(keys.job, seen.doc.key, key_id):
        unread = Replay(seq=seen.doc.seq)
        locked = make_view(keys.job, bucket.url, seen, dead, unread, answer, mute)
        return msgspec.structs.replace(locked, locked=redact(str(problem))), before
    found = continue_replay(bucket, keys, before) if before.seq else replay(bucket, keys)
    checked = check_end(found, keys.job, KnownEnd.by(seen))
    seen_at = make_view(keys.job, bucket.url, seen, dead, checked, answer, mute)
    if not seen_at.damage and find_missing_blobs(bucket, keys, needed_blobs(found.state), known):
        found = replay(bucket, keys)  # again: retention may have passed between the two
        if lacks := find_missing_blobs(bucket, keys, needed_blobs(found.state), known):
            whole = newest_restorable(bucket, keys, found.seq, known)
            seen_at = msgspec.structs.replace(
                seen_at, damage=redact(str(lost_blobs_error(lacks, whole, keys, options)))
            )
    if seen_at.state not in ("running", "none"):
        seen_at = msgspec.structs.replace(seen_at, messages=count_waiting(bucket, keys, found.state))
    return seen_at, found


def count_waiting(bucket: Bucket, keys: Keys, state: State) -> int:
    """How many messages lie in the bucket for the next start of a job at rest; those on a server are not known."""
    listed = [each.key.rpartition("/")[2] for each in islice(bucket.list(keys.inbox), MAX_COUNTED)]
    if not listed:
        return 0
    from wal_agent.inbox import identity_of

    given = {identity_of(m.sender, m.id) for m in state.messages}
    return sum(identity not in given for identity in listed)


def make_view(
    job: str, url: str, seen: StoredLease, dead: bool, found: Replay, answer: dict[str, Any] | None, mute: bool = False
) -> View:
    doc, state = seen.doc, found.state
    kind = describe_lease(seen, dead)
    cls = state.ended.cls if state.ended is not None and state.home == doc.epoch else ""
    phase = str(answer["phase"]) if answer else doc.phase
    versions = [o.opening.agent_version for o in state.openings if o.opening.agent_version]
    return View(
        job=job,
        bucket=redact(url),
        state=kind,
        agent=doc.agent,
        agent_version=redact(versions[-1]) if versions else "",
        workspace=redact(doc.workspace),
        host=redact(doc.host.name),
        pid=doc.host.pid,
        epoch=doc.epoch,
        started=doc.started,
        owner_now=doc.time + lease_age(seen) if doc.time else 0.0,
        heartbeat_age=lease_age(seen),
        ttl=doc.ttl,
        spool=redact(doc.spool) if may_have_spooled(seen) else "",
        key=doc.key,
        reason=redact(doc.reason),
        way=classify_stop(doc.reason, cls) if doc.state in ("closed", "released") else "",
        until=paused_until(seen),
        left=pause_left(seen),
        phase=phase,
        phase_age=phase_age(seen, answer) if kind == "running" else 0.0,
        late=overdue_waits(seen, answer) if kind == "running" else (),
        tool=redact(doc.tool or state.last_tool) if phase in _OF_A_TOOL else "",
        record=found.seq,
        last_record=found.time,
        waiting=_unsaved(answer) if answer else None,
        mute=mute,
        messages=int(answer.get("messages", 0)) if answer else None,
        files=files_view(state, answer),
        session=state.session,
        session_bytes=sum(f.size for f in state.files.values()),
        calls=state.calls,
        recoveries=state.recoveries,
        crashes=crash_history(state),
        unsettled=tuple(unsettled_calls(state)),
        unproven=len(state.unproven),
        steps=tuple(open_steps(state, doc.epoch if kind == "running" else 0)),
        rewritten=newest_rewrite(state),
        unlogged=tuple(msgspec.structs.replace(_call(c.intent), state=call_state(how=c.how)) for c in state.unlogged),
        damage=redact(str(damaged_log_error(found.damage))) if found.damage else "",
    )


def newest_rewrite(state: State) -> LastRewrite | None:
    if not state.rewrites:
        return None
    r = state.rewrites[-1].record
    return LastRewrite(r.n, r.kind, r.turns, r.tokens, r.left, r.time)


def files_view(state: State, answer: Mapping[str, Any] | None) -> Files | None:
    if not state.session:
        return None
    problem = answer.get("tree", "") if answer else ""
    off = problem is None
    said = printable(redact(str(problem))) if problem else ""
    behind = tuple(ended.intent.call for ended in state.unheld)
    if (saved := state.workspace) is None:
        return Files(behind=behind, behind_more=state.unheld_more, problem=said, off=off)
    pending = [each.pending for each in (saved, *state.inside.values()) if each.pending is not None]
    return Files(
        saved=saved.time,
        files=saved.files,
        bytes=saved.size,
        holds=saved.holds,
        behind=behind,
        behind_more=state.unheld_more,
        to_go=sum(each.files for each in pending),
        to_go_bytes=sum(each.size for each in pending),
        to_go_names=tuple(redact(name) for each in pending for name in each.names)[:MAX_TO_GO],
        left_out=tuple(redact(line) for line in saved.left_out),
        left_out_more=saved.left_out_more,
        problem=said,
        off=off,
    )


def phase_age(seen: StoredLease, answer: Mapping[str, Any] | None) -> float:
    """By the owner's clock up to its last heartbeat, by the store's since: no clock of this machine's has a part."""
    told = answer.get("phase_age") if answer else None
    if isinstance(told, int | float):
        return max(0.0, float(told))
    doc = seen.doc
    return max(0.0, doc.time - doc.since) + max(0.0, lease_age(seen)) if doc.since else 0.0


def overdue_waits(seen: StoredLease, answer: Mapping[str, Any] | None) -> tuple[Late, ...]:
    """What the run's own watchdog says; of one that cannot be asked, what its phase says by the usual bounds."""
    if answer is not None:
        try:
            told = _late(answer.get("late", ()))
        except msgspec.ValidationError:
            return ()
        return tuple(msgspec.structs.replace(one, tool=printable(redact(one.tool))) for one in told)
    if seen.doc.phase not in ("awaiting_model", "compacting", "awaiting_approval"):
        return ()
    from wal_agent.supervise.watchdog import WatchdogLimits

    usual, lasts = WatchdogLimits(), phase_age(seen, answer)
    if seen.doc.phase in ("awaiting_model", "compacting") and lasts >= usual.idle:
        return (Late("model", lasts),)
    if seen.doc.phase == "awaiting_approval" and lasts >= usual.approval:
        return (Late("approval", lasts),)
    return ()


def _unsaved(answer: Mapping[str, Any]) -> Unsaved:
    lost = printable(str(answer.get("lost") or ""))[:200]
    return Unsaved(int(answer["bytes"]), float(answer["age"]), int(answer.get("spooled", 0)), lost)


def unsettled_calls(state: State) -> list[Call]:
    found = {v.call: v.finding for v in state.recovery.verdicts} if state.recovery else {}
    answers = {a.call: a for a in state.answers}
    calls = []
    for o in state.open:
        call, answer = _call(o.intent, found.get(o.intent.call, "")), answers.get(o.intent.call)
        if o.held is not None:
            held: Held = "serves" if o.serves else "cut" if isinstance(o.held, Cut) else "runs_on"
            call = msgspec.structs.replace(call, held=held, state=o.state)
        if answer is not None:
            words = printable(redact(answer.because))
            call = msgspec.structs.replace(call, answered=True, looked=answer.looked, because=words)
        calls.append(call)
    return calls


def open_steps(state: State, live: int) -> list[Step]:
    """The steps without an end. `live`: the epoch of the run that lives, 0 for none."""
    return [
        Step(
            redact(name),
            show_words(at.begun.command, PREVIEW),
            at.begun.time,
            at.begun.attempt,
            at.epoch == live,
        )
        for name, at in state.undecided_steps.items()
        if at.begun is not None
    ]


def _call(c: Intent, finding: str = "") -> Call:
    return Call(c.call, redact(c.tool), preview(c.input), c.cls, c.time, finding)


def crash_history(state: State) -> tuple[Crash, ...]:
    """Each opening that took over from a dead owner, with that owner, and each agent that died."""
    found: list[Crash] = []
    before: Opening | None = None
    for at in state.openings:
        if at.opening.cause == "dead" and before is not None:
            old, new = before.host, at.opening.host
            same = bool(old.boot) and (old.name, old.boot) == (new.name, new.boot)
            found.append(Crash(redact(old.name), before.epoch, before.time, at.opening.time, same_host=same))
        before = at.opening
    for ended in state.ends:
        under = next((o.opening for o in reversed(state.openings) if o.opening.time <= ended.time), None)
        if ended.cls in CRASH_CLASSES and under is not None:
            found.append(Crash(redact(under.host.name), under.epoch, under.time, ended.time, ended.cls))
    return tuple(sorted(found, key=lambda crash: crash.taken_over))


def preview(payload: Payload, limit: int = PREVIEW) -> str:
    """A tool's input for people: the command or the path where it has one, else its JSON; redacted, one line."""
    if payload.data is None:
        return f"({payload.size} bytes)"
    text = payload.data.decode("utf-8", "replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        for name in ("command", "file_path", "filePath", "path", "patchText", "pattern", "query", "url"):
            if isinstance(fields.get(name), str):
                text = fields[name]
                break
    line = " ".join(redact(text).split())
    line = printable(line)
    return line if len(line) <= limit else line[: limit - 1] + "…"
