"""What is read of JSON that JavaScript wrote: halves of surrogate pairs, and how deep it may be."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal_agent.agents.session_files import DEPTH, decode_json, encode_json, records, well_formed

_PIECES = st.lists(
    st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "\\ud83d", '"', "ud83d", "\n", "é", "\0"]), max_size=8
).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=_PIECES)
def test_any_text_that_javascript_writes_is_read_with_its_lone_surrogates_replaced(text: str) -> None:
    said = json.dumps({"a": text, text: [text]}).encode()
    meant = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert msgspec.json.decode(well_formed(said)) == json.loads(json.dumps({"a": meant, meant: [meant]}))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00 \uD83D"', rb'"\ufffd \ufffd"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\\ude00"', rb'"\ufffd\\ude00"'),
        (rb'"\ud7ff"', rb'"\ud7ff"'),
    ],
)
def test_only_the_half_of_a_pair_is_replaced(said: bytes, meant: bytes) -> None:
    assert well_formed(said) == meant
    msgspec.json.decode(well_formed(said))


@settings(deadline=None)
@given(junk=st.binary(max_size=40) | st.text(alphabet='\\ud83"\n', max_size=40).map(str.encode))
def test_what_is_no_json_is_left_as_bad_as_it_was(junk: bytes) -> None:
    assert well_formed(well_formed(junk)) == well_formed(junk)


def test_plain_text_is_not_copied() -> None:
    said = b'{"a": "b \\n \\ue000"}' * 100
    assert well_formed(said) is said


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("surrogate", [b"1", rb'"\ud83d"'])
def test_what_is_read_can_be_written_again_and_deeper_json_is_none(pair: tuple[bytes, bytes], surrogate: bytes) -> None:
    def nested(levels: int) -> bytes:
        return pair[0] * levels + surrogate + pair[1] * levels

    value = decode_json(nested(DEPTH))
    assert decode_json(encode_json(value)) == value
    for levels in (DEPTH + 1, 600, 100_000):
        with pytest.raises(ValueError, match="deep"):
            decode_json(nested(levels))


def test_a_line_that_is_too_deep_is_junk_as_it_stands() -> None:
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    assert [(value, bytes(line)) for value, line in records(deep + b'\n{"b":1}\n')] == [
        (None, deep),
        ({"b": 1}, b'{"b":1}'),
    ]
