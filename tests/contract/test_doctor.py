"""`wal-agent doctor --bucket URL` as a process, before real object store servers: good ones, bad ones, and none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.contract.wire import STORES
from tests.servers import CREDENTIALS, Scheme, Server, bucket_url, fresh_bucket, shared
from tests.servers.faults import Fault, Storm, refusal
from tests.servers.proxy import proxied

LISTING = {"az": "comp=list", "gs": "/o?", "s3": "list-type=2"}  # in a path: the request is for a listing
PERMISSION = {"az": "blobs/read (in a SAS: l)", "gs": "storage.objects.list", "s3": "s3:ListBucket"}


def doctor(home: Path, url: str, env: Mapping[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and proofs."""
    done = subprocess.run(
        [sys.executable, "-m", "wal_agent", "doctor", "--json", "--bucket", url],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HOME": str(home),
            **CREDENTIALS,
            **env,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["proofs"]


def at(server: Server) -> tuple[str, Mapping[str, str]]:
    return fresh_bucket(server), server.env


def failed(proofs: list[dict[str, Any]]) -> dict[str, str]:
    return {proof["what"].strip(): proof["detail"] for proof in proofs if not proof["ok"]}


@pytest.mark.parametrize("name", ["azurite", "fake-gcs", "ministack"])
def test_a_good_store_is_found_good(tmp_path: Path, name: str) -> None:
    code, proofs = doctor(tmp_path, *at(shared(name)))
    assert (code, failed(proofs)) == (0, {})
    said = "\n".join(proof["what"] for proof in proofs)
    assert "a replace of an old version is refused" in said and "p95" in said and "clock" in said


def test_what_a_policy_demands_is_told_and_goes_along(tmp_path: Path) -> None:
    url, env = at(shared("ministack"))
    asked = "sse=AES256&acl=private&checksum=sha256"
    code, proofs = doctor(tmp_path, url, {**env, "WAL_AGENT_S3": asked})
    assert (code, failed(proofs)) == (0, {})
    assert f"bucket {url}, with WAL_AGENT_S3: {asked}" in [proof["what"].strip() for proof in proofs]


@pytest.mark.parametrize("name", ["s3rver", "gcp-storage-emulator"])
def test_a_store_that_ignores_conditions_is_78(tmp_path: Path, name: str) -> None:
    """I2: on these, two owners would both win."""
    code, proofs = doctor(tmp_path, *at(shared(name)))
    assert code == 78 and "it was carried out" in failed(proofs)["a second create is refused"]


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_permission_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    with proxied(shared(name)) as proxy:
        scheme = proxy.server.scheme

        def forbid(method: str, path: str, number: int) -> Fault | None:
            return refusal(scheme, 403) if method == "GET" and LISTING[scheme] in path else None

        proxy.plan = forbid
        code, proofs = doctor(tmp_path, *at(proxy.server))
    assert code == 77 and list(failed(proofs)) == ["list"]
    assert failed(proofs)["list"].startswith("permission missing: ") and PERMISSION[scheme] in failed(proofs)["list"]
    assert "the current version can be replaced" in [proof["what"].strip() for proof in proofs]


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_store_that_fails_now_and_then_is_good_and_its_rate_is_told(tmp_path: Path, name: str) -> None:
    """503, 429 and S3's 409 for one request of ten: what a start outlasts is no failure here."""
    server = shared(name)
    with proxied(server, plan=Storm(3, server.scheme, refused=0.1)) as proxy:
        code, proofs = doctor(tmp_path, *at(proxy.server))
    refused = sum(seen.fault is not None for seen in proxy.seen)
    assert (code, failed(proofs)) == (0, {})
    told = re.search(r"it left (\d+) of \d+ requests unanswered", proofs[-1]["what"])
    assert told and 0 < int(told[1]) <= refused  # a delete of many objects of gs:// is one to us


def test_a_clock_that_is_off_is_told_and_no_failure(tmp_path: Path) -> None:
    with proxied(shared("fake-gcs"), skew=-300.0) as proxy:
        code, proofs = doctor(tmp_path, *at(proxy.server))
    assert code == 0 and "s behind this machine's" in proofs[-2]["what"]


@pytest.mark.parametrize(
    "server", [Server("", scheme, "127.0.0.1", 9, 0) for scheme in get_args(Scheme)], ids=get_args(Scheme)
)
def test_a_store_that_is_away_is_a_line_with_the_reason(tmp_path: Path, server: Server) -> None:
    code, proofs = doctor(tmp_path, bucket_url(server.scheme, "bucket"), server.env)
    assert code == 78 and list(failed(proofs)) == ["it can be used"]
    assert "127.0.0.1" in failed(proofs)["it can be used"]


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_bucket_that_is_not_there_is_78(tmp_path: Path, name: str) -> None:
    server = shared(name)
    code, proofs = doctor(tmp_path, bucket_url(server.scheme, "no-such-bucket"), server.env)
    assert code == 78 and "no-such-bucket" in failed(proofs)["it can be used"]
