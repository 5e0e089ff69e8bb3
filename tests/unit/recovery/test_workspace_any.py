"""Any tree over any other: the captured one stands there afterwards, and nothing of what was there is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recovery.lab import Lab, files, git, raw, repository
from wal_agent.recovery.target import Keep

NAMES = ("a", "b", "A", "sub", "x y", "-n", "é", "tab\t", "nl\n", "*", ":(top)a", '"q"', "c.log", ".hidden", "\udce9")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from([b"", b"one\n", b"two\r\n", b"\x00\xff", b"$Id$\n"])
KINDS = st.sampled_from(["file", "program", "link"])
TREES = st.lists(st.tuples(PATHS, KINDS, CONTENTS), max_size=12)


def plant(folder: Path, tree: list[tuple[str, str, bytes]]) -> None:
    """What cannot be beside what is there already is left out."""
    for name, kind, data in tree:
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "link":
                path.symlink_to(os.fsdecode(data.replace(b"\0", b"")) or "sub")
            elif not path.is_symlink():
                path.write_bytes(data)
                path.chmod(0o755 if kind == "program" else 0o644)
        except OSError:
            continue


def beneath(aside: tuple[str, ...], folder: Path) -> dict[str, tuple[str, object]]:
    """What was moved aside, under its old name."""
    found = {}
    for name, what in files(folder).items():
        for moved in aside:
            if name == moved or name.startswith(f"{moved}/"):
                found[moved.rpartition(".wal-agent-aside-")[0] + name[len(moved) :]] = what
    return found


@settings(max_examples=15, deadline=None)
@given(TREES, TREES, st.booleans(), st.booleans(), st.booleans())
def test_any_tree_over_any_other(
    theirs: list[tuple[str, str, bytes]],
    ours: list[tuple[str, str, bytes]],
    first_git: bool,
    second_git: bool,
    ignoring: bool,
) -> None:
    root = Path(tempfile.mkdtemp(prefix="wa-any-"))
    try:
        lab = Lab(root)
        first, second = lab.machine("a"), lab.machine("b")
        for machine, tree, within in ((first, theirs, first_git), (second, ours, second_git)):
            machine.work.mkdir(parents=True)
            if within:
                repository(machine.work)
            plant(machine.work, tree)
        if second_git and ignoring:
            (second.work / ".git" / "info").mkdir(exist_ok=True)
            (second.work / ".git" / "info" / "exclude").write_text("*.log\nsub\n")
        assert first.capture() is not None
        wanted, had = files(first.work), files(second.work)
        git_had = raw(second.work / ".git") if second_git else {}
        committed = files_of(second.work) if second_git else {}
        if second.decide() == Keep("newest"):
            return
        done = second.restore()
        after = files(second.work)
        aside = beneath(done.aside, second.work)
        moved = {n for n in after if any(n == m or n.startswith(f"{m}/") for m in done.aside)}
        assert {n: w for n, w in after.items() if n in wanted} == wanted
        extra = {n: w for n, w in after.items() if n not in wanted and n not in moved}
        assert all(had.get(n) == w for n, w in extra.items()), "only what was there and is ignored"
        assert not second_git or raw(second.work / ".git") == git_had
        kept: dict[str, tuple[str, object]] = {}
        if done.files_kept and done.kept is not None:
            (root / "out").mkdir()
            os.system(f"cd {root}/out && {done.kept.get_files}")
            kept = files(root / "out" / "before")
        everywhere = [after, aside, kept, committed]
        for name, what in had.items():
            assert any(place.get(name) == what for place in everywhere), f"{name!r} is lost"
    finally:
        shutil.rmtree(root)


def files_of(folder: Path) -> dict[str, tuple[str, object]]:
    """What HEAD has."""
    out = Path(tempfile.mkdtemp(prefix="wa-head-"))
    try:
        git(
            folder, f"--work-tree={out}", "checkout", "-q", "HEAD", "--", ".", GIT_INDEX_FILE=str(out.with_suffix(".i"))
        )
        return files(out)
    finally:
        shutil.rmtree(out)
        out.with_suffix(".i").unlink(missing_ok=True)
