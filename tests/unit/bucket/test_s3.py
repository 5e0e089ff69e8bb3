"""s3:// against ministack, through a proxy that counts and breaks; the contract itself is tests/contract."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.contract.wire import bare_etags
from tests.servers import CREDENTIALS, Server, fresh_bucket, shared
from tests.servers.http1 import Message
from tests.servers.proxy import Fault, Hang, LostReply, Proxy, Reply, Script, SlowBody, StaleClose, proxied, refusal
from wal_agent.bucket import s3
from wal_agent.bucket.base import READ_TIMEOUT
from wal_agent.bucket.check import require_conditions
from wal_agent.bucket.s3 import S3Bucket, parse_url
from wal_agent.budget import Budget
from wal_agent.errors import ConfigError, Conflict, Damaged, Denied, Misconfigured, Unavailable, WalAgentError


@pytest.fixture(autouse=True)
def only_the_servers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "WAL_AGENT_S3",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxied(shared("ministack")) as between:
        yield between


@pytest.fixture
def bucket(proxy: Proxy) -> Iterator[S3Bucket]:
    made = S3Bucket(f"{fresh_bucket(proxy.upstream)}/team/x", proxy.server.endpoint)
    yield made
    made.close()


def keys(bucket: S3Bucket, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key for entry in bucket.list(prefix, after)]


def xml(code: str, more: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>so it is</Message>{more}</Error>".encode()


def page(*names: str, token: str = "") -> bytes:
    found = "".join(
        f"<Contents><Key>{name}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.700Z</LastModified></Contents>"
        for name in names
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = str(bool(token)).lower()
    return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{found}</ListBucketResult>".encode()


# --- what it is called


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://abc", "abc", ""),
        ("s3://abc/", "abc", ""),
        ("S3://abc", "abc", ""),
        ("s3://my.bucket-1/a/b.c/", "my.bucket-1", "a/b.c"),
        (f"s3://{'a' * 63}/{'x' * 200}", "a" * 63, "x" * 200),
    ],
)
def test_a_url(url: str, bucket: str, prefix: str) -> None:
    assert parse_url(url) == (bucket, prefix)
    assert parse_url(S3Bucket(url).url) == (bucket, prefix)


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3://ab", "s3://Abc", "s3://a_b", "s3://-ab", "s3://ab-", "s3://a..b", "s3://10.0.0.1",
        f"s3://{'a' * 64}", "s3://u:p@abc", "s3://abc:80", "s3://abc?x", "s3://abc#x", "s3://abc/p?", "s3://abc/p#",
        "s3://abc//p", "s3://abc/a//b", "s3://abc/../b", "s3://abc/.b", "s3://abc/a b", "s3://abc/%61", "s3://abc/ä",
        f"s3://abc/{'/'.join(['x' * 170] * 3)}", "s3://fast--use1-az4--x-s3", "s3://arn:aws:s3:::abc", "gs://abc",
        "s3://abc/a\nb", "s3://ab\nc", "s3://[abc", "s3:abc",
    ],
)  # fmt: skip
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        S3Bucket(url)


def test_nothing_is_asked_before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "is-not-there")
    bucket = S3Bucket("s3://some-bucket")
    bucket.close()
    with pytest.raises(Misconfigured, match="is-not-there"):
        bucket.time()


# --- what a call costs


def test_each_call_on_a_warm_bucket_is_one_request_on_one_connection(bucket: S3Bucket, proxy: Proxy) -> None:
    """I9: a put is one round trip, whatever its size."""
    bucket.put("warm", b"")
    for turn, size in enumerate([0, 1, 1000, 200_000, s3.BULK]):
        version = bucket.put(f"k{turn}", b"x" * size)
        bucket.put(f"k{turn}", b"y" * size + b"z", if_version=version) if size < s3.BULK else None
        bucket.get(f"k{turn}")
    bucket.time()
    keys(bucket)
    bucket.delete("k0")
    bucket.delete("k1", "k2", "never")
    assert [seen.method for seen in proxy.seen] == [
        "PUT",
        *["PUT", "PUT", "GET"] * 4,
        "PUT",
        "GET",
        "GET",
        "GET",
        "DELETE",
        "POST",
    ]
    assert proxy.connections == 1
    assert not any(seen.expect for seen in proxy.seen)


def test_a_put_after_the_server_closed_the_idle_connection_lands_at_once() -> None:
    with answering(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n', times=3) as (endpoint, closed):
        bucket = S3Bucket("s3://some-bucket", endpoint)
        for turn in range(3):
            bucket.put(f"k{turn}", b"")
            closed.acquire()


def test_a_connection_that_breaks_under_a_put_decides_nothing(bucket: S3Bucket, proxy: Proxy) -> None:
    proxy.plan = Script([StaleClose(noticed=False)])
    bucket.put("a", b"")
    with pytest.raises(Unavailable, match="closed the connection"):
        bucket.put("b", b"")
    bucket.put("b", b"")


def test_a_lost_reply_is_not_sent_again(bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: a second send would meet the first and tell a conflict; whose object it is its writer finds out (R3)."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    proxy.plan = Script([LostReply()])
    with pytest.raises(Unavailable):
        bucket.put("a", b"mine")
    assert [seen.status for seen in proxy.seen] == [200]
    with pytest.raises(Conflict):
        bucket.put("a", b"mine")
    assert bucket.get("a").data == b"mine"


CALLS: dict[str, Callable[[S3Bucket], object]] = {
    "get": lambda bucket: bucket.get("a"),
    "create": lambda bucket: bucket.put("a", b""),
    "replace": lambda bucket: bucket.put("a", b"", if_version='"1"'),
    "delete": lambda bucket: bucket.delete("a"),
    "delete many": lambda bucket: bucket.delete("a", "b"),
    "list": keys,
    "time": lambda bucket: bucket.time(),
}
FAULTS: dict[str, tuple[Fault, type[WalAgentError]]] = {
    "503": (refusal("s3", 503), Unavailable),
    "500": (refusal("s3", 500), Unavailable),
    "429": (refusal("s3", 429), Unavailable),
    "409": (refusal("s3", 409), Unavailable),
    "400 slow": (refusal("s3", 400), Unavailable),
    "200 with an error in it": (Reply(200, xml("PreconditionFailed")), Unavailable),
    "307": (Reply(307, xml("TemporaryRedirect"), (("Location", "http://127.0.0.1:1/"),)), Unavailable),
    "301": (Reply(301, xml("PermanentRedirect"), (("x-amz-bucket-region", "eu-west-1"),)), Misconfigured),
    "region": (Reply(400, xml("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")), Misconfigured),
    "403": (refusal("s3", 403), Denied),
    "a stranger's 404": (Reply(404, b"<html>nobody here</html>"), Unavailable),
    "a stranger's page": (Reply(502, b"<html>bad gateway"), Unavailable),
    "lost": (LostReply(), Unavailable),
    "no bucket": (Reply(404, xml("NoSuchBucket")), Misconfigured),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_each_fault_is_one_request_and_one_of_our_errors(
    bucket: S3Bucket, proxy: Proxy, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    for name, (fault, expected) in FAULTS.items():
        proxy.seen.clear()
        proxy.plan = Script([fault], forever=True)
        with pytest.raises(WalAgentError) as raised:
            CALLS[call](bucket)
        assert (name, type(raised.value), len(proxy.seen)) == (name, expected, 1)


def test_no_reply_in_time_decides_nothing(bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "READ_TIMEOUT", 0.2)
    proxy.plan = Script([Hang()])
    with pytest.raises(Unavailable, match="did not answer in time"):
        bucket.put("a", b"")


def test_a_large_put_is_waited_for_longer(bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "READ_TIMEOUT", 0.2)
    proxy.latency = 0.6
    with pytest.raises(Unavailable):
        bucket.put("a", b"x" * s3.BULK)
    bucket.put("b", b"x" * (s3.BULK + 1))


# --- reading


def test_a_body_that_is_cut_short_decides_nothing(bucket: S3Bucket, proxy: Proxy) -> None:
    """I3: what was read in part must not pass for damage, nor for the object."""
    bucket.put("a", b"x" * 1000)
    for after in (0, 1, 999):
        proxy.plan = Script([SlowBody(after)])
        with pytest.raises(Unavailable):
            bucket.get("a")
    assert len(bucket.get("a").data) == 1000


def test_a_listing_that_is_cut_short_is_never_a_shorter_listing(bucket: S3Bucket, proxy: Proxy) -> None:
    """I2: an opening takes an empty listing for the end of the log."""
    bucket.put("a", b"")
    bucket.put("b", b"")
    for after in (0, 1, 38, 39, 40, 100, 200, 300, 400, 500):
        proxy.plan = Script([SlowBody(after)])
        with pytest.raises(Unavailable):
            keys(bucket)
    for stranger in (b"", b"<html></html>", b"<ListBucketResult></ListBucketResult>"):
        proxy.plan = Script([Reply(200, stranger)])
        with pytest.raises(Unavailable):
            keys(bucket)
    assert keys(bucket) == ["a", "b"]


def test_what_we_cannot_have_written_is_not_read_into_memory(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("a", b"x" * 1000)
    monkeypatch.setattr(s3, "FOREIGN", Budget(object=1000))
    assert len(bucket.get("a").data) == 1000
    monkeypatch.setattr(s3, "FOREIGN", Budget(object=999))
    with pytest.raises(Damaged, match="larger than"):
        bucket.get("a")


@pytest.mark.parametrize(
    ("date", "age"),
    [("00:00:00", 0.0), ("00:00:01", 0.0), ("00:00:02", 1.0), ("00:00:31", 30.0)],
)
def test_an_age_is_never_told_too_high(bucket: S3Bucket, proxy: Proxy, date: str, age: float) -> None:
    """I2 does not rest on it, but a live owner must not look dead: headers are cut to whole seconds, so that an object
    of 00:00:00.99 read at 00:00:01.01 is not a second old."""
    headers = (
        ("ETag", '"e"'),
        ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("Date", f"Thu, 01 Jan 2026 {date} GMT"),
    )
    proxy.plan = Script(
        [Reply(200, b"data", headers), Reply(200, page("team/x/a"), headers), Reply(200, page(), headers)]
    )
    found = bucket.get("a")
    assert found.now - found.updated == age
    [listed] = bucket.list("")
    assert listed.updated == found.updated == 1767225600.0
    assert bucket.time() == 1767225600.0 + float(date[-2:])


def test_a_body_whose_length_nobody_tells_decides_nothing() -> None:
    """I3: where only the connection's end says where it ends, a broken one would cut it."""
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    head += b"Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    for reply in (
        b"\r\nda",
        chunked,
        chunked + b"4\r\nda",
        chunked + b"2\r\nda\r\n",
        b"Content-Length: 4\r\n\r\nda",
        b"",
    ):
        with answering(head + reply) as (endpoint, _), pytest.raises(Unavailable):
            S3Bucket("s3://some-bucket", endpoint).get("a")
    with answering(head + chunked + b"4\r\ndata\r\n0\r\n\r\n") as (endpoint, _):
        assert S3Bucket("s3://some-bucket", endpoint).get("a").data == b"data"


@contextmanager
def answering(raw: bytes, times: int = 1) -> Iterator[tuple[str, threading.Semaphore]]:
    """An endpoint that answers so many requests with these bytes, and closes each one's connection, which it tells."""
    closed = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(times):
                client, _ = listener.accept()
                with client, client.makefile("rb") as inbox:
                    while inbox.readline().strip():
                        pass
                    client.sendall(raw)
                closed.release()

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", closed
        thread.join()


@pytest.mark.parametrize("missing", ["ETag", "Last-Modified", "Date"])
def test_a_reply_that_leaves_out_what_is_needed_decides_nothing(bucket: S3Bucket, proxy: Proxy, missing: str) -> None:
    headers = (
        ("ETag", '"e"'),
        ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    )
    proxy.plan = Script([Reply(200, b"data", tuple(header for header in headers if header[0] != missing))])
    with pytest.raises(Unavailable):
        bucket.get("a")


def test_a_put_whose_reply_has_no_etag_decides_nothing(bucket: S3Bucket, proxy: Proxy) -> None:
    proxy.plan = Script([Reply(200)])
    with pytest.raises(Unavailable, match="ETag"):
        bucket.put("a", b"")


# --- conditions


@pytest.mark.parametrize("version", ["*", "", " ", '"a","b"', 'W/"a"', "a b", '"a"\r\nx-amz-acl: public-read', "ä"])
def test_what_is_no_etag_is_no_version_and_is_not_sent(bucket: S3Bucket, proxy: Proxy, version: str) -> None:
    """I2: If-Match: * would replace whatever stands there."""
    bucket.put("a", b"1")
    with pytest.raises(Conflict):
        bucket.put("a", b"2", if_version=version)
    assert len(proxy.seen) == 1
    assert bucket.get("a").data == b"1"


# --- listing and deleting


def test_pages_follow_each_other(bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PAGE_SIZE", 3)
    names = [f"log/{number:03}" for number in range(8)]
    for name in names:
        bucket.put(name, b"")
    before = len(proxy.seen)
    assert keys(bucket) == names
    assert len(proxy.seen) - before == 3
    assert keys(bucket, "log/", "log/004") == names[5:]
    assert len(proxy.seen) - before == 4
    bucket.delete(*names[:7])
    assert [seen.method for seen in proxy.seen].count("POST") == 2
    assert keys(bucket) == names[7:]


@pytest.mark.parametrize(
    "after", ["log/1\ud800", "log/1\0", "log/1\n", "log/1ü", "log/1 ", "log/1" + "0" * 5000, "log/1%2F"]
)
def test_a_listing_may_start_after_any_text(bucket: S3Bucket, after: str) -> None:
    names = ["log/0", "log/1", "log/10", "log/2"]
    for name in names:
        bucket.put(name, b"")
    assert keys(bucket, "log/", after) == [name for name in names if name > after]


def test_what_strangers_put_there_is_passed_over(bucket: S3Bucket, proxy: Proxy) -> None:
    bucket.put("a", b"")
    name = bucket.url.removeprefix("s3://").partition("/")[0]
    for strange in (
        "team/x/",
        "team/x/b%20c",
        "team/x/..%2Fd",
        "team/x/.e",
        "team/x/f/",
        "team/x/%C3%A4",
        "team/xy",
        "g",
    ):
        _raw_put(proxy.upstream, f"/{name}/{strange}")
    assert keys(bucket) == ["a"]
    assert keys(S3Bucket(f"s3://{name}", proxy.server.endpoint)) == ["g", "team/x/a", "team/xy"]
    proxy.plan = Script([Reply(200, page("another-x/b"))])
    assert keys(bucket) == []


def _raw_put(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    connection.request("PUT", path, b"")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_store_that_lists_out_of_order_is_refused(bucket: S3Bucket, proxy: Proxy) -> None:
    """I2: the last key listed would not be the log's end."""
    for body in (page("team/x/b", "team/x/a"), page("team/x/a", "team/x/a")):
        proxy.plan = Script([Reply(200, body)])
        with pytest.raises(Misconfigured, match="order"):
            keys(bucket)
    proxy.plan = Script([Reply(200, page("team/x/b", token="t")), Reply(200, page("team/x/a"))])
    with pytest.raises(Misconfigured, match="order"):
        keys(bucket)


def test_a_listing_that_does_not_get_on_ends(bucket: S3Bucket, proxy: Proxy) -> None:
    proxy.plan = Script([Reply(200, page(token="t"))], forever=True)
    with pytest.raises(Unavailable, match="does not get on"):
        keys(bucket)
    proxy.plan = Script([Reply(200, page(token="t")), Reply(200, page("team/x/a"))])
    assert keys(bucket) == ["a"]


def test_a_bulk_delete_carries_both_checksums(bucket: S3Bucket, proxy: Proxy) -> None:
    bucket.delete("a", "b")
    assert {"content-md5", "x-amz-checksum-crc32"} <= set(proxy.seen[0].headers)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<Deleted><Key>team/x/a</Key></Deleted><Deleted><Key>team/x/b</Key></Deleted>", None),
        ("<Deleted><Key>team/x/a</Key></Deleted><Error><Key>team/x/b</Key><Code>NoSuchKey</Code></Error>", None),
        ("<Deleted><Key>team/x/a</Key></Deleted><Error><Key>team/x/b</Key><Code>AccessDenied</Code></Error>", Denied),
        ("<Error><Key>team/x/a</Key><Code>InternalError</Code></Error>", Unavailable),
        ("<Error><Key>team/x/a</Key><Code>SlowDown</Code></Error>", Unavailable),
        ("<Deleted><Key>team/x/a</Key></Deleted>", Unavailable),
        ("", Unavailable),
    ],
)
def test_each_object_of_a_bulk_delete_is_accounted_for(
    bucket: S3Bucket, proxy: Proxy, said: str, expected: type[WalAgentError] | None
) -> None:
    proxy.plan = Script([Reply(200, f"<DeleteResult>{said}</DeleteResult>".encode())])
    if expected is None:
        bucket.delete("a", "b")
        return
    with pytest.raises(expected) as raised:
        bucket.delete("a", "b")
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (400, "InvalidRequest")]
)
def test_a_store_without_bulk_deletes_gets_single_ones(bucket: S3Bucket, proxy: Proxy, status: int, code: str) -> None:
    """Some refuse the SDK's checksum with it, which is no missing permission; it is asked once."""
    proxy.plan = Script([Reply(status, xml(code))], method="POST", forever=True)
    for key in "abc":
        bucket.put(key, b"x")
    bucket.delete("a", "b", "none")
    bucket.delete("c", "none")
    assert keys(bucket) == [] and [seen.method for seen in proxy.seen].count("POST") == 1


def sent(proxy: Proxy, act: Callable[[], object]) -> list[str]:
    """The methods of what went to the store meanwhile."""
    before = len(proxy.seen)
    act()
    return [seen.method for seen in proxy.seen[before:]]


def test_a_store_that_compares_bare_etags_is_found_out_once(bucket: S3Bucket, proxy: Proxy) -> None:
    """Ceph's gateway; whether a replace is due or not."""
    proxy.change = bare_etags
    old = bucket.put("job/lease.json", b"1")
    new = bucket.put("job/lease.json", b"2", if_version=old)
    with pytest.raises(Conflict):
        bucket.put("job/lease.json", b"3", if_version=old)
    assert sent(proxy, lambda: bucket.put("job/lease.json", b"4", if_version=new)) == ["PUT"]
    assert bucket.get("job/lease.json").data == b"4" and keys(bucket) == ["job/lease.json"]
    again = S3Bucket(bucket.url, proxy.server.endpoint)
    with pytest.raises(Conflict):
        again.put("job/lease.json", b"5", if_version=old)
    assert again.get("job/lease.json").data == b"4" and keys(again) == ["job/lease.json"]


def test_a_store_that_takes_the_etag_as_it_is_gets_nothing_else(bucket: S3Bucket, proxy: Proxy) -> None:
    """One conflict at a bucket's first replace costs an own object's life; after any replace it costs nothing."""
    wanted: list[str] = []

    def note(request: Message) -> Message:
        wanted.extend(filter(None, [request.header("if-match")]))
        return request

    proxy.change = note
    old = bucket.put("a", b"1")
    for data in (b"2", b"3"):
        with pytest.raises(Conflict):
            bucket.put("a", data, if_version='"0"')
    new = bucket.put("a", b"4", if_version=old)
    assert new and [etag[0] for etag in wanted] == ['"'] * 4 and keys(bucket) == ["a"]


def test_a_first_use_asks_a_plain_store_for_no_form(bucket: S3Bucket, proxy: Proxy) -> None:
    """Each try of one ends with any of its puts that is not answered: 40 % of them ended a start."""
    require_conditions(bucket, "job")
    assert proxy.seen and not [seen for seen in proxy.seen if "/form-" in seen.path]


def test_a_store_that_ignores_a_bare_etag_is_never_asked_with_one(bucket: S3Bucket, proxy: Proxy) -> None:
    """I2: it refuses what is due and would carry out everything; `check` refuses it then."""

    def change(request: Message) -> Message:
        etag = request.header("if-match")
        return request.without("if-match") if etag and etag[0] != '"' else bare_etags(request)

    proxy.change = change
    old = bucket.put("a", b"1")
    for _ in range(2):
        with pytest.raises(Conflict):
            bucket.put("a", b"2", if_version=old)
    assert bucket.get("a").data == b"1" and keys(bucket) == ["a"]


def test_what_could_not_be_found_out_decides_nothing(bucket: S3Bucket, proxy: Proxy) -> None:
    proxy.change = bare_etags
    old = bucket.put("a", b"1")
    proxy.plan = Script([refusal("s3", 503)], path="/probe/")
    with pytest.raises(Unavailable):
        bucket.put("a", b"2", if_version=old)
    bucket.put("a", b"2", if_version=old)
    assert bucket.get("a").data == b"2"


@pytest.mark.parametrize(
    ("host", "amazon"),
    [
        ("https://s3.eu-central-1.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://s3.amazonaws.com.example.com", False),
        ("https://rgw.example.com:8080", False),
    ],
)
def test_amazon_is_not_asked(host: str, amazon: bool) -> None:
    made = S3Bucket("s3://some-bucket", host)
    assert made._client(READ_TIMEOUT) and made._is_amazon is amazon


def test_a_weak_etag_is_told_as_one(bucket: S3Bucket, proxy: Proxy) -> None:
    """A proxy that compresses makes it; it is no login page."""
    proxy.plan = Script([Reply(200, b"", (("ETag", 'W/"abc"'),))])
    with pytest.raises(Unavailable, match="weak ETag") as raised:
        bucket.put("a", b"x")
    assert "compress" in raised.value.hint


# --- settings


class Headers:
    """What of each request went to the store, by method."""

    def __init__(self, proxy: Proxy) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        proxy.change = self.note

    def note(self, request: Message) -> Message:
        self.seen.append((request.method, {name.lower(): value for name, value in request.headers}))
        return request


def test_what_a_policy_demands_goes_with_each_put_and_what_is_of_all_with_all(
    bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = Headers(proxy)
    more = (
        "sse=aws:kms&kms-key=arn:aws:kms:eu-west-1:111122223333:key/1&bucket-key=on&acl=bucket-owner-full-control"
        "&tagging=team%3Da%26env%3Db&storage-class=STANDARD_IA&checksum=md5&owner=111122223333&payer=requester"
    )
    monkeypatch.setenv("WAL_AGENT_S3", more)
    made = S3Bucket(bucket.url, proxy.server.endpoint)
    with suppress(WalAgentError):  # ministack may know no such key, owner or checksum
        made.put("a", b"x")
    for act in (lambda: made.get("a"), lambda: made.delete("a"), lambda: made.delete("a", "b"), made.time):
        with suppress(WalAgentError):
            act()
    with suppress(WalAgentError):
        [*made.list("")]
    assert {"PUT", "GET", "DELETE", "POST"} == {method for method, _ in headers.seen}
    wanted = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:eu-west-1:111122223333:key/1",
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
        "x-amz-acl": "bucket-owner-full-control",
        "x-amz-tagging": "team=a&env=b",
        "x-amz-storage-class": "STANDARD_IA",
        "content-md5": "ndTkYSaMgDT1yFZOFVxnpg==",
    }
    for method, sent in headers.seen:
        assert (sent["x-amz-expected-bucket-owner"], sent["x-amz-request-payer"]) == ("111122223333", "requester")
        assert method != "PUT" or {name: sent.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("checksum", ["crc32", "sha1", "sha256"])
def test_a_put_has_the_checksum_that_object_lock_demands(
    bucket: S3Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, checksum: str
) -> None:
    headers = Headers(proxy)
    monkeypatch.setenv("WAL_AGENT_S3", f"checksum={checksum}")
    made = S3Bucket(bucket.url, proxy.server.endpoint)
    version = made.put("a", b"x")
    assert made.put("a", b"y", if_version=version) and made.get("a").data == b"y"
    assert all(f"x-amz-checksum-{checksum}" in sent for method, sent in headers.seen if method == "PUT")


@pytest.mark.parametrize(
    "more",
    ["x", "x=1", "sse=", "sse=aes", "acl=public-read", "storage-class=GLACIER", "owner=1", "owner=1&owner=2",
     "sse=AES256&", "kms-key=a b", "kms-key=\u00e4", "tagging=a%0d%0ax", "payer=me"],
)  # fmt: skip
def test_settings_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """What would open the objects to the public, or put them where they cannot be read, is none."""
    monkeypatch.setenv("WAL_AGENT_S3", more)
    with pytest.raises(ConfigError, match="WAL_AGENT_S3"):
        S3Bucket("s3://some-bucket/p")


@pytest.mark.parametrize("command", ["echo hello", "/is/not/there"])
def test_a_credential_process_that_is_broken_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(Denied, match="no AWS credentials") as raised:
        S3Bucket("s3://some-bucket", "http://127.0.0.1:1").get("a")
    assert raised.value.exit_code == 77 and "credential_process" in raised.value.hint


def test_the_endpoint_is_found_in_the_environment(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fresh_bucket(proxy.upstream)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.server.endpoint)
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    S3Bucket(url).put("a", b"")
    assert [seen.path for seen in proxy.seen] == [f"/{url.removeprefix('s3://')}/a"]


@pytest.mark.parametrize(
    ("env", "region"),
    [
        ({}, "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-north-1"}, "eu-north-1"),
    ],
)
def test_the_region(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], region: str) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert S3Bucket("s3://some-bucket")._client(READ_TIMEOUT).meta.region_name == region


def test_what_is_set_wrongly_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("[default\nregion")
    for name, value in (
        ("AWS_CONFIG_FILE", str(broken)),
        ("AWS_PROFILE", "is-not-there"),
        ("AWS_DEFAULT_REGION", "no region"),
        ("AWS_ENDPOINT_URL", "no-url"),
        ("AWS_ENDPOINT_URL", "http://[nowhere"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(Misconfigured) as raised:
                S3Bucket("s3://some-bucket").put("a", b"")
            assert raised.value.exit_code == 78


@pytest.mark.parametrize("missing", [("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY",)])
def test_no_credentials_are_denied(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]) -> None:
    for name in missing:
        monkeypatch.delenv(name)
    with pytest.raises(Denied, match="no AWS credentials") as raised:
        S3Bucket("s3://some-bucket", "http://127.0.0.1:1").get("a")
    assert raised.value.exit_code == 77
    assert "aws sts get-caller-identity" in raised.value.hint


def test_a_store_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        S3Bucket("s3://some-bucket", "http://127.0.0.1:1").get("a")
