"""Edits: bounded in memory and in size, whatever is added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal_agent.capture import edits as module
from wal_agent.capture.edits import Edits
from wal_agent.records import Payload


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=40)), max_size=20))
def test_no_edit_is_larger_than_a_piece_and_none_is_lost(steps: list[tuple[int, bytes]]) -> None:
    whole, sizes, at = bytearray(), [], 0

    def put(data: bytes) -> Payload:
        sizes.append(len(data))
        return Payload(size=len(data), data=data)

    old, module.PIECE = module.PIECE, 16
    try:
        mine = Edits(put)
        for gap, data in steps:
            at += gap
            mine.add(at, data)
            whole[at:] = bytes(at - len(whole)) + data
            at += len(data)
            assert mine._held < 16
        done = mine.done()
    finally:
        module.PIECE = old
    assert all(0 < size <= 16 for size in sizes)
    told = bytearray(len(whole))
    for edit in done:
        told[edit.offset : edit.offset + edit.data.size] = edit.data.data or b""
    assert told == whole
    assert [e.offset for e in done] == sorted({e.offset for e in done})
