from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.faulty_bucket import Fault, FaultBucket, FaultFile, Faults, FileFaults, faulty_environment, write_faults
from wal_agent.bucket.base import MemoryBucket
from wal_agent.errors import ConfigError, NotFound, Unavailable


def stored(bucket: MemoryBucket) -> list[str]:
    return [entry.key for entry in bucket.list("")]


@pytest.fixture
def store() -> MemoryBucket:
    return MemoryBucket()


def test_before_means_that_nothing_arrived(store: MemoryBucket) -> None:
    bucket = FaultBucket(store, lambda op, key: Fault(before=True))
    for act in (lambda: bucket.put("a", b""), lambda: bucket.get("a"), bucket.time, lambda: [*bucket.list("")]):
        with pytest.raises(Unavailable, match="injected on purpose"):
            act()
    assert stored(store) == []


def test_after_means_that_only_the_reply_was_lost(store: MemoryBucket) -> None:
    bucket = FaultBucket(store, lambda op, key: Fault(after=True))
    for _ in range(2):  # the second one is a conflict, of which its sender does not learn either
        with pytest.raises(Unavailable):
            bucket.put("a", b"1")
    assert store.get("a").data == b"1"
    with pytest.raises(Unavailable):
        bucket.delete("a")
    assert stored(store) == []


def test_a_listing_breaks_off_half_way(store: MemoryBucket) -> None:
    for key in "abcd":
        store.put(key, b"")
    listing = FaultBucket(store, lambda op, key: Fault(after=True)).list("")
    assert [next(listing).key, next(listing).key] == ["a", "b"]
    with pytest.raises(Unavailable):
        next(listing)


def test_late_means_that_it_arrives_some_calls_later(store: MemoryBucket) -> None:
    faults = iter([Fault(late=2)])
    bucket = FaultBucket(store, lambda op, key: next(faults, Fault()))
    with pytest.raises(Unavailable):
        bucket.put("a", b"1")
    with pytest.raises(NotFound):
        bucket.get("a")
    assert bucket.get("a").data == b"1"


def test_late_may_also_mean_after_its_sender_died_and_was_overtaken(store: MemoryBucket) -> None:
    bucket = FaultBucket(store, lambda op, key: Fault(late=99))
    for key in ("a", "b"):
        with pytest.raises(Unavailable):
            bucket.put(key, b"dead")
    store.put("a", b"living")
    bucket.land()
    assert (store.get("a").data, store.get("b").data) == (b"living", b"dead")
    bucket.land()


def test_delays_are_slept_by_who_owns_the_time(store: MemoryBucket) -> None:
    slept: list[float] = []
    bucket = FaultBucket(store, Faults(Random(1), latency=(1.0, 3.0)), slept.append)
    for _ in range(200):
        bucket.time()
    assert 1.0 <= min(slept) < 1.1
    assert 2.9 < max(slept) <= 3.0


def test_rates_are_met_and_seeded() -> None:
    def drawn(seed: int) -> list[Fault]:
        plan = Faults(Random(seed), error_before=0.1, error_after=0.2, late=0.3)
        return [plan("put", "a") for _ in range(4000)]

    faults = drawn(1)
    assert faults == drawn(1) != drawn(2)
    for hits, rate in (
        (sum(fault.before for fault in faults), 0.1),
        (sum(fault.after for fault in faults), 0.2),
        (sum(fault.late > 0 for fault in faults), 0.3),
    ):
        assert abs(hits / 4000 - rate) < 0.03
    assert {fault.late for fault in faults} == set(range(9))


def test_one_rate_does_not_shift_the_others_draws() -> None:
    def afters(before: float) -> list[bool]:
        plan = Faults(Random(7), error_before=before, error_after=0.5)
        return [plan("put", "a").after for _ in range(50)]

    assert afters(0.0) == afters(0.9)


def test_a_part_of_the_bucket_is_away(store: MemoryBucket) -> None:
    bucket = FaultBucket(store, Faults(Random(1), down=lambda op, key: op == "put" and key.startswith("log/")))
    bucket.put("lease.json", b"")
    with pytest.raises(Unavailable):
        bucket.put("log/1", b"")
    assert [*bucket.list("log/")] == []


class TestFile:
    def test_an_outage_is_switched_on_and_off(self, store: MemoryBucket, tmp_path: Path) -> None:
        path = tmp_path / "faults"
        bucket = FaultBucket(store, FileFaults(path))
        bucket.put("a", b"")
        write_faults(path, FaultFile(down=True))
        with pytest.raises(Unavailable):
            bucket.get("a")
        write_faults(path, FaultFile())
        bucket.get("a")
        write_faults(path, FaultFile(down=True))
        path.unlink()
        bucket.get("a")
        assert [*tmp_path.iterdir()] == []

    def test_toml_and_json_are_read(self, store: MemoryBucket, tmp_path: Path) -> None:
        path = tmp_path / "faults"
        slept: list[float] = []
        bucket = FaultBucket(store, FileFaults(path), slept.append)
        for text in ('error_after = 1\nlatency = [2, 2]\nops = ["time"]\n', '{"error_after": 1, "latency": [2, 2]}'):
            path.write_text(text)
            with pytest.raises(Unavailable):
                bucket.time()
        assert slept == [2.0, 2.0]

    @pytest.mark.parametrize("text", ["down = maybe", "{", "dwon = true", "down = 1", '{"latency": 1}'])
    def test_a_mistake_in_it_is_told(self, store: MemoryBucket, tmp_path: Path, text: str) -> None:
        path = tmp_path / "faults"
        path.write_text(text)
        with pytest.raises(ConfigError, match=str(path)):
            FaultBucket(store, FileFaults(path)).time()

    def test_it_is_seeded(self, tmp_path: Path) -> None:
        def drawn(seed: int) -> list[Fault]:
            write_faults(tmp_path / "faults", FaultFile(error_before=0.5, seed=seed))
            plan = FileFaults(tmp_path / "faults")
            return [plan("get", "a") for _ in range(40)]

        assert drawn(3) == drawn(3) != drawn(4)

    @pytest.mark.parametrize(
        ("faults", "op", "key", "hit"),
        [
            (FaultFile(), "get", "a", True),
            (FaultFile(ops=("put",)), "get", "a", False),
            (FaultFile(ops=("put", "get")), "get", "a", True),
            (FaultFile(prefixes=("job/log/",)), "get", "job/log/1", True),
            (FaultFile(prefixes=("job/log/",)), "get", "job/lease.json", False),
            (FaultFile(prefixes=("job/log/",)), "list", "job/", True),
            (FaultFile(prefixes=("job/log/",)), "list", "job/blobs/", False),
            (FaultFile(prefixes=("job/log/",)), "time", "", False),
            (FaultFile(ops=("put",), prefixes=("a", "b")), "put", "b", True),
        ],
    )
    def test_what_it_hits(self, faults: FaultFile, op: str, key: str, hit: bool) -> None:
        assert faults.hits(op, key) is hit

    def test_it_drives_another_process(self, tmp_path: Path) -> None:
        """The other process asks once for each line that it is sent, so that no test has to guess its speed."""
        script = (
            "import sys\n"
            "from wal_agent.bucket import open_bucket\n"
            "bucket = open_bucket(sys.argv[1])\n"
            "for line in sys.stdin:\n"
            "    try:\n"
            "        bucket.put(line.strip(), b'')\n"
            "        print('put', flush=True)\n"
            "    except Exception as error:\n"
            "        print(type(error).__name__, flush=True)\n"
        )
        path = tmp_path / "faults"
        with subprocess.Popen(
            [sys.executable, "-c", script, (tmp_path / "bucket").as_uri()],
            env={**os.environ, **faulty_environment(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin and other.stdout

            def ask(key: str) -> str:
                assert other.stdin and other.stdout
                other.stdin.write(f"{key}\n")
                other.stdin.flush()
                return other.stdout.readline().strip()

            answers = [ask("a")]
            write_faults(path, FaultFile(down=True, ops=("put",)))
            answers.append(ask("b"))
            write_faults(path, FaultFile())
            answers.append(ask("b"))
            other.stdin.close()
        assert answers == ["put", "Unavailable", "put"]
