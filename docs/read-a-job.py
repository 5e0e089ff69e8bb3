"""Read a job from a bucket in a folder, by docs/FORMAT.md alone: python docs/read-a-job.py BUCKET JOB [OUT].

Prints each record's type, and writes the session's files and the git packs of the working tree and of the repositories
inside it into OUT. Needs msgspec, and backports.zstd before Python 3.14. It reads a job that is not encrypted and has
its log from segment 1 on.
"""

import hashlib
import sys
from pathlib import Path

from msgspec import msgpack

try:
    from compression import zstd
except ImportError:
    from backports import zstd


def read(bucket, key):
    """An object of a folder bucket: a header of 66 bytes, then its bytes."""
    frame = (bucket / f"{key}=").read_bytes()
    body = frame[66:]
    assert frame[:10] == b"walobj\r\n\0\1" and int.from_bytes(frame[26:34], "big") == len(body)
    assert hashlib.sha256(frame[:34] + body).digest() == frame[34:66]
    return body


def records(bucket, job):
    """All records in order; each segment names the hash of the one before."""
    hash, epoch = bytes(32), 0
    for path in sorted((bucket / job / "log").glob("*=")):
        data = read(bucket, f"{job}/log/{path.name[:-1]}")
        segment = msgpack.decode(zstd.decompress(data))
        assert segment["format"] == 1 and segment["prev"] == hash and segment["epoch"] >= epoch
        assert segment["job"] == job and segment["seq"] == int(path.name[:-1])
        hash, epoch = hashlib.sha256(data).digest(), segment["epoch"]
        yield from segment["records"]


def payload(bucket, job, found):
    data = found["data"] if "data" in found else read(bucket, f"{job}/blobs/{found['blob']}")
    assert len(data) == found["size"]
    return data


def main(bucket, job, out=None):
    files, packs = {}, {}
    for record in records(bucket, job):
        print(record["t"])
        if record["t"] == "file":
            data = bytearray(files.get(record["path"], b""))
            for edit in record["edits"]:
                new, at = payload(bucket, job, edit["data"]), edit["offset"]
                data[at : at + len(new)] = new
            files[record["path"]] = bytes(data[: record["size"]])
            assert hashlib.sha256(files[record["path"]]).hexdigest() == record["sha256"]
        elif record["t"] == "file_gone":
            files.pop(record["path"], None)
        elif record["t"] == "workspace":
            of = record.get("folder", "")
            old = [] if record.get("whole") else packs.get(of, [])
            packs[of] = old[: len(old) - record.get("replaces", 0)] + record.get("packs", [])
    if out is not None:
        named = ((f"{of}/{n}.pack".lstrip("/"), pack) for of, all in packs.items() for n, pack in enumerate(all))
        for name, data in [*files.items(), *named]:
            data = data if isinstance(data, bytes) else b"".join(payload(bucket, job, part) for part in data["parts"])
            path = (out / name).resolve()
            assert path.is_relative_to(out.resolve()), name  # whoever writes the bucket chooses the names
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:]))
