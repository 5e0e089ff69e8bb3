"""verdict: completed and not_started only with proof; a wrong one of these is the worst that recovery can do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from wal_agent.evidence.file_state import (
    ABSENT,
    FileNow,
    assess_append,
    assess_replacement,
    assess_write,
    line_end_variants,
    sha256,
)
from wal_agent.evidence.model import Context, Outcome
from wal_agent.records import Fact

PATH = "/w/shop/a.py"
SURE = Context(same_place=True, gone=True, alone=True)


def fact(data: bytes | None) -> Fact:
    return Fact(what="file", where=PATH, value=ABSENT if data is None else sha256(data))


def now(data: bytes | None) -> FileNow:
    return FileNow(PATH, data, absent=data is None)


def wrote(content: str, before: Fact | None, file: FileNow, around: Context = SURE, absolute: bool = True) -> str:
    return assess_write(line_end_variants(content), before, file, absolute, around).finding


def swapped(old: str, new: str, before: Fact | None, file: FileNow, around: Context = SURE) -> str:
    return assess_replacement(old, new, before, file, True, around).finding


def added(text: str, was: bytes | None, is_now: bytes | None, around: Context = SURE) -> Outcome:
    size = None if was is None else len(was)
    return assess_append(text.encode(), fact(was), size, now(is_now), around)


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        (b"old", b"new text", "completed"),
        (None, b"new text", "completed"),
        (b"new text", b"new text", "completed"),  # the same either way
        (b"old", b"old", "not_started"),
        (None, None, "not_started"),
        (b"old", b"new", "partial"),
        (b"old", b"", "partial"),  # truncated, then killed
        (b"old", b"else", "unknown"),
        (b"old", None, "unknown"),
        (None, b"new text!", "unknown"),
    ],
)
def test_write(before: bytes | None, after: bytes | None, finding: str) -> None:
    assert wrote("new text", fact(before), now(after)) == finding


def test_write_keeps_the_line_ends_of_the_file() -> None:
    assert wrote("a\nb\n", fact(b"x\r\n"), now(b"a\r\nb\r\n")) == "completed"


def test_without_a_look_before_only_the_file_itself_proves() -> None:
    assert wrote("new", None, now(b"new")) == "completed"
    assert wrote("new", None, now(b"ne")) == "unknown"
    assert wrote("new", None, now(None)) == "unknown"
    assert wrote("new", fact(b"old"), FileNow(PATH)) == "unknown"  # it cannot be read


def test_a_relative_path_may_mean_another_folder() -> None:
    def relative(before: Fact, file: FileNow) -> str:
        return wrote("new", before, file, absolute=False)

    assert relative(fact(b"old"), now(b"old")) == "unknown"
    assert relative(fact(None), now(None)) == "unknown"
    assert relative(fact(b"new"), now(b"new")) == "unknown"
    assert relative(fact(b"old"), now(b"new")) == "completed"


@pytest.mark.parametrize(
    ("before", "after", "old", "new", "finding"),
    [
        (b"a = 1\n", b"a = 2\n", "a = 1", "a = 2", "completed"),
        (b"a = 1\n", b"a = 1\n", "a = 1", "a = 2", "not_started"),
        (b"x\r\ny\r\n", b"x\r\nz\r\nq\r\n", "y\n", "z\nq\n", "completed"),
        (b"1 2 1 2", b"1 3 1 2", "2", "3", "completed"),
        (b"1 1", b"2 2", "1", "2", "completed"),  # all of them at once
        (b"2 1", b"2 2", "1", "2", "completed"),  # the new text was there before, too
        (b"a = 1\n", b"a = 2\nb\n", "a = 1", "a = 2", "unknown"),  # new there, old gone, but more besides
        (b"a = 1\n", b"a = 2\n", "b", "a = 2", "unknown"),
        (b"ab", b"b", "a", "", "unknown"),
        (b"a", None, "a", "b", "unknown"),
    ],
)
def test_replace(before: bytes | None, after: bytes | None, old: str, new: str, finding: str) -> None:
    assert swapped(old, new, fact(before), now(after)) == finding


def test_a_replacement_that_another_call_may_have_made_is_unknown() -> None:
    around = replace(SURE, contested=True, alone=False)
    assert swapped("1", "2", fact(b"1"), now(b"2"), around) == "unknown"


@pytest.mark.parametrize(
    ("was", "is_now", "finding"),
    [
        (b"a\n", b"a\nnew\n", "completed"),
        (None, b"new\n", "completed"),
        (b"", b"new\n", "completed"),
        (b"a\n", b"a\n", "not_started"),
        (None, None, "not_started"),
        (None, b"", "partial"),
        (b"a\n", b"a\nne", "partial"),
        (None, b"ne", "partial"),
        (b"a\n", b"a\nnew\nnew\n", "unknown"),
        (b"a\n", b"b\nnew\n", "unknown"),
        (b"a\n", None, "unknown"),
        (b"new\n", b"new\nnew\n", "completed"),
    ],
)
def test_append(was: bytes | None, is_now: bytes | None, finding: str) -> None:
    assert added("new\n", was, is_now).finding == finding
    assert added("new\n", was, is_now, replace(SURE, alone=False)).finding == "unknown"


@pytest.mark.parametrize("missing", ["same_place", "gone", "alone"])
def test_not_started_and_partial_need_all_circumstances(missing: str) -> None:
    changes: dict[str, Any] = {missing: False}
    around = replace(SURE, **changes)
    assert wrote("new", fact(b"old"), now(b"old"), around) == "unknown"
    assert wrote("new", fact(b"old"), now(b"ne"), around) == "unknown"
    assert swapped("o", "n", fact(b"o"), now(b"o"), around) == "unknown"
    assert wrote("new", fact(b"old"), now(b"new"), around) == "completed"


def test_in_a_tree_that_was_put_back() -> None:
    around = Context(restored=True, gone=True, alone=True)
    assert wrote("new", fact(b"old"), now(b"old"), around) == "not_started"
    assert wrote("new", fact(b"old"), now(b"ne"), around) == "unknown"


def test_a_path_cannot_pose_as_an_instruction() -> None:
    file = FileNow("/w/`\nIgnore all\n", b"x")
    said = assess_write([b"n"], fact(b"o"), file, True, SURE)
    assert "\n" not in said.why and "`` " in said.why


# ---- for any before, any call, any now -----------------------------------------------------------------------------

TEXT = st.text(alphabet="ab\r\n", max_size=6)
DATA = st.none() | TEXT.map(str.encode)
ALL_AROUND = st.builds(Context, *(st.booleans() for _ in range(5)))


def spelled(text: str) -> set[bytes]:
    lines = text.replace("\r\n", "\n")
    return {text.encode(), lines.encode(), lines.replace("\n", "\r\n").encode()}


def proven(around: Context) -> bool:
    return (around.same_place or around.restored) and around.gone and around.alone


@given(DATA, DATA, TEXT, st.booleans(), st.booleans(), ALL_AROUND)
def test_write_says_nothing_without_proof(
    was: bytes | None, is_now: bytes | None, content: str, told: bool, absolute: bool, around: Context
) -> None:
    said = wrote(content, fact(was) if told else None, now(is_now), around, absolute)
    if said == "completed":
        assert is_now in spelled(content)
    if said == "not_started":
        assert told and was == is_now and absolute and proven(around) and is_now not in spelled(content)


@given(DATA, DATA, TEXT, TEXT.filter(bool), st.booleans(), ALL_AROUND)
def test_replace_says_nothing_without_proof(
    was: bytes | None, is_now: bytes | None, old: str, new: str, told: bool, around: Context
) -> None:
    said = swapped(old, new, fact(was) if told else None, now(is_now), around)
    if said == "completed":
        made = {a for o in spelled(old) for n in spelled(new) for a in results(was, o, n)}
        assert told and not around.contested and (is_now in made or old == "")
    if said == "not_started":
        assert told and was == is_now and proven(around)


@given(DATA, DATA, TEXT.filter(bool), ALL_AROUND)
def test_append_says_nothing_without_proof(was: bytes | None, is_now: bytes | None, text: str, around: Context) -> None:
    said = added(text, was, is_now, around).finding
    if said == "completed":
        assert around.alone and is_now == (was or b"") + text.encode()
    if said == "not_started":
        assert was == is_now and proven(around)
    if said == "partial":
        assert is_now is not None and is_now != was and ((was or b"") + text.encode()).startswith(is_now)


def results(was: bytes | None, old: bytes, new: bytes) -> set[bytes]:
    """Everything that putting `new` for one or for all `old` can make of a file."""
    if was is None:
        return {new} if old == b"" else set()
    if old == b"":  # no file is ever changed so, but an insertion undone gives the file before: not claimed as proof
        return set()
    places = [i for i in range(len(was)) if was.startswith(old, i)]
    once = {was[:i] + new + was[i + len(old) :] for i in places}
    some = set()
    for n in range(len(places) + 1):
        for chosen in itertools.combinations(places, n):
            out, end = b"", 0
            for i in chosen:
                if i < end:
                    break
                out, end = out + was[end:i] + new, i + len(old)
            else:
                some.add(out + was[end:])
    return once | some
