"""Claiming hosts as real processes: of any number, one runs a job; and what they are told reaches the run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import TESTS
from tests.unit.fleet.leases import CRASHED, store
from wal_agent.bucket.file import FileBucket

HOST = """
import os, random, sys
from pathlib import Path
from wal_agent.bucket.file import FileBucket
from wal_agent.clock import SystemClock
from wal_agent.fleet.jobs import Allowed
from wal_agent.fleet.jobs import Reader
from wal_agent.fleet.jobs import ClaimOptions, Launcher, claim, run_child
root, stub = Path(sys.argv[1]), sys.argv[2]
run = lambda argv, place: run_child(argv, place, os.environ)
eyes = Reader.of(FileBucket(root / "bucket"), os.environ)
say = lambda text: print(text, flush=True)
program = [sys.executable, stub]
allowed, wanted = Allowed(("gemini",), root), ClaimOptions(loop=True, every=0.1)
sys.exit(claim(eyes, allowed, wanted, say, SystemClock(), random.Random(), Launcher(run, run, program)))
"""
RUN = """
import os, secrets, sys
from pathlib import Path
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import LeaseHeld
from wal_agent.supervise.machine import this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.store import JobStore
bucket, keys = FileBucket(Path(os.environ["ROOT"]) / "bucket"), Keys(sys.argv[3].removeprefix("--job="))
claim = leases.LeaseRequest(secrets.token_hex(8), this_host(os.environ, Path("/dev/null")), "gemini", os.getcwd(), 30.0)
seen = leases.read_lease(bucket, keys)
if seen.doc.epoch != 3:
    sys.exit(75)
try:
    lease = leases.acquire(JobStore(bucket, keys), seen=seen, claim=claim, log_epoch=0)
except LeaseHeld:
    sys.exit(75)
with open(os.environ["ROOT"] + "/ran", "a") as file:
    file.write(f"{keys.job} {os.path.basename(os.getcwd())}\\n")
lease.settle("closed")
"""
TOLD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("runs", flush=True)
time.sleep(60)
"""


def start(root: Path, stub: str) -> subprocess.Popen[str]:
    (root / "stub.py").write_text(stub)
    return subprocess.Popen(
        [sys.executable, "-c", HOST, str(root), str(root / "stub.py")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS.parent), "HOME": str(root), "ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def jobs(root: Path, names: Sequence[str]) -> None:
    for name in names:
        store(FileBucket(root / "bucket"), name, **{**CRASHED, "workspace": str(root / "work" / name)})


def test_of_three_hosts_each_job_is_run_by_one(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    jobs(root, names := [f"job-{n}" for n in range(10)])
    hosts = [start(root, RUN) for _ in range(3)]
    said = [host.communicate(timeout=120)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0, 0], said
    assert sorted((root / "ran").read_text().splitlines()) == [f"{name} {name}" for name in names]
    taken = Counter(line.split()[2] for text in said for line in text.splitlines() if line.startswith("taking job"))
    assert set(taken) == set(names)


def test_a_signal_reaches_the_run_and_no_other_job_is_taken(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    jobs(root, ["a", "b"])
    with start(root, TOLD) as host:
        assert host.stdout is not None
        while host.stdout.readline() != "runs\n":
            assert host.poll() is None
        host.send_signal(signal.SIGTERM)
        rest = host.communicate(timeout=60)[0]
    assert host.returncode == 143 and "taking" not in rest


TYPED = """
import os, sys
from pathlib import Path
from wal_agent.fleet.jobs import run_child
print(run_child([sys.executable, "-c", sys.argv[1]], Path("/"), os.environ), flush=True)
"""
COUNTS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
os.write(2, b"runs")
got = [signal.sigwait({signal.SIGINT})]
os.kill(os.getppid(), signal.SIGTERM)  # it comes back when what was before it is passed on
signal.sigwait({signal.SIGTERM})
print(got, sorted(signal.sigpending()), flush=True)
"""


def test_what_the_terminal_sent_to_the_run_as_well_is_not_passed_on() -> None:
    """Two Ctrl-C end an agent that one only interrupts; also where our stdin is no terminal."""
    terminal, end = os.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", TYPED, COUNTS],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0),
    )
    os.close(end)
    try:
        said = b""
        while b"runs" not in said:
            said += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        out, _ = run.communicate(timeout=60)
    finally:
        run.kill()
        os.close(terminal)
    lines = out.splitlines()
    assert "[<Signals.SIGINT: 2>] []" in lines and "Child(code=0, number=15)" in lines[-1], out
