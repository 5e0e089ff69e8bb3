"""wal/codec.py: what is written is read; what was not written is Damaged and nothing worse."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.unit.wal.world import end, intent
from wal_agent.budget import FOREIGN, Budget
from wal_agent.errors import Damaged, Newer
from wal_agent.records import AnyRecord, Edit, FileDelta, Payload, RunEnded, Turn
from wal_agent.wal import codec
from wal_agent.wal.state import FileState, MessageAt, OpenCall, PlanCall, RecentCall, State, UnloggedCall

words = st.text(max_size=20)
numbers = st.integers(0, 2**53)
times = st.floats(0, 2**40)
payloads = st.builds(Payload, size=numbers, data=st.none() | st.binary(max_size=50), blob=st.none() | words)
edits = st.builds(Edit, offset=numbers, data=payloads)
some_records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(intent, numbers, words, times),
    st.builds(end, numbers, times),
    st.builds(Turn, time=times, state=st.sampled_from(["started", "completed"]), session=words, prompt=payloads),
    st.builds(
        FileDelta, time=times, path=words, size=numbers, sha256=words, session=words, edits=st.tuples(edits, edits)
    ),
    st.builds(RunEnded, time=times, code=st.integers(-99, 255), completed=st.booleans(), why=words),
)


def written(records: list[AnyRecord], seq: int = 3) -> bytes:
    raw = [codec.encode_record(r)[0] for r in records]
    return codec.encode_segment(codec.Author("j", 2, "r"), seq=seq, prev=b"p" * 32, time=9.5, records=raw)


@settings(deadline=None)
@given(st.lists(some_records, max_size=5))
def test_round_trip(records: list[AnyRecord]) -> None:
    found = codec.decode_segment(written(records), job="j", seq=3)
    assert list(found.records) == records
    assert (found.format, found.epoch, found.seq, found.run, found.prev, found.time) == (1, 2, 3, "r", b"p" * 32, 9.5)


def test_a_tag_is_one_field_more_and_of_one_kind_of_object() -> None:
    made = codec.encode_segment(codec.Author("j", 2, "r", b"k" * 32), seq=3, prev=b"p" * 32, time=9.5, records=[])
    assert codec.decode_segment(made, job="j", seq=3).tag
    assert codec.is_tagged(made, b"k" * 32, "segment") and not codec.is_tagged(made, b"k" * 32, "snapshot")
    assert not codec.is_tagged(made, b"l" * 32, "segment") and not codec.is_tagged(written([]), b"k" * 32, "segment")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for raw in (data, zstd.compress(data)):
        with pytest.raises(Damaged, match="record 3 of job j is damaged"):
            codec.decode_segment(raw, job="j", seq=3)
        with pytest.raises(Damaged, match="snapshot 3 of job j is damaged"):
            codec.decode_snapshot(raw, job="j", seq=3)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=8) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(codec.Segment.__struct_fields__), junk), st.integers(0, 255))
def test_any_message(fields: dict[str, object], tag: int) -> None:
    with pytest.raises((Damaged, Newer)):  # a number above ours as its format
        codec.decode_segment(codec.pack(fields), job="j", seq=3)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_one_flipped_bit_or_a_cut_is_found(data: st.DataObject) -> None:
    good = written([intent(1, "x" * 200), end(1)])
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    for tried in (good[:at], good + b"x"):
        with pytest.raises(Damaged):
            codec.decode_segment(tried, job="j", seq=3)
    try:
        # The frame's header has bits that mean nothing to a reader; a change there may leave all as it was.
        assert codec.decode_segment(bytes(bad), job="j", seq=3) == codec.decode_segment(good, job="j", seq=3)
    except Damaged:
        pass


@pytest.mark.parametrize("job, seq", [("other", 3), ("j", 4)])
def test_a_segment_that_stands_elsewhere_than_it_says(job: str, seq: int) -> None:
    with pytest.raises(Damaged, match="calls itself record 3 of job 'j'"):
        codec.decode_segment(written([]), job=job, seq=seq)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(Damaged, match="it says it holds"):
        codec.decode_segment(zstd.compress(bytes(FOREIGN.segment + 1)), job="j", seq=1)
    lying = bytearray(zstd.compress(bytes(5_000_000)))
    streamed = zstd.compress(bytes(FOREIGN.segment * 4), options={zstd.CompressionParameter.content_size_flag: False})
    for data in (bytes(lying[:20]), streamed):
        with pytest.raises(Damaged):
            codec.decode_segment(data, job="j", seq=1)


def test_a_frame_is_read_up_to_its_bound_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.compress(b"x" * 100)
    assert codec.decompress(data, 100) == b"x" * 100
    for wrong, limit in ((data, 99), (data + data, 200), (data[:-1], 100), (b"", 100)):
        with pytest.raises(Damaged):
            codec.decompress(wrong, limit)


@pytest.mark.parametrize(("job", "seq"), [("other", 3), ("j", 4)])
def test_a_snapshot_that_calls_itself_another_is_damaged(job: str, seq: int) -> None:
    made = codec.encode_snapshot(codec.Snapshot(format=1, job="j", seq=3, hash=bytes(32), state=State(), time=1.0))
    assert codec.decode_snapshot(made, job="j", seq=3).seq == 3
    with pytest.raises(Damaged, match="calls itself snapshot 3 of job 'j'"):
        codec.decode_snapshot(made, job=job, seq=seq)


def test_a_record_is_written_up_to_the_size_that_fits_a_segment() -> None:
    room = codec.MAX_SEGMENT - codec.OVERHEAD
    size = len(codec.encode_record(intent(1, "x" * 70_000))[0])
    assert len(codec.encode_record(intent(1, "x" * (70_000 + room - size)))[0]) == room
    with pytest.raises(ValueError, match="fits no segment"):
        codec.encode_record(intent(1, "x" * (70_001 + room - size)))


def test_nesting_does_not_break_the_reader() -> None:
    with pytest.raises(Damaged):
        codec.decode_segment(codec.compress(b"\x91" * 200_000), job="j", seq=1)


def test_a_newer_format_is_named() -> None:
    data = codec.pack({"format": 2, "what": "else"})
    with pytest.raises(Newer, match="Record 3 of job j was written by a newer wal-agent \\(format 2"):
        codec.decode_segment(data, job="j", seq=3)


def test_an_unknown_record_type_makes_it_unreadable() -> None:
    raw = msgspec.msgpack.encode({"t": "from_the_future", "time": 1.0})
    data = codec.encode_segment(codec.Author("j", 1, "r"), seq=3, prev=bytes(32), time=0.0, records=[raw])
    with pytest.raises(Newer, match="record type `from_the_future`"):
        codec.decode_segment(data, job="j", seq=3)


@settings(deadline=None)
@given(st.lists(st.integers(1, 120), min_size=1, max_size=30))
def test_a_batch_is_as_much_as_fits(sizes: list[int]) -> None:
    count = codec.batch_length(sizes, 100)
    assert 1 <= count <= len(sizes)
    assert sum(sizes[:count]) <= 100 or count == 1
    assert count == len(sizes) or sum(sizes[: count + 1]) > 100


def test_a_field_of_a_later_version_is_found_in_a_record_that_may_be_absent() -> None:
    prompt = Turn(time=1.0, session="s", state="started", prompt=Payload(size=1, data=b"x"))
    value = msgspec.to_builtins(State(prompt=prompt), builtin_types=(bytes,))
    assert codec.find_newer(msgspec.msgpack.encode(value), State) == ""
    value["prompt"]["later"] = 1
    assert codec.find_newer(msgspec.msgpack.encode(value), State) == "field `later`"


def changed(state: State, *path: object, **more: object) -> bytes:
    """The state's bytes with `more` in the object at the end of `path`."""
    value: Any = msgspec.to_builtins(state, builtin_types=(bytes,))
    at = value
    for key in path:
        at = at[key]
    at.update(more)
    return msgspec.msgpack.encode(value)


FULL = State(
    files={"f": FileState(session="s", size=1, sha256="")},
    plan=PlanCall(1, 1.0, "TodoWrite", b""),
    open=(OpenCall(1, 1, intent(1)),),
    messages=(MessageAt(sender="x", id="1", sent=0.0, time=0.0, epoch=1),),
)


@pytest.mark.parametrize(
    ("path", "more", "what"),
    [
        ((), {"later": 1}, "field `later`"),
        (("files", "f"), {"later": 1}, "field `later`"),
        (("plan",), {"later": 1}, "field `later`"),
        (("open", 0), {"later": 1}, "field `later`"),
        (("open", 0, "intent"), {"later": 1}, "field `later`"),
        (("open", 0, "intent"), {"cls": "later"}, "word `later`"),
        (("messages", 0), {"later": 1}, "field `later`"),
        ((), {"turn": "later"}, "word `later`"),
        # these are damage: no version of wal-agent gives such names, or leaves out what is needed
        ((), {"Later": 1}, ""),
        (("plan",), {"call": "x", "later 2": 1}, ""),
        ((), {"turn": "Not A Word"}, ""),
        ((), {"turn": 5}, ""),
        ((), {"turn": "started"}, ""),
        ((), {"files": [1]}, ""),
        ((), {"files": {"f": 1}}, ""),
        ((), {"open": {"0": 1}}, ""),
        ((), {"plan": {"later": 1}}, ""),
        ((), {"plan": None}, ""),
        ((), {"plan": 7}, ""),
        ((), {"epoch": "x"}, ""),
    ],
)
def test_what_an_older_reader_cannot_know_is_found_wherever_it_is(
    path: tuple[object, ...], more: dict[str, object], what: str
) -> None:
    assert codec.find_newer(changed(FULL, *path, **more), State) == what


def test_a_snapshot_is_written_up_to_the_size_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = codec.Snapshot(format=1, job="j", seq=3, hash=bytes(32), state=State(), time=1.0)
    size = len(msgspec.msgpack.encode(snapshot))
    monkeypatch.setattr(codec, "FOREIGN", Budget(snapshot=size))
    assert codec.decode_snapshot(codec.encode_snapshot(snapshot), job="j", seq=3) == snapshot
    monkeypatch.setattr(codec, "FOREIGN", Budget(snapshot=size - 1))
    with pytest.raises(ValueError, match="more than readers take"):
        codec.encode_snapshot(snapshot)


@pytest.mark.parametrize(
    ("how", "today"), [("", ""), ("done", "done"), ("denied", "refused"), ("acknowledged", "resolved")]
)
def test_a_snapshot_of_an_older_version_is_read_with_today_s_endings(
    how: Literal["", "done", "denied", "acknowledged"], today: str
) -> None:
    """I8: the end of a call is the same in a state from a snapshot as in one from the log's segments."""
    recent = RecentCall(1, "Write", "mutation", 1.0, b"{}", 2, how)
    unlogged = (UnloggedCall(1, intent(1), how),) if how else ()
    made = codec.Snapshot(
        format=1, job="j", seq=3, hash=bytes(32), state=State(recent=(recent,), unlogged=unlogged), time=1.0
    )
    state = codec.decode_snapshot(codec.encode_snapshot(made), job="j", seq=3).state
    assert [c.how for c in state.recent] == [today] and {c.how for c in state.unlogged} <= {today}
