"""Strangers' objects under the prefix, other things in an object's place, links on the way (I4, I7); see trial.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.faults.ruins import (
    KEYS,
    LAST,
    MAIN,
    STRANGERS,
)
from tests.faults.trial import EVIL, Ruin, sane
from wal_agent.bucket.base import Bucket

# ---- strangers and links -------------------------------------------------------------------------------------------


def test_strangers_in_the_bucket_are_passed_over_without_a_word(ruin: Ruin) -> None:
    def damage(bucket: Bucket) -> None:
        for name in STRANGERS:
            bucket.put(f"{KEYS.job}/{name}", EVIL.encode())

    ruin.damage(damage)
    clean = sane(ruin.machine("status", "--json"))
    assert json.loads(clean.out)["damage"] == "" and clean.ours == []
    before = {k: v for k, v in ruin.contents().items() if v == EVIL.encode()}
    assert len(before) == len(STRANGERS)
    assert ruin.reads("log").code == 0 and sane(ruin.machine("gc")).code == 0
    ruin.healed()
    assert {k: v for k, v in ruin.contents().items() if v == EVIL.encode()} == before


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "empty", "torn frame"])
def test_other_things_in_the_place_of_an_objects_file(ruin: Ruin, kind: str, tmp_path: Path) -> None:
    """file://: what is no object is not one; the segment counts as lost, and no link is followed."""
    path = tmp_path / "bucket" / f"{KEYS.segment(8)}="
    data = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "canary" / "bird")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(data[:0] if kind == "empty" else data[:-5])
    ruin.refused("record 8 of job shop is (missing|damaged)", "wal-agent restore --", good=7)
    ruin.holds(7)


@pytest.mark.parametrize("where", [".gemini/tmp", ".gemini/tmp/shop", ".gemini/tmp/shop/chats"])
def test_a_link_on_the_way_to_the_session(ruin: Ruin, where: str) -> None:
    """I4: a link below the agent's folder is not followed, and what it leads to stays as it is."""
    machine = ruin.machine
    link = machine.home / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(machine.canary)
    said = ruin.runs()
    assert said.code == 78 and str(link) in said.ours[-1] and not machine.began
    assert {p.name for p in machine.canary.iterdir()} == {"bird"}


def test_recover_to_a_link_or_a_full_folder(ruin: Ruin) -> None:
    (ruin.machine.work / "link").symlink_to(ruin.machine.canary)
    (ruin.machine.work / "empty").mkdir()
    for target in ("link", "link/bird", "../canary", ".", "missing/out", "README.md"):
        said = ruin.reads("restore", "--to", target)
        assert said.code == 64 and len(said.ours) == 1, said
    for argv in (
        ("recover",),
        ("restore",),
        ("restore", "--at", "0", "--to", "x"),
        ("restore", "--at", "noon", "--to", "x"),
    ):
        assert ruin.reads(*argv).code == 64
    assert sane(ruin.machine("restore", "--to", "empty")).code == 0
    assert (ruin.machine.work / "empty" / "session" / MAIN).read_bytes() == ruin.history[LAST]
