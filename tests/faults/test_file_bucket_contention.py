"""Real processes contend for a key of a FileBucket while some are killed: one winner, nothing torn or lost (I2, I3).

A killed writer may have won without reporting, which is what a lost reply looks like.
"""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import cast

import pytest

from wal_agent.bucket.file import FileBucket, generation_of
from wal_agent.errors import Conflict, NotFound

WRITERS = 16
CREATE_ROUNDS, CREATES = 50, 6  # rounds, and keys for which each writer tries in a round
REPLACE_ROUNDS, REPLACES = 40, 6
KILLED = 2  # in every round
PATIENCE = 60.0  # seconds in which all writers must have answered; only a hang is slower


@dataclass(frozen=True)
class Report:
    """What a writer did in a round: the versions that it put, and what it saw that must not be."""

    writer: int
    won: tuple[str, ...]
    wrong: tuple[str, ...] = ()


def body(writer: int, count: int) -> bytes:
    """Long enough to be torn; tells its writer and which replace it was."""
    return b"%d %d " % (writer, count) + b"%c" % (97 + writer) * (1 + count * 7919 % 30_000)


def parse(data: bytes) -> tuple[int, int]:
    """Writer and count of a body, which must be whole."""
    writer, count, _ = data.split(b" ", 2)
    assert data == body(int(writer), int(count)), "torn"
    return int(writer), int(count)


def write(root: str, writer: int, orders: Connection) -> None:
    """A writer's life: each order names keys to create, or one to replace again and again; try, and report."""
    bucket = FileBucket(Path(root), lock_timeout=PATIENCE)
    while True:
        try:
            keys, replace = orders.recv()
        except EOFError:
            return
        won: list[str] = []
        wrong: list[str] = []
        generation = 0
        for key in keys:
            try:
                if not replace:
                    won.append(bucket.put(key, body(writer, 0)))
                    continue
                seen = bucket.get(key)
                if generation_of(seen.version) < generation:
                    wrong.append(f"generation went back from {generation} to {seen.version}")
                generation = generation_of(seen.version)
                _, count = parse(seen.data)
                won.append(bucket.put(key, body(writer, count + 1), if_version=seen.version))
            except Conflict:
                pass
            except Exception as error:  # noqa: BLE001 (whatever it is, the test is to name it)
                wrong.append(repr(error))
        orders.send(Report(writer, tuple(won), tuple(wrong)))


class Crew:
    """Sixteen writers; those that were killed are replaced before the next round."""

    def __init__(self, root: Path, rng: Random) -> None:
        self._root = root
        self._rng = rng
        self._context = multiprocessing.get_context("forkserver")  # as clean as spawn, and far quicker
        self._context.set_forkserver_preload(["pytest", "wal_agent.bucket.file"])
        self._members: dict[int, tuple[BaseProcess, Connection]] = {}
        self.kills = 0

    def hire(self) -> None:
        for writer in range(WRITERS):
            if writer not in self._members:
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=write, args=(str(self._root), writer, theirs), daemon=True)
                process.start()
                theirs.close()
                self._members[writer] = process, ours

    def round(self, keys: list[str], replace: bool = False) -> list[Report]:
        """Everybody goes for `keys`; some are killed meanwhile. The reports of those that could still send one."""
        self.hire()
        doomed = self._rng.sample(range(WRITERS), KILLED)
        for _, orders in self._members.values():
            orders.send((keys, replace))
        for writer in doomed:
            time.sleep(self._rng.uniform(0, 0.03))  # only spreads the kills over what the writers do
            self._members[writer][0].kill()
            self.kills += 1
        reports = []
        expected = {orders: writer for writer, (_, orders) in self._members.items()}
        while expected:
            ready = wait([*expected], PATIENCE)
            assert ready, f"writers {sorted(expected.values())} hang"
            for orders in cast("list[Connection]", ready):
                writer = expected.pop(orders)
                try:
                    reports.append(orders.recv())
                except (EOFError, ConnectionResetError):
                    assert writer in doomed
        for writer in doomed:
            self._dismiss(writer)
        return reports

    def dismiss(self) -> None:
        for writer in [*self._members]:
            self._dismiss(writer)

    def _dismiss(self, writer: int) -> None:
        process, orders = self._members.pop(writer)
        orders.close()
        process.join()
        process.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def crew(root: Path) -> Iterator[Crew]:
    crew = Crew(root, Random(20))
    yield crew
    crew.dismiss()


def test_each_create_has_one_winner(root: Path, crew: Crew) -> None:
    bucket = FileBucket(root)
    unreported = 0
    for turn in range(CREATE_ROUNDS):
        keys = [f"log/{CREATES * turn + number:020}" for number in range(CREATES)]
        reports = crew.round(keys)
        assert [wrong for report in reports for wrong in report.wrong] == []
        won = {version for report in reports for version in report.won}
        assert len(won) == sum(len(report.won) for report in reports)
        for key in keys:
            found = bucket.get(key)
            winner, _ = parse(found.data)
            if winner in {report.writer for report in reports}:
                assert found.version in next(report.won for report in reports if report.writer == winner)
                won.remove(found.version)
            else:
                unreported += 1
        assert not won, "two writers created the same key"
    assert unreported <= crew.kills * CREATES
    assert len([*bucket.list("log/")]) == CREATE_ROUNDS * CREATES
    assert {len(path.name) for path in (root / ".locks").iterdir()} == {2}


def test_each_version_is_replaced_once(root: Path, crew: Crew) -> None:
    bucket = FileBucket(root)
    created = bucket.put("lease.json", body(0, 0))
    won: list[str] = []
    generation = 1
    for _ in range(REPLACE_ROUNDS):
        reports = crew.round(["lease.json"] * REPLACES, replace=True)
        assert [wrong for report in reports for wrong in report.wrong] == []
        won += [version for report in reports for version in report.won]
        found = bucket.get("lease.json")
        _, count = parse(found.data)
        # Each replace adds one to what it read, so a lost one would leave the count behind the generation.
        assert count == generation_of(found.version) - 1
        assert generation_of(found.version) > generation
        generation = generation_of(found.version)
    generations = [generation_of(version) for version in won]
    assert len(set(generations)) == len(generations), "two writers replaced the same version"
    unreported = set(range(2, generation + 1)) - set(generations)
    assert len(unreported) <= crew.kills * REPLACES
    with pytest.raises(Conflict):
        bucket.put("lease.json", b"", if_version=created)


KILL_AT_CALL = """
import os, signal, sys
from pathlib import Path
from wal_agent.bucket.file import FileBucket

op, root, left = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def count(frame, event, function):
    global left
    if event == "c_call" and function.__module__ in ("posix", "fcntl"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

bucket = FileBucket(root)
version = bucket.get("job/old").version
sys.setprofile(count)
if op == "create":
    bucket.put("job/new/key", b"new")
elif op == "replace":
    bucket.put("job/old", b"new", if_version=version)
else:
    bucket.delete("job/old")
"""


@pytest.mark.parametrize("op", ["create", "replace", "delete"])
def test_a_kill_before_any_call_of_the_kernel_leaves_all_or_nothing(tmp_path: Path, op: str) -> None:
    key = "job/new/key" if op == "create" else "job/old"
    states = []
    for call in range(1, 200):
        root = tmp_path / f"{call}"
        bucket = FileBucket(root, lock_timeout=0.0)  # the lock must be free at once
        old = bucket.put("job/old", b"old")
        ended = subprocess.run([sys.executable, "-c", KILL_AT_CALL, op, str(root), str(call)], check=False)
        states.append(_state(bucket, key))
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
        assert {entry.key for entry in bucket.list("")} <= {"job/old", "job/new/key"}
        if op == "replace" and states[-1] == b"old":
            bucket.put(key, b"after", if_version=old)
        elif states[-1] is not None:
            with pytest.raises(Conflict):
                bucket.put(key, b"after")
            bucket.put(key, b"after", if_version=bucket.get(key).version)
        else:
            bucket.put(key, b"after")
        assert bucket.get(key).data == b"after"
    else:
        pytest.fail("it never ran to its end")
    before, after = {"create": (None, b"new"), "replace": (b"old", b"new"), "delete": (b"old", None)}[op]
    landed = states.index(after)
    assert 5 < landed < len(states) - 3, "kills on both sides of the moment that counts"
    assert states == [before] * landed + [after] * (len(states) - landed)


def _state(bucket: FileBucket, key: str) -> bytes | None:
    try:
        return bucket.get(key).data
    except NotFound:
        return None
