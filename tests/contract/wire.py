"""A bucket that reaches its store through the proxy, and one that goes straight there."""

from __future__ import annotations

import atexit
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tests.servers import ACCOUNT, ACCOUNT_KEY, CREDENTIALS, Scheme, Server, fresh_bucket, shared
from tests.servers.http1 import Message
from tests.servers.proxy import Fault, Proxy, Script, Seen, proxied
from wal_agent.bucket.azure import AzureBucket, SharedKey
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.gcs import GcsBucket
from wal_agent.bucket.s3 import S3Bucket

_AZURE = "AZURE_STORAGE_CONNECTION_STRING"
STORES: dict[str, Scheme] = {"azurite": "az", "fake-gcs": "gs", "ministack": "s3"}


@dataclass(frozen=True, slots=True)
class Wire:
    """`bucket` is the one under test; `straight` sees what the store really holds."""

    scheme: Scheme
    proxy: Proxy
    bucket: Bucket
    straight: Bucket

    @property
    def name(self) -> str:
        """The bucket's bare name."""
        return self.bucket.url.partition("://")[2]

    @property
    def done(self) -> int:
        """The status of a put."""
        return 201 if self.scheme == "az" else 200

    @property
    def taken(self) -> int:
        """The status of a create where something stands."""
        return 409 if self.scheme == "az" else 412

    def meets(self, *faults: Fault | None) -> None:
        """The next requests, one each."""
        self.proxy.plan = Script([*faults])

    def requests(self, ask: Callable[[], object]) -> list[Seen]:
        """What went over the wire while `ask` ran."""
        before = len(self.proxy.seen)
        ask()
        return self.proxy.seen[before:]

    def holds(self) -> dict[str, bytes]:
        return {entry.key: self.straight.get(entry.key).data for entry in self.straight.list("")}


@contextmanager
def wired(server: str) -> Iterator[Wire]:
    """A fresh bucket behind a proxy of its own; the connection is warm."""
    store = shared(server)
    url = fresh_bucket(store)
    with proxied(store) as proxy, closing(reach(proxy.server, url)) as bucket, closing(reach(store, url)) as straight:
        bucket.time()
        yield Wire(store.scheme, proxy, bucket, straight)


def bare_etags(request: Message) -> Message:
    """What Ceph's gateway makes of If-Match: it compares it as it stands with an ETag that has no quotes."""
    asked = request.header("if-match")
    if not asked:
        return request
    meant = f'"{asked}"' if re.fullmatch("[0-9a-f]{32}", asked) else '"never"'
    return replace(request.without("if-match"), headers=(*request.without("if-match").headers, ("If-Match", meant)))


def signed(request: Message) -> Message:
    """For Azure, which a gateway that drops a header has to sign anew."""
    bare = request.without("authorization")
    made = SimpleNamespace(method=request.method, url=f"http://x{request.path}", headers=dict(bare.headers))
    SharedKey(ACCOUNT, b64decode(ACCOUNT_KEY))(made)
    return replace(bare, headers=tuple(made.headers.items()))


def like_ceph() -> Server:
    """ministack behind a gateway that compares ETags as Ceph's does; one for all tests of this process."""
    if not _gateways:
        _gateways.append(_open.enter_context(proxied(shared("ministack"))))
        _gateways[0].change = bare_etags
    return _gateways[0].server


_gateways: list[Proxy] = []
_open = ExitStack()
atexit.register(_open.close)


def reach(server: Server, url: str) -> Bucket:
    kinds: dict[Scheme, Callable[[str, str], Bucket]] = {"az": AzureBucket, "gs": GcsBucket, "s3": S3Bucket}
    return kinds[server.scheme](url, server.endpoint)


@contextmanager
def own_credentials() -> Iterator[None]:
    """Only the servers' own; nothing of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", _AZURE):
            patch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield
