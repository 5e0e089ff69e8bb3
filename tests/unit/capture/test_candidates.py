"""capture/candidates.py: the order and the bounds of what is saved and of what is left out, without any file."""

from __future__ import annotations

import pytest

from wal_agent.capture import candidates
from wal_agent.capture.candidates import (
    FILE_COST,
    FULL,
    IGNORED,
    MAX_NAMED,
    NESTED,
    PRIVATE,
    UNREADABLE,
    Add,
    LeftOut,
    bound_paths,
    describe_unexpected,
    is_within,
    take_first,
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
    monkeypatch.setattr(candidates, "MAX_PATHS_SIZE", 4)
    assert bound_paths([b"ab", b"cd", b"e"]) == (b"ab", b"cd")


def test_what_a_person_may_take_for_saved() -> None:
    unread, ignored = f"a: {UNREADABLE}", f"b: {PRIVATE}"
    assert describe_unexpected([], 0) == "" and describe_unexpected([ignored, f"c: {NESTED}"], 5) == ""
    assert describe_unexpected([unread, ignored], 7) == unread, "what is not named is ignored as well"
    assert describe_unexpected([unread], 7) == f"{unread} and 7 more"
    assert describe_unexpected([unread] * 4, 0) == ", ".join([unread] * 3) + " and 1 more"


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
