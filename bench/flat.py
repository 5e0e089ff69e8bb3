"""Does a call cost more in a long session? `python -m bench flat` (I9).

For sessions of 50 KB, 5 MB and 100 MB: the time that a changing call is blocked, the time of the capture behind it
(nobody waits for that), and the bytes put, per call; on file:// and on a store that is 30 ms away. Gate, saver, log and
bucket are the real ones; the session file has Gemini's form. The sessions take turns, call by call, so that the
machine's drift hits all alike.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from bench.measure import Times, scaled
from bench.owner import owned
from bench.store import NAMES, ROUND_TRIP, store
from wal_agent.agents import AGENTS
from wal_agent.agents.base import ToolEnded, ToolStarting
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.capture.session import SessionCapture
from wal_agent.supervise.context import Supervisor
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.session_capture import SessionSaver
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.writer import Writer

CALLS = scaled(100, 2)
SIZES = scaled({"50 KB": 50_000, "5 MB": 5_000_000, "100 MB": 100_000_000}, {"50 KB": 50_000, "100 KB": 100_000})
SESSION = "aaaaaaaa-0000-4000-8000-000000000000"


def message(n: int, size: int) -> bytes:
    record = {"id": f"m{n}", "timestamp": "2026-01-01T00:00:00.000Z", "type": "gemini", "content": "x" * size}
    return compact(record)


def compact(record: object) -> bytes:
    """A line as agents write it: without blanks."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def write_session(path: Path, size: int, workspace: str = "/work") -> None:
    """A session of Gemini's form with at least `size` bytes."""
    project = hashlib.sha256(workspace.encode()).hexdigest()
    head = {"sessionId": SESSION, "projectHash": project, "startTime": "t", "lastUpdated": "t", "kind": "main"}
    user = {"id": "u", "timestamp": "t", "type": "user", "content": [{"text": "go"}]}
    with path.open("wb") as file:
        file.write(compact(head) + compact(user))
        n = 0
        while file.tell() < size:
            file.write(message(n, 8000))
            n += 1


class Lane:
    """One session and the calls in it. Times in ms."""

    def __init__(self, main: Path, gate: Gate, saver: SessionSaver, job: OpenedJob, meter: MeterBucket) -> None:
        self.main, self.gate, self.saver, self.meter = main, gate, saver, meter
        self.job, self._writer = job, job.writer
        self.blocked: list[float] = []
        self.captured: list[float] = []
        saver.save()
        drain(self._writer)
        self._sent = meter.snapshot().sent

    def call(self, n: int) -> None:
        input = json.dumps({"command": f"make target-{n}"}).encode()
        began = time.perf_counter()
        self.gate.begin_call(ToolStarting(SESSION, "run_shell_command", input))
        self.blocked.append((time.perf_counter() - began) * 1000)
        self.gate.finish_call(ToolEnded(SESSION, "run_shell_command", input, b'{"llmContent":"ok"}', False))
        with self.main.open("ab") as file:
            file.write(message(10**6 + n, 2000))
        began = time.perf_counter()
        self.saver.save()
        self.captured.append((time.perf_counter() - began) * 1000)
        drain(self._writer)

    @property
    def put(self) -> float:
        """Bytes put a call, all in all."""
        return (self.meter.snapshot().sent - self._sent) / len(self.blocked)


class Unwatched:
    """A `Supervisor` of nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@contextmanager
def lane(size: int, bucket: Bucket, job: str = "bench") -> Iterator[Lane]:
    """A run whose session has `size` bytes already."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root = Path(folder)
        env, work, agent = {"HOME": str(root)}, root / "work", AGENTS["gemini"]
        work.mkdir()
        main = agent.restore_path(agent.main_file, SESSION, work, env)
        main.parent.mkdir(parents=True)
        write_session(main, size)
        meter = MeterBucket(bucket)
        with owned(root, meter, job) as (context, gate, _):
            context = replace(context, workspace=work, env=env)
            capture = SessionCapture(SESSION, context.job.blobs.put_payload)
            saver = SessionSaver(context, gate, capture, SESSION, cast(Supervisor, Unwatched()))
            yield Lane(main, gate, saver, context.job, meter)


def drain(writer: Writer) -> None:
    while writer.backlog.items:
        time.sleep(0.001)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        compare("file://", f"file://{folder}/bucket")
    for scheme in NAMES:
        with store(scheme, ROUND_TRIP) as at:
            compare(at.name, at.url)


def compare(name: str, url: str) -> None:
    with ExitStack() as stack:
        lanes = {
            size: stack.enter_context(lane(count, open_bucket(url), f"job-{count}")) for size, count in SIZES.items()
        }
        for n in range(CALLS):
            for each in lanes.values():
                each.call(n)
        base = lanes["50 KB"]
        for size, each in lanes.items():
            blocked, captured = Times("", tuple(each.blocked)), Times("", tuple(each.captured))
            ratios = (
                blocked.median / Times("", tuple(base.blocked)).median,
                captured.median / Times("", tuple(base.captured)).median,
                each.put / base.put,
            )
            print(
                f"  {name:<13} session of {size:<6} blocked {blocked.median:6.2f} ms (p95 {blocked.p95:6.2f}), capture "
                f"behind it {captured.median:6.2f} ms, {each.put:6.0f} bytes put a call;  against 50 KB: "
                + ", ".join(f"{ratio:.2f} x" for ratio in ratios)
            )


if __name__ == "__main__":
    main()
