"""`wal-agent diff`: what a job changed, by the saved working trees, and nothing is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.shelf import SECRET, Run, commit
from tests.unit.cli.test_restore import Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def bytes_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_from_the_first_saved_tree_to_the_newest(story: Story, run: Run, tmp_path: Path) -> None:
    first = story.step("one")
    second = story.step("two")
    (story.work / "one.sh").unlink()
    story.step("three")
    before = bytes_of(tmp_path)
    code, out, err = run("diff", *story.where)
    assert code == 0 and "-one" in out.splitlines() and "+three" in out.splitlines(), err
    assert "two.sh" in out and "deleted file" in out and f"from record {first}" in err
    code, out, _ = run("diff", *story.where, "--names")
    assert out.splitlines() == ["changed  a.txt", "removed  one.sh", "added    three.sh", "added    two.sh"]
    found = json.loads(run("diff", *story.where, "--since", str(second), "--json")[1])
    assert [(each["path"], each["change"]) for each in found["files"]] == [
        ("a.txt", "changed"),
        ("one.sh", "removed"),
        ("three.sh", "added"),
    ]
    assert bytes_of(tmp_path) == before


def test_this_folder_and_the_newest_saved_tree(story: Story, run: Run, tmp_path: Path) -> None:
    story.step("one")
    os.chdir(story.work)
    assert run("diff", *story.where, "--here", "--names")[:2] == (0, "")
    (story.work / "a.txt").write_text(f"mine {SECRET}")
    (story.work / "more").write_text("more")
    before = bytes_of(tmp_path)
    code, out, _ = run("diff", *story.where, "--here")
    assert code == 0 and "+more" in out and "[redacted]" in out and SECRET not in out
    assert run("diff", *story.where, "--here", "--names")[1].splitlines() == ["changed  a.txt", "added    more"]
    assert bytes_of(tmp_path) == before


def test_that_repositories_inside_are_not_compared_is_said(story: Story, run: Run) -> None:
    story.step("one")
    assert story.tree.newest is not None
    record = msgspec.structs.replace(story.tree.newest, time=30.0, packs=(), whole=False, inside=("lib", "side"))
    story.job.writer.append(record)
    commit(story.job)
    code, out, err = run("diff", *story.where)
    assert (code, out) == (0, "") and "not compared: lib, side" in err


def test_what_cannot_be_compared(story: Story, run: Run) -> None:
    code, out, err = run("diff", *story.where)
    assert (code, out) == (64, "") and "No working tree" in err
    assert run("diff", *story.where, "--here", "--since", "1")[0] == 64
    story.step("one")
    assert run("diff", *story.where, "--since", "999")[0] == 64
