"""`wal-agent restore`: session and working tree as of a place in the log, into a folder and nowhere else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.shelf import KEYS, Run, Shelf, commit, intent
from tests.unit.wal.world import World, drain
from tests.unit.wal.world import intent as another
from wal_agent.bucket.base import MemoryBucket
from wal_agent.capture.inside import TreeCapture
from wal_agent.capture.session import SessionCapture
from wal_agent.records import AgentStarted
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import iter_segments, seq_at_time
from wal_agent.wal.store import JobStore

MAIN = "session.jsonl"


class Story:
    """A job whose session and working tree grow with each `step`."""

    def __init__(self, root: Path, ttl: float = 30.0) -> None:
        self.shelf = Shelf(root / "bucket")
        self.work, self.main = root / "work", root / "s.jsonl"
        self.work.mkdir()
        self.job = self.shelf.open(ttl=ttl)
        blobs = Blobs(JobStore(self.shelf.bucket, KEYS, rng=random.Random(1)), epoch=1)
        self.session = SessionCapture("s", blobs.put_payload)
        env = {"HOME": str(root), "PATH": "/usr/bin:/bin"}
        self.tree = TreeCapture(root / "state", self.work.resolve(), env, blobs.put_payload)
        self.job.writer.append(AgentStarted(time=1.0, pid=7, session="s", resumed=False))
        commit(self.job)
        self.calls = 0

    def step(self, text: str) -> int:
        """One call begins, writes `text` and is captured; the number of the last record."""
        self.main.write_text(text * 3)
        (self.work / "a.txt").write_text(text)
        (self.work / f"{text}.sh").write_text("#!/bin/sh\n")
        (self.work / f"{text}.sh").chmod(0o755)
        return self.call(f"make {text}")

    def call(self, command: str) -> int:
        """One call begins, and what session and tree are then is captured; the number of the last record."""
        from wal_agent.agents.base import SessionFile

        self.calls += 1
        self.job.writer.append(intent(self.calls, command=command))
        for record in self.session.capture([SessionFile(MAIN, self.main)], 10.0 * self.calls):
            self.job.writer.append(record)
        captured = self.tree.capture(self.calls - 1, 10.0 * self.calls)
        assert captured
        self.job.writer.append(*captured)
        self.tree.commit()
        commit(self.job)
        return self.job.writer.acked.seq

    @property
    def where(self) -> list[str]:
        return ["--bucket", self.shelf.url, "--job", "shop"]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def tree(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def test_session_and_tree_as_they_were(story: Story, run: Run, tmp_path: Path) -> None:
    """I4, at a place in the middle and at the end."""
    first, second = story.step("one"), story.step("two")
    before = {p: p.read_bytes() for p in (tmp_path / "bucket").rglob("*") if p.is_file()}
    code, out, err = run("restore", *story.where, "--at", str(first), "--to", "old")
    assert (code, out) == (0, ""), err
    old = Path("old")
    assert {p.name for p in old.iterdir()} == {"session", "workspace"} and old.stat().st_mode & 0o777 == 0o700
    assert (old / "session" / MAIN).read_text() == "one" * 3
    assert tree(old / "workspace") == {"a.txt": "one", "one.sh": "#!/bin/sh\n"}
    assert (old / "workspace" / "one.sh").stat().st_mode & 0o111
    assert f"as of record {first} (" in err and "1 call then: #1 make one (open)" in err
    assert "with the effects of calls up to #0" in err
    code, out, err = run("restore", *story.where, "--to", "new", "--json")
    told = json.loads(out)
    assert code == 0 and (told["record"], told["tree_files"], told["open_calls"]) == (second, 3, [1, 2])
    assert tree(Path("new/workspace")) == {"a.txt": "two", "one.sh": "#!/bin/sh\n", "two.sh": "#!/bin/sh\n"}
    assert {p: p.read_bytes() for p in (tmp_path / "bucket").rglob("*") if p.is_file()} == before


def test_a_folder_that_is_there_is_replaced_only_when_forced(story: Story, run: Run, tmp_path: Path) -> None:
    story.step("one")
    mine = Path("mine")
    (mine / "workspace").mkdir(parents=True)
    (mine / "workspace" / "a.txt").write_text("of the user's")
    (mine / "workspace" / "other").write_text("of the user's")
    (tmp_path / "elsewhere").write_text("untouched")
    (mine / "workspace" / "one.sh").symlink_to(tmp_path / "elsewhere")
    code, _, err = run("restore", *story.where, "--to", "mine")
    assert code == 64 and "--force" in err and (mine / "workspace" / "a.txt").read_text() == "of the user's"
    code, _, err = run("restore", *story.where, "--to", "mine", "--force")
    assert code == 0 and "2 files there replaced" in err, err
    assert tree(mine / "workspace") == {"a.txt": "one", "one.sh": "#!/bin/sh\n", "other": "of the user's"}
    assert (tmp_path / "elsewhere").read_text() == "untouched"
    assert {p.name for p in mine.iterdir()} == {"session", "workspace"}


def test_a_link_is_not_followed_out(story: Story, run: Run, tmp_path: Path) -> None:
    story.step("one")
    (tmp_path / "elsewhere").mkdir()
    Path("mine").mkdir()
    Path("mine/workspace").symlink_to(tmp_path / "elsewhere")
    code, _, err = run("restore", *story.where, "--to", "mine", "--force")
    assert code == 78 and "is not a folder" in err and not [*(tmp_path / "elsewhere").iterdir()]
    Path("link").symlink_to(tmp_path / "elsewhere")
    assert run("restore", *story.where, "--to", "link", "--force")[0] == 64


def test_a_tree_that_is_damaged_leaves_the_session(story: Story, run: Run) -> None:
    story.step("one")
    captured = story.job.writer.state.workspace
    assert captured is not None
    (story.work / "big").write_bytes(random.Random(1).randbytes(1 << 20))
    seq = story.step("two")
    now = story.job.writer.state.workspace
    assert now is not None
    names = [part.blob for pack in now.packs for part in pack.parts if part.blob]
    assert names
    story.shelf.bucket.delete(KEYS.blob(names[0]))
    code, _, err = run("restore", *story.where, "--at", str(seq), "--to", "out")
    assert code == 73 and "the working tree cannot be had" in err, err
    assert (Path("out") / "session" / MAIN).read_text() == "two" * 3 and not Path("out/workspace").exists()


def test_a_job_that_is_none(run: Run, tmp_path: Path) -> None:
    for at in ([], ["--at", "3"], ["--at", "14:02"]):
        code, _, err = run("restore", "--bucket", (tmp_path / "b").as_uri(), "--job", "shop", *at, "--to", "out")
        assert code == 64 and "There is no job shop in file:" in err and not Path("out").exists()


def test_a_place_that_is_none(story: Story, run: Run) -> None:
    last = story.step("one")
    for at, says in (
        ("99999", f"no record 99999; the last is {last}"),
        ("0", "numbered from 1"),
        ("soon", "is neither a record"),
        ("1999-01-01", "no record of 1999-01-01"),
    ):
        code, _, err = run("restore", *story.where, "--at", at, "--to", "out")
        assert code == 64 and says in err, err
    assert not Path("out").exists()


@given(st.lists(st.floats(0.0, 50.0), max_size=12), st.floats(-1.0, 60.0))
def test_the_last_record_of_a_time(pauses: list[float], asked: float) -> None:
    """Found with few reads, also where some segments were made at one moment."""
    world = World()
    job = world.open("a")
    for number, pause in enumerate(pauses, 1):
        world.clock.at += pause
        job.writer.append(another(number))
        drain(job)
    bucket = world.bucket
    began = min((s.time for _, s in iter_segments(bucket, Keys("shop"))), default=0.0)
    wanted = max((seq for seq, s in iter_segments(bucket, Keys("shop")) if s.time <= began + asked), default=0)
    assert seq_at_time(bucket, Keys("shop"), began + asked) == wanted
    assert seq_at_time(MemoryBucket(), Keys("shop"), 1.0) == 0


def test_kept_files_are_listed_and_come_back(run: Run, tmp_path: Path) -> None:
    from tests.unit.recovery.lab import Lab, Machine, files, write

    (tmp_path / "lab").mkdir()
    lab = Lab(tmp_path / "lab")
    first, here = lab.machine("a"), Machine(lab, tmp_path / "home/.local/state/wal-agent", tmp_path / "shop")
    assert run("restore", "--kept")[:2] == (0, "")
    write(first.work, a="by the agent\n")
    first.capture()
    write(here.work, a="mine\n", b="mine too\n")
    before = files(here.work)
    here.restore()
    code, out, _ = run("restore", "--kept")
    assert code == 0 and out.split()[0] == "1" and "2 files (a, b)" in out
    assert run("restore", "--kept", "2")[0] == 64
    assert run("restore", "--kept", "1")[0] == 0 and files(here.work) == before
    assert run("restore", "--kept", out.split()[1])[0] == 0, "a name stays, whatever else is kept"


@pytest.mark.parametrize("words", [(), ("1",), ("--kept", "--to", "x"), ("--kept", "1", "--force")])
def test_it_says_what_is_to_be_restored(run: Run, words: tuple[str, ...]) -> None:
    assert run("restore", *words)[0] == 64
