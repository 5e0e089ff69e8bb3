"""docs/FORMAT.md is enough to write another reader: docs/read-a-job.py reads what wal-agent wrote (I4)."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

from tests.unit.cli.test_restore import MAIN, Story
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

READER = Path(__file__).parents[3] / "docs" / "read-a-job.py"


def git(*words: str, input: bytes = b"") -> bytes:
    return subprocess.run(["git", *words], input=input, check=True, capture_output=True, timeout=60).stdout


def test_another_reader_gets_the_same_session_and_tree(tmp_path: Path) -> None:
    story = Story(tmp_path)
    (story.work / "big").write_bytes(random.Random(1).randbytes(1 << 20))  # a pack in several parts, which are blobs
    story.step("one")
    story.step("three, which is longer")
    story.step("two")
    words = [sys.executable, str(READER), str(tmp_path / "bucket"), "shop", str(tmp_path / "out")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    kinds = done.stdout.split()
    assert kinds[0] == "opening" and kinds.count("intent") == kinds.count("file") == kinds.count("workspace") == 3
    assert (tmp_path / "out" / MAIN).read_bytes() == story.main.read_bytes()
    saved = replay(story.shelf.bucket, Keys("shop")).state.workspace
    assert saved is not None
    bare = str(tmp_path / "bare")
    git("init", "-q", "--bare", bare)
    packs = sorted((tmp_path / "out").glob("*.pack"), key=lambda path: int(path.stem))
    assert len(packs) == len(saved.packs)
    for pack in packs:
        git("-C", bare, "index-pack", "--stdin", input=pack.read_bytes())
    names = git("-C", bare, "ls-tree", "--name-only", "-z", f"{saved.commit}:work").decode().split("\0")[:-1]
    assert set(names) == {path.name for path in story.work.iterdir()}
    for name in names:
        assert git("-C", bare, "cat-file", "blob", f"{saved.commit}:work/{name}") == (story.work / name).read_bytes()


def test_the_reader_uses_nothing_of_ours() -> None:
    tree = ast.parse(READER.read_text())
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    known = {"hashlib", "sys", "pathlib", "msgspec", "compression", "backports"}
    assert {name.partition(".")[0] for name in names} == known
