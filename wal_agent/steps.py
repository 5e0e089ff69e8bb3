"""Keep values and run commands at most once, from a script inside of a run (docs/STEPS.md).

    from wal_agent.steps import state, step

    cursor = state.get("cursor")
    state.put("cursor", b"page 3", ttl=7 * 86400)
    done = step("charge-4711", ["./charge.sh", "4711"], verify="./charge.sh --was-charged 4711")
    print(done.code, done.stdout)

    kept = state.of_job("shop").get("cursor")  # from outside of any run

Each question goes to the run over its socket (WAL_AGENT_SOCKET), which writes the log. Outside of a run every call here
but `state.of_job` raises UsageError. The errors are those of
wal_agent.errors: UsageError (wrong use), PersonNeeded (a step was cut off, and a person must look), Unavailable (the
bucket is away), Fenced (another machine has the job), Exhausted (too much is kept).
"""

from __future__ import annotations

import base64
import fcntl
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from wal_agent import errors, msgspec_compat
from wal_agent.errors import LeaseHeld, Unavailable, UsageError, WalAgentError
from wal_agent.failpoints import failpoint
from wal_agent.safefs import flock_state
from wal_agent.supervise.control import STEP, ask_socket
from wal_agent.supervise.processes import MARKER, SOCKET, end_processes
from wal_agent.supervise.steps import (
    MAX_VALUE,
    NOT_HERE,
    Entry,
    StepRun,
    check_name,
    entry_of,
    lock_of,
    payload_of,
    read_kept,
    undecided_error,
    with_values,
)
from wal_agent.text import size
from wal_agent.wal.store import JobStore

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.messages.values import KvValues, ValueAt
    from wal_agent.wal.keys import Keys

__all__ = ["Entry", "Result", "SavedState", "State", "state", "step"]

ANSWER: Final = 90.0  # seconds for an answer, which waits for the bucket
LOOK: Final = 0.5  # seconds between two looks whether the run lives
SAID_AFTER: Final = 2.0  # seconds of waiting for another one with the same name, after which that is said
_PIECE: Final = 1 << 16
_PASSED: Final = (signal.SIGTERM, signal.SIGHUP)
_ERRORS: Final[Mapping[int, type[WalAgentError]]] = {
    each.exit_code: each
    for each in (
        UsageError,
        Unavailable,
        errors.Damaged,
        LeaseHeld,
        errors.Fenced,
        errors.Denied,
        errors.ConfigError,
        errors.PersonNeeded,
    )
}
_entries = msgspec_compat.of_values(list[Entry])
_run = msgspec_compat.of_values(StepRun)


class Result(msgspec.Struct, frozen=True):
    """How a step went.

    `code`: as a shell counts. `stdout` and `stderr`: their beginnings, at most 1 MiB each, of `stdout_size` and
    `stderr_size` bytes. `ran`: the command ran now; else this is what was kept of an earlier time. `by`: who knows it:
    "command", or "verify" or "person", which keep no output. `paused`: the command asked for a pause of the job and did
    not succeed; the next time it runs again."""

    code: int
    stdout: bytes
    stderr: bytes
    ran: bool
    by: str = "command"
    stdout_size: int = 0
    stderr_size: int = 0
    paused: bool = False


class Run:
    """The run that this process is below, by its environment."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """UsageError: there is none."""
        env = os.environ if env is None else env
        path, run = env.get(SOCKET), env.get(MARKER)
        if not path or not run:
            raise UsageError(*NOT_HERE)
        self.socket, self._run = Path(path), run

    @property
    def lives(self) -> bool:
        return flock_state(self.socket.with_name("lock")) == "held"

    def ask(self, do: str, step: str = "", **more: Any) -> dict[str, Any]:
        """The run's answer. The WalAgentError that it refuses with; Unavailable: it did not answer."""
        answer = ask_socket(self.socket, self._run, STEP, {"do": do, "step": step, **more}, ANSWER)
        if answer is None and not self.lives:
            raise UsageError("The run around this has ended.", NOT_HERE[1])
        if answer is None:
            raise Unavailable("The run did not answer.", "Try again; it is not known whether it did what was asked.")
        if "error" in answer:
            code = answer.get("code")
            kind = _ERRORS.get(code if isinstance(code, int) else 64, UsageError)
            error = kind(str(answer["error"]), str(answer.get("hint", "")))
            error.exit_code = code if isinstance(code, int) else 64
            raise error
        return answer

    def entries(self, do: str, step: str = "", what: str = "value") -> list[Entry]:
        """`what` other than "value": that is not looked for, so no server is asked."""
        return _entries(self.ask(do, step, what=what)["entries"])

    def read(self, step: str, what: str) -> bytes:
        """All kept bytes of `what` (value, stdout or stderr)."""
        first = self.ask("read", step, what=what)
        data = base64.b64decode(first["data"])
        while len(data) < first["size"]:
            more = self.ask("read", step, what=what, offset=len(data))
            piece = base64.b64decode(more["data"])
            if (more["version"], more["size"]) != (first["version"], first["size"]) or not piece:
                return self.read(step, what)  # another value was put meanwhile
            data += piece
        return data


class State:
    """The values that the job keeps, by step."""

    def put(self, step: str, value: bytes | str, *, ttl: float | None = None, if_version: int | None = None) -> int:
        """Keep `value`, at most 1 MiB, under `step`; its version. The last write wins. `ttl`: seconds after which it is
        gone; `if_version`: only if this is the version that is there, 0 for none.

        UsageError: too long, or (`exit_code` 1) another version is there; Unavailable; Fenced; Exhausted."""
        data = value.encode() if isinstance(value, str) else value
        if len(data) > MAX_VALUE:
            what = f"The value of step {check_name(step)} has {len(data)} bytes."
            raise UsageError(what, f"At most {MAX_VALUE} are kept: keep it in a file, and its name here.")
        text = base64.b64encode(data).decode()
        done = Run().ask("put", step, data=text, ttl=ttl or 0.0, if_version=if_version)
        return int(done["version"])

    def get(self, step: str) -> bytes | None:
        """The value under `step`; None where there is none."""
        found = self.entry(step)
        return Run().read(step, "value") if found is not None and found.version else None

    def entry(self, step: str) -> Entry | None:
        """All that is known of `step` but its value; None for nothing."""
        return next(iter(Run().entries("get", check_name(step))), None)

    def list(self) -> list[Entry]:
        """All steps of the job."""
        return Run().entries("list")

    def delete(self, step: str, *, if_version: int | None = None) -> bool:
        """Forget the value under `step`; whether there was one. What a command of this name gave stays."""
        return bool(Run().ask("delete", step, if_version=if_version)["deleted"])

    def of_job(
        self, job: str, bucket: str = "", *, encryption_key_file: str = "", encryption_key_command: str = ""
    ) -> SavedState:
        """What a job keeps, as its bucket has it now, to be read from anywhere. `bucket`: its URL, by default that of
        WAL_AGENT_BUCKET, else the folder on this machine; a key: where the job is encrypted, by default that of
        WAL_AGENT_ENCRYPTION_KEY_FILE. WAL_AGENT_STATE=nats: also what the servers of WAL_AGENT_MESSAGES have.
        NoJob: there is no such job; Denied: the key; ConfigError; UsageError; Damaged; BucketError."""
        from wal_agent.bucket import default_url, open_bucket
        from wal_agent.bucket.decorators import RetryBucket
        from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
        from wal_agent.clock import SystemClock
        from wal_agent.config import Settings
        from wal_agent.messages import open_values
        from wal_agent.wal.keys import Keys

        named = encryption_key_file or encryption_key_command
        file = encryption_key_file if named else os.environ.get("WAL_AGENT_ENCRYPTION_KEY_FILE", "")
        key = load_key(file, encryption_key_command, os.environ)
        url = bucket or os.environ.get("WAL_AGENT_BUCKET", "") or default_url(os.environ)
        opened = RetryBucket(EncryptedBucket(open_bucket(url), key), SystemClock(), random.Random())
        where: Literal["nats", "log"] = "nats" if os.environ.get("WAL_AGENT_STATE") == "nats" else "log"
        settings = Settings(url, job, messages=os.environ.get("WAL_AGENT_MESSAGES", ""), state=where)
        keys = Keys(job)
        return SavedState(opened, keys, key_id(key), lambda: open_values(settings, os.environ, opened, keys))


class SavedState:
    """The values that a job keeps, as its bucket, and the server of its values, had them when this was made."""

    def __init__(
        self, bucket: Bucket, keys: Keys, key_id: str, open_server: Callable[[], KvValues | None] = lambda: None
    ) -> None:
        """`open_server`: connects to where values are beside the log; not asked for an encrypted job's, which are in
        the log. NoJob; Denied: `key_id` is not of the key that the job is encrypted with; Damaged; BucketError."""
        from wal_agent.clock import SystemClock
        from wal_agent.operate.export import replay_at
        from wal_agent.wal.blobs import Blobs
        from wal_agent.wal.damage import sound_state

        clock = SystemClock()
        self._now = clock.now()
        self._open_server = open_server
        self._values: Mapping[str, ValueAt] = {}
        state = sound_state(replay_at(bucket, keys, key_id, None, self._now))
        if not key_id and (server := open_server()) is not None:
            with closing(server):
                self._values = server.known().values
        self._state = with_values(state, self._values)
        self._blobs = Blobs(JobStore(bucket, keys, clock))

    def get(self, step: str) -> bytes | None:
        """The value under `step`; None where there is none."""
        at = self._values.get(check_name(step))
        if at is None or payload_of(self._state, step, "value", self._now) is None:
            return read_kept(self._state, self._blobs, step, "value", self._now)
        server = self._open_server()
        assert server is not None
        with closing(server):
            return server.read(at)

    def entry(self, step: str) -> Entry | None:
        """All that is known of `step` but its value; None for nothing."""
        return entry_of(self._state, check_name(step), self._now)

    def list(self) -> list[Entry]:
        """All steps of the job."""
        return [entry for name in self._state.steps if (entry := entry_of(self._state, name, self._now))]


state = State()


def step(
    name: str,
    command: Sequence[str],
    *,
    verify: str = "",
    retry_on_failure: int = 0,
    echo: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run `command` at most once in the job's life, and keep how it went; another time return what is kept.

    `verify`: a shell command that looks, after a crash in the middle, whether it was done (0) or not done (1).
    `retry_on_failure`: so many times a command that failed is run again. `echo`: its output goes to this process's
    stdout and stderr as well. `say`: takes lines for people.

    PersonNeeded: it was cut off, and nothing can tell whether it had its effect. UsageError: `name` has another
    command. FileNotFoundError, PermissionError: the program cannot be started; nothing is kept of that. Unavailable:
    the bucket is away; nothing was run, or the result could not be saved and the step counts as cut off. LeaseHeld: the
    run ends."""
    run = Run()
    words = [os.fspath(word) for word in command]
    asked: dict[str, Any] = {"command": words, "verify": verify, "retries": retry_on_failure}
    lock = lock_of(run.socket, check_name(name))
    was = next((entry.run for entry in run.entries("get", name, "stdout")), None)
    over = was is not None and (was.state == "done" or (was.state == "failed" and not retry_on_failure))
    if was is not None and over and list(was.command) == words:
        return _kept(run, name, was)  # also while something that it started is still running
    with _locked(lock, name, say) as held:
        move = run.ask("begin", name, **asked)
        while True:
            if move["move"] == "verify":
                move = run.ask("begin", name, **asked, found=_verify(name, verify, float(move["began"]), say))
            elif move["move"] == "print":
                return _kept(run, name, _run(move["run"]))
            else:
                done = _execute(run, name, words, int(move["attempt"]), held, echo, retry_on_failure)
                if done is not None:
                    return done
                say(f"step {name} failed; it is run again.")
                move = run.ask("begin", name, **asked)


@contextmanager
def _locked(path: Path, name: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the step's lock, which the command inherits: while anything that it started has it open, it counts as
    running. Waits for whoever has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        waited = 0.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited <= SAID_AFTER < waited + 0.1:
                    say(f"step {name} runs already, or something that it started does; waiting for it.")
                waited += 0.1
                time.sleep(0.1)
        yield fd
    finally:
        os.close(fd)


def _kept(run: Run, name: str, was: StepRun) -> Result:
    stdout = run.read(name, "stdout") if was.stdout_kept else b""
    stderr = run.read(name, "stderr") if was.stderr_kept else b""
    return Result(was.code, stdout, stderr, False, was.by, was.stdout, was.stderr)


def _verify(name: str, command: str, began: float, say: Callable[[str], None]) -> str:
    """What the verification of a step that was cut off says. PersonNeeded: it cannot tell."""
    say(f"step {name} was cut off; looking whether it was done: {command}")
    code = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=2, check=False).returncode
    if code in (0, 1):
        return "done" if code == 0 else "not_done"
    from wal_agent.records import StepBegun

    begun = StepBegun(time=began, name=name, command=())
    raise undecided_error(name, begun, f"its verification ended with {code}, which tells nothing")


class _Output:
    """One stream of the command: passed on and counted, its beginning kept."""

    def __init__(self, sink: int | None) -> None:
        self._sink = sink
        self.data, self.size = bytearray(), 0

    def take(self, data: bytes) -> None:
        self.size += len(data)
        self.data += data[: MAX_VALUE - len(self.data)]
        left = memoryview(data)
        while left and self._sink is not None:
            try:
                left = left[os.write(self._sink, left) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                self._sink = None  # nobody reads it any more; the command goes on


def _execute(
    run: Run, name: str, words: Sequence[str], attempt: int, lock: int, echo: bool, retries: int
) -> Result | None:
    """Run the command, whose begin is durable, and save its end. None: it failed, and is to run again."""
    failpoint("step.begun")
    if echo and sys.stdout is not None:
        sys.stdout.flush()
    env = {**os.environ, "WAL_AGENT_STEP": name, "WAL_AGENT_ATTEMPT": str(attempt)}
    outputs = _Output(1 if echo else None), _Output(2 if echo else None)
    with _passing_signals() as pass_to:
        try:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=env, pass_fds=(lock,)
            )
        except (OSError, ValueError):
            run.ask("end", name, started=False)
            raise
        pass_to(process)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            try:
                _follow(run, process, outputs)
            except BaseException:
                _end_tree(process)
                raise
    failpoint("step.ran")
    code, (out, err) = process.returncode, outputs
    ended = run.ask(
        "end",
        name,
        code=code,
        stdout=base64.b64encode(out.data).decode(),
        stdout_size=out.size,
        stderr=base64.b64encode(err.data).decode(),
        stderr_size=err.size,
    )
    failpoint("step.ended")
    if ended["how"] == "failed" and ended["failures"] <= retries:
        return None
    code = code if code >= 0 else 128 - code
    return Result(code, bytes(out.data), bytes(err.data), True, "command", out.size, err.size, ended["how"] == "paused")


def _follow(run: Run, process: subprocess.Popen[bytes], outputs: tuple[_Output, _Output]) -> None:
    """Take what the command writes until it has ended; what it left running may hold its pipes open for ever.
    Unavailable: the run is gone, so nobody could keep the result."""
    looked = time.monotonic()
    with selectors.DefaultSelector() as waiting:
        for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True):
            assert pipe is not None
            waiting.register(pipe, selectors.EVENT_READ, output)
        while True:
            ended = process.poll() is not None  # before the look: what it wrote is in the pipe then
            if waiting.get_map():
                ready = waiting.select(0.0 if ended else 0.05)
            else:
                ready = []
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            for key, _ in ready:
                data = os.read(key.fd, _PIECE)
                key.data.take(data)
                if not data:
                    waiting.unregister(key.fileobj)
            if ended and not ready:
                return
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                if not run.lives:
                    raise Unavailable(
                        "The run around this step is gone, so its command was ended.",
                        "The same `wal-agent step` in the next run verifies what it did.",
                    )


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    import psutil

    with suppress(psutil.Error):
        top = psutil.Process(process.pid)
        end_processes([*top.children(recursive=True), top], 2.0)
    process.wait()


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Leave an interrupt to the command, which has it from the terminal too, and pass on what ends this process alone:
    the command's end is to be logged. Gives what takes the command's process; signals that come before wait for it."""
    processes: list[subprocess.Popen[bytes]] = []
    waiting: list[int] = []

    def pass_on(number: int, _: object) -> None:
        for process in processes:
            process.send_signal(number)
        if not processes:
            waiting.append(number)

    def take(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        for number in waiting:
            process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield take
        return
    before = {number: signal.getsignal(number) for number in (*_PASSED, signal.SIGINT, signal.SIGQUIT)}
    taken = [n for n, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # nohup's stays ignored
    for number in taken:
        signal.signal(number, pass_on if number in _PASSED else lambda *_: None)
    try:
        yield take
    finally:
        for number in taken:
            signal.signal(number, before[number])


def shortened(name: str, result: Result) -> list[str]:
    """What is not kept of the output, a sentence for each stream."""
    kept = (("stdout", result.stdout, result.stdout_size), ("stderr", result.stderr, result.stderr_size))
    return [
        f"step {name}: its {stream} had {size(whole)}; kept are the first {size(len(data))}."
        for stream, data, whole in kept
        if len(data) < whole
    ]
