"""docs/FORMAT.md is enough to write another reader: this one knows zstd, MessagePack, JSON and that page only."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from typing import Any

import msgspec
from backports import zstd

from tests.unit.wal.test_files import delta
from tests.unit.wal.test_reader import snapshots
from tests.unit.wal.world import World, drain, end, intent
from wal_agent.bucket.base import MemoryBucket
from wal_agent.wal.blobs import INLINE


def unpack(data: bytes) -> dict[str, Any]:
    found = msgspec.msgpack.decode(zstd.decompress(data))
    assert isinstance(found, dict)
    return found


def payload(bucket: MemoryBucket, told: dict[str, Any]) -> bytes:
    data = told["data"] if "data" in told else bucket.get(f"shop/blobs/{told['blob']}").data
    assert len(data) == told["size"]
    assert "blob" not in told or re.fullmatch(hashlib.sha256(data).hexdigest() + r"(-\d+){0,2}", told["blob"])
    return bytes(data)


def test_a_reader_from_the_page_alone() -> None:
    world = World()
    job = world.open("a")
    record, content = delta(job.blobs, b"", [(0, b"x" * (INLINE + 1)), (3, b"abc")], INLINE)
    job.writer.append(intent(1), record)
    drain(job)
    with tempfile.TemporaryDirectory() as folder:
        snapshots(world, job, folder).take()
    world.take_over("b").writer.append(end(1))

    bucket = world.inner
    lease = json.loads(bucket.get("shop/lease.json").data)
    assert (lease["epoch"], lease["state"], lease["host"]["name"]) == (2, "held", "host-b")

    prev, epoch, types = bytes(32), 0, []
    for entry in bucket.list("shop/log/"):
        data = bucket.get(entry.key).data
        segment = unpack(data)
        assert segment["format"] == 1 and segment["job"] == "shop"
        assert entry.key == f"shop/log/{segment['seq']:020d}"
        assert segment["prev"] == prev
        if segment["epoch"] > epoch:
            assert segment["records"][0]["t"] == "opening"
        assert segment["epoch"] >= epoch
        prev, epoch = hashlib.sha256(data).digest(), segment["epoch"]
        types += [r["t"] for r in segment["records"]]
    assert types == ["opening", "intent", "file", "opening"]

    second = bucket.get("shop/log/00000000000000000002").data
    file = unpack(second)["records"][1]
    built = bytearray()
    for edit in file["edits"]:
        data = payload(bucket, edit["data"])
        built[edit["offset"] : edit["offset"] + len(data)] = data
    del built[file["size"] :]
    assert bytes(built) == content and hashlib.sha256(built).hexdigest() == file["sha256"]

    snapshot = unpack(bucket.get("shop/snapshots/00000000000000000002").data)
    assert snapshot["hash"] == hashlib.sha256(second).digest()
    kept = snapshot["state"]["files"]["f"]
    assert b"".join(bucket.get(f"shop/blobs/{c}").data for c in kept["chunks"]) == content
    assert kept["layers"] == [] and kept["base_size"] == len(content)
