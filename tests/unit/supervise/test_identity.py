"""A folder stays the same through a rename, and only on the word of this machine's notes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from wal_agent.supervise import identity
from wal_agent.supervise.identity import KnownJob, known_folders, make_owner, read_owner, remember_job

JOB = KnownJob("file:///b", "gemini-shop", "gemini")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


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


def test_reading_writes_nothing(env: dict[str, str], shop: Path) -> None:
    assert (read_owner(shop, env).person, read_owner(shop, env).folder) == ("", "")
    assert not Path(env["HOME"]).exists()
