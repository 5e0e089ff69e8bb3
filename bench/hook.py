"""What one hook costs: `python -m bench hook`.

As Gemini does it: `bash -c LINE` with the payload on stdin, answered by a real supervisor socket. Against `/bin/true`
and against an empty hook (`bash -c true`), which is what any hook at all costs there; with the native client, and with
the portable one that stands in where no C compiler was.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import interleaved
from wal_agent.agents.base import HookSetup
from wal_agent.agents.gemini import Gemini
from wal_agent.agents.gemini.line import MARKER, hook_line
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.clock import SystemClock
from wal_agent.hookwire import native_client, python_client
from wal_agent.recovery.rules import load_rules
from wal_agent.supervise.gate import Gate
from wal_agent.supervise.local import RunDir, this_host
from wal_agent.supervise.server import HookServer
from wal_agent.wal.job import Fields, OpenedJob, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Claim

ROUNDS = 100


@contextmanager
def owned(root: Path, bucket: Bucket) -> Iterator[tuple[OpenedJob, Gate, RunDir]]:
    """A job that is open, with its writer running."""
    run = RunDir.create(root, secrets.token_hex(8))
    claim = Claim(run=run.run, host=this_host(os.environ, run.lock), agent="gemini", workspace=str(root), ttl=30)
    fields = Fields(agent_version="bench", version="bench")
    clock, rng = SystemClock(), random.Random(1)
    job = open_job(bucket, Keys("bench"), clock, rng, claim=claim, fields=fields, seen=None, cause="first")
    stop = threading.Event()
    threading.Thread(target=job.writer.run, args=(stop,), daemon=True).start()
    yield job, Gate(job.writer, job.blobs, lambda: True, load_rules(), root, clock, 20.0), run
    stop.set()
    run.end()


def payload(command: str) -> bytes:
    """What Gemini gives to a before-hook."""
    base = {"session_id": "s", "transcript_path": "/x", "cwd": "/x", "hook_event_name": "BeforeTool", "timestamp": "t"}
    return json.dumps({**base, "tool_name": "run_shell_command", "tool_input": {"command": command}}).encode()


def spawn(argv: list[str], stdin: bytes, env: dict[str, str]) -> Callable[[], object]:
    return lambda: subprocess.run(argv, input=stdin, env=env, stdout=subprocess.DEVNULL, check=True)


def clients() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The native one and the portable one. SystemExit without the native one: then there is nothing to compare."""
    native = native_client()
    if native is None:
        raise SystemExit("bench hook: no native hook client; install a C compiler, then wal-agent again")
    return (str(native),), python_client()


def main() -> None:
    agent = Gemini()
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root = Path(folder)
        with owned(root, open_bucket(f"file://{root}/bucket")) as (_, gate, run):

            def handle(event: str, data: bytes) -> bytes:
                from wal_agent.agents.base import Allow, ToolStarting

                said = agent.parse(event, data)
                return agent.render(event, gate.before(said) if isinstance(said, ToolStarting) else Allow())

            server = HookServer(run.socket, run.run, handle, print)
            server.start()
            native, portable = (hook_line(HookSetup(run.run, run.path, c), "BeforeTool") for c in clients())
            alone = [*clients()[0], str(run.socket), run.run, "gemini", "BeforeTool", "", "25"]
            mine, other = {**os.environ, MARKER: run.run}, {**os.environ, MARKER: "another"}
            ls, make = payload("ls"), payload("make x")
            times = interleaved(
                {
                    "/bin/true": spawn(["/bin/true"], b"", mine),
                    "bash -c true (any hook at all)": spawn(["bash", "-c", "true"], b"", mine),
                    "python3 -I -S -E -c pass": spawn([*python_client()[:4], "-c", "pass"], b"", mine),
                    "client alone, read-only call": spawn(alone, ls, mine),
                    "before-hook of another run (inert)": spawn(["bash", "-c", native], make, other),
                    "before-hook, read-only call": spawn(["bash", "-c", native], ls, mine),
                    "before-hook, changing call, file:// bucket": spawn(["bash", "-c", native], make, mine),
                    "  the same, Python client": spawn(["bash", "-c", portable], make, mine),
                },
                ROUNDS,
            )
            server.close()
        for each in times:
            print(each.line(times[0]))
        print(f"  a changing call's hook costs {times[6].median - times[0].median:.1f} ms over /bin/true")


if __name__ == "__main__":
    main()
