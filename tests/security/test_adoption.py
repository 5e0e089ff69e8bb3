"""A start on a machine that does not know the job, and a bucket that calls it this person's."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stub_agent import STUB
from tests.unit.supervise.crew import short_folder
from tests.unit.wal.world import intent
from wal_agent.bucket.file import FileBucket
from wal_agent.clock import SystemClock
from wal_agent.records import Host, Owner, RunEnded
from wal_agent.supervise.identity import KEY_FILE, make_person_key, person_key, store_person_key
from wal_agent.wal import codec
from wal_agent.wal.job import OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import is_signed, read_tail, replay
from wal_agent.wal.store import JobStore

START = ("run", "generic", "--", "sh", "-c", "exit 3")


class World:
    """One folder and one bucket, as several machines of one user see them."""

    def __init__(self, root: Path) -> None:
        self.root, self.bucket = root, root / "bucket"
        self.folder = root / "shop"
        self.folder.mkdir()

    def state(self, machine: str) -> Path:
        return self.root / machine / ".local/state/wal-agent"

    def command(self, machine: str, *words: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        home = self.root / machine
        home.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LOGNAME": "anna", "WAL_AGENT_HOST_ID": machine}
        env |= {"WAL_AGENT_BUCKET": self.bucket.as_uri(), "WAL_AGENT_RUNTIME_DIR": str(self.root / "r"), **more}
        return subprocess.run(
            [sys.executable, "-P", "-m", "wal_agent", *words],
            cwd=self.folder,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def jobs(self) -> list[str]:
        return sorted(name.strip("/") for name in FileBucket(self.bucket).folders("") if "shop" in name)

    def stored(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.bucket.rglob("*") if path.is_file()}


@pytest.fixture
def world() -> Iterator[World]:
    with short_folder() as root:
        yield World(root.resolve())


def forge(world: World, agent: str = "generic", name: str = "", host: str = "elsewhere") -> Keys:
    """A stranger's job, with an open call: of this folder's name, this user's name and this path; or of this `host`
    and of nobody, as an earlier wal-agent wrote it."""
    keys, clock, rng = Keys(name or f"{agent}-shop-aaaa"), SystemClock(), random.Random(1)
    at = Host(name=host, boot="b", pidns="p", pid=1, lock="/x")
    owner = Owner(user="anna", person="f" * 32, folder="e" * 32) if host == "elsewhere" else Owner()
    claim = LeaseRequest("b" * 16, at, agent, str(world.folder), 5.0, owner=owner)
    fields = OpeningFields("1", "0", args=("sh", "-c", "exit 3"))
    bucket = FileBucket(world.bucket)
    job = open_job(JobStore(bucket, keys, clock, rng, parallel=1), claim=claim, fields=fields, seen=None, cause="first")
    job.writer.append(intent(1))
    job.writer.commit_once()
    close_job(job, "released", "stopped: the agent failed")
    return keys


@pytest.mark.parametrize("name", ["", "generic-shop"], ids=["elsewhere", "unowned"])
def test_a_forged_job_of_this_folder_is_not_adopted(world: World, name: str) -> None:
    """Name, user, host and path are words in the bucket: 79 where nobody can be asked, and nothing is changed. `--job`
    is consent."""
    keys = forge(world, name=name, host=socket.gethostname() if name else "elsewhere")
    before = world.stored()
    refused = world.command("vm-1", *START)
    assert refused.returncode == 79 and keys.job in refused.stderr, refused.stderr
    assert world.stored() == before
    assert world.command("vm-1", "run", "generic", f"--job={keys.job}", *START[2:]).returncode == 3


def test_the_same_key_carries_on_without_a_question(world: World) -> None:
    """By `key show | key import`, or by a secret in a file; not with another key, and not once a stranger has written
    behind what was signed."""
    assert world.command("vm-1", *START).returncode == 3
    (job,) = world.jobs()
    assert world.command("vm-2", *START).returncode == 79, "a machine with no key"
    shown = world.command("vm-1", "key", "show").stdout
    assert (world.state("vm-1") / KEY_FILE).stat().st_mode & 0o777 == 0o600
    shutil.copytree(world.bucket, world.root / "copy")

    assert world.command("vm-3", "key", "import", given=shown).returncode == 0
    assert world.command("vm-3", *START).returncode == 3
    secret = world.root / "secret"
    secret.write_text(shown)
    secret.chmod(0o600)
    assert world.command("pod", *START, WAL_AGENT_PERSON_KEY_FILE=str(secret)).returncode == 3
    assert world.jobs() == [job]
    other = world.command("vm-3", "key", "import", given=os.urandom(32).hex())
    assert other.returncode == 78 and "another key" in other.stderr

    shutil.rmtree(world.bucket)
    (world.root / "copy").rename(world.bucket)
    bucket, keys = FileBucket(world.bucket), Keys(job)
    at = read_tail(bucket, keys)
    run = replay(bucket, keys).state.openings[-1].opening.run
    record = codec.encode_record(RunEnded(time=1.0, code=1, completed=False))[0]
    forged = codec.encode_segment(
        codec.Author(job, at.epoch, run), seq=at.seq + 1, prev=at.hash, time=1.0, records=[record]
    )
    bucket.put(keys.segment(at.seq + 1), forged)
    key = bytes.fromhex(shown)
    assert not is_signed(replay(bucket, keys), key)
    assert is_signed(replay(bucket, keys, at.seq), key)
    assert world.command("vm-4", *START, WAL_AGENT_PERSON_KEY_FILE=str(secret)).returncode != 3


@pytest.mark.parametrize(
    "words", [("run", "gemini", "--from-agent=claude"), ("run", "claude", "--from=1")], ids=["handoff", "fork"]
)
def test_no_other_way_of_starting_adopts_it(world: World, words: tuple[str, ...]) -> None:
    """A handoff that looks the folder's job up, and a fork of the name that this folder would give."""
    programs = world.root / "programs"
    programs.mkdir()
    for name in ("gemini", "claude"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    forge(world, "claude")
    if "--from=1" in words:
        seen = world.command("vm-1", "run", "claude", "--no-wait", "--fresh", "--from=1", PATH=path).stderr
        own = next(word for word in seen.split() if word.startswith("claude-shop-"))
        forge(world, "claude", own)
    before = world.stored()
    refused = world.command("vm-1", *words, PATH=path)
    assert refused.returncode == 79, refused.stderr
    assert world.stored() == before


@pytest.mark.parametrize(
    "words", [("ack", "1", "--done"), ("run", "generic", "--job=generic-shop-aaaa", *START[2:])], ids=["ack", "claim"]
)
def test_what_acts_on_a_job_does_not_make_it_this_persons(world: World, words: tuple[str, ...]) -> None:
    """A command for a job at rest, and a start that `fleet claim` types: the person's machines ask as before. A
    take-over that a person types is theirs, everywhere."""
    key = world.command("vm-1", "key", "show").stdout
    assert world.command("vm-2", "key", "import", given=key).returncode == 0
    keys = forge(world)
    acted = world.command("vm-1", *words)
    assert acted.returncode in (0, 3), acted.stderr
    assert world.command("vm-2", *START).returncode == 79
    assert world.command("vm-1", "run", "generic", f"--job={keys.job}", "--take-over", *START[2:]).returncode == 3
    assert world.command("vm-2", *START).returncode == 3


def test_a_key_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start that reads it while it is made, or after a loss of power, finds no empty one, which it refuses."""
    env, found = {"HOME": str(tmp_path)}, list[bytes]()
    real = os.fsync

    def sync(fd: int) -> None:
        found.append(person_key(env))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    key = make_person_key(env)
    assert len(key) == 32 and found[0] == b"" and set(found) <= {b"", key}
    assert [path.name for path in (tmp_path / ".local/state/wal-agent").iterdir()] == [KEY_FILE]
    with pytest.raises(FileExistsError):
        store_person_key(env, bytes(range(32)))
    assert person_key(env) == key


def test_an_agent_sees_no_key(world: World) -> None:
    done = world.command("vm-1", "run", "generic", "--", sys.executable, "-P", "-m", "wal_agent", "key", "show")
    assert done.returncode == 79 and not done.stdout.strip(), done.stderr


@pytest.mark.parametrize("kind", ["key", "word", "kind"])
def test_a_tag_is_of_these_bytes_under_this_key(kind: str) -> None:
    key = bytes(range(32))

    def made(run: str, sign: bytes = key) -> bytes:
        return codec.encode_segment(codec.Author("j", 2, run, sign), seq=7, prev=b"p" * 32, time=9.5, records=[])

    assert codec.is_tagged(made("r"), key, "segment") and not codec.is_tagged(made("r", b""), key, "segment")
    assert codec.decode_segment(made("r"), job="j", seq=7).run == "r"
    match kind:
        case "key":
            assert not codec.is_tagged(made("r", bytes(32)), key, "segment")
        case "word":
            raw = codec.decompress(made("r"), 1 << 20).replace(b"\xa1r", b"\xa1s")
            assert codec.decode_segment(codec.compress(raw), job="j", seq=7).run == "s"
            assert not codec.is_tagged(codec.compress(raw), key, "segment")
        case _:
            assert not codec.is_tagged(made("r"), key, "snapshot")
