"""What does saving the working tree cost in a repository of 100,000 files? `python -m bench capture` (I9).

The time of the first capture, and of one after a changed file; the time that a changing tool call is blocked while a
capture runs and while none does, turn by turn; and the bytes put a call. Git, gate, log and bucket are the real ones.

Then: how soon is a small edited file safe beside 400 MB of untracked files, in a repository and outside of one?
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench.measure import Times, scaled
from bench.owner import owned
from wal_agent.agents.base import Allow, ToolEnded, ToolStarting
from wal_agent.bucket import open_bucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.capture.inside import TreeCapture
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.worktree import WorktreeSaver

FILES = scaled(100_000, 300)
PER_FOLDER = 100
ROUNDS = scaled(30, 2)
BULK = scaled(400 << 20, 1 << 20)  # bytes


def repository(top: Path, count: int) -> None:
    """`count` files of about 1 KB, committed."""
    top.mkdir()
    for n in range(count // PER_FOLDER):
        folder = top / f"part{n % 20}" / f"module{n}"
        folder.mkdir(parents=True)
        for m in range(PER_FOLDER):
            (folder / f"file{m}.txt").write_text(f"file {m} of module {n}\n" * 40)
    who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["repack", "-adq"]):
        subprocess.run(["git", *who, *words], cwd=top, check=True, stdout=subprocess.DEVNULL)


class Bench:
    """Calls at a gate, each changing one file of the repository, and the captures behind them. Times in ms."""

    def __init__(self, top: Path, root: Path, context: RunContext, gate: Gate, meter: MeterBucket) -> None:
        self.top, self.opened, self.gate, self.meter = top, context.job, gate, meter
        self.capture = TreeCapture(root / "state", top.resolve(), os.environ, context.job.blobs.put_payload)
        self.tree = WorktreeSaver(context, gate, self.capture, self.failed)
        self.count = 0

    @property
    def pending(self) -> bool:
        return self.capture.pending is not None

    def failed(self, error: BaseException) -> None:
        raise error

    def save(self) -> float:
        began = time.perf_counter()
        self.tree.save()
        return (time.perf_counter() - began) * 1000

    def call(self) -> float:
        """Milliseconds until the call was allowed. It writes one file."""
        self.count += 1
        input = json.dumps({"command": f"make target-{self.count}"}).encode()
        began = time.perf_counter()
        if not isinstance(self.gate.begin_call(ToolStarting("s", "run_shell_command", input)), Allow):
            raise RuntimeError("a call was denied")
        blocked = (time.perf_counter() - began) * 1000
        module = self.count * 7 % (FILES // PER_FOLDER)
        path = self.top / f"part{module % 20}" / f"module{module}" / "file1.txt"
        path.write_text(f"changed by call {self.count}\n" * 40)
        self.gate.finish_call(ToolEnded("s", "run_shell_command", input, b'{"llmContent":"ok"}', False))
        return blocked

    def drained(self) -> int:
        """Bytes put until now, once nothing waits."""
        while self.opened.writer.backlog.items:
            time.sleep(0.001)
        return self.meter.snapshot().sent

    def during(self, offset: float) -> float:
        """A call that begins `offset` seconds into a capture."""
        saving = threading.Thread(target=self.tree.save)
        saving.start()
        time.sleep(offset)
        blocked = self.call()
        saving.join()
        return blocked


def beside(bulk: int, each: int, in_git: bool) -> None:
    """`bulk` bytes of untracked files of `each` bytes, and one that is edited while they are saved."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root, top = Path(folder), Path(folder) / "work"
        if in_git:
            repository(top, PER_FOLDER)
        else:
            top.mkdir()
        (top / "data").mkdir()
        for n in range(bulk // each):
            (top / "data" / str(n)).write_bytes(os.urandom(each))
        meter = MeterBucket(open_bucket(f"file://{folder}/bucket"))
        with owned(root, meter) as (context, gate, _):
            bench = Bench(top, root, context, gate, meter)
            (top / "edited").write_text("x = 0\n")
            began = time.perf_counter()
            seconds: list[float] = []
            edits, sent = 0, bench.drained()
            while not seconds or bench.pending:
                edits += 1
                (top / "edited").write_text(f"x = {edits}\n")
                edited = time.perf_counter()
                bench.save()
                bench.drained()
                seconds.append(time.perf_counter() - edited)
            where = "in git" if in_git else "without git"
            print(
                f"  {bulk >> 20} MB in files of {each >> 10} KB, {where}: edited file safe after {seconds[0]:.1f} s, "
                f"later edits at most {max(seconds):.1f} s; all in {time.perf_counter() - began:.0f} s, "
                f"{len(seconds)} captures, {(bench.drained() - sent) / 1e6:.0f} MB put"
            )


def main() -> None:
    for each in (1 << 20, 20 << 20):
        for in_git in (True, False):
            beside(BULK, each, in_git)
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root, top = Path(folder), Path(folder) / "work"
        repository(top, FILES)
        meter = MeterBucket(open_bucket(f"file://{folder}/bucket"))
        with owned(root, meter) as (context, gate, _):
            bench = Bench(top, root, context, gate, meter)
            sent = bench.drained()
            first = bench.save()
            while bench.pending:
                first += bench.save()
            whole = bench.drained() - sent
            print(f"  {FILES} files: first capture {first / 1000:.2f} s, {whole / 1e6:.2f} MB put")
            alone, busy, captures, bytes_ = [], [], [], []
            for n in range(ROUNDS):
                sent = bench.drained()
                alone.append(bench.call())
                captures.append(bench.save())
                bytes_.append(bench.drained() - sent)
                busy.append(bench.during(captures[-1] / 1000 * (n + 0.5) / ROUNDS))
                bench.save()
            print(Times("capture after one changed file", tuple(captures)).line())
            quiet = Times("changing call, no capture runs", tuple(alone))
            print(quiet.line())
            print(Times("changing call while a capture runs", tuple(busy)).line(quiet))
            print(f"  {sorted(bytes_)[ROUNDS // 2]} bytes put a call, with its capture")


if __name__ == "__main__":
    main()
