"""Watch a bucket's jobs and run a command for each that needs a host, once per event, within limits.

What a watcher has acted on is an object beside the job's lease, replaced by compare-and-swap, so that nobody acts
twice. An act is written down before its command runs. A watcher that dies in between leaves it `began`: nobody knows
whether it ran, so it is not run again (at most once) and is reported instead. A command that is known to have failed
is tried again a few times. What is remembered of a job goes when it runs again, here or under another epoch: the next
loss is another matter. Pure but for `ResultStore`.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from wal_agent import msgspec_compat
from wal_agent.agents import AGENTS
from wal_agent.bucket.base import Bucket, Version
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.decorators import RetryBudget
from wal_agent.clock import Clock
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import Conflict, Damaged, Fenced, LeaseHeld, Newer, NotFound, Unavailable
from wal_agent.fleet.inboxes import Inboxes, WaitingJob
from wal_agent.fleet.jobs import Job, JobState, Reader, count_states
from wal_agent.paths import state_dir
from wal_agent.records import FORMAT
from wal_agent.recovery.lease_policy import owner_is_dead
from wal_agent.supervise.lease_keeper import LeaseKeeper, LeaseTiming
from wal_agent.supervise.lease_keeper import LeaseWatch as Unchanged
from wal_agent.supervise.machine import RunDir, probe_holder, runtime_dir, sweep_run_dirs, this_host
from wal_agent.text import shorten
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Lease, LeaseRequest, StoredLease, find_format, fresh_nonce
from wal_agent.wal.store import JobStore

KEY: Final = "fleet-acted.json"  # each object of a job lies in a folder, so no job can have this one
WOKEN: Final = "fleet-woken.json"  # the same for jobs that messages have woken
MAX_ACTS = 10_000  # acts that are remembered; no more jobs are acted on
MAX_WOKEN = 5_000  # jobs that messages have woken, each remembered with its messages
MAX_BYTES = 8 << 20
FIRST_PAUSE = 30.0  # seconds until a command that failed is tried again; doubled each time
MAX_PAUSE = 3600.0
TIMED_OUT = 124  # as timeout(1) says it
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
STEP = 0.1
LONGEST = 1000  # characters of a value
ACTED_ON: tuple[JobState, ...] = ("crashed", "released", "due")
LISTEN = 0.5  # seconds between two looks at who is silent, and
SUSPECT_LOOK = 1.0  # at the leases while somebody is
MAX_SPREAD = 5.0  # seconds over which the commands of one round are begun

Outcome = Literal["began", "done", "failed", "unknown", "undone"]
"""`undone`: never begun, or ended by our own end; it counts for nothing, and is not remembered."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A command run, or to be run, for a job in one state, as one write of its lease left it (`mark`)."""

    job: str
    epoch: int
    state: JobState | Literal["messages"]
    mark: str = ""
    tries: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    outcome: Outcome = "began"
    at: float = 0.0  # of the newest change (since 1970, by the watcher's clock)

    @property
    def why(self) -> tuple[str, int, str, str]:
        return self.job, self.epoch, self.state, self.mark


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal[1] = 1
    nonce: str = ""
    acts: tuple[Act, ...] = ()


_MEMORY = msgspec_compat.of_json(Memory)


# --- pure


def prune_memory(memory: Memory, jobs: Iterable[Job]) -> Memory:
    """Without what jobs have left behind: another epoch, it runs after all, or it is gone."""
    unread = ("damaged", "newer")
    epochs = {job.job: None if job.state in unread else job.epoch for job in jobs if job.state != "running"}
    return with_acts(memory, (a for a in memory.acts if a.job in epochs and epochs[a.job] in (None, a.epoch)))


def choose_jobs(
    memory: Memory, jobs: Iterable[Job], on: Collection[str], now: float, *, most: int, tries: int
) -> list[tuple[Act, Job]]:
    """What to act on now, the longest waiting first, `most` at once: what is new, and what failed and is to be tried
    again."""
    known = {act.why: act for act in memory.acts}
    room = MAX_ACTS - len(known)
    found: list[tuple[Act, Job]] = []
    for job in sorted((j for j in jobs if j.needs_host and j.state in on), key=lambda j: (-j.waits, j.job)):
        if len(found) >= most:
            break
        act = Act(job=job.job, epoch=job.epoch, state=job.state, mark=job.mark, at=now)
        before = known.get(act.why)
        if before is None and room > 0:
            room -= 1
            found.append((act, job))
        elif before is not None and is_due_again(before, now, tries):
            found.append((msgspec.structs.replace(act, tries=before.tries + 1), job))
    return found


def prune_woken(memory: Memory, jobs: Iterable[Job]) -> Memory:
    """One act for each job that is there: the newest. Its mark names the messages that it was for."""
    there = {job.job for job in jobs}
    newest = {act.job: act for act in sorted(memory.acts, key=lambda act: act.at) if act.job in there}
    return with_acts(memory, newest.values())


def choose_woken(
    memory: Memory, waiting: Iterable[WaitingJob], now: float, *, most: int, tries: int
) -> list[tuple[Act, Job]]:
    """The jobs to wake now: for a message that no act was for, or again where the command failed."""
    known = {act.job: act for act in memory.acts}
    found: list[tuple[Act, Job]] = []
    for each in waiting:
        before = known.get(each.job.job)
        act = Act(job=each.job.job, epoch=each.job.epoch, state="messages", mark=" ".join(each.messages), at=now)
        if before is None or not set(each.messages) <= set(before.mark.split()):
            if before is None and len(known) >= MAX_WOKEN:
                continue
            known[act.job] = act
            found.append((act, each.job))
        elif is_due_again(before, now, tries):
            found.append((replace(before, tries=before.tries + 1, outcome="began", at=now), each.job))
        if len(found) >= most:
            break
    return found


def is_due_again(act: Act, now: float, tries: int) -> bool:
    return act.outcome == "failed" and act.tries < tries and now >= act.at + pause_after(act.tries)


def pause_after(tries: int) -> float:
    return float(min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(tries - 1, 16)))


def record_acts(memory: Memory, acts: Iterable[Act]) -> Memory:
    """With these acts, each in the place of what was known of it; an `undone` one is taken back."""
    known = {act.why: act for act in memory.acts}
    for act in acts:
        if act.outcome != "undone":
            known[act.why] = act
        elif act.tries > 1:
            known[act.why] = msgspec.structs.replace(act, tries=act.tries - 1, outcome="failed")
        else:
            known.pop(act.why, None)
    return with_acts(memory, known.values())


def orphaned_acts(memory: Memory) -> list[Act]:
    """Begun by a watcher that is gone, which may or may not have run them."""
    return [act for act in memory.acts if act.outcome == "began"]


def with_acts(memory: Memory, acts: Iterable[Act]) -> Memory:
    return msgspec.structs.replace(memory, acts=tuple(acts))


def finish_act(act: Act, code: int | None, now: float) -> Act:
    """`code` None: it was not begun, or we ended it."""
    outcome: Outcome = "undone" if code is None else "failed" if code else "done"
    return msgspec.structs.replace(act, outcome=outcome, at=now)


def decode_memory(data: bytes, key: str = KEY) -> Memory:
    """Damaged; Newer."""
    try:
        if len(data) > MAX_BYTES:
            raise Damaged(f"{len(data)} bytes")
        if (found := find_format(data)) > FORMAT:
            raise Newer.of(f"{key} in the bucket", f"format {found}")
        return _MEMORY.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Damaged) as error:
        raise Damaged(
            f"{key} in the bucket is damaged, so it is not known which jobs were acted on.",
            "Delete it: then each job that needs a host now is acted on anew.",
        ) from error


# --- the object


class ResultStore:
    """The memory in the bucket, for one watcher. `now` is what it knows, whether that was saved or not."""

    def __init__(self, bucket: Bucket, clock: Clock, rng: random.Random, key: str = KEY) -> None:
        self._bucket, self._clock, self._rng, self._key = bucket, clock, rng, key
        self._sent: list[str] = []
        self._version: Version | None = None
        self.now = self._read_memory()

    def save(self, memory: Memory, budget: float = 10.0) -> None:
        """Fenced: another watcher wrote. Unavailable: this may land later, or never; `now` is as before."""
        patience = RetryBudget(self._clock, self._rng, budget)
        while True:
            memory = msgspec.structs.replace(memory, nonce=fresh_nonce(self._rng))
            self._sent = [*self._sent[-99:], memory.nonce]
            try:
                self._version = self._bucket.put(self._key, msgspec.json.encode(memory), if_version=self._version)
            except Unavailable as error:
                patience.pause(error)
                continue
            except Conflict:
                if not self._landed(memory, patience):
                    continue
            self.now = memory
            return

    def _landed(self, memory: Memory, patience: RetryBudget) -> bool:
        """After a conflict: the stored object must be an own write whose answer was lost; this one, or one before."""
        before = self._version
        try:
            stored = self._read_memory()
        except Unavailable as error:
            patience.pause(error)
            return False
        if stored.nonce == memory.nonce:
            return True
        if self._version != before and stored.nonce not in self._sent:
            raise Fenced("Another watcher has taken over.")
        patience.pause(Unavailable(f"The bucket refuses to replace {self._key}, although no other watcher writes it."))
        return False

    def _read_memory(self) -> Memory:
        try:
            found = self._bucket.get(self._key)
        except NotFound:
            self._version = None
            return Memory()
        self._version = found.version
        return decode_memory(found.data, self._key)


def name_acts(acts: Sequence[Act]) -> str:
    """ "a (epoch 3), b (epoch 1) and 4 more"."""
    words = [f"{act.job} (epoch {act.epoch})" for act in acts[:3]]
    return ", ".join(words) + (f" and {len(acts) - 3} more" if len(acts) > 3 else "")


def command_environment(env: Mapping[str, str], job: Job, url: str, messages: int = 0) -> dict[str, str]:
    """WAL_AGENT_JOB and WAL_AGENT_BUCKET, which every command of ours goes by, and FLEET_*. An agent that is none,
    and a workspace that cannot be told as it stands, are empty: another one would be worse."""
    whole = job.workspace == job.folder and shorten(job.folder, LONGEST) == job.folder
    told = {
        "STATE": job.state,
        "AGENT": job.agent if job.agent in AGENTS else "",
        "EPOCH": str(job.epoch),
        "HOST": job.host,
        "ONLY_ON": job.only_on,
        "WORKSPACE": job.folder if whole else "",
        "REASON": job.reason,
        "PHASE": job.phase,
        "WAITS": str(round(job.waits)),
        "MESSAGES": str(messages),
    }
    clean = {f"FLEET_{name}": shorten(value, LONGEST) for name, value in told.items()}
    return {**env, **clean, "WAL_AGENT_JOB": job.job, "WAL_AGENT_BUCKET": url}


class Commands(msgspec.Struct, frozen=True):
    """`limit`: seconds that one may take; `stop` ends those that run."""

    command: str
    url: str
    env: Mapping[str, str]
    limit: float
    stop: threading.Event

    def run(self, job: Job, delay: float = 0.0, messages: int = 0) -> int | None:
        """The exit code, negative for a signal; None: `stop` came before it began, or ended it. It has its own session,
        and its output goes to our stderr."""
        if delay > 0:
            self.stop.wait(delay)
        if self.stop.is_set():
            return None
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                env=command_environment(self.env, job, self.url, messages),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except OSError:
            return 127
        left = self.limit
        while left > 0 and not self.stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(STEP, left))
            left -= STEP
        stopped = left > 0
        code = _end(process)
        if stopped:
            return None if code else 0
        return TIMED_OUT


def _end(process: subprocess.Popen[bytes]) -> int:
    """The command and what it started, first in good order."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


class WatchKeys(Keys, frozen=True):
    """Where the watchers' own lease is: not in a folder, so it is no job's."""

    @property
    def lease(self) -> str:
        return "fleet-watch.json"


KEYS = WatchKeys("fleet-watch")


class WatchOptions(msgspec.Struct, frozen=True):
    """`command`: "" for none, where messages are enough; `on_message`: for a job that does not run and has messages
    that no command was run for. `every`: seconds between two looks; `most` jobs are acted on
    in one round, `at_once` commands run side by side, and one that fails is run `tries` times in all."""

    command: str
    on: Sequence[JobState] = ACTED_ON
    every: float = 10.0
    once: bool = False
    most: int = 20
    at_once: int = 8
    limit: float = 60.0
    tries: int = 3
    ttl: float = 30.0
    on_message: str = ""
    seen: Callable[[Sequence[Job]], None] | None = None
    """Called after each look, with all jobs."""


class Watcher:
    def __init__(
        self,
        store: JobStore,
        wanted: WatchOptions,
        env: Mapping[str, str],
        say: Callable[[str], None],
        stop: threading.Event,
        notify: Callable[[Job], str] | None = None,
        inboxes: Inboxes | None = None,
        silent: Callable[[], Collection[tuple[str, int]]] | None = None,
    ) -> None:
        """`notify` sends a message about a job and returns why that failed, "" where it did not. `inboxes`: what
        waits for jobs, with `on_message`. `silent`: job and epoch of runs whose heartbeats stopped."""
        self._notify, self._inboxes, self._silent = notify, inboxes, silent
        self._running: Mapping[tuple[str, int], Job] = {}
        self._suspects: set[tuple[str, int]] = set()
        self._unknown: set[tuple[str, int]] = set()  # silent, and no run that the last look saw
        bucket, self._store, self._wanted, self._env, self._say = store.bucket, store, wanted, env, say
        self._bucket, self._clock, self._rng, self._stop = bucket, store.clock, store.rng, stop
        self._timing = LeaseTiming(wanted.ttl)
        self._eyes = Reader.of(bucket, env)
        self._commands = Commands(wanted.command, bucket.url, env, wanted.limit, stop)
        self._wakers = Commands(wanted.on_message, bucket.url, env, wanted.limit, stop)
        self._trouble = ""
        self._ended: list[Act] = []  # and not saved yet
        self._awake: list[Act] = []  # the same of commands for messages

    def go(self) -> None:
        """Until `stop`; `once`: one round. LeaseHeld, Fenced: `once`, and another one watches, or
        took over; Denied, Damaged, ConfigError."""
        runtime = runtime_dir(self._env)
        sweep_run_dirs(runtime)
        run_dir = RunDir.create(runtime, secrets.token_hex(8), state_dir(self._env))
        try:
            while not self._stop.is_set():
                lease = self._take(run_dir)
                if lease is None:
                    return
                try:
                    self._hold(lease)
                except Fenced as fenced:
                    if self._wanted.once:
                        raise
                    self._say(f"{fenced} This one stands by.")
                if self._wanted.once:
                    return
        finally:
            run_dir.end()
            if self._inboxes is not None:
                self._inboxes.close()

    # ---- who watches

    def _take(self, run_dir: RunDir) -> Lease | None:
        """The watchers' lease, once it is free; None: stopped before."""
        unchanged, waiting = Unchanged(), ""
        claim = LeaseRequest(run_dir.run, this_host(self._env, run_dir.lock), "fleet-watch", "", self._wanted.ttl)
        while not self._stop.is_set():
            try:
                seen = self._standing()
                if seen is None:
                    require_conditions(self._bucket, f"{KEYS.lease}/probe")
                holder = self._holder(seen, unchanged) if seen else ""
                if not holder:
                    return leases.acquire(self._store, seen=seen, claim=claim, log_epoch=0)
                if self._wanted.once:
                    raise LeaseHeld(f"Another watcher is at it: {holder}.", "One at a time acts.")
                if waiting != holder:
                    self._say(f"standing by: {holder} watches")
                    waiting = holder
            except LeaseHeld:
                if self._wanted.once:
                    raise
            except Unavailable as error:
                if self._wanted.once:
                    raise
                self._troubled(error)
            self._pause(min(self._wanted.every, self._timing.period))
        return None

    def _standing(self) -> StoredLease | None:
        try:
            return leases.read_lease(self._bucket, KEYS)
        except Damaged as error:
            raise Damaged(error.what, f"Stop all watchers, and delete {KEYS.lease} in {self._bucket.url}.") from error

    def _holder(self, seen: StoredLease, unchanged: Unchanged) -> str:
        """Who watches; "" when nobody does."""
        local = probe_holder(
            seen, self._eyes.here, self._eyes.spools, self._bucket.url, unchanged.unchanged(seen, self._clock.boot())
        )
        if seen.doc.state != "held" or owner_is_dead(seen, local):
            return ""
        return f"{seen.doc.host.name} (pid {seen.doc.host.pid})"

    # ---- the one that does

    def _hold(self, lease: Lease) -> None:
        self._ended, self._awake = [], []
        heartbeat = LeaseKeeper(self._timing, self._clock, lease)
        heartbeat.start()
        try:
            acted: ResultStore | None = None
            woken: ResultStore | None = None
            while not self._stop.is_set():
                try:
                    jobs = self._eyes.all()
                    self._running = {(job.job, job.epoch): job for job in jobs if job.state == "running"}
                    if self._wanted.seen is not None:
                        self._wanted.seen(jobs)
                    if self._wanted.command or self._notify:
                        acted = acted or self._remember(KEY)
                        self._round(acted, heartbeat, jobs)
                    if self._inboxes is not None:
                        woken = woken or self._remember(WOKEN)
                        self._wake(woken, heartbeat, jobs, self._inboxes)
                    self._trouble = ""
                except Unavailable as error:
                    if self._wanted.once:
                        raise
                    self._troubled(error)
                if heartbeat.lost is not None:
                    raise heartbeat.lost
                if self._wanted.once:
                    return
                self._await_round()
        finally:
            heartbeat.stop()
            with suppress(Unavailable, Fenced):
                lease.settle("closed")

    def _remember(self, key: str) -> ResultStore:
        acted = ResultStore(self._bucket, self._clock, self._rng, key)
        if left := orphaned_acts(acted.now):
            self._say(f"not known whether the command ran, so it is not run again: {name_acts(left)}")
            now = self._clock.now()
            acted.save(record_acts(acted.now, (replace(act, outcome="unknown", at=now) for act in left)))
        return acted

    def _wake(self, woken: ResultStore, heartbeat: LeaseKeeper, jobs: Sequence[Job], inboxes: Inboxes) -> None:
        """Run the command for jobs that do not run and have messages. What --on-crash starts is left to that."""
        wanted = self._wanted
        if self._awake:
            woken.save(record_acts(woken.now, self._awake))
            self._awake = []
        crashed = [job.job for job in jobs if wanted.command and job.needs_host and job.state in wanted.on]
        waiting = inboxes.look([job for job in jobs if job.job not in crashed])
        memory = prune_woken(woken.now, jobs)
        todo = choose_woken(memory, waiting, self._clock.now(), most=wanted.most, tries=wanted.tries)
        if not todo or not heartbeat.may_delete():
            return
        seen = [act for act, job in todo if inboxes.all_seen(job.job, act.mark.split())]
        todo = [(act, job) for act, job in todo if act not in seen]
        done = [finish_act(act, 0, self._clock.now()) for act in seen]
        woken.save(record_acts(memory, [*done, *(act for act, _ in todo)]))
        if not todo:
            return
        self._say(f"messages wait: {name_acts([act for act, _ in todo])}")
        self._awake = list(prefetch_map(lambda one: self._act(*one, 0.0), todo, wanted.at_once))
        woken.save(record_acts(woken.now, self._awake))
        self._awake = []

    def _round(self, acted: ResultStore, heartbeat: LeaseKeeper, jobs: Sequence[Job]) -> None:
        wanted = self._wanted
        self._save_ends(acted)
        memory = prune_memory(acted.now, jobs)
        todo = choose_jobs(memory, jobs, wanted.on, self._clock.now(), most=wanted.most, tries=wanted.tries)
        if not todo or not heartbeat.may_delete():
            return
        acted.save(record_acts(memory, (act for act, _ in todo)))
        self._say(f"{count_states(job for _, job in todo)}: {name_acts([act for act, _ in todo])}")
        messages = [self._send(act, job) for act, job in todo]
        if not wanted.command:
            self._ended = [
                finish_act(act, sent, self._clock.now()) for (act, _), sent in zip(todo, messages, strict=True)
            ]
            self._save_ends(acted)
            return
        spread = min(MAX_SPREAD, wanted.every / 2) if len(todo) > wanted.at_once else 0.0
        self._ended = list(
            prefetch_map(lambda one: self._act(*one, self._rng.uniform(0, spread)), todo, wanted.at_once)
        )
        self._save_ends(acted)

    def _send(self, act: Act, job: Job) -> int | None:
        """Send the message about a job, in the main thread, which apprise's time limit needs; beside a command only the
        first time. 1: it failed; None: we end."""
        if self._stop.is_set():
            return None
        if self._notify is None or (act.tries > 1 and self._wanted.command) or not (why := self._notify(job)):
            return 0
        self._say(f"the message about {act.job} (epoch {act.epoch}, {act.state}) was not sent: {why}")
        return 1

    def _save_ends(self, acted: ResultStore) -> None:
        if self._ended:
            acted.save(record_acts(acted.now, self._ended))
            self._ended = []

    def _act(self, act: Act, job: Job, delay: float) -> Act:
        if act.state == "messages":
            code = self._wakers.run(job, delay, len(act.mark.split()))
        else:
            code = self._commands.run(job, delay)
        if code:
            over = "" if act.tries < self._wanted.tries else "; not tried again while it is so"
            self._say(f"the command for {act.job} (epoch {act.epoch}, {act.state}) ended with {code}{over}")
        elif code is None:
            self._say(f"the command for {act.job} (epoch {act.epoch}, {act.state}) was not run to its end, for ours")
        return finish_act(act, code, self._clock.now())

    # ---- time

    def _troubled(self, error: Unavailable) -> None:
        if self._trouble != error.what:
            self._say(f"waiting: {error}")
            self._trouble = error.what

    def _await_round(self) -> None:
        """Until the next look at the leases: at once for a run that fell silent, and each second while one is. For one
        that may have begun behind the last look there is one look."""
        if self._silent is None:
            self._pause(self._wanted.every)
            return
        end = self._clock.boot() + self._wanted.every * self._rng.uniform(0.8, 1.2)
        while not self._stop.is_set() and self._clock.boot() < end:
            silent = set(self._silent())
            before, self._suspects = self._suspects, silent & self._running.keys()
            asked, self._unknown = self._unknown, silent - self._running.keys()
            for job, epoch in sorted(self._suspects - before):
                lease = self._running[job, epoch].ttl
                self._say(
                    f"suspect: {job} (epoch {epoch}) sends no heartbeat; its lease shows within {lease:.0f} s "
                    "whether it crashed"
                )
            if self._suspects or self._unknown - asked:
                end = min(end, self._clock.boot() + SUSPECT_LOOK)
            self._stop.wait(min(LISTEN, max(0.0, end - self._clock.boot())))

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds * self._rng.uniform(0.8, 1.2))
