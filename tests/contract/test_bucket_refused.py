"""Stores that do not keep conditions are found out at a job's first use and refused, before the job exists (I2).

Two real servers ignore conditions. A gateway that drops them on the way to servers that keep them shows that each of
the two conditions is looked at on its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.wire import STORES, own_credentials, reach, signed, wired
from tests.servers import Scheme, fresh_bucket, shared
from tests.servers.http1 import Message
from tests.unit.supervise.crew import SILENT
from tests.unit.wal.world import FIELDS, KEYS, FakeClock, claim
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.check import require_conditions
from wal_agent.errors import ConfigError
from wal_agent.supervise.lease_keeper import AcquireOptions, acquire_job
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.store import JobStore

IGNORANT = ("gcp-storage-emulator", "s3rver")


@pytest.fixture(autouse=True, scope="module")
def credentials() -> Iterator[None]:
    with own_credentials():
        yield


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """In a store of that name. One object, one connection: gcp-storage-emulator serves one at a time."""
    store = shared(request.param)
    with closing(reach(store, fresh_bucket(store))) as made:
        yield made


def first_use(bucket: Bucket) -> OpenedJob:
    options = AcquireOptions(Path("/nowhere"))
    return acquire_job(JobStore(bucket, KEYS, FakeClock(), random.Random(7)), claim("a"), FIELDS, options, SILENT)


def assert_refused(bucket: Bucket, because: str) -> None:
    """One line, exit code 78, and nothing stays behind: neither the job nor the probe."""
    with pytest.raises(ConfigError) as refused:
        first_use(bucket)
    assert refused.value.exit_code == 78
    said = str(refused.value)
    assert bucket.url in said and because in said and "\n" not in said
    assert [*bucket.list("")] == []


@pytest.mark.parametrize("bucket", IGNORANT, indirect=True)
def test_the_servers_do_ignore_conditions(bucket: Bucket) -> None:
    """The control of the controls: these are the stores on which two owners would both win."""
    bucket.put("lease.json", b"first")
    bucket.put("lease.json", b"second")


@pytest.mark.parametrize("bucket", IGNORANT, indirect=True)
def test_a_server_that_ignores_conditions_is_refused_at_first_use(bucket: Bucket) -> None:
    assert_refused(bucket, "a second create is refused: it was carried out")


@pytest.mark.parametrize("bucket", ["azurite", "fake-gcs", "ministack", "moto"], indirect=True)
def test_a_server_that_keeps_them_passes_and_the_job_is_opened(bucket: Bucket) -> None:
    require_conditions(bucket, "probe")
    assert [*bucket.list("")] == []
    assert first_use(bucket).lease.epoch == 1


def without(query: str, header: str) -> dict[Scheme, Callable[[Message], Message]]:
    return {
        "az": lambda request: signed(request.without(header)),
        "gs": lambda request: replace(request, start=re.sub(query, "", request.start)),
        "s3": lambda request: request.without(header),
    }


@pytest.mark.parametrize("server", sorted(STORES))
@pytest.mark.parametrize(
    ("gateway", "because"),
    [
        (without(r"&ifGenerationMatch=0\b", "if-none-match"), "a second create is refused: it was carried out"),
        (
            without(r"&ifGenerationMatch=[1-9]\d*", "if-match"),
            "a replace of another version is refused: it was carried out",
        ),
    ],
    ids=["create", "replace"],
)
def test_a_gateway_that_drops_one_kind_of_condition_is_refused(
    server: str, gateway: dict[Scheme, Callable[[Message], Message]], because: str
) -> None:
    with wired(server) as wire:
        wire.proxy.change = gateway[wire.scheme]
        assert_refused(wire.bucket, because)
        assert wire.holds() == {}
