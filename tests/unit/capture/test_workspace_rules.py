"""capture/workspace.py: what a capture takes, when it sends how much, and what it remembers; without any git."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from wal_agent.capture import workspace as module
from wal_agent.capture.candidates import UNREADABLE, Caps, LeftOut
from wal_agent.capture.git import Busy, GitDirs
from wal_agent.capture.repository import MAX_MARKS, Location, RepositoryState
from wal_agent.capture.scan import Scanned
from wal_agent.capture.shadow import Contents, GitState, read_state
from wal_agent.capture.workspace import (
    LEAST_PART,
    MANY_PACKS,
    MAX_PACKS,
    MOST_PART,
    PACK_SLACK,
    PART_SECONDS,
    Packer,
    SavedCapture,
    WorkspaceCapture,
)
from wal_agent.errors import Damaged
from wal_agent.records import Pack, Payload, Pending, Repository, Workspace

AT = GitDirs(Path("/shadow"))
BASE, OLD, NEW = (Contents(f"c{n}", f"w{n}", f"i{n}") for n in range(3))


def saved(
    packs: Sequence[int] = (10,), base: Contents | None = BASE, contents: Contents = OLD, **record: Any
) -> SavedCapture:
    return SavedCapture(contents, base, tuple(packs), Workspace(time=1.0, holds=0, commit="c", **record))


def capture(tmp_path: Path, caps: Caps | None = None) -> WorkspaceCapture:
    return WorkspaceCapture(
        tmp_path / "state", tmp_path / "work", {}, lambda data: Payload(size=len(data)), (), caps, "job"
    )


# ---- when everything is sent again


@pytest.mark.parametrize(
    ("packs", "grown", "wasted"),
    [
        ((10, PACK_SLACK), 0, False),
        ((10, PACK_SLACK + 1), 0, True),
        ((PACK_SLACK + 9, PACK_SLACK + 9), 0, False),
        ((PACK_SLACK + 9, PACK_SLACK + 10), 0, True),
        ((10, PACK_SLACK + 5), 5, False),
        ((10, PACK_SLACK + 6), 5, True),
        ((1,) * (MAX_PACKS - 1), 0, False),
        ((1,) * MAX_PACKS, 0, True),
    ],
)
def test_later_packs_may_have_as_much_as_the_first_ones_and_some_slack(
    packs: tuple[int, ...], grown: int, wasted: bool
) -> None:
    assert saved(packs, grown=grown).wasted is wasted


class Sent(Packer):
    """Says what it would send: since which capture."""

    def __init__(self) -> None:
        shadow: Any = SimpleNamespace(git=None)
        super().__init__(shadow, lambda data: Payload(size=len(data)))
        self.since: list[Contents | None] = []

    def _needed(self, at: GitDirs, since: Contents | None, *_: object) -> Any:
        self.since.append(since)
        return iter(())

    def _packed(self, *_: object) -> Any:
        return "pack"


MANY = (PACK_SLACK,) + (1,) * (MANY_PACKS - 2)


@pytest.mark.parametrize(
    ("before", "filling", "since", "whole", "dropped"),
    [
        (None, False, None, True, 0),
        (None, True, None, True, 0),
        (saved(), False, OLD, False, 0),
        (saved((1, 9 * PACK_SLACK)), False, None, True, 0),
        (saved((1, 9 * PACK_SLACK)), True, OLD, False, 0),
        (saved(MANY), False, OLD, False, 0),
        (saved((*MANY, 1)), False, BASE, False, MANY_PACKS - 1),
        (saved((*MANY, 1), parts=2), False, OLD, False, 0),
        (saved((*MANY, 1, 1), parts=2), False, BASE, False, MANY_PACKS - 1),
        (saved((*MANY, 1)), True, OLD, False, 0),
        (saved((*MANY, 1), base=None), False, None, True, 0),
    ],
)
def test_a_pack_holds_what_is_new_all_since_the_first_or_all(
    before: SavedCapture | None, filling: bool, since: Contents | None, whole: bool, dropped: int
) -> None:
    """A tree that is saved in parts sends nothing again before it is whole."""
    packer = Sent()
    made = packer.pack(AT, before, NEW, RepositoryState(), filling)
    assert (packer.since, made.whole, made.dropped) == ([since], whole, dropped)


class Git:
    """Lists one object for each thing that it is asked for, and packs what it is given."""

    def __init__(self, changed: int = 1) -> None:
        self.changed = changed
        self.asked: list[tuple[str, ...]] = []
        self.inputs: list[bytes] = []

    def run(self, *words: str, at: GitDirs, input: bytes = b"", out: BinaryIO | None = None, **_: object) -> bytes:
        self.asked.append(words)
        self.inputs.append(input)
        match words[0]:
            case "rev-parse":
                return b"tree-of-commit\n"
            case "diff-tree":
                each = b":040000 040000 a b%d M\0path%d\0"
                return b"".join(each % (n, n) for n in range(self.changed)) + b":100644 000000 a 00 D\0gone\0"
            case "rev-list":
                return b"listed path\n"
            case _:
                assert out is not None
                out.write(bytes(range(10)))
                return b""


def needed(git: Git, since: Contents | None, made: Contents, extra: tuple[str, ...] = ()) -> list[bytes]:
    shadow: Any = SimpleNamespace(git=git)
    packer = Packer(shadow, lambda data: Payload(size=len(data)))
    return [*packer._needed(AT, since, made, RepositoryState(extra=extra))]


def test_all_of_a_capture_is_its_commit_tree_state_files_index_and_commits() -> None:
    git, made = Git(), Contents("c", "w", "i", "s", GitState(commits=("1" * 40,)))
    assert needed(git, None, made, ("e",)) == [
        b"c",
        b"tree-of-commit",
        b"s",
        b"listed path",
        b"1" * 40,
        b"listed path",
        b"e",
    ]
    assert git.inputs[1] == b"w\n" and git.inputs[2] == b"i\n" + b"1" * 40 + b"^{tree}\n^w\n"
    assert "--missing=allow-any" not in git.asked[1] and "--missing=allow-any" in git.asked[2]


def test_of_what_the_packs_hold_nothing_is_sent_again() -> None:
    git = Git()
    same = Contents("c2", "w", "i", "s", GitState(commits=("1" * 40,), head="1" * 40))
    old = Contents("c1", "w", "i", "s", GitState(commits=("1" * 40,), head="1" * 40))
    assert needed(git, old, same, ("e",)) == [b"c2", b"tree-of-commit"]
    assert len(git.asked) == 1


def test_of_a_few_changes_each_is_sent_and_of_many_what_the_old_tree_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_CHANGES", 3)
    git = Git(changed=2)
    assert needed(git, OLD, Contents("c", "w", OLD.index)) == [b"c", b"tree-of-commit", b"w", b"b0 path0", b"b1 path1"]
    assert "-t" in git.asked[1], "folders too"
    git = Git(changed=3)
    assert needed(git, OLD, Contents("c", "w", OLD.index)) == [b"c", b"tree-of-commit", b"listed path"]
    assert git.inputs[-1] == b"w\n^w1\n"


def test_commits_and_index_are_sent_against_what_is_known() -> None:
    git, head = Git(), "1" * 40
    old = Contents("c1", "w", "i1", "s", GitState(commits=(head,), head=head))
    new = Contents("c2", "w", "i2", "s2", GitState(commits=(head, "2" * 40), head="2" * 40))
    assert needed(git, old, new) == [b"c2", b"tree-of-commit", b"s2", b"2" * 40, b"listed path"]
    assert git.inputs[-1].decode().split() == ["i2", "2" * 40 + "^{tree}", "^w", "^i1", f"^{head}^{{tree}}", "^w"]
    other = Contents("c1", "w", "i1", "s", GitState(commits=(head,), head="9" * 40))
    needed(git, other, new)
    assert f"^{head}^{{tree}}" not in git.inputs[-1].decode(), "a remote has its head: the packs do not"


def test_a_pack_goes_into_the_bucket_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACK_PART", 4)
    git, parts = Git(), list[bytes]()

    def put(data: bytes) -> Payload:
        parts.append(data)
        return Payload(size=len(data), data=data)

    shadow: Any = SimpleNamespace(git=git, tmp=tmp_path)
    pack = Packer(shadow, put)._packed(AT, [b"one", b"two x"])
    assert git.inputs == [b"one\ntwo x\n"] and b"".join(parts) == bytes(range(10))
    assert [part.size for part in pack.parts] == [4, 4, 2]
    assert (pack.size, pack.sha256) == (10, hashlib.sha256(bytes(range(10))).hexdigest())


# ---- how much one capture takes


def test_a_part_is_at_least_so_big_and_a_tree_has_not_too_many(tmp_path: Path) -> None:
    assert capture(tmp_path)._budget == LEAST_PART
    big = capture(tmp_path, Caps(total=(LEAST_PART + 1) * module.MOST_PARTS))
    assert big._budget == LEAST_PART + 1
    big._budget = MOST_PART
    big.in_small_parts()
    assert big._budget == LEAST_PART + 1


@pytest.mark.parametrize(
    ("cost", "seconds", "whole", "parts"),
    [
        (LEAST_PART // 4 - 1, 0.001, 0.001, 1),  # too little to know
        (LEAST_PART, PART_SECONDS / 2, PART_SECONDS / 2, 2),
        (LEAST_PART, PART_SECONDS, 4 * PART_SECONDS, 3),
        (LEAST_PART, 0.0, 0.0, 4),  # not more than four times as much at once
        (LEAST_PART, 100.0, 100.0, 1),
    ],
)
def test_the_next_part_is_what_fits_in_its_time(
    tmp_path: Path, cost: int, seconds: float, whole: float, parts: int
) -> None:
    mine = capture(tmp_path)
    mine._adapt(cost, seconds, whole)
    assert mine._budget == parts * LEAST_PART
    mine._budget = MOST_PART
    mine._adapt(MOST_PART, 0.0, 0.0)
    assert mine._budget == MOST_PART


# ---- what it remembers


def test_the_newest_captures_are_remembered_and_always_the_oldest(tmp_path: Path) -> None:
    """The log has that one for certain; of the others it is not known."""
    mine = capture(tmp_path)
    for n in range(MAX_MARKS - 1):
        mine._recent = mine._with(str(n))
    assert not mine.many_waiting
    mine._recent = mine._with("last")
    assert mine.many_waiting and mine._recent == ("last", *map(str, reversed(range(MAX_MARKS - 1))))
    mine._recent = mine._with("more")
    assert len(mine._recent) == MAX_MARKS and mine._recent[:2] == ("more", "last") and mine._recent[-1] == "0"
    assert mine._with("last")[:2] == ("last", "more"), "one that comes again is the newest"
    mine.acked("unknown")
    assert len(mine._recent) == MAX_MARKS
    mine.acked("last")
    assert mine._recent == ("more", "last") and not mine.many_waiting


class Known:
    """Our repository as it was left: the capture that it has as the newest, and the one of the first pack."""

    def __init__(self, saved: str, base: str, broken: str = "") -> None:
        self.refs, self.broken, self.lacks = {"saved": saved, "base": base}, broken, ""

    def has(self, commit: str) -> bool:
        return commit != self.lacks

    def name(self, what: str) -> str:
        return what

    def ref(self, name: str) -> str:
        return self.refs[name]

    def contents(self, commit: str, *_: Path) -> Contents:
        if commit == self.broken:
            raise Damaged("gone")
        return Contents(commit, "w")


def gone_on(
    tmp_path: Path, known: Known, marks: tuple[str, ...] = (), recent: tuple[str, ...] = (), **record: Any
) -> WorkspaceCapture:
    mine = capture(tmp_path)
    shadow: Any = known
    mine._shadow, mine._recent = shadow, recent
    packs = tuple(Pack(size=n, sha256="", parts=()) for n in (5, 6))
    mine.go_on_from(Workspace(time=1.0, commit="log", packs=packs, size=9, holds=3, also=(5,), **record))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_marks", lambda _: marks)
        mine._go_on(Location(tmp_path))
    return mine


def test_a_run_goes_on_from_the_logs_newest_capture_where_that_is_here(tmp_path: Path) -> None:
    mine = gone_on(tmp_path, Known("log", "base"), parts=9)
    assert mine._saved is not None and (mine._saved.packs, mine._total) == ((5, 6), 9)
    assert mine._saved.base is not None and mine._saved.base.commit == "base" and mine._saved.record.parts == 2
    assert mine._held == (3, (5,))
    other = gone_on(tmp_path, Known("saved", "base"), parts=0)
    assert other._saved is not None and other._saved.base is None, "the base is that of another capture"
    assert other._saved.record.parts == 1
    for broken in ("log", "base"):
        assert gone_on(tmp_path, Known("log", "base", broken))._saved is None
    absent = Known("x", "y")
    absent.lacks = "log"
    assert gone_on(tmp_path, absent)._saved is None


@pytest.mark.parametrize(
    ("recent", "marks", "saved", "left"),
    [
        (("new", "log", "old"), (), "x", ("new", "log")),  # newer ones may be on their way into the log
        (("new", "log"), ("log",), "log", ("new", "log")),
        (("other",), ("log",), "x", ("log",)),  # another job, or machine, made it of this folder
        (("other",), (), "log", ("log",)),
        (("other",), ("more",), "x", ("other",)),
        ((), ("log",), "x", ("log",)),
    ],
)
def test_what_the_log_may_hold_is_what_this_folder_has_grown_out_of(
    tmp_path: Path, recent: tuple[str, ...], marks: tuple[str, ...], saved: str, left: tuple[str, ...]
) -> None:
    assert gone_on(tmp_path, Known(saved, ""), marks, recent)._recent == left


def test_what_is_pending_is_that_of_the_newest_capture(tmp_path: Path) -> None:
    mine = capture(tmp_path)
    assert mine.pending is None and not mine.lags
    mine._lags = True
    assert not mine.lags, "nothing is pending"
    pending = Pending(files=1, size=2)
    mine._saved = saved(pending=pending)
    assert mine.pending == pending and mine.lags


def scanned(work: str = OLD.work, out: LeftOut | None = None, private: tuple[bytes, ...] = ()) -> Scanned:
    return Scanned(work, out or LeftOut(), 1, private)


@pytest.mark.parametrize(
    ("state_id", "state", "old", "same"),
    [
        ("", b"", GitState(), True),
        ("", b"{}", GitState(), False),
        ("s", b"", GitState(), False),
        ("s", b"{}", GitState(), True),
        ("s", b'{"branch": "b"}', GitState(), False),
        ("s", b' {"branch":"b"}', GitState(branch="b"), True),
    ],
)
def test_a_capture_is_the_same_by_trees_repository_and_state(
    tmp_path: Path, state_id: str, state: bytes, old: GitState, same: bool
) -> None:
    before = saved(contents=Contents("c", "w", "i", state_id, old))
    is_same = capture(tmp_path)._is_same
    around = RepositoryState(index="i")
    assert is_same(before, scanned("w"), around, state) is same
    assert not is_same(before, scanned("x"), around, state)
    assert not is_same(before, scanned("w"), RepositoryState(index="j"), state)
    assert not is_same(before, scanned("w"), RepositoryState(Repository(head="", branch=""), "i"), state)


def test_what_is_left_out_and_what_is_private_go_into_the_state() -> None:
    out = LeftOut()
    assert module._state(b"", scanned()) == b"" and module._state(b'{"head":""}', scanned()) == b'{"head":""}'
    assert read_state(module._state(b"", scanned(private=(b"key",)))) == GitState(private=(b"key",))
    out.add(b"x", UNREADABLE)
    around = b'{"branch":"b"}'
    assert read_state(module._state(around, scanned(out=out))) == GitState(branch="b", left_out=(b"x",))


def test_another_run_in_the_workspace_is_waited_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, times = capture(tmp_path), capture(tmp_path), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: times.append(times.pop() + seconds))
    with other._alone():
        with pytest.raises(Busy), mine._alone():
            raise AssertionError
        assert module.LOCK_TIMEOUT < times[0] < module.LOCK_TIMEOUT + 0.1
    with mine._alone():
        pass


def test_files_and_bytes_are_counted_on_from_the_capture_before(tmp_path: Path) -> None:
    mine = capture(tmp_path)
    changes = b":100644 100644 a b M\0x\0:100644 000000 c 00 D\0y\0:000000 100644 00 d A\0z\0:000000 100644 00 e A\0v\0"
    sizes = {b"a": 10, b"c": 5, b"b": 20, b"d": 7, b"e": 1}

    class Counting(Git):
        def run(self, *words: str, at: GitDirs, input: bytes = b"", **_: object) -> bytes:
            if words[0] == "diff-tree":
                return changes
            if words[0] == "ls-tree":
                return b"100644 blob a 10\tx\0" + b"100644 blob c 5\ty\0"
            return b"".join(b"%d\n" % sizes[id] for id in input.split())

    git: Any = Counting()
    mine.git = git
    assert mine._counted(AT, None, "w") == (2, 15, 0)
    assert mine._counted(AT, saved(files=2, size=15), "w9") == (3, 28, 15)
    assert mine._counted(AT, saved(files=2, size=15), OLD.work) == (2, 15, 0)
