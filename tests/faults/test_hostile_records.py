"""Records and snapshots that are whole and lie: paths that lead elsewhere, files that cannot be, claims of gigabytes
(I4, I7); see trial.py.
"""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from tests.faults.ruins import (
    KEYS,
    LAST,
    MAIN,
    SESSION,
    SNAPSHOTS,
    Damage,
    add,
    change_lease,
    end,
    intent,
    last_snapshot,
    opened,
    put,
    replace_snapshot,
)
from tests.faults.trial import EVIL, READS, Ruin
from wal_agent.bucket.base import Bucket
from wal_agent.budget import FOREIGN
from wal_agent.records import AgentStarted, Edit, FileDelta, FileGone, Host, Intent, Opening, Payload, Turn
from wal_agent.wal import codec
from wal_agent.wal.reader import read_tail
from wal_agent.wal.state import MAX_OPEN, OpenCall

# ---- hostile records -----------------------------------------------------------------------------------------------

PATHS = [
    *("../../x", "/etc/x", "/dev/null", "a\0b", "plans/a\nb", "C:\\x", "con", "", ".", "..", "plans", "plans/..", EVIL),
    *("./x", "plans/../../../canary/bird", "plans//x", "plans/./x", "plans/x/", "session.jsonl/x", "plans/next.md/x"),
    *("plans/" + "x" * 300, "plans/" + "\u00e9" * 200, "plans/" + "x/" * 500 + "x", "x" * 60_000, "plans/\x1b[2J"),
]  # fmt: skip
DATA = b"evil\n"


def delta(path: str, data: bytes = DATA, **more: object) -> FileDelta:
    fields: dict[str, object] = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "edits": (Edit(offset=0, data=Payload(size=len(data), data=data)),),
    }
    return FileDelta(time=1100.0, path=path, session=SESSION, **{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: repr(p[:24]))
def test_a_path_that_leads_elsewhere(ruin: Ruin, path: str) -> None:
    """I4: the log is sound, but such a name is none of the agent's: nothing is restored, the other files can be had."""
    ruin.damage(lambda bucket: add(bucket, delta(path)))
    assert ruin.reads("status").code == 0 and ruin.reads("log").code == 0
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code == 73 and "The log names" in said.ours[-1] and "wal-agent restore --" in said.ours[-1], (
            said.err
        )
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = read_tail(bucket, KEYS).seq
    said = ruin.holds(last, main=LAST, code=73)
    assert "cannot be had" in said.ours[0]


CONTENTS: dict[str, FileDelta] = {
    "a hole of 10 GB": delta(MAIN, edits=(Edit(offset=10**10, data=Payload(size=1, data=b"x")),), size=10**10 + 1),
    "a size of 10 GB": delta(MAIN, size=10**10),
    "a payload of 10 GB": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=10**10, data=b"x")),), size=10**10),
    "a negative size": delta(MAIN, size=-1),
    "a negative offset": delta(MAIN, edits=(Edit(offset=-1, data=Payload(size=5, data=DATA)),)),
    "an offset of 2**63": delta(MAIN, edits=(Edit(offset=2**63, data=Payload(size=5, data=DATA)),)),
    "a wrong hash": delta(MAIN, sha256="0" * 64),
    "a hash that is none": delta(MAIN, sha256=EVIL),
    "a blob elsewhere": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, blob="../lease.json")),)),
    "a blob's name that is none": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, blob=EVIL * 900)),)),
    "neither bytes nor blob": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5)),)),
    "bytes and blob": delta(MAIN, edits=(Edit(offset=0, data=Payload(size=5, data=DATA, blob="0" * 64)),)),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_cannot_be(ruin: Ruin, name: str) -> None:
    """I4: its claims are not believed, and the version before it is offered."""
    ruin.damage(lambda bucket: add(bucket, CONTENTS[name]))
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code == 73 and "wal-agent restore --" in said.ours[-1], said.err
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = read_tail(bucket, KEYS).seq
    assert f"{MAIN} is of an earlier time" in ruin.holds(last, main=LAST, code=73).ours[0]


def opening(epoch: int, **more: object) -> Opening:
    sound = Opening(
        time=1100.0,
        run=f"run-{epoch}",
        epoch=epoch,
        cause="dead",
        host=Host(name="vm-2", boot="boot-2", pidns="1", pid=8, lock="/nowhere"),
        agent="gemini",
        agent_version="",
        version="",
        workspace="/w/shop",
        args=("-p", "go"),
    )
    return msgspec.structs.replace(sound, **more)


RECORDS: dict[str, object] = {
    "an unknown type": {"t": EVIL + "y" * 5000, "time": 1.0},
    "an unknown field": {"t": "file_gone", "time": 1.0, "path": "x", EVIL + "y" * 5000: 1},
    "no type": {"time": 1.0},
    "no map": [1, 2],
    "a call beyond counting": {**msgspec.to_builtins(intent(1), builtin_types=(bytes,)), "call": 2**64 - 1},
    "a time that is text": {"t": "file_gone", "time": EVIL, "path": "x"},
    "an opening of another's epoch": opening(1),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_none(ruin: Ruin, name: str) -> None:
    ruin.damage(lambda bucket: add(bucket, RECORDS[name]))
    ruin.refused("record 10 of job shop is damaged", "wal-agent restore --", good=LAST)
    ruin.holds(LAST)


ODD: dict[str, tuple[object, ...]] = {
    "times": (msgspec.structs.replace(end(2), time=float("nan")), FileGone(time=float("inf"), path="x")),
    "a tool's name": (msgspec.structs.replace(intent(3), tool=EVIL * 2000),),
    "a call's input": (intent(3, command=EVIL * 900),),
    "an input of 10 GB": (msgspec.structs.replace(intent(3), input=Payload(size=10**10, blob="0" * 64)),),
    "an input that is no blob": (msgspec.structs.replace(intent(3), input=Payload(size=5, blob="../lease.json")),),
    "a nested input": (
        msgspec.structs.replace(intent(3), input=Payload(size=50_011, data=b'{"command":' + b"[" * 50_000)),
    ),
    "a path to look at": (
        Intent(
            time=1.0,
            call=3,
            tool="write_file",
            input=Payload(size=26, data=b'{"file_path": "/dev/zero"}'),
            cls="unknown",
            rule="r",
            session=SESSION,
        ),
    ),
    "a prompt": (Turn(time=1.0, state="started", session=SESSION, prompt=Payload(size=5, blob=EVIL)),),
}


@pytest.mark.parametrize("name", ODD)
def test_records_that_are_odd_but_can_be_told(ruin: Ruin, name: str) -> None:
    """The run goes on, and what is shown of them is harmless."""
    ruin.damage(lambda bucket: add(bucket, *ODD[name]))
    for argv in READS:
        assert ruin.reads(*argv).code == 0
    assert ruin.runs().code == 0 and ruin.machine.began


OPENINGS: dict[str, Opening] = {
    "a long workspace": opening(2, workspace="/" + "a" * 5000),
    "a workspace that is no path": opening(2, workspace="/a\0b"),
    "a workspace elsewhere": opening(2, workspace="../../.."),
    "arguments": opening(2, args=(EVIL, "a\0b", "x" * 200_000)),
    "a host": opening(2, host=Host(name=EVIL * 900, boot=EVIL, pidns=EVIL, pid=-1, lock="/dev/zero")),
    "versions": opening(2, agent_version=EVIL * 900, version=EVIL * 900),
    "a run without a name": opening(2, run=""),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_openings_that_are_odd_but_can_be_told(ruin: Ruin, name: str) -> None:
    def damage(bucket: Bucket) -> None:
        started = AgentStarted(time=1100.0, pid=1, session=SESSION, resumed=True)
        add(bucket, OPENINGS[name], started, intent(3, command=EVIL))
        change_lease(bucket, epoch=2)

    ruin.damage(damage)
    for argv in READS:
        assert ruin.reads(*argv).code == 0
    assert ruin.runs().code == 0 and ruin.machine.began


# ---- hostile snapshots ---------------------------------------------------------------------------------------------


def many_calls(bucket: Bucket) -> None:
    """A million calls in flight, as small as they can be."""
    made = last_snapshot(bucket)
    empty = Intent(time=0.0, call=1, tool="", input=Payload(size=0), cls="unknown", rule="", session="")
    call = msgspec.msgpack.encode(OpenCall(1, 1, empty))
    raw = msgspec.msgpack.encode(msgspec.structs.replace(made, state=msgspec.structs.replace(made.state, open=())))
    count = min(1_000_000, (FOREIGN.snapshot - len(raw) - 100) // len(call))
    assert count > 20 * MAX_OPEN
    packed = raw.replace(b"\xa4open\x90", b"\xa4open\xdd" + count.to_bytes(4, "big") + call * count)
    assert len(packed) > len(raw)
    put(bucket, KEYS.snapshot(SNAPSHOTS[1]), codec.compress(packed))


def with_file(**fields: object) -> Damage:
    def damage(bucket: Bucket) -> None:
        made = last_snapshot(bucket)
        old = made.state.files[MAIN]
        file = msgspec.structs.replace(old, **fields)
        state = msgspec.structs.replace(made.state, files={**made.state.files, MAIN: file})
        replace_snapshot(bucket, msgspec.structs.replace(made, state=state))

    return damage


def test_a_million_calls_in_a_snapshot(ruin: Ruin) -> None:
    """No run has that many in flight, so it is no snapshot of ours."""
    ruin.damage(many_calls)
    ruin.healed()


def test_more_calls_in_the_log_than_a_run_can_have(ruin: Ruin) -> None:
    calls, at_a_time = range(3, 4 + MAX_OPEN), 5000  # a segment has at most 2 MiB

    def damage(bucket: Bucket) -> None:
        for begin in range(0, len(calls), at_a_time):
            add(bucket, *[intent(n) for n in calls[begin : begin + at_a_time]])

    ruin.damage(damage)
    ruin.refused(
        f"record {LAST + 5} of job shop is damaged: it has more than {MAX_OPEN} calls",
        "wal-agent restore --",
        good=LAST + 4,
    )


CHUNKS: dict[str, Damage] = {
    "too few": with_file(chunks=()),
    "too many": with_file(chunks=("0" * 64,) * 50),
    "a claim of 10 GB": with_file(base_size=10**10, size=10**10),
    "chunks for 10 GB": with_file(base_size=10 << 30, size=10 << 30, chunks=("0" * 64,) * 10240),
    "a negative base": with_file(base_size=-5),
    "a chunk elsewhere": with_file(chunks=("../lease.json",)),
    "a chunk that is none": with_file(chunks=(EVIL * 900,)),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_do_not_fit(ruin: Ruin, name: str) -> None:
    """The snapshot counts by its hash; its bytes do not hold, and what stands before it is offered."""
    ruin.damage(CHUNKS[name])
    for said in (ruin.reads("recover", "--dry-run"), ruin.runs()):
        assert said.code in (73, 75) and ("wal-agent restore --" in said.ours[-1] or "Make room" in said.ours[-1]), (
            said.err
        )
    assert not ruin.machine.began
    with opened(ruin.machine.url) as bucket:
        last = read_tail(bucket, KEYS).seq
    assert f"{MAIN} is of an earlier time" in ruin.holds(last, main=7, code=73).ours[0]
