from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.bucket.frame import FRAME_OVERHEAD, Frame, decode_frame, encode_frame, generation_of
from wal_agent.errors import Damaged

FRAMES = st.builds(Frame, st.integers(1, 10**19), st.binary(min_size=8, max_size=8), st.binary(max_size=200))


@given(FRAMES)
def test_a_frame_survives_the_way_to_disk_and_back(frame: Frame) -> None:
    raw = encode_frame(frame)
    assert len(raw) == FRAME_OVERHEAD + len(frame.payload)
    assert decode_frame(raw, "x") == frame


@given(FRAMES, st.data())
def test_any_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        decode_frame(bytes(raw), "x")


@given(FRAMES, st.data())
def test_any_cut_and_any_tail_is_found(frame: Frame, data: st.DataObject) -> None:
    raw = encode_frame(frame)
    with pytest.raises(Damaged):
        decode_frame(raw[: data.draw(st.integers(0, len(raw) - 1))], "x")
    with pytest.raises(Damaged):
        decode_frame(raw + data.draw(st.binary(min_size=1, max_size=9)), "x")


def test_damage_is_named() -> None:
    raw = encode_frame(Frame(1, b"12345678", b"payload"))
    for damaged, why in [
        (b"", "cut off: 0 bytes"),
        (b"x" * 100, "not an object of wal-agent"),
        (raw[:8] + b"\0\x02" + raw[10:], "format 2"),
        (raw[:-1], "should hold 7 bytes and holds 6"),
        (raw[:-1] + b"!", "checksum"),
    ]:
        with pytest.raises(Damaged, match=why):
            decode_frame(damaged, "x")


@given(FRAMES)
def test_a_version_names_its_generation(frame: Frame) -> None:
    assert generation_of(frame.version) in (frame.generation, 0)
    assert generation_of(frame.version) == (frame.generation if frame.generation < 10**19 else 0)


@given(st.text() | st.sampled_from(["1", "1-", "-1-" + "0" * 16, "²-" + "0" * 16, "9" * 30 + "-" + "0" * 16]))
def test_the_version_of_another_store_names_none(version: str) -> None:
    assert generation_of(version) == 0
