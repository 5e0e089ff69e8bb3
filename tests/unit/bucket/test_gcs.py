"""What the contract suite cannot see of gs://: requests on the wire, replies of a store that is ill or hostile, logins.

A real server stands behind a real proxy. Where it cannot be made to answer as Cloud Storage would, the proxy answers.
"""

from __future__ import annotations

import gzip
import http.client
import inspect
import json
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError
from google.cloud.storage import Blob
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError

from tests.servers import fresh_bucket, shared
from tests.servers.faults import LostReply, Plan, Reply, ResetUpload, Script, SlowBody, refusal
from tests.servers.proxy import Proxy, proxied
from wal_agent.bucket import gcs, open_bucket
from wal_agent.bucket.base import DELETERS, Bucket
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.gcs import SDK_ONE_REQUEST, GcsBucket
from wal_agent.budget import Budget
from wal_agent.errors import ConfigError, Conflict, Damaged, Denied, Misconfigured, NotFound, Unavailable, WalAgentError

KB, MB = 1 << 10, 1 << 20
OPS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("a"),
    "create": lambda bucket: bucket.put("new", b"1"),
    "create large": lambda bucket: bucket.put("new", bytes(9 * MB)),
    "replace": lambda bucket: bucket.put("a", b"2", if_version=bucket.get("a").version),
    "delete": lambda bucket: bucket.delete("a"),
    "list": lambda bucket: [*bucket.list("")],
    "time": lambda bucket: bucket.time(),
}
METHODS = {"create": "POST", "create large": "POST", "replace": "POST", "delete": "DELETE"}


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxied(shared("fake-gcs")) as made:
        yield made


@pytest.fixture
def bucket(proxy: Proxy) -> Iterator[GcsBucket]:
    """With one object, `a`, and a connection."""
    made = GcsBucket(f"{fresh_bucket(shared('fake-gcs'))}/p", proxy.server.endpoint)
    made.put("a", b"1")
    proxy.seen.clear()
    yield made
    made.close()


def insert(bucket: GcsBucket, name: str, data: bytes = b"", **metadata: str) -> None:
    """Put an object as another program might."""
    server = shared("fake-gcs")
    meta = json.dumps({"name": name, **metadata}).encode()
    body = b"--B\r\nContent-Type: application/json\r\n\r\n%s\r\n--B\r\nContent-Type: text/plain\r\n\r\n%s\r\n--B--"
    connection = http.client.HTTPConnection(server.host, server.port)
    path = f"/upload/storage/v1/b/{bucket.url.split('/')[2]}/o?uploadType=multipart"
    connection.request("POST", path, body % (meta, data), {"Content-Type": "multipart/related; boundary=B"})
    assert connection.getresponse().status == 200
    connection.close()


def download(data: bytes, headers: dict[str, str]) -> Reply:
    usual = {
        "X-Goog-Generation": "1",
        "X-Goog-Hash": f"md5={b64encode(md5(data).digest()).decode()}",
        "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT",
        "Date": "Sat, 21 Nov 2026 10:00:30 GMT",
    }
    return Reply(200, data, tuple({**usual, **headers}.items()))


# --- requests


def test_a_put_of_any_size_is_one_multipart_request_on_a_connection_that_is_kept(
    bucket: GcsBucket, proxy: Proxy
) -> None:
    sizes = [KB, 200 * KB, gcs.SDK_ONE_REQUEST, gcs.SDK_ONE_REQUEST + 1, 9 * MB, 20 * MB]
    for size in sizes:
        bucket.put(f"b/{size}", bytes(size))
    assert [(seen.method, seen.status) for seen in proxy.seen] == [("POST", 200)] * len(sizes)
    assert all("uploadType=multipart&ifGenerationMatch=0" in seen.path for seen in proxy.seen)
    assert proxy.connections == 1


def test_every_other_call_is_one_request_too_whatever_comes_of_it(bucket: GcsBucket, proxy: Proxy) -> None:
    version = bucket.get("a").version
    bucket.put("a", b"2", if_version=version)
    with pytest.raises(Conflict):
        bucket.put("a", b"3", if_version=version)
    with pytest.raises(NotFound):
        bucket.get("b")
    assert [entry.key for entry in bucket.list("")] == ["a"]
    bucket.time()
    bucket.delete("a")
    bucket.delete("a")
    methods = ["GET", "POST", "POST", "GET", "GET", "GET", "DELETE", "DELETE"]
    assert [seen.method for seen in proxy.seen] == methods
    assert proxy.connections == 1


def test_conditions_hold_for_large_objects_too(bucket: GcsBucket) -> None:
    """I2: beyond its limit the SDK would send requests whose conditions this server ignores."""
    large = bytes(gcs.SDK_ONE_REQUEST + 1)
    version = bucket.put("b", large)
    with pytest.raises(Conflict):
        bucket.put("b", large)
    newer = bucket.put("b", large + b"!", if_version=version)
    with pytest.raises(Conflict):
        bucket.put("b", large, if_version=version)
    assert (bucket.get("b").data, bucket.get("b").version) == (large + b"!", newer)


def test_what_is_no_version_creates_nothing(bucket: GcsBucket, proxy: Proxy) -> None:
    """To the store 0 means: only if absent."""
    for version in ("0", "00", "-1", "1e3", "१", "9" * 30):
        with pytest.raises(Conflict):
            bucket.put("b", b"", if_version=version)
    assert proxy.seen == []


def test_a_large_put_has_time_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The far end reads nothing for a second, ten times as long as a connection or a small put may take."""
    monkeypatch.setattr(gcs, "CONNECT_TIMEOUT", 0.1)
    with proxied(shared("fake-gcs"), latency=0.001, setup=1000) as proxy:
        bucket = GcsBucket(fresh_bucket(shared("fake-gcs")), proxy.server.endpoint)
        bucket.put("b", bytes(16 * MB))
        bucket.close()


def test_the_sdks_private_upload_still_takes_what_it_is_given() -> None:
    given = "client stream content_type size predefined_acl if_generation_match if_generation_not_match"
    more = "if_metageneration_match if_metageneration_not_match timeout checksum retry"
    inspect.signature(Blob._do_multipart_upload).bind(Blob, **dict.fromkeys([*given.split(), *more.split()]))


def test_a_customers_key_is_named_with_each_put(
    bucket: GcsBucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
    monkeypatch.setenv("WAL_AGENT_GS", f"kms-key={key}")
    made = GcsBucket(bucket.url, proxy.server.endpoint)
    made.put("k", b"x")
    made.put("k2", b"x" * (SDK_ONE_REQUEST + 1))
    paths = [unquote(seen.path) for seen in proxy.seen if seen.method == "POST"]
    assert len(paths) == 2 and all(f"kmsKeyName={key}" in path for path in paths)
    for more in ("kms-key=k", "sse=AES256"):
        monkeypatch.setenv("WAL_AGENT_GS", more)
        with pytest.raises(ConfigError, match="WAL_AGENT_GS"):
            GcsBucket("gs://bucket")


def test_nothing_is_kept_by_caches_on_the_way(bucket: GcsBucket, proxy: Proxy) -> None:
    for key, size in (("small", 1), ("large", gcs.SDK_ONE_REQUEST + 1)):
        bucket.put(key, bytes(size))
        connection = http.client.HTTPConnection(proxy.server.host, proxy.server.port)
        connection.request("GET", f"/storage/v1/b/{bucket.url.split('/')[2]}/o/p%2F{key}")
        assert json.load(connection.getresponse())["cacheControl"] == "no-store"
        connection.close()


def test_many_objects_are_deleted_over_a_few_connections(bucket: GcsBucket, proxy: Proxy) -> None:
    keys = [f"d/{number}" for number in range(40)]
    for key in keys:
        bucket.put(key, b"")
    proxy.seen.clear()
    bucket.delete(*keys)
    assert [seen.method for seen in proxy.seen] == ["DELETE"] * len(keys)
    assert proxy.connections <= 1 + DELETERS
    assert [entry.key for entry in bucket.list("")] == ["a"]


def test_a_delete_of_many_tells_what_went_wrong_with_one(bucket: GcsBucket, proxy: Proxy) -> None:
    proxy.plan = Script([refusal("gs", 503)], path="p%2Fc")
    with pytest.raises(Unavailable, match="503"):
        bucket.delete("a", "b", "c")


# --- failures


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_refusal_for_now_is_unavailable_and_not_tried_again(
    bucket: GcsBucket, proxy: Proxy, op: str, status: int
) -> None:
    proxy.plan = Script([refusal("gs", status)], METHODS.get(op, ""), forever=True)
    with pytest.raises(Unavailable, match=rf"answered {status} for .* \(injected on purpose\)"):
        OPS[op](bucket)
    assert sum(seen.fault is not None for seen in proxy.seen) == 1


@pytest.mark.parametrize("op", ["create", "create large", "replace"])
def test_a_lost_reply_is_undecided_and_not_a_conflict(bucket: GcsBucket, proxy: Proxy, op: str) -> None:
    """R3: a retry by the SDK would find its own object and report a conflict."""
    proxy.plan = Script([LostReply()], "POST")
    with pytest.raises(Unavailable):
        OPS[op](bucket)
    assert [seen.status for seen in proxy.seen if seen.method == "POST"] == [200]
    assert bucket.get("a" if op == "replace" else "new").data[:1] in (b"2", b"1", b"\0")


@pytest.mark.parametrize("op", OPS)
def test_a_lost_connection_is_unavailable(bucket: GcsBucket, proxy: Proxy, op: str) -> None:
    proxy.plan = Script([ResetUpload()], METHODS.get(op, ""), forever=True)
    with pytest.raises(Unavailable):
        OPS[op](bucket)
    assert sum(seen.fault is not None for seen in proxy.seen) == 1


@pytest.mark.parametrize("op", sorted(set(OPS) - {"replace"}))
def test_nobody_there_is_unavailable_in_one_short_sentence(op: str) -> None:
    with socket.socket() as silent:  # bound, but it does not listen
        silent.bind(("127.0.0.1", 0))
        bucket = GcsBucket("gs://bucket", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Unavailable) as raised:
            OPS[op](bucket)
    assert "refused" in str(raised.value)
    assert len(str(raised.value)) < 250
    assert " at 0x" not in str(raised.value) and "PacedConnection" not in str(raised.value)
    bucket.close()


@pytest.mark.parametrize(("none", "named"), [("", True), ("example.com", False)])
def test_a_proxy_that_is_away_is_named_as_one(monkeypatch: pytest.MonkeyPatch, none: str, named: bool) -> None:
    monkeypatch.setenv("http_proxy", "http://u:secret@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", none)
    error = requests.exceptions.ProxyError(request=requests.Request(url="http://example.com/x").prepare())
    said = str(gcs._no_reply_error(error))
    assert ("by the HTTP proxy 127.0.0.1:1 " in said) is named and "secret" not in said


@pytest.mark.parametrize("kind", ["PacedConnection", "<urllib3.connection.HTTPSConnection", "HTTPSConnectionPool"])
def test_what_the_sdk_calls_its_connections_is_not_told(kind: str) -> None:
    at = " at 0x7f00>" if kind[0] == "<" else ""
    error = OSError(f"{kind}(host='h', port=443){at}: refused")
    assert str(gcs._no_reply_error(error)).endswith("(h:443: refused).")


def test_a_connection_that_times_out_is_told_without_its_object() -> None:
    late = ConnectTimeoutError(HTTPConnection("h"), "Connection to h timed out. (connect timeout=5.0)")
    error = requests.exceptions.ConnectTimeout(MaxRetryError(HTTPConnectionPool("h"), "/x?sig=hidden", late))
    assert str(gcs._no_reply_error(error)).endswith("(Connection to h timed out. (connect timeout=5.0)).")


@pytest.mark.parametrize("op", ["create", "list", "time"])
def test_a_bucket_that_does_not_exist_is_told_with_the_command_that_makes_it(proxy: Proxy, op: str) -> None:
    bucket = GcsBucket("gs://nobody-made-it/p", proxy.server.endpoint)
    with pytest.raises(Misconfigured, match="gcloud storage buckets create gs://nobody-made-it`"):
        OPS[op](bucket)
    bucket.close()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"3", b"null", b"[]", b'{"items": 3}', b'{"items": {"a": 1}}', b'{"items": [3]}', b"\xff"),
        *(b'{"items": [{}]}', b'{"items": [{"name": 7}]}', b'{"items": [{"name": "p/b"}]}', b"[" * 100_000),
        b'{"items": [{"name": "p/b", "size": "-", "updated": "2026-11-21T10:00:00Z"}]}',
        b'{"items": [{"name": "p/b", "size": "1", "updated": "yesterday"}]}',
        b'{"generation": "a/../b", "items": [{"name": "p/b", "size": "1", "updated": 1e999}]}',
    ],
    ids=range(16),
)
def test_nonsense_never_raises_but_what_the_contract_names(
    bucket: GcsBucket, proxy: Proxy, op: str, body: bytes
) -> None:
    proxy.plan = Script([Reply(200, body)], METHODS.get(op, ""), forever=True)
    try:
        OPS[op](bucket)
    except WalAgentError as error:
        assert isinstance(error, Unavailable if op in METHODS else (Unavailable, Misconfigured))
    else:
        # An unread reply to a delete, and listings that hold nothing of ours.
        assert op in ("delete", "list")


def test_what_a_redirect_names_is_never_asked(bucket: GcsBucket, proxy: Proxy) -> None:
    for op in OPS:
        proxy.seen.clear()
        proxy.plan = Script(
            [Reply(302, b"", (("Location", f"{proxy.server.endpoint}/elsewhere"),))], METHODS.get(op, ""), forever=True
        )
        with pytest.raises(Unavailable):
            OPS[op](bucket)
        assert not [seen for seen in proxy.seen if "elsewhere" in seen.path]


# --- reading


def test_a_body_that_ends_early_is_unavailable(bucket: GcsBucket, proxy: Proxy) -> None:
    bucket.put("b", bytes(100 * KB))
    proxy.plan = Script([SlowBody(50 * KB)])
    with pytest.raises(Unavailable):
        bucket.get("b")
    assert len(bucket.get("b").data) == 100 * KB


@pytest.mark.parametrize("checksum", ["crc32c=AAAAAA==", "md5=1B2M2Y8AsgTpgAmY7PhCfg==", "crc32c=nonsense", "md5=,x"])
def test_bytes_that_changed_on_the_way_are_unavailable(bucket: GcsBucket, proxy: Proxy, checksum: str) -> None:
    proxy.plan = Script([download(b"other", {"X-Goog-Hash": checksum})])
    with pytest.raises(Unavailable, match="wrong checksum"):
        bucket.get("a")
    assert bucket.get("a").data == b"1"


def test_both_checksums_of_the_real_store_are_understood(bucket: GcsBucket, proxy: Proxy) -> None:
    both = f"crc32c={crc32c(b'1')}, md5=xMpCOKC5I4INzFCab3WEmw=="
    proxy.plan = Script([download(b"1", {"X-Goog-Hash": both})])
    assert bucket.get("a").data == b"1"


def crc32c(data: bytes) -> str:
    """By the polynomial, not by the library that the bucket uses."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def test_an_object_that_is_too_large_is_damage_and_not_read(
    bucket: GcsBucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("b", bytes(11))
    monkeypatch.setattr(gcs, "FOREIGN", Budget(object=10))
    proxy.plan = Script([SlowBody(0)])  # whoever reads finds nothing there
    with pytest.raises(Damaged, match="larger than"):
        bucket.get("b")
    bucket.put("c", bytes(10))
    assert bucket.get("c").data == bytes(10)


def test_stored_bytes_come_as_they_are(bucket: GcsBucket, proxy: Proxy) -> None:
    packed = gzip.compress(b"text")
    proxy.plan = Script([download(packed, {"Content-Encoding": "gzip"})])
    assert bucket.get("a").data == packed


@pytest.mark.parametrize(("date", "age"), [("10:00:00", 0), ("10:00:01", 0), ("10:00:02", 1), ("10:00:30", 29)])
def test_a_lease_never_looks_older_than_it_is(bucket: GcsBucket, proxy: Proxy, date: str, age: int) -> None:
    """I2's timing: put at 10:00:00.999 and read at `date`.000, the object is at least `age` seconds old."""
    proxy.plan = Script([download(b"", {"Date": f"Sat, 21 Nov 2026 {date} GMT"})])
    found = bucket.get("a")
    assert found.now - found.updated == age


@pytest.mark.parametrize(
    "headers", [{"Date": "now"}, {"Last-Modified": ""}, {"Last-Modified": "Sat, 99 Nov 2026 99:00:00 GMT"}]
)
def test_a_time_that_is_none_is_unavailable(bucket: GcsBucket, proxy: Proxy, headers: dict[str, str]) -> None:
    proxy.plan = Script([download(b"", headers)])
    with pytest.raises(Unavailable):
        bucket.get("a")


# --- listing


def test_a_long_listing_comes_in_pages(bucket: GcsBucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "PAGE_SIZE", 4)
    for number in range(9):
        bucket.put(f"b/{number}", b"")
    proxy.seen.clear()
    assert [entry.key for entry in bucket.list("b/")] == [f"b/{number}" for number in range(9)]
    assert len(proxy.seen) == 3
    proxy.seen.clear()
    assert [entry.key for entry in bucket.list("b/", "b/4")] == ["b/5", "b/6", "b/7", "b/8"]
    assert len(proxy.seen) == 2  # what comes before is not asked for; the store's offset is inclusive, so it sends five


def test_a_page_that_fails_is_unavailable_while_iterating(
    bucket: GcsBucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "PAGE_SIZE", 1)
    bucket.put("b", b"")
    proxy.plan = Script([None, refusal("gs", 503)])
    entries = bucket.list("")
    assert next(entries).key == "a"
    with pytest.raises(Unavailable):
        next(entries)


def test_names_that_are_no_keys_are_left_out(bucket: GcsBucket) -> None:
    for name in ("p", "p/", "p//a", "p/.hidden", "p/b c", "p/ä", "pq/a", "other/a", f"p/{'x' * 300}"):
        insert(bucket, name)
    insert(bucket, "p/z", b"ours")
    assert [entry.key for entry in bucket.list("")] == ["a", "z"]


@pytest.mark.parametrize("after", ["\ud800", "Z\ud800", " ", "a" * 5000, "\0", "A&prefix=x", "?"])
def test_a_listing_may_start_after_any_text(bucket: GcsBucket, after: str) -> None:
    bucket.put("B", b"")
    assert [entry.key for entry in bucket.list("", after)] == [key for key in ("B", "a") if key > after]


def listed(*names: str) -> Reply:
    items = [{"name": name, "size": "0", "updated": "2026-11-21T10:00:00Z"} for name in names]
    return Reply(200, json.dumps({"items": items}).encode(), (("Content-Type", "application/json"),))


def test_what_was_not_asked_for_is_not_passed_on(bucket: GcsBucket, proxy: Proxy) -> None:
    proxy.plan = Script([listed("b", "b/1", "p/a", "p/b", "p/b/1", "pb")])
    assert [entry.key for entry in bucket.list("b")] == ["b", "b/1"]


def test_a_listing_out_of_order_is_not_passed_on(bucket: GcsBucket, proxy: Proxy) -> None:
    proxy.plan = Script([listed("p/b", "p/a", "p/c")])
    with pytest.raises(Unavailable, match="out of order"):
        [*bucket.list("")]


# --- who asks


@pytest.fixture
def robot(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsBucket]:
    """A bucket used with a service account's key, whose tokens come from the proxy."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    info = {
        "type": "service_account",
        "client_email": "bot@proj.iam.gserviceaccount.com",
        "private_key": key.private_bytes(encoding, form, serialization.NoEncryption()).decode(),
        "private_key_id": "1",
        "token_uri": f"{proxy.server.endpoint}/token",
        "project_id": "proj",
    }
    (tmp_path / "key.json").write_text(json.dumps(info))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", proxy.server.endpoint)
    monkeypatch.setenv(
        "HTTPS_PROXY", "http://127.0.0.1:1"
    )  # google-auth asks Google by the side where keys may be used
    made = GcsBucket(f"{fresh_bucket(shared('fake-gcs'))}/p")
    yield made
    made.close()


def tokens(answer: Reply, others: Plan = lambda method, path, number: None) -> Plan:
    return lambda method, path, number: answer if path == "/token" else others(method, path, number)


TOKEN = Reply(
    200,
    b'{"access_token": "SECRET", "expires_in": 3600, "token_type": "Bearer"}',
    (("Content-Type", "application/json"),),
)


def test_a_service_accounts_token_goes_with_every_request(robot: GcsBucket, proxy: Proxy) -> None:
    proxy.plan = tokens(TOKEN)
    version = robot.put("a", b"1")
    assert robot.get("a").version == version
    assert [entry.key for entry in robot.list("")] == ["a"]
    robot.time()
    robot.delete("a")
    asked = [seen for seen in proxy.seen if seen.path != "/token"]
    assert len(asked) == 5
    assert all("authorization" in seen.headers for seen in asked)


@pytest.mark.parametrize("op", ["get", "create", "delete", "list", "time"])
@pytest.mark.parametrize("status", [401, 403])
def test_the_account_that_may_not_is_named(robot: GcsBucket, proxy: Proxy, op: str, status: int) -> None:
    proxy.plan = tokens(TOKEN, lambda method, path, number: Reply(status))
    with pytest.raises(Denied, match=r"bot@proj\.iam\.gserviceaccount\.com") as raised:
        OPS[op](robot)
    assert "SECRET" not in str(raised.value)
    assert "gcloud auth" in raised.value.hint


def test_a_key_that_was_revoked_is_denied(robot: GcsBucket, proxy: Proxy) -> None:
    error = b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}'
    proxy.plan = tokens(Reply(400, error, (("Content-Type", "application/json"),)))
    with pytest.raises(Denied, match=r"\(invalid_grant: Invalid JWT Signature\.\)"):
        robot.get("a")
    assert {seen.path for seen in proxy.seen} == {"/token"}


def test_a_login_server_that_is_down_is_unavailable(robot: GcsBucket, proxy: Proxy) -> None:
    proxy.partition()
    with pytest.raises(Unavailable):
        robot.get("a")


class OnAVirtualMachine(Credentials):
    """As google.auth.compute_engine's: that its metadata server did not answer, it calls final."""

    def refresh(self, request: object) -> None:
        raise RefreshError("no answer") from TransportError("timed out")  # type: ignore[no-untyped-call]


def test_a_metadata_server_that_does_not_answer_is_unavailable(
    robot: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth.default", lambda scopes: (OnAVirtualMachine(), "proj"))  # type: ignore[no-untyped-call]
    with pytest.raises(Unavailable):
        robot.get("a")


def test_no_credentials_are_told_with_the_command_that_makes_some() -> None:
    with pytest.raises(Denied, match="gcloud auth application-default login"):
        GcsBucket("gs://bucket").get("a")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"type": "service_account"}', '{"type": "authorized_user"}'])
def test_credentials_that_are_none_are_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    (tmp_path / "key.json").write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(Denied):
        GcsBucket("gs://bucket").get("a")


# --- being opened


def test_an_emulator_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared("fake-gcs")
    url = fresh_bucket(server)
    for where in (server.endpoint, f"{server.host}:{server.port}", f"{server.endpoint}/"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", where)
        bucket = open_bucket(f"{url}/{len(where)}")
        bucket.put("a", b"1")
        assert bucket.get("a").data == b"1"
        bucket.close()


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("gs://my-bucket", "gs://my-bucket"),
        ("gs://my-bucket/", "gs://my-bucket"),
        ("GS://my_bucket.example.com/a/b.c/", "gs://my_bucket.example.com/a/b.c"),
    ],
)
def test_a_url(url: str, opened: str) -> None:
    assert open_bucket(url).url == opened
    assert open_bucket(opened).url == opened


@pytest.mark.parametrize(
    "url",
    [
        *("gs://", "gs:///a", "gs://b", "gs://Bucket", "gs://bücket", "gs://me@bucket", "gs://bucket:443/a"),
        *("gs://bucket?a", "gs://bucket/a?b", "gs://bucket/a#b", "gs://bucket/a%20b", "gs://bucket//a"),
        *("gs://bucket/../a", "gs://bucket/.a", "gs://bucket/a\n", f"gs://bucket/{'a' * 300}"),
        f"gs://bucket/{'a/' * 255}aa",
    ],
)
def test_what_is_no_url_of_a_bucket_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        open_bucket(url)


def test_the_sdk_is_imported_only_for_such_a_url() -> None:
    look = "import sys; print(any(name.startswith('google') for name in sys.modules))"
    for url, imported in (("memory://x", "False"), ("gs://bucket", "True")):
        code = f"from wal_agent.bucket import open_bucket; open_bucket({url!r}); {look}"
        assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == imported


# --- the store as a whole


def test_a_store_that_keeps_conditions_is_accepted(bucket: GcsBucket) -> None:
    require_conditions(bucket, "probe")


def test_a_store_that_ignores_conditions_is_refused() -> None:
    """I2: one that says yes to a second create would let two owners in."""
    server = shared("gcp-storage-emulator")
    bucket = GcsBucket(fresh_bucket(server), server.endpoint)
    with pytest.raises(ConfigError):
        require_conditions(bucket, "probe")
    bucket.close()
