"""Any tree of files, changed in any way, is byte for byte what comes out of the packs on a machine without anything."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.capture.trees import Elsewhere, Log, User, capture_of, fingerprint, on_disk

NAMES = (
    b"a",
    b"b",
    b"d",
    b"new\nline",
    b"bad\xff",
    b" blank ",
    b"-x",
    b"*",
    b"q\"'\\",
    b":(top)",
    b"\xc3\xa9",
    b"tab\t",
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
contents = st.sampled_from([b"", b"x", b"one\r\ntwo\n", b"\0\xff", b"$Id$\n", b"y" * 5000, b"z" * 100_000])
steps = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("script"), paths, contents),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("delete"), paths, st.none()),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o644, 0o755, 0o600, 0o400])),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("add"), st.none(), st.none()),
    st.tuples(st.just("save"), st.none(), st.none()),
)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def parents(top: Path, path: Path) -> bool:
    """Make the folders above; False where a link stands there: git would write through it, and so would we."""
    for above in reversed(path.relative_to(top).parents[:-1]):
        where = top / above
        if where.is_symlink():
            return False
        if where.exists() and not where.is_dir():
            where.unlink()
        where.mkdir(exist_ok=True)
    return True


def do(user: User, step: tuple[str, bytes | None, object], is_git: bool, save: Callable[[], object]) -> None:
    what, name, with_ = step
    if what == "save":
        save()
        return
    if name is None:
        if is_git:
            user.git("add", "-A")
        if is_git and what == "commit":
            user.git("commit", "-q", "--allow-empty", "-m", "c")
        return
    path = user.top / os.fsdecode(name)
    if not parents(user.top, path):
        return
    match what, with_:
        case "write" | "script", bytes(data):
            clear(path)
            path.write_bytes(data)
            path.chmod(0o755 if what == "script" else 0o644)
        case "link", bytes(target):
            clear(path)
            path.symlink_to(os.fsdecode(target))
        case "delete", _:
            clear(path)
        case "move", bytes(target):
            to = user.top / os.fsdecode(target)
            apart = not to.is_relative_to(path) and not path.is_relative_to(to)
            if apart and os.path.lexists(path) and parents(user.top, to):
                clear(to)
                if os.path.lexists(path):
                    path.rename(to)
        case "chmod", int(mode):
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=25), st.booleans())
def test_what_comes_out_is_what_went_in(script: list[tuple[str, bytes | None, object]], is_git: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        user, log = User(root), Log()
        if is_git:
            user.init()
        capture = capture_of(user, root, log=log)
        for step in script:
            do(user, step, is_git, lambda: log.take(capture))
        before = fingerprint(user.top / ".git") if is_git else {}
        log.take(capture)
        assert fingerprint(user.top / ".git") == before or not is_git
        there = Elsewhere(log, root)
        assert there.files() == on_disk(user.top)
        assert log.now.files == len(there.files())
        assert log.now.size == sum(len(data) for _, data in there.files().values())
        if is_git:
            listed = user.git("ls-files", "-s", "-z").split(b"\0")[:-1]
            index = there.files(there.contents.index) if there.contents.index else {}
            assert set(index) == {entry.partition(b"\t")[2] for entry in listed}
