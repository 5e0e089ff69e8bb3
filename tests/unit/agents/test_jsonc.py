"""JSON with comments: read as it is meant, cut without a scar."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal_agent.agents.jsonc import cut_ranges, parse_jsonc, ranges_without

PARSED_SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)
)
PARSED_VALUE = st.recursive(
    PARSED_SCALAR, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)
)


@settings(deadline=None)
@given(PARSED_VALUE, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_plain_json_means_what_json_says(value: Any, indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert parse_jsonc(text).value == json.loads(text)


def test_comments_and_trailing_commas_are_nothing() -> None:
    assert parse_jsonc('\ufeff// x\n{"a": /* } */ [1, 2,], // "b": 3\n}\n/* end */').value == {"a": [1, 2]}
    assert parse_jsonc('{"a": "// no /* comment */"}').value == {"a": "// no /* comment */"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        "[1 2]",
        "[,]",
        "{,}",
        '{"a":1,,}',
        "[1]]",
        "'a'",
        "{a: 1}",
        '"\n"',
        "01",
        '"\\x"',
        "/* x",
        "NaN",
    ],
)
def test_what_is_not_json_has_a_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+, column \d+$"):
        parse_jsonc(text)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_children_can_leave(data: st.DataObject) -> None:
    gap = st.sampled_from(["", " ", "\n", "\n  ", "// , ] [\n", "/* , */"])
    keep = data.draw(st.lists(st.booleans(), max_size=6))
    text = "["
    for i in range(len(keep)):
        comma = "," if i + 1 < len(keep) else data.draw(st.sampled_from(["", ","]))
        text += f"{data.draw(gap)}{i}{data.draw(gap)}{comma}"
    text += data.draw(gap) + "]"
    node = parse_jsonc(text)
    left = cut_ranges(
        text, ranges_without(text, node, [c for c, kept in zip(node.children, keep, strict=True) if not kept])
    )
    assert parse_jsonc(left).value == [i for i, kept in enumerate(keep) if kept]
    for comment in ("// , ]", "/* , */"):
        assert left.count(comment) == text.count(comment)


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ([0], '{\n  // of b\n  "b": 2, "c": 3 // of c\n}'),
        ([1], '{\n  "a": 1,\n  // of b\n "c": 3 // of c\n}'),
        ([2], '{\n  "a": 1,\n  // of b\n  "b": 2 // of c\n}'),
        ([1, 2], '{\n  "a": 1\n  // of b\n // of c\n}'),
        ([0, 1, 2], "{\n  // of b\n // of c\n}"),
    ],
)
def test_lines_of_their_own_go_with_them(gone: list[int], left: str) -> None:
    text = '{\n  "a": 1,\n  // of b\n  "b": 2, "c": 3 // of c\n}'
    node = parse_jsonc(text)
    assert cut_ranges(text, ranges_without(text, node, [node.children[i] for i in gone])) == left
