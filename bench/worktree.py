"""How far behind is the saved working tree of 100,000 files, and what does it cost at rest? `python -m bench worktree`.

The thread that saves the tree, git, gate, log and bucket are the real ones; the tree is on the disk of TMPDIR. Behind:
from the end of a changing call to the acknowledgement of the capture with its change, five times. At rest: CPU time of
the process and its git, while nothing changes.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from bench.capture import repository
from bench.measure import scaled
from bench.owner import owned
from wal_agent.agents.base import Allow, ToolEnded, ToolStarting
from wal_agent.bucket import open_bucket
from wal_agent.capture.inside import TreeCapture
from wal_agent.events import Event, Saved
from wal_agent.supervise.worktree import WorktreeSaver

FILES = scaled(100_000, 300)
ROUNDS = scaled(5, 1)
PAUSE = scaled(8.0, 0.1)  # seconds between two changes: a model thinks
REST = scaled(400.0, 2.0)  # seconds; behind a look that finds nothing the next one comes after some 150 s


def used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def fail(error: BaseException) -> None:
    raise error


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="wa-bench-") as folder:
        root, top = Path(folder), Path(folder) / "work"
        repository(top, FILES)
        with owned(root, open_bucket(f"file://{folder}/bucket")) as (context, gate, _):
            saves: queue.SimpleQueue[Saved] = queue.SimpleQueue()

            def heard(event: Event) -> None:
                if isinstance(event, Saved) and event.size:
                    saves.put(event)

            capture = TreeCapture(root / "state", top.resolve(), os.environ, context.job.blobs.put_payload)
            saver = WorktreeSaver(replace(context, emit=heard), gate, capture, fail)
            began, before = time.monotonic(), used()
            saver.start()
            saver.poke()
            saves.get()
            while capture.pending is not None:
                saves.get()
            first, cpu = time.monotonic() - began, used() - before
            print(f"  {FILES:,} files: the first capture is stored after {first:.1f} s, {cpu:.1f} s of CPU", flush=True)
            behind, costs = [], []
            for n in range(ROUNDS):
                time.sleep(PAUSE)
                while not saves.empty():  # of the first capture's last parts
                    saves.get()
                asked = json.dumps({"command": f"make {n}"}).encode()
                if not isinstance(gate.begin_call(ToolStarting("s", "run_shell_command", asked)), Allow):
                    raise RuntimeError("a call was denied")
                (top / "part0" / "module0" / "file1.txt").write_text(f"changed by call {n}\n")
                gate.finish_call(ToolEnded("s", "run_shell_command", asked, b'"ok"', False))
                ended, before = time.monotonic(), used()
                saver.poke()
                saves.get()
                behind.append(time.monotonic() - ended)
                costs.append(used() - before)
            print(
                f"  a change is stored {statistics.median(behind):.1f} s after its call (at most {max(behind):.1f} s), "
                f"{statistics.median(costs):.2f} s of CPU",
                flush=True,
            )
            time.sleep(PAUSE)
            began, before = time.monotonic(), used()
            time.sleep(REST)
            share = (used() - before) / (time.monotonic() - began)
            print(f"  at rest: {share:.2%} of a core", flush=True)
            saver.pause()
            saver.finish(last=False)


if __name__ == "__main__":
    main()
