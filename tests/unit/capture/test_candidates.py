"""capture/candidates.py: the order and the bounds of what is saved and of what is left out, without any file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_agent.capture import candidates
from wal_agent.capture.candidates import (
    FILE_COST,
    FULL,
    IGNORED,
    MAX_NAMED,
    NESTED,
    NESTED_EMPTY,
    PRIVATE,
    SPECIAL,
    UNREADABLE,
    Add,
    Candidates,
    Caps,
    LeftOut,
    bound_paths,
    describe_apart,
    describe_unexpected,
    is_within,
    select_candidates,
    take_first,
    too_big_reason,
    total_cost,
)


def left_out(**why: str) -> LeftOut:
    out = LeftOut()
    for path, reason in why.items():
        out.add(path.encode(), reason)
    return out


def test_what_nobody_chose_is_named_first_and_the_rest_is_counted() -> None:
    out = left_out(a=IGNORED, b=UNREADABLE, c=FULL)
    out.add(b"b/", FULL)
    assert out.lines() == (f"b: {UNREADABLE}", f"c: {FULL}", f"a: {IGNORED}") and out.more == 0
    for n in range(MAX_NAMED - 2):
        out.add(b"x%d" % n, IGNORED)
    assert (len(out.lines()), out.more) == (MAX_NAMED, 1)


def test_a_restore_leaves_alone_what_it_lacks_by_name_or_by_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    out = left_out(ignored=IGNORED, nested=NESTED)
    out.add(b"d/unread", UNREADABLE)
    out.later = [b"d/new"]
    monkeypatch.setattr(candidates, "MAX_PATHS_SIZE", len(b"d/unread" + b"d/new"))
    assert out.stays == (b"d/new", b"d/unread")
    monkeypatch.setattr(candidates, "MAX_PATHS_SIZE", len(b"d/unread" + b"d/new") - 1)
    assert [*out.stays] == [b"d"]
    out.add(b"empty", NESTED_EMPTY)
    out.settle_inside([b"empty", b"full", b"lost"], {b"empty", b"full"})
    assert out.apart == [b"empty"] and out.why[b"lost"] == NESTED and b"full" not in out.why
    monkeypatch.setattr(candidates, "MAX_PATHS_SIZE", 4)
    assert bound_paths([b"ab", b"cd", b"e"]) == (b"ab", b"cd")


def test_what_a_person_may_take_for_saved() -> None:
    unread, ignored = f"a: {UNREADABLE}", f"b: {PRIVATE}"
    assert describe_unexpected([], 0) == "" and describe_unexpected([ignored, f"c: {NESTED}"], 5) == ""
    assert describe_unexpected([unread, ignored], 7) == unread, "what is not named is ignored as well"
    assert describe_unexpected([unread], 7) == f"{unread} and 7 more"
    assert describe_unexpected([unread] * 4, 0) == ", ".join([unread] * 3) + " and 1 more"
    nested = [f"n{n}: {NESTED}" for n in range(4)]
    assert (
        describe_apart([unread, ignored], NESTED) == ""
        and describe_apart([unread, *nested], NESTED) == "n0, n1, n2 and 1 more"
    )


def test_is_within() -> None:
    folders = {b"a/b", b"c"}
    assert is_within(b"a/b/x", folders) and is_within(b"a/b/", folders) and is_within(b"c", folders)
    assert not is_within(b"a", folders) and not is_within(b"a/bb", folders) and not is_within(b"x", set())
    assert not is_within(b"c", folders, itself=False) and is_within(b"c/d", folders, itself=False)


def test_one_capture_takes_new_small_and_recent_files_first() -> None:
    small, big = Add(b"small", 10, new=True), Add(b"big", 9 << 20, new=True)
    old, recent = Add(b"old", 10, new=True, modified=1.0), Add(b"recent", 10, new=True, modified=2.0)
    edited, clean = Add(b"edited", 10), Add(b"clean", 10)
    every = [big, old, recent, clean, edited, small]
    assert take_first(every, total_cost(every)) == (every, [])
    taken, later = take_first(every, total_cost(every) - 1)
    assert [a.path for a in taken] == [b"clean", b"edited", b"recent", b"old", b"small"] and later == [big]
    taken, later = take_first([edited, clean, old], total_cost([edited, clean, old]) - 1, lambda: {b"clean"})
    assert (taken, later) == ([edited, old], [clean]), "half of it is for new files, unchanged ones come last"
    assert take_first([big, small], 1) == ([small], [big]), "at least one"
    assert total_cost([small]) == 10 + FILE_COST


# ---- what a scan found on the disk


def select(
    top: Path, found: dict[str, str], total: int = 0, tracked: frozenset[bytes] = frozenset()
) -> tuple[Candidates, LeftOut]:
    out = LeftOut()
    listed = {os.fsencode(path): letter.encode() for path, letter in found.items()}
    return select_candidates(top, listed, total, Caps(total=100, file=50), out, lambda: tracked), out


def test_what_is_found_is_hashed_left_out_or_leaves_the_index(tmp_path: Path) -> None:
    for name, size in (("known", 5), ("new", 6), ("fits", 50), ("big", 51)):
        (tmp_path / name).write_bytes(bytes(size))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "inner/.git").mkdir(parents=True)
    (tmp_path / "link").symlink_to("known")
    letters = {"known": "C", "new": "?", "fits": "C", "big": "?", "pipe": "?", "folder": "?", "inner/": "?"}
    found, out = select(tmp_path, {**letters, "link": "?", "gone": "R"})
    assert [(add.path, add.size, add.new) for add in found.adds] == [
        (b"known", 5, False),
        (b"fits", 50, False),
        (b"new", 6, True),
        (b"link", 5, True),
    ]
    info = (tmp_path / "new").lstat()
    assert (found.adds[2].modified, found.adds[2].changed) == (info.st_mtime, info.st_ctime)
    assert found.removes == [b"big", b"pipe", b"folder", b"gone"] and [n.path for n in found.nested] == [b"inner"]
    assert out.why == {b"big": too_big_reason(50), b"pipe": SPECIAL}


def test_a_file_below_a_link_is_not_in_this_workspace(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").write_bytes(b"x")
    (tmp_path / "link").symlink_to("other")
    found, out = select(tmp_path, {"link": "?", "link/x": "?"})
    assert [add.path for add in found.adds] == [b"link"] and out.why == {}


@pytest.mark.parametrize(("total", "left"), [(60, []), (61, [b"c"]), (81, [b"b", b"c"])])
def test_of_new_files_the_smallest_have_room(tmp_path: Path, total: int, left: list[bytes]) -> None:
    """And what the user edited is never left out for room."""
    for name, size in (("a", 9), ("b", 11), ("c", 20), ("edited", 50)):
        (tmp_path / name).write_bytes(bytes(size))
    found, out = select(tmp_path, dict.fromkeys(("a", "b", "c", "edited"), "?"), total, frozenset({b"edited"}))
    kept = {add.path for add in found.adds}
    assert kept == {b"a", b"b", b"c", b"edited"} - {*left} and sorted(found.removes) == left
    assert out.why == dict.fromkeys(left, FULL)


def test_nothing_is_asked_of_git_where_all_have_room(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(40))

    def never() -> frozenset[bytes]:
        raise AssertionError("asked")

    for total, asks in ((60, False), (61, True)):
        if asks:
            with pytest.raises(AssertionError, match="asked"):
                select_candidates(tmp_path, {b"a": b"?"}, total, Caps(total=100), LeftOut(), never)
        else:
            assert select_candidates(tmp_path, {b"a": b"?"}, total, Caps(total=100), LeftOut(), never).adds


def test_small_files_come_before_big_ones_by_class() -> None:
    sizes = [8 << 20, (8 << 20) + 1, 1 << 20, (1 << 20) + 1, 64 << 10, (64 << 10) + 1]
    adds = [Add(b"%d" % n, size, modified=float(n)) for n, size in enumerate(sizes)]
    taken, later = take_first(adds, total_cost(adds) - 1)
    assert [add.path for add in (*taken, *later)] == [b"4", b"5", b"2", b"3", b"0", b"1"]


@pytest.mark.parametrize(("budget", "count"), [(0, 1), (2 * (10 + FILE_COST) - 1, 1), (2 * (10 + FILE_COST), 2)])
def test_a_capture_takes_as_many_files_as_fit(budget: int, count: int) -> None:
    """Each costs its bytes and its share of a request."""
    adds = [Add(b"%d" % n, 10, new=True) for n in range(5)]
    taken, later = take_first(adds, budget)
    assert len(taken) == count and len(later) == 5 - count


def test_half_of_a_capture_is_for_files_that_are_new_here() -> None:
    """One that is written all the time keeps no new file waiting, and new ones do not keep it out."""
    known = [Add(b"k%d" % n, 10) for n in range(4)]
    new = [Add(b"n%d" % n, 10, new=True) for n in range(4)]
    taken, later = take_first([*known, *new], total_cost(known))
    assert [add.path for add in taken] == [b"k0", b"k1", b"n0", b"n1"]
    assert [add.path for add in later] == [b"k2", b"k3", b"n2", b"n3"]
    taken, _ = take_first([*known[:1], *new], total_cost(known))
    assert [add.path for add in taken] == [b"k0", b"n0", b"n1", b"n2"], "what the known ones leave is for the new"


def test_a_file_in_a_closed_folder_holds_no_other_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").write_bytes(b"12")
    real = os.lstat

    def lstat(path: bytes) -> os.stat_result:
        if b"/closed/" in path:
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    found, out = select(tmp_path, {"closed/x": "?", "open": "?"})
    assert [add.path for add in found.adds] == [b"open"] and found.removes == []
    assert out.why == {b"closed/x": UNREADABLE}
