"""Before a start that names no job: the unfinished jobs of the folder, and who decides about their calls in flight."""

from __future__ import annotations

import fcntl
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from msgspec.structs import replace

from tests.unit.cli.shelf import commit, intent
from tests.unit.supervise.crew import short_folder
from wal_agent.agents import AGENTS
from wal_agent.bucket.file import FileBucket
from wal_agent.cli import run as command
from wal_agent.cli.options import complete_job
from wal_agent.cli.run import second_name, settle_folder
from wal_agent.errors import LeaseHeld, PersonNeeded
from wal_agent.records import Owner
from wal_agent.supervise.identity import KnownJob, make_owner, remember_job
from wal_agent.supervise.machine import this_host
from wal_agent.supervise.options import RunOptions
from wal_agent.supervise.settings import load
from wal_agent.text import quote_word
from wal_agent.wal.job import OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore


@dataclass
class Place:
    """A person on a machine, with a bucket; `said`: the lines for the person."""

    root: Path
    said: list[str]

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.root / "home")}

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def job(self, name: str, agent: str, folder: str, calls: int, owner: Owner | None = None, lock: str = "") -> None:
        """A job that was given up with so many calls in flight; one that runs, where a process holds `lock`."""
        at = self.folder(folder)
        host = this_host(self.env, Path(lock or "/dev/null"))
        owner = make_owner(at, self.env) if owner is None else owner
        claim = LeaseRequest("a" * 16, host, agent, str(at), 30.0, owner=owner)
        fields = OpeningFields(agent_version="1", version="0", args=())
        bucket = FileBucket(self.root / "bucket")
        made = open_job(
            JobStore(bucket, Keys(name), rng=random.Random(1), parallel=1),
            claim=claim,
            fields=fields,
            seen=None,
            cause="first",
        )
        for n in range(calls):
            made.writer.append(intent(n + 1, command="./charge.sh"))
            commit(made)
        if not lock:
            made.lease.settle("released", "stopped: the agent failed", budget=5.0)

    def wish(self, agent: str, folder: str, *, job: str | None = None, attended: bool = False) -> RunOptions:
        at = self.folder(folder)
        flags = {"bucket": (self.root / "bucket").as_uri(), "job": job}
        return RunOptions(
            AGENTS[agent], ("-p", "go"), load(agent, at, self.env, flags), at, self.env, attended=attended
        )

    def stored(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path.resolve(), [])
    monkeypatch.setattr(command, "say", made.said.append)
    monkeypatch.setattr("wal_agent.supervise.ancestry.outer_runs", tuple)
    return made


def answers(monkeypatch: pytest.MonkeyPatch, *words: bool) -> None:
    left = list(words)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: left.pop(0))


@pytest.mark.parametrize(("agent", "folder"), [("claude", "w/shop"), ("gemini", "w/shop/src"), ("generic", "w")])
def test_a_call_in_flight_of_another_job_around_needs_a_person(place: Place, agent: str, folder: str) -> None:
    """Another agent's, above or below: nobody at a terminal is 79, the command to carry on is whole, and nothing was
    written."""
    place.job("paying", agent, folder, calls=1)
    wish = place.wish("gemini", "w/shop")
    before = place.stored()
    with pytest.raises(PersonNeeded) as refused:
        settle_folder(wish)
    cd = "" if folder == "w/shop" else f"cd {place.root / folder} && "
    verb = "resume" if agent == "generic" else f"run {agent}"  # whose command only the log has
    carry_on = f"{cd}wal-agent {verb} --job paying --bucket {wish.settings.bucket}"
    assert f"To carry on: {carry_on} (" in refused.value.hint and "--fresh -- -p go" in refused.value.hint
    assert place.stored() == before
    assert [line.endswith(f"1 open call. To carry on: {carry_on}") for line in place.said] == [True]


def test_fresh_or_a_typed_job_is_consent(place: Place) -> None:
    place.job("paying", "claude", "shop", calls=1)
    fresh, typed = replace(place.wish("gemini", "shop"), fresh=True), place.wish("gemini", "shop", job="mine")
    assert (settle_folder(fresh), settle_folder(typed)) == (fresh, typed)
    assert len(place.said) == 1


def test_without_a_call_in_flight_it_is_one_line(place: Place) -> None:
    place.job("idle", "claude", "shop", calls=0)
    wish = place.wish("gemini", "shop")
    assert settle_folder(wish) == wish
    assert len(place.said) == 1 and "wal-agent run claude" in place.said[0]


def test_a_person_carries_on_or_begins_beside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.job("paying", "gemini", "shop", calls=1)
    answers(monkeypatch, True)
    wish = place.wish("gemini", "shop", attended=True)
    assert settle_folder(wish).settings.job == "paying"
    answers(monkeypatch, False)
    assert settle_folder(wish) == wish
    answers(monkeypatch, False)
    with pytest.raises(PersonNeeded):
        settle_folder(place.wish("claude", "shop", attended=True))


def test_a_job_that_an_earlier_version_named_is_carried_on(place: Place) -> None:
    place.job("gemini-shop", "gemini", "shop", calls=1, owner=Owner())
    found = settle_folder(place.wish("gemini", "shop")).settings
    assert (found.job, found.sources["job"], place.said) == ("gemini-shop", "default", [])
    assert settle_folder(place.wish("gemini", "other/shop")).settings.job != "gemini-shop"


def test_a_bucket_that_does_not_answer_holds_up_no_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from wal_agent.errors import Unavailable
    from wal_agent.fleet import jobs

    def away(*_: object, **__: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(jobs, "find_folder_jobs", away)
    wish = place.wish("gemini", "shop")
    assert settle_folder(wish) == wish


def test_the_command_refuses_and_with_fresh_runs(place: Place) -> None:
    place.job("paying", "claude", "shop", calls=1)
    env = {"PATH": os.environ["PATH"], **place.env}
    words = [sys.executable, "-m", "wal_agent", "run", "generic", f"--bucket={(place.root / 'bucket').as_uri()}"]
    codes = []
    for option in ([], ["--fresh"]):
        command = [*words, *option, "--", "sh", "-c", "exit 3"]
        with short_folder() as runtime:
            at = {**env, "WAL_AGENT_RUNTIME_DIR": str(runtime)}
            codes.append(subprocess.run(command, cwd=place.root / "shop", env=at, check=False).returncode)
    assert codes == [79, 3]


def test_a_fork_names_the_command_that_continues_it_in_its_bucket(place: Place) -> None:
    """Without the bucket, that command would begin the task anew in the default one."""
    (place.root / "shop").mkdir()
    bucket = f"--bucket={(place.root / 'bucket').as_uri()}"
    env = {"PATH": os.environ["PATH"], **place.env}
    words = [sys.executable, "-m", "wal_agent", "run", "generic", bucket]
    for option in (["--job=first"], ["--job=first", "--from", "3"]):
        with short_folder() as runtime:
            at = {**env, "WAL_AGENT_RUNTIME_DIR": str(runtime)}
            done = subprocess.run(
                [*words, *option, "--", "true"], cwd=place.root / "shop", env=at, capture_output=True, text=True
            )
    options = ("--job", "first-from-3", "--bucket", (place.root / "bucket").as_uri())
    assert f"wal-agent resume {' '.join(map(quote_word, options))}" in done.stderr


def test_the_same_start_on_another_machine_carries_on(place: Place) -> None:
    """The same agent, user and path, and a name that the folder gave: what this start had elsewhere."""
    stranger = replace_owner(place, "shop")
    place.job("gemini-shop-k3f9", "gemini", "shop", calls=1, owner=stranger)
    assert settle_folder(place.wish("gemini", "shop")).settings.job == "gemini-shop-k3f9"


def test_a_name_that_a_person_gave_is_not_taken_up_elsewhere(place: Place) -> None:
    place.job("nightly", "gemini", "shop", calls=0, owner=replace_owner(place, "shop"))
    assert settle_folder(place.wish("gemini", "shop")).settings.job != "nightly"


def replace_owner(place: Place, folder: str) -> Owner:
    """The same user on another machine."""
    mine = make_owner(place.folder(folder), place.env)
    return Owner(user=mine.user, person="p" * 16, folder="f" * 16)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[str]:
    """The lock of a run that lives."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.name


def test_a_second_terminal_begins_a_second_session(place: Place, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One keystroke; the next names are those of jobs that are not at work either."""
    wish = place.wish("gemini", "shop", attended=True)
    own = wish.settings.job
    place.job(own, "gemini", "shop", calls=1, lock=lock)
    answers(monkeypatch, True)
    assert settle_folder(wish).settings.job == f"{own}-2"
    place.job(f"{own}-2", "gemini", "shop", calls=0, lock=lock)
    answers(monkeypatch, True)
    third = settle_folder(wish)
    assert (third.settings.job, third.settings.sources["job"]) == (f"{own}-3", "flag")
    answers(monkeypatch, False)
    with pytest.raises(LeaseHeld):
        settle_folder(wish)


def test_a_second_start_without_a_person_prints_the_command_of_a_second_session(place: Place, lock: str) -> None:
    wish = place.wish("gemini", "shop")
    place.job(wish.settings.job, "gemini", "shop", calls=0, lock=lock)
    with pytest.raises(LeaseHeld) as refused:
        settle_folder(wish)
    command = refused.value.hint.split("`")[1]
    settings = wish.settings
    names = ["--job", f"{settings.job}-2", "--bucket", settings.bucket]
    assert shlex.split(command) == ["wal-agent", "run", "gemini", *names, "--", "-p", "go"]
    waits = replace(wish, wait=True)
    assert settle_folder(waits) == waits


def test_the_name_of_a_second_session_can_name_a_job() -> None:
    taken = {f"{'x' * 95}-2"}
    assert Keys(second_name("x" * 100, lambda name: name not in taken)).job == f"{'x' * 95}-3"


def test_job_names_are_completed_from_local_notes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, **place.env})
    url = (place.root / "bucket").as_uri()
    for name in ("nightly", "night-2", "other"):
        remember_job(place.env, make_owner(place.folder("shop"), place.env).folder, KnownJob(url, name, "gemini", True))
    assert complete_job("night") == ["night-2", "nightly"]
