"""How long does a look at 1,000 jobs take, and in how many requests? `python -m bench fleet`.

Jobs with a lease and some log each (10,000 objects) on `file://`, and with less log on emulators, at once and 30 ms
away. `wal-agent fleet ls`'s look is held against what a shell user would do with the store's own SDK: one listing of
the folders, then one GET after the other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Times, interleaved, scaled
from bench.store import NAMES, ROUND_TRIP, store
from wal_agent.bucket import open_bucket
from wal_agent.fleet.jobs import Reader
from wal_agent.records import Host
from wal_agent.wal.lease import LeaseDoc, encode_lease

JOBS = scaled(1000, 5)
SEGMENTS = {"file://": 9, "gs://": 1, "s3://": 1}  # of each job; to write more takes longer than all that is measured


def lease(name: str) -> bytes:
    return encode_lease(
        LeaseDoc(
            format=1,
            job=name,
            epoch=1,
            run="r" * 16,
            nonce="0" * 32,
            state="held",
            host=Host(name="vm-1", boot="0" * 36, pidns="pid:[4026531836]", pid=7, lock="/tmp/wal-agent-0/x/lock"),
            agent="gemini",
            workspace=f"/home/me/{name}",
            started=time.time(),
            ttl=30.0,
            phase="executing_tools",
            tool="run_shell_command",
            time=time.time(),
        )
    )


def fill(url: str, segments: int) -> None:
    bucket = open_bucket(url)

    def one(n: int) -> None:
        name = f"job-{n:04}"
        bucket.put(f"{name}/lease.json", lease(name))
        for seq in range(segments):
            bucket.put(f"{name}/log/{seq:020d}", b"x" * 500)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(JOBS)))
    bucket.close()


def look(url: str) -> Callable[[], None]:
    eyes = Reader.of(open_bucket(url), os.environ)

    def act() -> None:
        assert len(eyes.all()) == JOBS

    return act


def by_hand(url: str) -> Callable[[], None]:
    """One listing of folders and a GET for each, in turn."""
    if url.startswith("file:"):
        root = Path(url.removeprefix("file://"))

        def files() -> None:
            for path in sorted(root.glob("job-*")):
                msgspec.json.decode(_payload(path / "lease.json="))

        return files
    name = url.partition("://")[2]
    client: Any
    if url.startswith("s3:"):
        import boto3

        client = boto3.client("s3")  # type: ignore[no-untyped-call]

        def s3() -> None:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=name, Delimiter="/")
            folders = [found["Prefix"] for page in pages for found in page.get("CommonPrefixes", [])]
            for folder in folders:
                msgspec.json.decode(client.get_object(Bucket=name, Key=f"{folder}lease.json")["Body"].read())
            assert len(folders) == JOBS

        return s3
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(project="none", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    bucket = client.bucket(name)

    def gcs() -> None:
        found = client.list_blobs(name, delimiter="/", fields="prefixes,nextPageToken")
        folders = {prefix for page in found.pages for prefix in page.prefixes}
        for folder in folders:
            msgspec.json.decode(bucket.blob(f"{folder}lease.json").download_as_bytes())
        assert len(folders) == JOBS

    return gcs


def _payload(path: Path) -> bytes:
    from wal_agent.bucket.file import decode_frame

    return decode_frame(path.read_bytes(), str(path)).payload


def measured(name: str, url: str, rounds: int) -> None:
    shell, ours = interleaved({"one by one": by_hand(url), "fleet ls": look(url)}, rounds, warmup=1)
    print(f" {name}: {JOBS} jobs")
    for times in (shell, ours):
        print(Times(times.name, times.values).line(shell))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fill(url := f"file://{folder}/bucket", SEGMENTS["file://"])
        measured("file://", url, 5)
    for scheme in NAMES:
        with ExitStack() as stack:
            at = stack.enter_context(store(scheme, 0.0))
            fill(at.url, SEGMENTS[scheme])
            measured(at.name, at.url, 2)
            far = stack.enter_context(at.through_proxy(ROUND_TRIP))
            stack.enter_context(far.environment())
            before = far.requests()
            look(far.url)()
            print(f"  requests of one look: {far.requests() - before}")
            measured(far.name, far.url, 1)
