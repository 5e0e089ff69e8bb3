"""Does the supervisor grow? `python -m bench memory` (I9): its resident memory over 10,000 tool calls.

First: the most that a recovery needs (`python -m bench.memory recovery` alone), for sessions of 10, 50 and 100 MB. A
process with all that a run imports restores one from a `file://` bucket and mends it; the peak is the kernel's.

Then: a process with all that a run imports, and a cloud SDK, makes the calls at its own gate; the session grows by
2 KB each, snapshots and retention run as they do in a run.

`python -m bench.memory idle`: what 50 runs that only wait have for themselves, in a `file://` bucket, each around a
`sleep` as `generic`; by the kernel, of the supervisors alone.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.measure import scaled
from bench.store import NAMES, store
from wal_agent.bucket import open_bucket
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.store import JobStore

CALLS = scaled(10_000, 20)
SESSIONS = scaled((10_000_000, 50_000_000, 100_000_000), (100_000,))  # bytes
RUNS, REST = scaled((50, 30.0), (2, 0.1))  # idle ones; seconds until they are looked at
LOOKS = scaled((500, 1_000, 2_000, 5_000, 10_000), (10, 20))


def child(url: str, folder: Path) -> None:
    """Print the resident MB after so many calls, as they come: it takes minutes."""
    import psutil

    import wal_agent.supervise.run  # noqa: F401 - what a run has in memory
    from bench.flat import Lane, lane
    from wal_agent.supervise.lease_keeper import Housekeeping

    def problem(error: BaseException) -> None:
        raise error

    def calls(at: Lane) -> None:
        for n in range(1, CALLS + 1):
            at.call(n)
            if n in LOOKS:
                print(f"  after {n:6} calls {psutil.Process().memory_info().rss / 1e6:6.1f} MB", flush=True)

    bucket = open_bucket(url)
    with lane(50_000, bucket) as at:
        keeper = Housekeeping(bucket, at.job, folder / "mirror", lambda: True, problem)
        keeper.start()
        calls(at)
        keeper.stop()


def store_session(folder: Path, agent: str, size: int) -> None:
    """Capture a session of `size` bytes into a bucket below `folder`, as a run does; what the log says of it too."""
    from bench.sessions import session_id, write_session
    from wal_agent.agents import AGENTS
    from wal_agent.agents.base import SessionFile
    from wal_agent.capture.session import SessionCapture

    write_session(agent, folder / "session.jsonl", size, "/elsewhere")
    capture = SessionCapture(session_id(agent), _blobs(folder).put_payload)
    (delta,) = capture.capture([SessionFile(AGENTS[agent].main_file, folder / "session.jsonl")], 1.0)
    (folder / "delta").write_bytes(msgspec.msgpack.encode(delta))
    if agent == "opencode":
        make_database(folder, session_id(agent))


def restore_session(folder: Path, agent: str) -> None:
    """Print the peak of this process's memory in MB, before a restore and behind it."""
    import wal_agent.supervise.run  # noqa: F401 - what a run has in memory
    from bench.sessions import session_id
    from wal_agent.agents import AGENTS
    from wal_agent.agents.base import Cli, LoggedCall
    from wal_agent.records import FileDelta
    from wal_agent.recovery.restore_session import SessionTarget, restore
    from wal_agent.wal.state import FileState

    delta = msgspec.msgpack.decode((folder / "delta").read_bytes(), type=FileDelta)
    session = session_id(agent)
    files = {delta.path: FileState.first(delta)}
    env = {"HOME": str(folder / "home")}
    place = SessionTarget(AGENTS[agent], session, folder / "work", env, folder / "kept" / "1")
    call = LoggedCall(1, "a_tool", b'{"command":"make"}', b'"done"', False)
    before = _peak()
    restore(place, files, _blobs(folder), (call,), lambda _: "the notice", time.time())
    if (journal := AGENTS[agent].capabilities.journal) is not None:
        journal.restore(Cli(Path("/nowhere"), "1"), session, folder / "work", env, False)
    print(f"{before:.0f} {_peak():.0f}")


def make_database(folder: Path, session: str) -> None:
    """OpenCode's database as its own `import` leaves it: it has the session, and nothing of what was said."""
    from tests.unit.agents.test_opencode_session import Base

    (folder / "home").mkdir()
    base = Base(folder / "home")
    base.put("session", id=session, project_id="p", slug="s", directory=str(folder / "work"), title="t", version="1")
    base.db.close()


def _blobs(folder: Path) -> Blobs:
    return Blobs(JobStore(open_bucket(f"file://{folder}/bucket"), Keys("bench"), rng=random.Random(1)), epoch=1)


def _peak() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def measured(agent: str, size: int) -> tuple[int, int]:
    """The peak in MB of a process before a recovery, and behind it."""
    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        argv = [sys.executable, "-m", "bench.memory"]
        subprocess.run([*argv, "store", folder, agent, str(size)], check=True)
        found = subprocess.run([*argv, "restore", folder, agent], check=True, capture_output=True, text=True)
    before, after = map(int, found.stdout.split())
    return before, after


def recovery(agents: Sequence[str]) -> None:
    from bench.sessions import ROUNDS

    for agent in agents or ROUNDS:
        found = [measured(agent, size) for size in SESSIONS]
        print(
            f"  {agent:<9} {found[0][0]:4} MB before;",
            *(f"{size / 1e6:g} MB: {after}" for size, (_, after) in zip(SESSIONS, found, strict=True)),
            flush=True,
        )


def idle() -> None:
    """Print the median private memory of an idle run, in MB."""
    import psutil

    with tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
        root = Path(folder)
        for name in ("home", "run", "work"):
            (root / name).mkdir(0o700)
        env = {"PATH": os.environ["PATH"], "HOME": f"{root}/home", "WAL_AGENT_RUNTIME_DIR": f"{root}/run"}
        argv = [sys.executable, "-m", "wal_agent", "run", "generic", "--bucket", f"file://{root}/bucket", "--job"]
        runs = []
        for n in range(RUNS):
            (work := root / "work" / str(n)).mkdir()
            command = [*argv, f"job-{n}", "--", "sleep", "3600"]
            no = subprocess.DEVNULL
            runs.append(subprocess.Popen(command, cwd=work, env=env, stdin=no, stdout=no, stderr=no))
        try:
            while any(not psutil.Process(run.pid).children() for run in runs):
                time.sleep(0.1)
            time.sleep(REST)
            private = [_private(run.pid) for run in runs]
        finally:
            for run in runs:
                run.terminate()
            for run in runs:
                run.wait()
        print(f"  {RUNS} idle runs: {statistics.median(private):.1f} MB each for itself, {sum(private):.0f} MB in all")


def _private(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def main() -> None:
    recovery(())
    idle()
    for scheme in NAMES:
        with store(scheme, 0) as at, tempfile.TemporaryDirectory(prefix="wa-bench-", dir="/tmp") as folder:
            print(f"  {at.name}", flush=True)
            subprocess.run([sys.executable, "-m", "bench.memory", at.url, folder], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["recovery"]:
        recovery(sys.argv[2:])
    elif sys.argv[1:2] == ["idle"]:
        idle()
    elif sys.argv[1:2] == ["store"]:
        store_session(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["restore"]:
        restore_session(Path(sys.argv[2]), sys.argv[3])
    elif len(sys.argv) > 2:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
