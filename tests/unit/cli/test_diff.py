"""`wal-agent diff`: what a job changed, by the saved working trees, and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import SECRET, Run, commit
from tests.unit.cli.test_restore import Story
from tests.unit.recovery.lab import git, repository, write


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


def test_the_repositories_inside_are_compared_too(story: Story, run: Run) -> None:
    lib = repository(story.work / "lib")
    first = story.step("one")
    git(lib, "commit", "-qam", "a", "--allow-empty")
    (lib / "a").write_text(f"mine {SECRET}\n")
    repository(story.work / "fresh")
    story.step("two")
    code, out, _ = run("diff", *story.where, "--since", str(first))
    assert code == 0 and "--- a/lib/a" in out and "+++ b/lib/a" in out and SECRET not in out
    names = run("diff", *story.where, "--names")[1].splitlines()
    assert "changed  lib/a" in names and "added    fresh/sub/c" in names and "changed  lib/b" not in names
    os.chdir(story.work)
    assert run("diff", *story.where, "--here", "--names")[:2] == (0, "")
    (lib / "b").unlink()
    shutil.rmtree(story.work / "fresh")
    found = json.loads(run("diff", *story.where, "--here", "--json")[1])["files"]
    removed = {each["path"] for each in found if each["change"] == "removed"}
    assert removed == {"fresh", "lib/b", *(f"fresh/{name}" for name in ("a", "b", "gone", "sub/c"))}


@pytest.mark.parametrize("name", ["../out", "x/.git", "a\nb", "nul\0"])
def test_one_of_a_name_that_no_run_saves_is_not_compared(story: Story, run: Run, name: str) -> None:
    """I7: nothing beside the workspace is read for a name from the bucket."""
    write(repository(story.work.parent / "out"), b="secret")
    repository(story.work / "lib")
    first = story.step("one")
    state = story.job.writer.state
    assert state.workspace is not None
    hostile = replace(state.inside["lib"], folder=name)
    story.job.writer.append(hostile, replace(state.workspace, time=30.0, packs=(), whole=False, inside=(name,)))
    commit(story.job)
    os.chdir(story.work)
    for words in (["--here"], ["--since", str(first)]):
        code, out, err = run("diff", *story.where, *words)
        assert code == 0 and "secret" not in out and "not compared" in err, err


def test_what_cannot_be_compared(story: Story, run: Run) -> None:
    code, out, err = run("diff", *story.where)
    assert (code, out) == (64, "") and "No working tree" in err
    assert run("diff", *story.where, "--here", "--since", "1")[0] == 64
    story.step("one")
    assert run("diff", *story.where, "--since", "999")[0] == 64
