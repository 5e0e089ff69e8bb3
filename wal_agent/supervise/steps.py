"""Keep values and results of steps for the scripts and agents below a run (docs/STEPS.md). Guards I1 and I2 for them.

Each is a record of the log, so the fence holds for it: a run that has lost the job can keep nothing. Under `state =
nats` values are on a server, with a fence of their own (messages/values.py). A step's begin is durable before its
command may run. `next_move` decides, over the log alone; `StepKeeper` answers the questions that come over the run's
socket, one at a time, so that each decision sees all that was written before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.calls.quote import show_words
from wal_agent.config import APPEND_DEADLINE
from wal_agent.errors import (
    BucketError,
    Conflict,
    Exhausted,
    LeaseHeld,
    PersonNeeded,
    Unavailable,
    UsageError,
    WalAgentError,
)
from wal_agent.records import AnyRecord, Payload, StateGone, StatePut, StepBegun, StepEnded, StepEnding, StepPaused
from wal_agent.safefs import flock_state
from wal_agent.supervise.context import RunContext
from wal_agent.text import quote_word, shorten, size, timestamp
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.state import MAX_STEPS, STEP_NAME, State, StepAt, apply_all
from wal_agent.wal.writer import Sealed, Ticket
from wal_agent.wording.messages import DENY_LATE

if TYPE_CHECKING:
    from wal_agent.messages.values import Known, ValueAt

MAX_VALUE: Final = 1 << 20  # bytes of one value, and of what is kept of one output
MAX_KEPT: Final = 256 << 20  # bytes of all values and results of a job
MAX_COMMAND: Final = 4 << 10  # bytes of a command and its verification
MAX_RETRIES: Final = 100
MAX_TTL: Final = 3650 * 86_400.0  # seconds
PIECE: Final = 512 << 10  # bytes of one answer; in base64 and JSON they fit a frame of the socket
TRIES: Final = 5  # of a write to a server, while other clients write there too
_INLINE: Final = 2 << 10  # bytes in a record; more is a blob, so that a snapshot holds all steps there may be

NOT_HERE = (
    "Only a tool or script of a run can do that.",
    "Type it there, for example: wal-agent run generic --job NAME -- sh SCRIPT. To look at a job from outside: "
    "wal-agent state list --job NAME",
)
_WRITES = ("put", "delete", "begin", "end")


def check_name(name: str) -> str:
    """Return `name`, if a step can have it. UsageError."""
    if STEP_NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{shorten(repr(name), 60)} cannot name a step.",
        "Use 1 to 100 of A-Z a-z 0-9 _ . : / @ + - and begin with a letter or _.",
    )


# ---- what is known of a step


class StepRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a step went. `state`: `open` without an end; sizes are in bytes, of all that the command wrote."""

    state: Literal["open", "done", "failed", "paused"]
    command: tuple[str, ...]
    began: float
    attempt: int
    ended: float = 0.0
    by: str = ""
    code: int = 0
    stdout: int = 0
    stdout_kept: int = 0
    stderr: int = 0
    stderr_kept: int = 0


class StepPause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that was asked for inside a step."""

    time: float
    until: float
    reason: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a job keeps under one name. `version` 0: no value. `attempt`: 1, and one more for each time that the job was
    opened since the step was first seen. Times are seconds since 1970; `expires` 0: never."""

    step: str
    attempt: int
    version: int = 0
    size: int = 0
    time: float = 0.0
    expires: float = 0.0
    put_in_attempt: int = 0
    paused: StepPause | None = None
    run: StepRun | None = None


class PutState(JsonAnswer, frozen=True, tag=schema_name("state-put")):
    """`wal-agent state put`: the value is kept as this version."""

    step: str
    version: int


class GetState(Entry, JsonAnswer, frozen=True, kw_only=True, tag=schema_name("state-get")):
    """`wal-agent state get`. `value`: None where there is none, or where it is no text: it is then in `base64`."""

    value: str | None = None
    base64: str | None = None


class ListStates(JsonAnswer, frozen=True, tag=schema_name("state-list")):
    """`wal-agent state list`, without the values."""

    entries: tuple[Entry, ...]


class DeleteState(JsonAnswer, frozen=True, tag=schema_name("state-delete")):
    """`wal-agent state delete`. `deleted`: there was a value."""

    step: str
    deleted: bool


def entry_of(state: State, name: str, now: float) -> Entry | None:
    """What `state` has under `name` at the time `now`; None for nothing. Pure."""
    step = state.steps.get(name)
    if step is None:
        return None
    value = step.value if step.value is not None and not _is_expired(step, now) else None
    if value is None and step.begun is None and step.paused is None:
        return None
    paused = step.paused
    return Entry(
        step=name,
        attempt=attempt_of(state, step),
        version=value.version if value else 0,
        size=value.value.size if value else 0,
        time=value.time if value else 0.0,
        expires=value.expires if value else 0.0,
        put_in_attempt=value.attempt if value else 0,
        paused=StepPause(time=paused.time, until=paused.until, reason=paused.reason) if paused else None,
        run=_run_of(step),
    )


def _run_of(step: StepAt) -> StepRun | None:
    begun, ended = step.begun, step.ended
    if begun is None:
        return None
    run = StepRun(state="open", command=begun.command, began=begun.time, attempt=begun.attempt)
    if ended is None:
        return run
    state: Literal["done", "failed", "paused"] = "done"
    if ended.how in ("failed", "paused"):
        state = "failed" if ended.how == "failed" else "paused"
    return msgspec.structs.replace(
        run,
        state=state,
        ended=ended.time,
        by=ended.by,
        code=ended.code,
        stdout=ended.stdout_size,
        stdout_kept=ended.stdout.size if ended.stdout else 0,
        stderr=ended.stderr_size,
        stderr_kept=ended.stderr.size if ended.stderr else 0,
    )


def attempt_of(state: State, step: StepAt | None) -> int:
    """1, and one more for each opening behind the one in which the step was first seen. Pure."""
    return 1 + max(0, state.opened - step.first) if step is not None else 1


def _is_expired(step: StepAt, now: float) -> bool:
    return step.value is not None and 0 < step.value.expires <= now


What = Literal["value", "stdout", "stderr"]


def payload_of(state: State, name: str, what: What, now: float) -> Payload | None:
    """The bytes that are kept under `name`; None where there are none. Pure."""
    step = state.steps.get(name)
    if step is None:
        return None
    if what == "value":
        return step.value.value if step.value is not None and not _is_expired(step, now) else None
    ended = step.ended
    return (ended.stdout if what == "stdout" else ended.stderr) if ended is not None else None


def with_values(state: State, values: Mapping[str, ValueAt]) -> State:
    """`state` with the values that a server has, each in front of what the log has under its name. Their payloads are
    without bytes. Pure."""
    steps = dict(state.steps)
    for name, value in values.items():
        if STEP_NAME.fullmatch(name):
            meta, step = value.meta, steps.get(name) or StepAt(first=value.meta.first)
            put = StatePut(
                time=meta.time,
                step=name,
                version=value.version,
                value=Payload(size=value.size),
                expires=meta.expires,
                attempt=meta.attempt,
            )
            paused = step.paused if step.paused is not None and step.paused.time > meta.time else None
            first = min(step.first, meta.first)
            steps[name] = msgspec.structs.replace(step, first=first, value=put, paused=paused)
    return msgspec.structs.replace(state, steps=steps)


# ---- what comes next


Move = Literal["run", "print", "verify"]
Found = Literal["", "done", "not_done"]


def next_move(
    name: str, step: StepAt | None, command: tuple[str, ...], verify: str, retries: int, found: Found
) -> Move:
    """What `wal-agent step` does now: run the command, print what is kept, or have `verify` look first (`found`: what
    it found). UsageError: the name has another command; PersonNeeded: it may have run, and nothing can look. Pure."""
    if step is None or step.begun is None:
        return "run"
    if step.begun.command != command:
        raise UsageError(
            f"Step {name} has another command, `{show_words(step.begun.command)}`.",
            "Give this one another name.",
        )
    if step.ended is not None:
        again = step.ended.how == "paused" or (step.ended.how == "failed" and step.failures <= retries)
        return "run" if again else "print"
    if found:
        return "run" if found == "not_done" else "print"
    if verify:  # never one from the log: what a bucket says is not run
        return "verify"
    raise undecided_error(name, step.begun)


def undecided_error(
    name: str, begun: StepBegun, why: str = "nothing here can tell whether it had its effect"
) -> PersonNeeded:
    """Step `name` was cut off and `why` it is not known how. The hint names the ways out."""
    look = f"--verify {quote_word(begun.verify)}" if begun.verify else "--verify CMD (0 = done, 1 = not done)"
    return PersonNeeded(
        f"Step {name} was begun at {timestamp(begun.time)} and cut off: {why}. It was not run again.",
        f"Type it again with {look}. Or check it, then a person says: wal-agent ack {name} --done (or --not-done).",
    )


def ending_of(step: StepAt, code: int, going_down: bool) -> StepEnding | None:
    """How the try ended, by the command's exit code (-N: killed by signal N); None: it was cut off, and nobody knows.
    `going_down`: the run ends what it runs. Pure."""
    if code == 0:
        return "done"
    if step.begun is not None and step.paused is not None and step.paused.time >= step.begun.time:
        return "paused"
    return None if code < 0 or going_down else "failed"


def settled_step(state: State, name: str, done: bool, now: float) -> StepEnded:
    """The record of a person's word on a step that was cut off. UsageError: it was not."""
    step = state.steps.get(name)
    if step is None or not step.undecided:
        known = ", ".join(list(state.undecided_steps)[:5]) or "none"
        raise UsageError(f"Step {shorten(name, 100)} is not one that was cut off.", f"Those: {known}.")
    return StepEnded(time=now, name=name, how="done" if done else "not_done", by="person")


# ---- over the socket


Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question over the run's socket. `data`, `stdout`, `stderr`: base64."""

    do: Literal["put", "delete", "get", "list", "read", "begin", "end"]
    step: str = ""
    data: str = ""
    ttl: float = 0.0
    if_version: int | None = None
    what: What = "value"
    offset: Size = 0
    command: tuple[str, ...] = ()
    verify: str = ""
    retries: Size = 0
    found: Found = ""
    code: Annotated[int, msgspec.Meta(ge=-255, le=255)] = 0
    started: bool = True
    stdout: str = ""
    stdout_size: Size = 0
    stderr: str = ""
    stderr_size: Size = 0


_asked = msgspec_compat.of_values(Asked)


def lock_of(socket: Path, name: str) -> Path:
    """The file that whoever runs the step `name` holds a flock on, and all that it started."""
    return socket.with_name(f"step-{hashlib.sha256(name.encode()).hexdigest()[:16]}")


class StepKeeper:
    """Answers for one run. Called from hook threads."""

    def __init__(
        self,
        context: RunContext,
        socket: Path,
        may_allow: Callable[[], bool] = lambda: True,
        refusal: Callable[[], str] = lambda: "",
    ) -> None:
        """`may_allow`: R7, the last check before a command may run; `refusal`: why none may begin, "" where it may."""
        self._job, self._clock = context.job.keys.job, context.clock
        self._writer, self._blobs = context.job.writer, context.job.blobs
        self._socket, self._may_allow, self._refusal = socket, may_allow, refusal
        self._values, self._server_lock = context.values, threading.Lock()  # not held while a step begins or ends
        self._lock = threading.Lock()
        self._mine: list[tuple[Ticket, tuple[AnyRecord, ...]]] = []  # ours that the bucket may not have yet
        self._version = 0
        self._read: tuple[Payload | ValueAt, bytes] | None = None  # the newest one that was read in pieces

    def answer(self, question: Mapping[str, Any], by_agent: bool) -> dict[str, Any]:
        """The answer to `wal-agent state` and `wal-agent step`. ValueError: it is no question of theirs."""
        asked = _asked(dict(question))
        try:
            if asked.do in _WRITES and not by_agent:
                raise UsageError(*NOT_HERE)
            if asked.step or asked.do != "list":
                check_name(asked.step)
            return self._answer(asked)
        except Sealed:
            error: WalAgentError = LeaseHeld("This run has ended, so nothing more is kept.", "Type it in the next run.")
        except WalAgentError as raised:
            error = raised
        return {"error": error.what, "hint": error.hint, "code": error.exit_code}

    def _answer(self, asked: Asked) -> dict[str, Any]:
        match asked.do:
            case "put":
                return self._put(asked)
            case "delete":
                return self._delete(asked)
            case "begin":
                return self._begin(asked)
            case "end":
                return self._end(asked)
            case "read":
                return self._read_piece(asked)
        state, now = with_values(self._writer.state, self._on_server(asked.what)), self._clock.now()
        names = [asked.step] if asked.do == "get" else list(state.steps)
        found = [entry for name in names if (entry := entry_of(state, name, now))]
        return {"job": self._job, "entries": [msgspec.to_builtins(entry) for entry in found]}

    # ---- values

    def _put(self, asked: Asked) -> dict[str, Any]:
        data = _decode(asked.data)
        if len(data) > MAX_VALUE:
            raise UsageError(
                f"The value of step {asked.step} has {len(data)} bytes.",
                f"At most {MAX_VALUE} are kept: keep it in a file, and its name here.",
            )
        if not 0 <= asked.ttl <= MAX_TTL:
            raise UsageError(f"--ttl {asked.ttl:.0f} s is not possible.", "Allowed: up to 3650d.")
        if self._values is not None:
            return self._again(lambda known: self._put_on_server(asked, data, known))
        payload = self._store(data)
        with self._lock:
            state, now = self._settled_state(), self._clock.now()
            step = state.steps.get(asked.step)
            self._check_version(step, asked, now)
            gone = self._check_room(state, asked.step, len(data), now)
            self._version = version = max(self._version, state.state_version) + 1
            put = StatePut(
                time=now,
                step=asked.step,
                version=version,
                value=payload,
                expires=now + asked.ttl if asked.ttl else 0.0,
                attempt=attempt_of(state, step),
            )
            self._append(*gone, put)
            return {"job": self._job, "version": version, "attempt": put.attempt}

    def _delete(self, asked: Asked) -> dict[str, Any]:
        if self._values is not None:
            return self._again(lambda known: self._delete_on_server(asked, known))
        with self._lock:
            state, now = self._settled_state(), self._clock.now()
            step = state.steps.get(asked.step)
            self._check_version(step, asked, now)
            had = step is not None and (step.value is not None or step.paused is not None)
            if had:
                self._append(StateGone(time=now, step=asked.step))
            return {"job": self._job, "deleted": had}

    def _check_version(self, step: StepAt | None, asked: Asked, now: float) -> None:
        if asked.if_version is None:
            return
        there = step.value.version if step is not None and step.value is not None and not _is_expired(step, now) else 0
        if there != asked.if_version:
            error = UsageError(
                f"Step {asked.step} has version {there}, not {asked.if_version}; nothing was changed.",
                f"Read it again: wal-agent state get {asked.step} --json",
            )
            error.exit_code = 1
            raise error

    def _check_room(self, state: State, name: str, size_: int, now: float) -> list[StateGone]:
        """What has expired and goes now. Exhausted: there is no room for `size_` bytes more under `name`."""
        gone = [other for other, step in state.steps.items() if other != name and _is_expired(step, now)]
        free = sum(state.steps[other].begun is None for other in gone)
        if name not in state.steps and len(state.steps) - free >= MAX_STEPS:
            raise _full(f"Job {self._job} keeps {MAX_STEPS} steps already, and no more than that.")
        kept = 0
        for other, step in state.steps.items():
            expired = other in gone or other == name  # what a new value replaces makes room
            kept += step.kept - (step.value.value.size if expired and step.value is not None else 0)
        if kept + size_ > MAX_KEPT:
            raise _full(f"Job {self._job} keeps {size(kept)} of values and results; {size(MAX_KEPT)} are allowed.")
        return [StateGone(time=now, step=other) for other in gone]

    def _read_piece(self, asked: Asked) -> dict[str, Any]:
        values = self._on_server(asked.what)
        state = with_values(self._writer.state, values)
        payload = payload_of(state, asked.step, asked.what, self._clock.now())
        if payload is None:
            raise Unavailable(f"Step {asked.step} has changed meanwhile.", "Read it again.")
        at, known = values.get(asked.step), self._read
        if known is None or known[0] != (at or payload):
            fetched = self._values.read(at) if at and self._values else self._blobs.fetch(payload)
            known = self._read = (at or payload, fetched)
        value = state.steps[asked.step].value
        version = value.version if value is not None and asked.what == "value" else 0
        piece = known[1][max(0, asked.offset) :][:PIECE]
        return {"version": version, "size": len(known[1]), "data": base64.b64encode(piece).decode()}

    # ---- values on a server, which wait for no append

    def _on_server(self, what: What) -> Mapping[str, ValueAt]:
        """What the server has; nothing where values are in the log, or a step's output is meant, which always is."""
        return self._values.known().values if self._values is not None and what == "value" else {}

    def _again(self, act: Callable[[Known], dict[str, Any]]) -> dict[str, Any]:
        """Act on what the server has; once more where another client wrote meanwhile. Fenced: a later run did."""
        assert self._values is not None
        with self._server_lock:
            for _ in range(TRIES):
                known = self._values.known()
                if not self._may_allow():
                    raise Unavailable(DENY_LATE)
                with suppress(Conflict):
                    return act(known)
        raise Unavailable("Other clients of the NATS server change these values all the time.", "Try again.")

    def _put_on_server(self, asked: Asked, data: bytes, known: Known) -> dict[str, Any]:
        assert self._values is not None
        state, now = with_values(self._writer.state, known.values), self._clock.now()
        step = state.steps.get(asked.step)
        self._check_version(step, asked, now)
        gone = [record.step for record in self._check_room(state, asked.step, len(data), now)]
        if old := [name for name in gone if name in known.values]:
            self._values.delete(old, known)
            known = self._values.known()
        attempt = attempt_of(state, step)
        version = self._values.put(
            asked.step,
            data,
            known,
            time=now,
            expires=now + asked.ttl if asked.ttl else 0.0,
            attempt=attempt,
            first=step.first if step else state.opened,
        )
        logged = [StateGone(time=now, step=name) for name in (*gone, asked.step) if self._logs(name)]
        if logged:
            with self._lock, suppress(Sealed):  # what the log has is older, and behind the server's
                self._queue(*logged)
        return {"job": self._job, "version": version, "attempt": attempt}

    def _delete_on_server(self, asked: Asked, known: Known) -> dict[str, Any]:
        assert self._values is not None
        state, now = with_values(self._writer.state, known.values), self._clock.now()
        self._check_version(state.steps.get(asked.step), asked, now)
        kept, logged = asked.step in known.values, self._logs(asked.step)
        if logged:  # first: an older value must not come back
            with self._lock:
                self._append(StateGone(time=now, step=asked.step))
        self._values.delete([asked.step] if kept else [], known)
        return {"job": self._job, "deleted": kept or logged}

    def _logs(self, name: str) -> bool:
        """Whether the log has a value or a pause under `name`."""
        step = self._writer.state.steps.get(name)
        return step is not None and (step.value is not None or step.paused is not None)

    # ---- steps

    def _begin(self, asked: Asked) -> dict[str, Any]:
        if not asked.command or not all(asked.command[:1]):
            raise UsageError("There is no command.", f"Put it behind `--`: wal-agent step {asked.step} -- COMMAND")
        if sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in (*asked.command, asked.verify)) > MAX_COMMAND:
            raise UsageError(
                f"The command of step {asked.step} has more than {MAX_COMMAND} bytes.", "Put it into a script."
            )
        with self._lock:
            state, now = self._settled_state(), self._clock.now()
            step, name = state.steps.get(asked.step), asked.step
            move = next_move(name, step, asked.command, asked.verify, min(asked.retries, MAX_RETRIES), asked.found)
            if move == "verify":
                assert step is not None and step.begun is not None
                return {"move": "verify", "began": step.begun.time}
            if move == "print":
                if step is not None and step.undecided:
                    self._append(StepEnded(time=now, name=name, how="done", by="verify"))
                    step = self._settled_state().steps.get(name)
                run = _run_of(step) if step is not None else None
                return {"move": "print", "run": msgspec.to_builtins(run)}
            if refusal := self._refusal():
                raise LeaseHeld(refusal)
            gone = self._check_room(state, name, 0, now)
            attempt = attempt_of(state, step)
            before = [StepEnded(time=now, name=name, how="not_done", by="verify")] if step and step.undecided else []
            begun = StepBegun(time=now, name=name, command=asked.command, verify=asked.verify, attempt=attempt)
            try:
                self._append(*gone, *before, begun)
            except Unavailable:
                self._withdraw(name)
                raise
            if (refusal := self._refusal()) or not self._may_allow():
                self._withdraw(name)
                raise LeaseHeld(refusal) if refusal else Unavailable(DENY_LATE)
            return {"move": "run", "attempt": attempt}

    def _withdraw(self, name: str) -> None:
        """End a try whose command does not run."""
        ended = StepEnded(time=self._clock.now(), name=name, how="not_started", by="supervisor")
        self._queue(ended)

    def _end(self, asked: Asked) -> dict[str, Any]:
        outputs = [_decode(asked.stdout)[:MAX_VALUE], _decode(asked.stderr)[:MAX_VALUE]]
        kept: list[Payload | None] = [None, None]
        if asked.started:
            with suppress(BucketError):  # that it ran is worth more than what it wrote
                kept = [self._store(data) if data else None for data in outputs]
        with self._lock:
            state, now = self._settled_state(), self._clock.now()
            step = state.steps.get(asked.step)
            if step is None or not step.undecided:
                raise UsageError(f"Step {asked.step} has ended already.")
            how = ending_of(step, asked.code, bool(self._refusal())) if asked.started else "not_started"
            if how is None:
                assert step.begun is not None
                raise undecided_error(asked.step, step.begun, "its command was ended before it was through")
            try:
                self._check_room(state, asked.step, sum(payload.size for payload in kept if payload), now)
            except Exhausted:
                kept = [None, None]
            ended = StepEnded(
                time=now,
                name=asked.step,
                how=how,
                code=asked.code if asked.code >= 0 else 128 - asked.code,
                stdout=kept[0],
                stdout_size=max(asked.stdout_size, len(outputs[0])),
                stderr=kept[1],
                stderr_size=max(asked.stderr_size, len(outputs[1])),
            )
            self._append(ended)
            failures = step.failures + (how == "failed")
            return {"how": how, "failures": failures}

    def mark_paused(self, name: str, until: float, reason: str) -> None:
        """Note that a pause was asked for inside the step `name`. What is no step's name is passed over."""
        with suppress(WalAgentError):
            paused = StepPaused(time=self._clock.now(), name=check_name(name), until=until, reason=reason)
            with self._lock:
                self._queue(paused)

    def acknowledge(self, name: str, done: bool) -> None:
        """Record a person's word on a step that was cut off. UsageError; what an append raises; Unavailable."""
        with self._lock:
            if flock_state(lock_of(self._socket, name)) == "held":
                raise UsageError(f"Step {shorten(name, 100)} is running now.", "Its end will show how it went.")
            self._append(settled_step(self._settled_state(), name, done, self._clock.now()))

    def running(self) -> bool:
        """Whether a command of a step runs now."""
        names = self._writer.state.undecided_steps
        return any(flock_state(lock_of(self._socket, name)) == "held" for name in names)

    def oldest_running(self) -> float:
        """When the oldest step that runs was begun (since 1970); 0.0 for none."""
        steps = self._writer.state.undecided_steps
        began = [
            step.begun.time
            for name, step in steps.items()
            if step.begun is not None and flock_state(lock_of(self._socket, name)) == "held"
        ]
        return min(began, default=0.0)

    # ---- the log

    def _settled_state(self) -> State:
        """The log's state with every record of ours in it, also with those that only this machine's disk has (R9).
        Unavailable: one is still undecided."""
        if self._mine and self._mine[-1][0].wait(APPEND_DEADLINE) == "undecided":
            raise _away()
        self._mine = [(ticket, records) for ticket, records in self._mine if ticket.status == "spooled"]
        state = self._writer.state
        for _, records in self._mine:
            state = apply_all(state, 0, self._writer.epoch, records)
        return state

    def _queue(self, *records: AnyRecord) -> Ticket:
        ticket = self._writer.append(*records)
        self._mine.append((ticket, records))
        return ticket

    def _append(self, *records: AnyRecord) -> None:
        """Returns once the bucket has them; in a run that spools (R9), once this machine's disk has. Unavailable."""
        if self._queue(*records).wait(APPEND_DEADLINE) == "undecided":
            raise _away()

    def _store(self, data: bytes) -> Payload:
        if len(data) <= _INLINE:
            return Payload(size=len(data), data=data)
        return Payload(size=len(data), blob=self._blobs.put(data))


def _away() -> Unavailable:
    return Unavailable("The bucket cannot be reached now, so it is not known whether this was saved.", "Try again.")


def _full(what: str) -> Exhausted:
    return Exhausted(what, "See what is there: wal-agent state list. To make room: wal-agent state delete STEP")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError("That is no base64.") from error


def read_kept(state: State, blobs: Blobs, name: str, what: What, now: float) -> bytes | None:
    """The bytes that the log keeps under `name`; None where there are none. Damaged, BucketError."""
    payload = payload_of(state, name, what, now)
    return None if payload is None else blobs.fetch(payload)
