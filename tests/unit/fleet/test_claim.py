"""Which job a free host takes, and what it does not let a lease choose."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.fleet.leases import CRASHED, DRAINED, HOST, store
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import Bucket, MemoryBucket, Object
from wal_agent.clock import SystemClock
from wal_agent.errors import ConfigError, Unavailable
from wal_agent.fleet.jobs import (
    Allowed,
    Child,
    ClaimOptions,
    Job,
    Launcher,
    Reader,
    claim,
    make_folder,
    order_candidates,
    refuse_folder,
    refuse_job,
    run_command,
)


def job(name: str = "a", waits: float = 0.0, **fields: Any) -> Job:
    told = {"job": name, "state": "crashed", "needs_host": True, "epoch": 1, "waits": waits, "agent": "gemini"}
    return Job(**{**told, "workspace": fields.get("folder", ""), **fields})


def allowed(root: Path, home: Path | None = None, generic: bool = False) -> Allowed:
    return Allowed(("gemini", "generic"), root, home, generic)


def test_the_longest_waiting_comes_first_and_equals_in_any_order() -> None:
    jobs = [
        job("young", 5),
        job("old", 600),
        *(job(f"same-{n}", 100 + n) for n in range(8)),
        Job(job="x", state="running"),
    ]
    orders = {
        tuple(j.job for j in order_candidates(jobs, {("young", 2, "")}, random.Random(seed))) for seed in range(20)
    }
    assert all(order[0] == "old" and order[-1] == "young" and len(order) == 10 for order in orders)
    assert len(orders) > 10
    assert [j.job for j in order_candidates(jobs[:2], {("old", 1, "")}, random.Random(1))] == ["young"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"agent": "rm -rf /"}, "does not know"),
        ({"agent": "\x1b[2J"}, "does not know"),
        ({"agent": "generic"}, "--generic"),
        ({"only_on": "vm-9"}, "vm-9"),
    ],
)
def test_what_a_lease_may_not_choose(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    said = refuse_job(job(folder=str(tmp_path / "shop"), **fields), allowed(tmp_path))
    assert (why in said and said.isprintable()) if why else said == ""
    assert refuse_job(job(folder=str(tmp_path), agent="generic"), allowed(tmp_path, generic=True)) == ""
    assert refuse_job(job(folder=str(tmp_path)), allowed(tmp_path, generic=True)), "the words are another program's"


@pytest.mark.parametrize(
    "place",
    [
        "",
        "shop",
        "/etc",
        "{root}/../etc",
        "{root}/a/../b",
        "{root}//a",
        "{root}x",
        "/",
        "{root}/a\0b",
        "{root}/out/x",
    ],
)
def test_a_workspace_outside_of_the_root_is_refused(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to("/etc")
    said = refuse_folder(place.format(root=root), allowed(root))
    assert said and said.isprintable()


def test_no_place_for_a_project(tmp_path: Path) -> None:
    """As root and home are one here."""
    at = allowed(tmp_path, home=tmp_path)
    for place in (".ssh", ".ssh/x", ".gemini", ".config/gcloud/x"):
        assert refuse_folder(str(tmp_path / place), at)
    assert refuse_folder(str(tmp_path), at)
    assert refuse_folder(str(tmp_path / "shop"), at) == ""


@pytest.mark.parametrize(
    "place", ["", "home", "home/u", "home/u/.config/systemd/user", "home/u/.local/bin", "srv", "srv/own/x"]
)
def test_nor_is_what_holds_home_or_starts_programs_or_is_our_own(tmp_path: Path, place: str) -> None:
    at = Allowed(("gemini",), tmp_path, tmp_path / "home/u", ours=[tmp_path / "srv/own"])
    assert "no place for a project" in refuse_folder(str(tmp_path / place), at)
    hidden = replace(at, root=tmp_path / "home/u/.work")
    assert (
        refuse_folder(str(tmp_path / "home/u/.work/shop"), hidden) == ""
        and refuse_folder(str(tmp_path / "srv/shop"), at) == ""
    )


def test_a_secret_in_a_path_is_not_said(tmp_path: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5" * 4
    assert key not in refuse_folder(f"/elsewhere/{key}", allowed(tmp_path))


def test_the_workspace_is_made_where_it_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    assert make_folder(job(folder=str(place)), allowed(tmp_path)) == place and place.is_dir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for bad in ("file", "loop", "file/x"):
        with pytest.raises(ConfigError):
            make_folder(job(folder=str(tmp_path / bad)), allowed(tmp_path))


def test_it_is_the_run_that_a_person_would_type() -> None:
    words = run_command(job("-x"), "gs://b/p", ClaimOptions(args=("-p", "go")), ("wal-agent",))
    assert words == ["wal-agent", "run", "gemini", "--job=-x", "--bucket=gs://b/p", "--", "-p", "go"]
    assert run_command(job(), "u", ClaimOptions(loop=True), ("w",)) == [
        "w",
        "run",
        "gemini",
        "--job=a",
        "--bucket=u",
        "--exit-on-pause",
    ]


class Hosts:
    """A bucket with jobs, and runs that end as they are told: `codes` in turn."""

    def __init__(self, root: Path, codes: Sequence[int] = ()) -> None:
        self.bucket: Bucket = MemoryBucket()
        self.root, self.codes = root, list(codes)
        self.ran: list[str] = []
        self.said: list[str] = []

    def run(self, argv: Sequence[str], place: Path) -> Child:
        name = argv[argv.index("run") + 2].removeprefix("--job=")
        self.ran.append(name)
        assert place.is_dir()
        return Child(self.codes.pop(0) if self.codes else 0)

    def claim(self, wait: bool = False, loop: bool = False, slept: Callable[[], object] = lambda: None) -> int:
        class Quick(SystemClock):
            def sleep(self, seconds: float) -> None:
                slept()

        eyes = Reader(self.bucket, HOST, Path("/nowhere"))
        told = ClaimOptions(wait, loop, 0.1)
        return claim(
            eyes, allowed(self.root), told, self.said.append, Quick(), random.Random(1), Launcher(self.run, self.run)
        )

    def waiting(self, seconds: float, meanwhile: Callable[[float], object] = lambda now: None) -> list[float]:
        """`--wait --loop` for so long, by a clock that only sleep moves: when the runs began."""
        clock, began = FakeClock(0.0), list[float]()

        class Over(Exception):
            pass

        class Steps(SystemClock):
            def boot(self) -> float:
                return clock.boot()

            def sleep(self, seconds_: float) -> None:
                clock.sleep(max(seconds_, 1.0))
                meanwhile(clock.boot())
                if clock.boot() > seconds:
                    raise Over

        def run(argv: Sequence[str], place: Path) -> Child:
            began.append(clock.boot())
            return self.run(argv, place)

        eyes, told = Reader(self.bucket, HOST, Path("/nowhere")), ClaimOptions(True, True, 2.0)
        with pytest.raises(Over):
            claim(eyes, allowed(self.root), told, self.said.append, Steps(), random.Random(1), Launcher(run, run))
        return began

    def store(self, name: str, **fields: Any) -> None:
        store(self.bucket, name, **{**CRASHED, "workspace": str(self.root / name), **fields})


def test_one_job_is_taken_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, [7])
    hosts.store("a")
    hosts.store("b", agent="evil")
    assert hosts.claim() == 7 and hosts.ran == ["a"]


def test_nothing_to_take_is_no_error(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.store("running", ttl=1e4)
    hosts.store("failed", state="released", reason="ended with 1")
    hosts.store("evil", agent="evil")
    assert hosts.claim() == 0 and hosts.ran == []
    assert len(hosts.said) == 2 and "evil" in hosts.said[0], hosts.said
    assert hosts.said[1] == "1 job needs a host, and none may run here: see above"


class Away(MemoryBucket):
    away = True

    def get(self, key: str) -> Object:
        if self.away:
            raise Unavailable("away")
        return super().get(key)


def test_a_job_is_waited_for_also_while_the_bucket_is_away(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, [7])
    bucket = hosts.bucket = Away()
    steps: list[Callable[[], object]] = [
        lambda: hosts.store("a", ttl=1e4),
        lambda: setattr(bucket, "away", False),
        lambda: hosts.store("a"),
    ]
    assert hosts.claim(wait=True, slept=lambda: steps.pop(0)()) == 7
    assert hosts.ran == ["a"] and hosts.said[0] == "waiting: away" and not steps
    bucket.away = True
    with pytest.raises(Unavailable):
        hosts.claim()


def test_in_a_loop_each_loss_is_tried_once_at_first_whatever_became_of_it(tmp_path: Path) -> None:
    """The runs here leave the leases as they are."""
    hosts = Hosts(tmp_path, [79, 75, 0, 80])
    for name in ("a", "b", "c"):
        hosts.store(name)
    hosts.store("d", ttl=30.0, state="released", reason=DRAINED)
    assert hosts.claim(loop=True) == 0
    assert sorted(hosts.ran) == ["a", "b", "c", "d"] and hosts.said[-1] == "no other job needs a host"


@pytest.mark.parametrize(
    ("code", "again"), [(69, True), (75, True), (77, True), (1, True), (73, False), (79, False), (80, False)]
)
def test_a_run_that_left_the_job_as_it_was_is_tried_again_later_where_time_may_mend_it(
    tmp_path: Path, code: int, again: bool
) -> None:
    hosts = Hosts(tmp_path, [code] * 99)
    hosts.store("a")
    runs = hosts.waiting(3600.0)
    assert len(runs) > 5 if again else len(runs) == 1
    assert not again or [round(b - a) for a, b in pairwise(runs)][:3] == pytest.approx([15, 30, 60], abs=12)


def test_a_workspace_that_cannot_be_made_is_tried_again_later(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, [0])
    hosts.store("a", workspace=str(tmp_path / "file" / "a"))
    (tmp_path / "file").write_text("")
    assert hosts.waiting(100.0) == [] and len(hosts.said) == 3
    (tmp_path / "file").unlink()
    assert len(hosts.waiting(100.0)) == 1


def test_what_runs_again_and_is_lost_again_is_not_left_alone(tmp_path: Path) -> None:
    """Under the same epoch: its owner lived, and had only lost sight of the bucket."""
    hosts = Hosts(tmp_path, [80, 80])
    hosts.store("a")

    def flap(now: float) -> None:
        if 100 < now < 110:
            hosts.store("a", ttl=1e4, nonce="renewed")
        elif now > 200:
            hosts.store("a", nonce="renewed")

    assert len(hosts.waiting(300.0, flap)) == 2


@pytest.mark.parametrize(
    ("now", "runs"),
    [({"epoch": 4, "ttl": 1e4}, 1), ({"ttl": 1e4}, 1), ({**CRASHED, "epoch": 4}, 2)],
    ids=["taken", "alive after all", "taken, and lost again"],
)
def test_what_became_of_a_job_since_the_look_is_seen(tmp_path: Path, now: dict[str, Any], runs: int) -> None:
    """While the first of two runs; what was lost again is another epoch, and is taken as such, once."""
    hosts = Hosts(tmp_path)
    for name in ("a", "b"):
        hosts.store(name)
    run = hosts.run

    def meanwhile(argv: Sequence[str], place: Path) -> Child:
        if not hosts.ran:
            hosts.store({"a": "b", "b": "a"}[argv[argv.index("run") + 2].removeprefix("--job=")], **now)
        run(argv, place)
        return Child(75)

    hosts.run = meanwhile  # type: ignore[method-assign]
    assert hosts.claim(loop=True) == 0 and len(hosts.ran) == runs
