"""A job that a run gave up in good order, made by the real writer, blobs, captures and snapshots, to be damaged; and a
machine that commands are tried on, with what must not be touched beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.faults.prober import Prober, Said
from tests.stub_agent import STUB
from wal_agent.agents.base import SessionFile
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.capture.session import SessionCapture
from wal_agent.clock import SystemClock
from wal_agent.records import AgentStarted, AnyRecord, End, Host, Intent, Opening, Payload, Turn
from wal_agent.wal import codec
from wal_agent.wal import codec as packing
from wal_agent.wal.job import OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import Tail, read_tail
from wal_agent.wal.retention import Mirror, Snapshots
from wal_agent.wal.store import JobStore

KEYS = Keys("shop")
SESSION = "aaaaaaaa-0000-4000-8000-000000000000"
MAIN = "session.jsonl"
PLAN = "plans/next.md"
LAST = 9  # the newest segment
SNAPSHOTS = (4, 7)

# Names, below the job's prefix, that no object of ours has.
STRANGERS = [
    *("log/README", "log/0001", "log/x/y", f"log/{'1' * 19}", f"log/{'1' * 21}", f"log/{8:020d}/x", "lease.json/x"),
    *("blobs/x", "blobs/README", f"blobs/{'0' * 63}", f"blobs/{'0' * 64}-0", f"blobs/{'0' * 64}-{'9' * 30}"),
    *("snapshots/x", "snapshots/-1", f"snapshots/{7:020d}.bak", f"snapshots/{7:020d}/x", "x/y", "other"),
]


@contextmanager
def opened(url: str) -> Iterator[Bucket]:
    bucket = open_bucket(url)
    try:
        yield bucket
    finally:
        bucket.close()


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def message(n: int, size: int) -> bytes:
    return line(id=f"m{n}", timestamp="2026-01-01T00:00:00.000Z", type="gemini", content=f"{n:04}" * (size // 4))


def intent(call: int, **input: object) -> Intent:
    data = json.dumps(input or {"command": f"make step-{call}"}).encode()
    return Intent(
        time=1000.0 + call,
        call=call,
        tool="run_shell_command",
        input=Payload(size=len(data), data=data),
        cls="unknown",
        rule="shell",
        session=SESSION,
    )


def end(call: int) -> End:
    return End(time=1000.5 + call, call=call, how="done", by="hook", result=Payload(size=2, data=b"{}"))


def a_job(bucket: Bucket, scratch: Path, keys: Keys = KEYS) -> list[bytes]:
    """Fill `bucket`; the main session file as of each segment (index = its number, 0: none).

    1 opening; 2 start and turn; 3 main file (a blob) and a plan; 4 call 1; [snapshot 4]; 5 end of call 1; 6 main file
    grows by a blob; 7 call 2; [snapshot 7]; 8 main file grows, inline; 9 end of call 2. Then it is released."""
    clock = SystemClock()
    host = Host(name="vm-1", boot="boot-1", pidns="1", pid=7, lock="/nowhere/lock")
    job = open_job(
        JobStore(bucket, keys, clock, parallel=1),
        claim=LeaseRequest(run="run-1", host=host, agent="gemini", workspace="/w/shop", ttl=30.0),
        fields=OpeningFields(agent_version="0.61.0", version="0", args=("-p", "go")),
        seen=None,
        cause="first",
    )
    main, plan = scratch / "main", scratch / "plan"
    (scratch / "mirror").mkdir(parents=True)
    capture = SessionCapture(SESSION, job.blobs.put_payload)
    snapshots = Snapshots(bucket, keys, job.writer, Mirror(scratch / "mirror", job.blobs))
    history = [b"", b"", b""]

    def write(*records: AnyRecord) -> None:
        job.writer.append(*records)
        while job.writer.commit_once() == "acked":
            pass
        while len(history) <= job.writer.acked.seq:
            history.append(main.read_bytes() if main.exists() else b"")

    def grow(data: bytes) -> None:
        with main.open("ab") as file:
            file.write(data)
        files = [SessionFile(MAIN, main), SessionFile(PLAN, plan)]
        write(*capture.capture(files, 1000.0))

    write(
        AgentStarted(time=1000.0, pid=1, session=SESSION, resumed=False),
        Turn(time=1000.0, state="started", session=SESSION),
    )
    plan.write_bytes(b"# next\n")
    head = line(sessionId=SESSION, projectHash="x", startTime="t", lastUpdated="t", kind="main")
    grow(head + line(id="u", timestamp="t", type="user", content=[{"text": "go"}]) + message(1, 90_000))
    write(intent(1))
    snapshots.take()
    write(end(1))
    grow(message(2, 80_000))
    write(intent(2))
    snapshots.take()
    grow(message(3, 500))
    write(end(2))
    assert job.writer.acked.seq == LAST
    job.lease.renew(phase="executing_tools", tool="run_shell_command", seq=LAST)
    assert close_job(job, "released", "drained") == "released"
    shutil.rmtree(scratch)
    return history


# --- damage


def put(bucket: Bucket, key: str, data: bytes | None) -> None:
    """Whatever stands at `key`, `data` stands there now; None: nothing."""
    bucket.delete(key)
    if data is not None:
        bucket.put(key, data)


def change_lease(bucket: Bucket, **fields: object) -> None:
    """With fields that need not be what a lease may say."""
    doc = json.loads(bucket.get(KEYS.lease).data)
    put(bucket, KEYS.lease, json.dumps({**doc, **fields}).encode())


def change_host(bucket: Bucket, **fields: object) -> None:
    doc = json.loads(bucket.get(KEYS.lease).data)
    change_lease(bucket, **{**doc, "host": {**doc["host"], **fields}})


def last_snapshot(bucket: Bucket) -> codec.Snapshot:
    return codec.decode_snapshot(bucket.get(KEYS.snapshot(SNAPSHOTS[1])).data, job=KEYS.job, seq=SNAPSHOTS[1])


def replace_snapshot(bucket: Bucket, made: object) -> None:
    put(bucket, KEYS.snapshot(SNAPSHOTS[1]), packing.pack(made))


def add(bucket: Bucket, *records: object) -> int:
    """A segment at the log's end as its last owner would have written it, with records that need not be sound; its
    number."""
    at = read_tail(bucket, KEYS)
    if isinstance(records[0], Opening):
        return _put(bucket, at, records[0].epoch, records[0].run, records)
    last = codec.decode_segment(bucket.get(KEYS.segment(at.seq)).data, job=KEYS.job, seq=at.seq)
    return _put(bucket, at, last.epoch, last.run, records)


def _put(bucket: Bucket, at: Tail, epoch: int, run: str, records: Sequence[object]) -> int:
    data = codec.encode_segment(
        codec.Author(KEYS.job, epoch, run),
        seq=at.seq + 1,
        prev=at.hash,
        time=1100.0,
        records=[msgspec.msgpack.encode(r) for r in records],
    )
    put(bucket, KEYS.segment(at.seq + 1), data)
    return at.seq + 1


# --- where commands are tried


Listing = dict[str, tuple[int, bytes | str | None]]


def listing(root: Path) -> Listing:
    """Everything below `root`: modes, bytes, where links lead."""
    found: Listing = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        what = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (info.st_mode, what)
    return found


def contents(bucket: Bucket) -> dict[str, bytes | None]:
    """Every object; None where it cannot be read."""
    found: dict[str, bytes | None] = {}
    for entry in bucket.list(""):
        try:
            found[entry.key] = bucket.get(entry.key).data
        except Exception:  # noqa: BLE001 - what is damaged is to stay so
            found[entry.key] = None
    return found


@dataclass
class Machine:
    """A home, a workspace and a canary side by side; `url` is the bucket's."""

    root: Path
    prober: Prober
    url: str
    reach: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home, self.work, self.canary = self.root / "home", self.root / "shop", self.root / "canary"
        (self.home / ".gemini").mkdir(parents=True)
        (self.home / ".gemini" / "settings.json").write_text(
            '{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n'
        )
        (self.home / "mine.txt").write_text("mine\n")
        self.work.mkdir()
        (self.work / "README.md").write_text("work\n")
        self.canary.mkdir()
        (self.canary / "bird").write_text("sings\n")
        self.stub = self.root / "stub"
        self.stub.write_text(STUB)
        self.stub.chmod(0o755)
        self.runtime = Path(f"/tmp/wa-bad-{os.getpid()}-{self.root.name[-12:]}")

    def __call__(self, *argv: str) -> Said:
        env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "WAL_AGENT_BUCKET": self.url,
            "WAL_AGENT_JOB": KEYS.job,
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
            "WAL_AGENT_UNVERIFIED": "allow",  # the stub does not go on where it is asked to look
            "WAL_AGENT_GEMINI": str(self.stub),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "STUB_BEGAN": str(self.root / "began"),
            **self.reach,
        }
        return self.prober(*argv, cwd=self.work, env=env)

    def untouched(self) -> Listing:
        """What no command may change but where it says so."""
        return {f"{part.name}/{k}": v for part in (self.home, self.work, self.canary) for k, v in listing(part).items()}

    @property
    def began(self) -> bool:
        """Whether the agent was started."""
        return (self.root / "began").exists()

    def end(self) -> None:
        shutil.rmtree(self.runtime, ignore_errors=True)


Damage = Callable[[Bucket], object]
