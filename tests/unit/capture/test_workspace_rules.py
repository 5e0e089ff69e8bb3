"""capture/workspace.py: what a capture takes, when it sends how much, and what it remembers; without any git."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace

from wal_agent.capture import workspace as module
from wal_agent.capture.candidates import UNREADABLE, Caps, LeftOut
from wal_agent.capture.git import Busy, GitDirs, diff_trees
from wal_agent.capture.repository import MAX_MARKS, Location, RepositoryState
from wal_agent.capture.scan import Scanned
from wal_agent.capture.shadow import Contents, GitState, read_state
from wal_agent.capture.workspace import (
    LEAST_PART,
    MANY_PACKS,
    MAX_PACKS,
    MAX_PART,
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
    made = packer.pack(AT, before, NEW, RepositoryState(), [], filling)
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
    git, made = Git(), Contents("c", "w", "i", "s", GitState(commits=("1" * 40,)), "t")
    assert needed(git, None, made, ("e",)) == [
        b"c",
        b"t",
        b"s",
        b"listed path",
        b"1" * 40,
        b"listed path",
        b"e",
    ]
    assert git.inputs[0] == b"w\n" and git.inputs[1] == b"i\n" + b"1" * 40 + b"^{tree}\n^w\n"
    assert "--missing=allow-any" not in git.asked[0] and "--missing=allow-any" in git.asked[1]


def test_of_what_the_packs_hold_nothing_is_sent_again() -> None:
    git = Git()
    same = Contents("c2", "w", "i", "s", GitState(commits=("1" * 40,), head="1" * 40), "t")
    old = Contents("c1", "w", "i", "s", GitState(commits=("1" * 40,), head="1" * 40))
    assert needed(git, old, same, ("e",)) == [b"c2", b"t"]
    assert not git.asked


def test_of_a_few_changes_each_is_sent_and_of_many_what_the_old_tree_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_CHANGES", 3)
    git = Git(changed=2)
    assert needed(git, OLD, Contents("c", "w", OLD.index, tree="t")) == [b"c", b"t", b"w", b"b0 path0", b"b1 path1"]
    assert "-t" in git.asked[0], "folders too"
    git = Git(changed=3)
    assert needed(git, OLD, Contents("c", "w", OLD.index, tree="t")) == [b"c", b"t", b"listed path"]
    assert git.inputs[-1] == b"w\n^w1\n"


def test_commits_and_index_are_sent_against_what_is_known() -> None:
    git, head = Git(), "1" * 40
    old = Contents("c1", "w", "i1", "s", GitState(commits=(head,), head=head))
    new = Contents("c2", "w", "i2", "s2", GitState(commits=(head, "2" * 40), head="2" * 40), "t")
    assert needed(git, old, new) == [b"c2", b"t", b"s2", b"2" * 40, b"listed path"]
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
    big = capture(tmp_path, Caps(total=(LEAST_PART + 1) * module.MAX_PARTS))
    assert big._budget == LEAST_PART + 1
    big._budget = MAX_PART
    big.in_small_parts()
    assert big._budget == LEAST_PART + 1


@pytest.mark.parametrize(
    ("cost", "seconds", "whole", "parts"),
    [
        (LEAST_PART // 4 - 1, 0.001, 0.001, 1),  # too little to know
        (LEAST_PART // 4, 0.001, 0.001, 4),
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
    mine._budget = MAX_PART
    mine._adapt(MAX_PART, 0.0, 0.0)
    assert mine._budget == MAX_PART


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


@pytest.mark.parametrize(
    ("record", "looks"),
    [({}, True), ({"pending": Pending(files=1, size=9)}, False), ({"inside": ("clone",)}, False), (None, False)],
)
def test_a_glance_tells_only_of_a_capture_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, Any] | None, looks: bool
) -> None:
    monkeypatch.setattr(module, "glance_at", lambda place: b"seen")
    mine = capture(tmp_path)
    monkeypatch.setattr(mine._scanner, "settings", lambda place: ())
    assert mine.glance() is None
    mine.place = Location(tmp_path, git_dir=tmp_path / ".git")
    mine._saved = saved(**record) if record is not None else None
    assert (mine.glance() is not None) is looks


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
    assert mine.pending is None
    pending = Pending(files=1, size=2)
    mine._saved = saved(pending=pending)
    assert mine.pending == pending


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
    assert mine._counted(AT, None, "w", []) == (2, 15, 0)
    assert mine._counted(AT, saved(files=2, size=15), "w9", [*diff_trees(git, AT, OLD.work, "w9")]) == (3, 28, 15)
    assert mine._counted(AT, saved(files=2, size=15), OLD.work, []) == (2, 15, 0)


# ---- one capture, with what it finds written down


class Found(WorkspaceCapture):
    """A capture of what the tests say is there. The pack of each is 7 bytes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder / "state", folder / "work", {}, lambda data: Payload(size=len(data)), (), None, "job")
        self.place = Location(folder)
        self.scan = Scanned("w1", LeftOut(), 1, ())
        self.around = RepositoryState(Repository(head="", branch=""), index="i1", state=b'{"head":""}')
        self.packed = module.PackResult(Pack(size=7, sha256="", parts=()), True, 0)
        self.counted, self.filling, self.totals, self.adapted = (3, 30, 0), list[bool](), list[int](), list[Any]()
        born = SimpleNamespace(born="b", job="job", ensure=lambda _: None, hold=lambda _: None, at=lambda *_: AT)
        shadow: Any = born
        shadow.commit = lambda work, index, state, *_, **__: Contents(f"c-{work}", work, index, "s", read_state(state))
        shadow.keep = shadow.tidy = shadow.take_in = lambda *_: None
        shadow.tmp = folder
        self._shadow = shadow
        monkeypatch.setattr(module, "find_location", lambda *_: self.place)
        monkeypatch.setattr(module, "mark_folder", lambda *_: None)
        monkeypatch.setattr(module, "diff_trees", lambda *_, **__: iter(()))
        self._anew()

    def _anew(self) -> None:
        def scan(place: Location, stamp: object, total: int, budget: int) -> Scanned:
            self.totals.append(total)
            return self.scan

        def pack(
            at: GitDirs, saved: object, made: object, around: object, changed: object, filling: bool
        ) -> module.PackResult:
            self.filling.append(filling)
            return self.packed

        scanner: Any = SimpleNamespace(scan=scan)
        around: Any = SimpleNamespace(read=lambda _: self.around, index_stamp=None)
        packer: Any = SimpleNamespace(pack=pack)
        self._scanner, self._around, self._packer, self._total = scanner, around, packer, 0

    def _counted(self, *_: object) -> tuple[int, int, int]:
        return self.counted

    def _adapt(self, *given: Any) -> None:
        self.adapted.append(given)

    def take(self, holds: int = 5, also: tuple[int, ...] = (8,)) -> Workspace:
        made = self._capture(holds, also, 9.0)
        assert made is not None
        next_, self._next = self._next, None
        assert next_ is not None
        self._saved, self._held = next_, (next_.record.holds, next_.record.also)
        return made


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    return Found(tmp_path, monkeypatch)


PENDING = Pending(files=1, size=2)


def test_the_first_capture_is_whole_and_the_next_of_the_same_has_no_pack(found: Found) -> None:
    made = found.take()
    assert (made.holds, made.also, made.commit, made.files, made.size, made.time) == (5, (8,), "c-w1", 3, 30, 9.0)
    assert (made.whole, made.replaces, made.parts, made.grown) == (True, 0, 1, 0) and len(made.packs) == 1
    assert found._tidy == found.place and found._loose is None and found.filling == [False]
    assert found._saved is not None and found._saved.base == found._saved.contents and found._saved.packs == (7,)
    assert found._capture(5, (8,), 10.0) is None, "nothing is new"
    same = found.take(holds=6)
    assert (same.holds, same.packs, same.whole, same.replaces, same.commit) == (6, (), False, 0, "c-w1")
    assert found.filling == [False] and found.totals == [0, 30, 30], "nothing is packed again"


@pytest.mark.parametrize(("ahead", "lags"), [(-0.5, False), (0.0, True), (0.5, True)])
def test_what_waits_and_changed_since_the_run_began_may_be_of_any_of_its_calls(
    found: Found, ahead: float, lags: bool
) -> None:
    found.scan = replace(found.scan, pending=PENDING, changed=found._began + ahead)
    made = found.take()
    assert (made.holds, made.also) == ((0, ()) if lags else (5, (8,))) and found.lags is lags
    assert made.pending == PENDING and found.filling == [True]
    found.scan = replace(found.scan, pending=None, work="w2")
    assert found.take(holds=7).holds == 7 and not found.lags and found.filling == [True, True]


@pytest.mark.parametrize(("more", "waits"), [(0, False), (1, True)])
def test_history_heavier_than_a_part_waits_while_files_do(found: Found, more: int, waits: bool) -> None:
    found.around = replace(found.around, weight=found._budget + more)
    found.scan = replace(found.scan, pending=PENDING)
    made = found.take()
    assert made.pending is not None and made.pending.repository is waits
    assert found._saved is not None and found._saved.contents.index == ("" if waits else "i1")
    found.scan = replace(found.scan, work="w2", pending=None)
    made = found.take()
    assert made.pending is None and found._saved.contents.index == "i1", "nothing waits: all is taken"
    found.scan = replace(found.scan, work="w3", pending=PENDING)
    found.around = replace(found.around, weight=found._budget + 1)
    made = found.take()
    assert made.pending == PENDING and found._saved.contents.index == "i1", "what was sent is not dropped again"


@pytest.mark.parametrize(("replaced", "grown"), [(0, 7), (25, 7), (26, 0)])
def test_parts_of_a_first_capture_count_as_its_growth_where_little_was_replaced(
    found: Found, replaced: int, grown: int
) -> None:
    found.scan = replace(found.scan, pending=PENDING)
    found.take()
    found.packed = replace(found.packed, whole=False)
    found.scan = replace(found.scan, work="w2", cost=100)
    found.counted = (4, 40, replaced)
    made = found.take()
    assert (made.parts, made.grown, made.whole, made.files, made.size) == (2, grown, False, 4, 40)
    assert found._saved is not None and found._saved.packs == (7, 7) and found._tidy is None
    assert found._saved.base == found._saved.contents
    found.scan = replace(found.scan, work="w3", pending=None)
    assert found.take().parts == 3, "the last part too"
    found.scan = replace(found.scan, work="w4")
    last = found.take()
    assert last.parts == 3 and last.grown == found._saved.record.grown and found._saved.base is not None
    assert found._saved.base.work == "w3", "what is new from now on is no part"


@pytest.mark.parametrize(("taken", "loose"), [(module.MANY_LOOSE, False), (module.MANY_LOOSE + 1, True)])
def test_a_part_of_many_files_is_kept_as_a_pack(found: Found, taken: int, loose: bool) -> None:
    found.scan = replace(found.scan, pending=PENDING, taken=taken)
    found.take()
    assert found._loose is None, "the first is whole: it is tidied"
    found.packed = replace(found.packed, whole=False)
    found.scan = replace(found.scan, work="w2")
    found.take()
    assert (found._loose == found.place) is loose


def test_packs_that_a_new_one_takes_the_place_of_are_gone(found: Found) -> None:
    found.take()
    found.packed = replace(found.packed, whole=False)
    for work in ("w2", "w3"):
        found.scan = replace(found.scan, work=work)
        found.take()
        assert found._tidy is None
    found.packed = module.PackResult(Pack(size=9, sha256="", parts=()), False, 2)
    found.scan = replace(found.scan, work="w4")
    made = found.take()
    assert found._saved is not None and (found._saved.packs, made.replaces) == ((7, 9), 2)
    assert found._tidy == found.place and made.parts == 1
    assert found._saved.base is not None and found._saved.base.work == "w1"


def test_a_capture_reports_how_long_its_files_took_and_all_of_it(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 102.5, 103.0, 108.0))  # at the start, behind the scan, and around the pack
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    found.scan = replace(found.scan, cost=77, seconds=2.0)
    found.take()
    assert found.adapted == [(77, 7.0, 8.0)] and found.look == 0.5


def test_our_repository_that_another_job_began_anew_holds_nothing(found: Found) -> None:
    found.take()
    shadow: Any = found._shadow
    shadow.born = "another"
    found.scan = replace(found.scan, work="w2")
    found.take()
    assert found._saved is not None and found._saved.packs == (7,) and found.totals == [0, 0]
    assert found._born == "another"
