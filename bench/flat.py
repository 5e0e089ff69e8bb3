"""Does a call cost more in a long session? `python -m bench flat` (I9).

For sessions of 50 KB, 5 MB and 50 MB: the time that a changing call is blocked, the time of the capture behind it
(nobody waits for that), and the bytes put, per call. Gate, saver, log and file bucket are the real ones; the session
file has Gemini's form.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from bench.hook import owned
from bench.measure import Times
from wal_agent.agents.base import ToolEnded, ToolStarting
from wal_agent.agents.gemini import Gemini
from wal_agent.bucket import open_bucket
from wal_agent.bucket.meter import MeterBucket
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import SystemClock
from wal_agent.supervise.saver import Saver

CALLS = 100
SESSION = "aaaaaaaa-0000-4000-8000-000000000000"


def message(n: int, size: int) -> bytes:
    record = {"id": f"m{n}", "timestamp": "2026-01-01T00:00:00.000Z", "type": "gemini", "content": "x" * size}
    return json.dumps(record).encode() + b"\n"


def one(size: int) -> tuple[Times, Times, float]:
    """Blocked and capture times, and bytes put a call, in a session that begins with `size` bytes."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root = Path(folder)
        env = {"HOME": str(root)}
        work = root / "work"
        work.mkdir()
        agent = Gemini()
        main = agent.restore_path(agent.main_file, SESSION, work, env)
        main.parent.mkdir(parents=True)
        head = {"sessionId": SESSION, "projectHash": "x", "startTime": "t", "lastUpdated": "t", "kind": "main"}
        user = {"id": "u", "timestamp": "t", "type": "user", "content": [{"text": "go"}]}
        with main.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n" + json.dumps(user).encode() + b"\n")
            n = 0
            while file.tell() < size:
                file.write(message(n, 8000))
                n += 1
        meter = MeterBucket(open_bucket(f"file://{root}/bucket"))
        with owned(root, meter) as (job, gate, _):
            capture = SessionCapture(SESSION, job.blobs.put_payload)
            saver = Saver(
                agent,
                env,
                work,
                job.writer,
                job.blobs,
                gate,
                SystemClock(),
                capture,
                SESSION,
                frozenset(),
                lambda tool: None,
                lambda data: None,
            )
            saver.save()
            drain(job.writer)
            before = meter.snapshot().sent
            blocked, captured = [], []
            for call in range(CALLS):
                input = json.dumps({"command": f"make target-{call}"}).encode()
                began = time.perf_counter()
                gate.before(ToolStarting(SESSION, "run_shell_command", input))
                blocked.append((time.perf_counter() - began) * 1000)
                gate.after(ToolEnded(SESSION, "run_shell_command", input, b'{"llmContent":"ok"}', False))
                with main.open("ab") as file:
                    file.write(message(n + call, 2000))
                began = time.perf_counter()
                saver.save()
                captured.append((time.perf_counter() - began) * 1000)
            drain(job.writer)
            put = (meter.snapshot().sent - before) / CALLS
        return Times("blocked", tuple(blocked)), Times("capture", tuple(captured)), put


def drain(writer: object) -> None:
    from wal_agent.wal.writer import Writer

    assert isinstance(writer, Writer)
    while writer.backlog.items:
        time.sleep(0.01)


def main() -> None:
    sizes = {"50 KB": 50_000, "5 MB": 5_000_000, "50 MB": 50_000_000}
    results = {name: one(size) for name, size in sizes.items()}
    base = results["50 KB"]
    for name, (blocked, capture, put) in results.items():
        ratios = (blocked.median / base[0].median, capture.median / base[1].median, put / base[2])
        print(
            f"  session of {name:<6} blocked {blocked.median:6.2f} ms (p95 {blocked.p95:6.2f}), capture behind it "
            f"{capture.median:6.2f} ms, {put:7.0f} bytes put a call;  against 50 KB: "
            + ", ".join(f"{ratio:.2f} x" for ratio in ratios)
        )


if __name__ == "__main__":
    main()
