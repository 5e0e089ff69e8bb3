"""bucket/azure.py: what the URL and the variables say, SAS and tokens, and what Azure's refusals mean. The contract and
the faults of a network are tested in tests/contract."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest

from tests.contract.wire import own_credentials
from tests.servers import ACCOUNT, ACCOUNT_KEY, free_port, fresh_bucket, shared
from tests.servers.proxy import Proxy, Reply, Script, proxied
from wal_agent.bucket import open_bucket
from wal_agent.bucket.azure import (
    AzureBucket,
    Op,
    Refusal,
    Request,
    SharedKey,
    Token,
    find_account,
    parse_refusal,
    parse_url,
    refusal_error,
)
from wal_agent.errors import ConfigError, Conflict, Denied, Misconfigured, NotFound, Unavailable

HOST = "acme.blob.core.windows.net"
URL = f"az://{HOST}/agents"


@pytest.fixture(autouse=True, scope="module")
def credentials() -> Iterator[None]:
    with own_credentials():
        yield


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with proxied(shared("azurite")) as made:
        yield made


# --- the URL


def test_a_url_names_account_container_and_prefix() -> None:
    assert parse_url(f"{URL}/a/b/") == (HOST, "agents", "a/b")
    assert open_bucket(f"{URL}/").url == URL
    assert parse_url("az://acme.z12.blob.storage.azure.net/agents")[0] == "acme.z12.blob.storage.azure.net"


def test_a_url_without_the_account_is_answered_with_the_one_to_write() -> None:
    """The URL is what a job is found by: with an account from the environment it would be another one elsewhere."""
    with pytest.raises(ConfigError) as said:
        parse_url("az://agents/ci")
    assert f"az://{ACCOUNT}.blob.core.windows.net/agents/ci" in said.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "az://acme.blob.core.windows.net.evil.example/agents",  # a SAS or a token would go there
        "az://evil.example/agents",
        "az://agents@acme.blob.core.windows.net/a",
        "az://acme.blob.core.windows.net:443/agents",
        f"az://{HOST}",
        f"az://{HOST}/Agents",
        f"az://{HOST}/a--b",
        f"az://{HOST}/ab",
        f"{URL}?sv=2020&sig=abc",
        f"{URL}/.hidden",
        f"{URL}/dot.",
        f"{URL}/{'x/' * 300}x",
    ],
)
def test_a_url_that_names_no_container_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


@pytest.mark.parametrize("key", ["a.", "a./b"])
def test_a_name_that_azure_would_shorten_is_refused(key: str) -> None:
    bucket = AzureBucket(URL)
    for ask in (bucket.get, lambda key: bucket.put(key, b""), bucket.delete):
        with pytest.raises(Misconfigured):
            ask(key)


# --- the variables


def test_the_account_is_found_by_the_variables_of_the_azure_cli() -> None:
    key = base64.b64encode(b"key").decode()
    at = "http://127.0.0.1:1/acme"
    assert find_account(HOST, {}).endpoint == f"https://{HOST}"
    assert find_account(HOST, {"AZURE_STORAGE_KEY": key}).key == b"key"
    assert find_account(HOST, {"AZURE_STORAGE_SAS_TOKEN": "?sv=1"}).sas == "?sv=1"
    text = f"AccountName=acme;AccountKey={key};BlobEndpoint={at}/;"
    found = find_account(HOST, {"AZURE_STORAGE_CONNECTION_STRING": text, "AZURE_STORAGE_SAS_TOKEN": "sv=1"})
    assert (found.endpoint, found.key, found.sas) == (at, b"key", "")
    text = "BlobEndpoint=https://acme.example;SharedAccessSignature=sv=1&sig=a=b"
    assert find_account(HOST, {"AZURE_STORAGE_CONNECTION_STRING": text}).sas == "sv=1&sig=a=b"


@pytest.mark.parametrize(
    "env",
    [
        {"AZURE_STORAGE_KEY": "hidden!"},
        {"AZURE_STORAGE_KEY": "aGlkZGVu", "AZURE_STORAGE_ACCOUNT": "other"},
        {"AZURE_STORAGE_CONNECTION_STRING": "hidden"},
        {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=other;AccountKey=aGlkZGVu"},
        {"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=aGlkZGVu;BlobEndpoint=hidden"},
        {"AZURE_STORAGE_CONNECTION_STRING": "SharedAccessSignature=sig=hidden;BlobEndpoint=http://acme.example"},
    ],
)
def test_what_is_set_wrong_is_78_and_no_secret_is_told(env: dict[str, str]) -> None:
    with pytest.raises(Misconfigured) as said:
        find_account(HOST, env)
    assert "hidden" not in str(said.value) and "aGlkZGVu" not in str(said.value)


def test_a_signature_covers_what_azure_says_that_it_covers() -> None:
    """The text of the example in "Authorize with Shared Key" (learn.microsoft.com), with a prefix to decode."""
    headers = {"x-ms-version": "2014-02-14", "x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "Content-Length": "0"}
    url = "https://acme.example/con?restype=container&comp=list&prefix=a%2Fb"
    text = SharedKey("acme", b"")._text(SimpleNamespace(method="GET", url=url, headers=headers))
    assert text == (
        "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2014-02-14\n"
        "/acme/con\ncomp:list\nprefix:a/b\nrestype:container"
    )


# --- SAS


def sas(ends: float) -> str:
    """One of the whole account, as the portal makes it."""
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
    fields = {"sp": "rwdlc", "ss": "b", "srt": "sco", "st": "", "se": end, "sip": "", "spr": "", "sv": "2019-12-12"}
    text = "".join(f"{line}\n" for line in (ACCOUNT, *fields.values()))
    made = base64.b64encode(hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()).decode()
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in {**fields, "sig": made}.items() if value)


def test_a_sas_is_enough_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    token = sas(time.time() + 3600)
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    url, at = fresh_bucket(shared("azurite")), shared("azurite").endpoint
    with closing(AzureBucket(f"{url}/p", at)) as bucket:
        version = bucket.put("a/b", b"1")
        bucket.put("a/b", b"2", if_version=version)
        assert (bucket.get("a/b").data, [entry.key for entry in bucket.list("a/")]) == (b"2", ["a/b"])
        bucket.delete("a/b")
        with pytest.raises(NotFound):
            bucket.get("a/b")
    nobody = f"http://127.0.0.1:{free_port()}/{ACCOUNT}"
    with closing(AzureBucket(url, nobody)) as bucket, pytest.raises(Unavailable) as said:
        bucket.get("a")
    assert "refused" in str(said.value)
    assert "sig=" not in repr(said.value) and token[-20:] not in str(said.value)


def test_a_sas_that_ended_is_77(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas(time.time() - 3600))
    with closing(AzureBucket(URL.replace("acme", ACCOUNT), shared("azurite").endpoint)) as bucket:
        for ask in (lambda: bucket.get("a"), lambda: bucket.put("a", b""), lambda: [*bucket.list("")]):
            with pytest.raises(Denied) as said:
                ask()
            assert said.value.exit_code == 77


# --- tokens


@contextmanager
def login(status: int, body: object) -> Iterator[list[str]]:
    """A metadata server that gives this reply to each request for a token; the paths that were asked."""
    asked: list[str] = []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            said = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metadata) as server, pytest.MonkeyPatch.context() as patch:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("AZURE_TOKEN_CREDENTIALS", "managedidentitycredential")
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def ask(token: Token) -> str:
    request = SimpleNamespace(headers={})
    token(request)
    return str(request.headers["Authorization"])


def test_a_token_is_asked_for_once_until_it_nears_its_end() -> None:
    good = {"access_token": "t0ken", "expires_in": "3600", "expires_on": str(int(time.time()) + 3600)}
    with login(200, {**good, "resource": "https://storage.azure.com", "token_type": "Bearer"}) as asked:
        token = Token()
        assert [ask(token), ask(token)] == ["Bearer t0ken"] * 2
        assert len(asked) == 1 and asked[0].endswith("resource=https://storage.azure.com")


def test_an_identity_that_is_refused_is_77_and_a_login_that_is_away_is_69(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        login(400, {"error": "invalid_request", "error_description": "Identity not found"}),
        pytest.raises(Denied) as no,
    ):
        ask(Token())
    assert no.value.exit_code == 77 and "ManagedIdentityCredential" in no.value.what and "az login" in no.value.hint
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "environmentcredential")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "00000000-0000-0000-0000-000000000000")
    with pytest.raises(Unavailable, match="Microsoft Entra ID could not be reached by the HTTP proxy"):
        ask(Token())
    assert capfd.readouterr() == ("", "")  # I6


# --- refusals

ASKED = Request("replace", HOST, "agents", "j/log/1")


@pytest.mark.parametrize(
    ("op", "said", "kind", "words"),
    [
        ("create", Refusal(409, "BlobAlreadyExists"), Conflict, ""),
        ("replace", Refusal(412, "ConditionNotMet"), Conflict, ""),
        ("replace", Refusal(404, "BlobNotFound"), Conflict, "absent"),
        ("read", Refusal(404, "BlobNotFound"), NotFound, ""),
        ("read", Refusal(404), Unavailable, "not as Azure does"),
        ("read", Refusal(302), Unavailable, "login page"),
        ("create", Refusal(404, "ContainerNotFound"), Misconfigured, "az storage container create"),
        ("replace", Refusal(412, "LeaseIdMissing", "There is a lease"), Denied, "There is a lease"),
        ("delete", Refusal(409, "BlobImmutableDueToPolicy"), Denied, "BlobImmutableDueToPolicy"),
        ("create", Refusal(409, "ContainerBeingDeleted"), Misconfigured, "no container"),
        ("create", Refusal(409, "AccountBeingCreated"), Unavailable, ""),
        ("list", Refusal(403, "AuthorizationPermissionMismatch"), Denied, "blobs/read (in a SAS: l)"),
        ("list", Refusal(403, "KeyBasedAuthenticationNotPermitted", "Key is off"), Denied, "Key is off"),
        ("list", Refusal(403, "AuthenticationFailed"), Denied, "does not accept the credentials"),
        ("list", Refusal(403, "AuthenticationFailed", ahead=-1000.0), Misconfigured, "clock"),
        ("list", Refusal(401, "InvalidAuthenticationInfo", "The token is expired."), Denied, "expired"),
        ("list", Refusal(400, "InvalidHeaderValue"), Misconfigured, "does not have what is needed"),
        ("create", Refusal(400, "Md5Mismatch"), Unavailable, "Md5Mismatch"),
        ("create", Refusal(503, "ServerBusy"), Unavailable, "503 ServerBusy"),
    ],
)
def test_what_a_refusal_means(op: Op, said: Refusal, kind: type[Exception], words: str) -> None:
    error = refusal_error(said, Request(op, HOST, "agents", "j/log/1"))
    assert type(error) is kind and words in str(error)


def test_of_a_refusal_only_what_is_no_secret_is_read() -> None:
    text = "<Error><Code>AuthenticationFailed</Code><Message>Server failed.\nRequestId:1\nTime:2</Message>{}</Error>"
    when = "Signature not valid in the specified time frame: Start [..] - Expiry [..]"
    body = text.format(f"<AuthenticationErrorDetail>{when}</AuthenticationErrorDetail>").encode()
    assert parse_refusal(403, b"\xef\xbb\xbf" + body, "", 0.0) == Refusal(
        403, "AuthenticationFailed", "Server failed.", when
    )
    assert "expired" in str(refusal_error(parse_refusal(403, body, "", 0.0), ASKED))
    signed = text.format("<AuthenticationErrorDetail>The MAC signature 'hidden' is wrong</AuthenticationErrorDetail>")
    assert "hidden" not in str(refusal_error(parse_refusal(403, signed.encode(), "", 0.0), ASKED))
    assert parse_refusal(502, b"<html><p>", "", 0.0) == Refusal(502)


# --- replies


def test_names_that_xml_cannot_hold_are_passed_over_and_a_listing_that_ends_early_is_unavailable(proxy: Proxy) -> None:
    """I2: the end of a listing shows that a log ends."""
    when = "<Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Content-Length>1</Content-Length>"
    names = ('<Name Encoded="true">a%EF%BF%BE</Name>', "<Name>b</Name>")
    blobs = "".join(f"<Blob>{name}{when}</Properties></Blob>" for name in names)
    whole = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
    bucket = AzureBucket(f"az://{ACCOUNT}.blob.core.windows.net/agents", proxy.server.endpoint)
    proxy.plan = Script([Reply(200, whole), Reply(200, whole.replace(b"<NextMarker/>", b"")), Reply(200, b"")])
    assert [entry.key for entry in bucket.list("")] == ["b"]
    for _ in range(2):
        with pytest.raises(Unavailable):
            [*bucket.list("")]
    bucket.close()


def test_a_wrong_checksum_and_a_weak_etag_are_unavailable(proxy: Proxy) -> None:
    url = fresh_bucket(shared("azurite"))
    head = (("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"), ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"))
    bad = (("ETag", '"0x1"'), ("Content-MD5", "AAAA")), (("ETag", 'W/"0x1"'),)
    proxy.plan = Script([Reply(200, b"x", (*head, *more)) for more in bad])
    with closing(AzureBucket(url, proxy.server.endpoint)) as bucket:
        for _ in bad:
            with pytest.raises(Unavailable):
                bucket.get("a")
    assert {urlsplit(seen.path).path for seen in proxy.seen} == {f"/{ACCOUNT}/{url.rpartition('/')[2]}/a"}
