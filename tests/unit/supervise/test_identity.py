"""A folder stays the same through a rename, by this machine's notes; a start of another folder's job changes
nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.supervise.crew import short_folder
from wal_agent.errors import ConfigError, NotThisJob
from wal_agent.paths import state_dir
from wal_agent.records import Host, Opening, Owner
from wal_agent.recovery.plan import is_other_persons
from wal_agent.supervise import identity
from wal_agent.supervise.identity import (
    ATTRIBUTE,
    KnownJob,
    default_job_here,
    known_folders,
    make_owner,
    read_owner,
    remember_job,
)
from wal_agent.supervise.restart import halted_event

JOB = KnownJob("file:///b", "gemini-shop", "gemini")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def short_path() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("marks", [True, False])
def test_a_renamed_folder_keeps_its_id_and_jobs(
    env: dict[str, str], shop: Path, marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not marks:
        monkeypatch.setattr(identity, "ATTRIBUTE", "no.such-namespace")  # as on a file system without attributes
    before = make_owner(shop, env)
    remember_job(env, before.folder, JOB)
    moved = shop.rename(shop.with_name("shop-2"))
    assert read_owner(moved, env) == make_owner(moved, env) == before
    assert [(f.id, f.path, f.jobs) for f in known_folders(env)] == [(before.folder, moved, (JOB,))]


def test_a_copy_of_a_folder_is_another_one(env: dict[str, str], shop: Path) -> None:
    before = make_owner(shop, env)
    copy = shop.with_name("copy")
    shutil.copytree(shop, copy)  # with its attributes
    assert make_owner(copy, env).folder not in ("", before.folder)
    assert make_owner(shop, env) == before


def test_an_attribute_without_a_note_counts_for_nothing(env: dict[str, str], shop: Path) -> None:
    try:
        os.setxattr(shop, identity.ATTRIBUTE, b"0" * 32)
    except OSError:
        pytest.skip("no extended attributes here")
    assert make_owner(shop, env).folder != "0" * 32


def test_two_homes_are_two_persons(env: dict[str, str], shop: Path, tmp_path: Path) -> None:
    mine, other = make_owner(shop, env), make_owner(shop, {"HOME": str(tmp_path / "other")})
    assert mine.person and other.person and mine.person != other.person
    assert make_owner(shop, env) == mine


def test_reading_writes_nothing_and_gives_the_ids_that_the_first_job_gets(env: dict[str, str], shop: Path) -> None:
    read, job = read_owner(shop, env), default_job_here("gemini", shop, "file:///b", env)
    assert not Path(env["HOME"]).exists() and ATTRIBUTE not in os.listxattr(shop)
    assert make_owner(shop, env) == read
    assert read.person and read.folder and default_job_here("gemini", shop, "file:///b", env) == job


def test_an_inode_that_is_used_again_is_another_folder(env: dict[str, str], shop: Path) -> None:
    """The id of a folder that went elsewhere is not given again, although path and inode are those of its first run."""
    first = make_owner(shop, env).folder
    note = state_dir(env) / "folders" / first
    note.write_text(note.read_text().replace(f'"{shop}"', '"/elsewhere"'))
    os.removexattr(shop, ATTRIBUTE)
    assert make_owner(shop, env).folder not in ("", first)


def test_folders_of_one_name_and_two_persons_have_jobs_of_their_own(tmp_path: Path) -> None:
    names = set()
    for who, at in (("a", "work"), ("a", "private"), ("b", "work")):
        env, folder = {"HOME": str(tmp_path / who)}, tmp_path / at / "api"
        folder.mkdir(parents=True, exist_ok=True)
        names.add(name := default_job_here("gemini", folder, "file:///b", env))
        assert re.fullmatch("gemini-api-[0-9a-z]{4}", name)
        assert default_job_here("gemini", folder, "file:///b", env) == name
    assert len(names) == 3


def test_a_refused_start_changes_nothing_and_names_both_folders(tmp_path: Path) -> None:
    """Two projects with one job name: the second start leaves lease and log as they are, and prints a free name."""
    bucket, folders = tmp_path / "bucket", [tmp_path / "work" / "api", tmp_path / "private" / "api"]
    env = {**os.environ, "HOME": str(tmp_path / "home"), "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": ""}

    def start(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "wal_agent", "run", "generic", f"--bucket=file://{bucket}", "--job=api", "--"]
        return subprocess.run([*words, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)

    def stored() -> dict[str, bytes]:
        """The bucket and this machine's notes, but what each run sweeps."""
        places = (bucket, state_dir(env))
        return {str(path): path.read_bytes() for at in places for path in at.rglob("*") if path.is_file()}

    assert start(folders[0], "sh", "-c", "exit 3").returncode == 3
    before = stored()
    refused = start(folders[1], "touch", "ran")
    assert (refused.returncode, stored()) == (78, before)
    assert not (folders[1] / "ran").exists() and ATTRIBUTE not in os.listxattr(folders[1])
    assert all(str(folder) in refused.stderr for folder in folders)
    assert f"cd {folders[1]} && wal-agent run generic" in refused.stderr and "--job api-2" in refused.stderr


def test_no_message_is_sent_of_a_start_that_was_refused_before_the_opening() -> None:
    assert halted_event(NotThisJob("Another folder's.")) is None
    assert halted_event(ConfigError("Hooks are off.")) is not None


def test_a_renamed_folder_keeps_its_default_job(env: dict[str, str], shop: Path) -> None:
    """Also one that an earlier wal-agent named by the folder alone."""
    assert default_job_here("gemini", shop, JOB.bucket, env) != "gemini-shop"
    folder = make_owner(shop, env).folder
    remember_job(env, folder, JOB)
    remember_job(env, folder, KnownJob(JOB.bucket, "other", "gemini", named=True))
    moved = shop.rename(shop.with_name("shop-2"))
    assert default_job_here("gemini", moved, JOB.bucket, env) == "gemini-shop"
    assert default_job_here("claude", moved, JOB.bucket, env).startswith("claude-shop-2-")
    assert default_job_here("gemini", moved, "file:///elsewhere", env).startswith("gemini-shop-2-")


def test_a_job_that_is_named_later_is_noted_once_and_stays_the_default(env: dict[str, str], shop: Path) -> None:
    folder = make_owner(shop, env).folder
    remember_job(env, folder, JOB)
    remember_job(env, folder, replace(JOB, named=True))
    assert [known.jobs for known in known_folders(env)] == [(JOB,)]
    assert default_job_here(JOB.agent, shop, JOB.bucket, env) == JOB.job


def test_another_persons_job_is_taken_over_by_consent_only(short_path: Path) -> None:
    """Two persons whose project names one job. Without a terminal the second one's start is 79 and changes nothing;
    --take-over and a typed --job are consent."""
    bucket, anna, ben = short_path / "b", short_path / "anna", short_path / "ben"

    def command(who: Path, *words: str) -> subprocess.CompletedProcess[str]:
        folder, home = who / "shop", who / "home"
        for made in (folder, home):
            made.mkdir(parents=True, exist_ok=True)
        (folder / "wal-agent.toml").write_text('job = "team"\n')
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LOGNAME": who.name}
        env |= {"WAL_AGENT_BUCKET": bucket.as_uri(), "WAL_AGENT_RUNTIME_DIR": str(short_path / "r")}
        argv = [sys.executable, "-m", "wal_agent", *words]
        return subprocess.run(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def stored() -> dict[str, bytes]:
        places = (bucket, state_dir({"HOME": str(ben / "home")}) / "folders")
        return {str(path): path.read_bytes() for at in places for path in at.rglob("*") if path.is_file()}

    start = ["run", "generic", "--", "sh", "-c", "exit 3"]
    for who in (anna, ben):
        assert command(who, "trust", "--yes").returncode == 0
    assert command(anna, *start).returncode == 3
    shutil.rmtree(anna / "shop")  # as on another host
    before = stored()
    refused = command(ben, *start)
    assert (refused.returncode, stored()) == (79, before)
    assert f"last run by anna on {platform.node()}, in {anna}/shop" in refused.stderr
    assert f"--job team --bucket file://{bucket} --take-over -- sh -c 'exit 3'" in refused.stderr
    assert "--job team-2" in refused.stderr
    assert command(ben, "run", "generic", "--take-over", *start[2:]).returncode == 3
    assert command(ben, *start).returncode == 3, "it is his own now"
    shutil.rmtree(ben / "shop")
    assert command(anna, "run", "generic", "--job", "team", *start[2:]).returncode == 3


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, True),
        ({"user": "ben"}, False),
        ({"user": ""}, False),
        ({"folder": "f" * 32}, False),
        ({"person": "b" * 32}, False),
        ({"workspace": "/b/shop"}, True),
        ({"host": "vm-b"}, True),
        ({"workspace": "/b/shop", "host": "vm-b"}, False),
    ],
)
def test_whose_job_it_is(change: dict[str, str], asked: bool) -> None:
    def opening(user: str, person: str, folder: str, host: str, workspace: str) -> Opening:
        return Opening(
            time=1.0,
            run="r",
            epoch=1,
            cause="dead",
            host=Host(host, "b", "p", 1, "/l"),
            agent="gemini",
            agent_version="1",
            version="1",
            workspace=workspace,
            args=(),
            owner=Owner(user, person, folder),
        )

    anna = {"user": "anna", "person": "a" * 32, "folder": "1" * 32, "host": "vm-a", "workspace": "/a/shop"} | change
    assert is_other_persons(opening(**anna), opening("ben", "b" * 32, "f" * 32, "vm-b", "/b/shop")) is asked
