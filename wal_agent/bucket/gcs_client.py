"""Connections to Cloud Storage: who asks (Application Default Credentials), over what, and the plain requests."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google.auth
import requests
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from wal_agent.bucket.gcs_errors import LOGIN
from wal_agent.errors import Denied, Misconfigured
from wal_agent.shown import heard

PAGE_SIZE = 1000  # entries; the most that the store puts into one page
CONNECTIONS = 32
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0  # seconds
_NO_CREDENTIALS = (auth.DefaultCredentialsError, ValueError, TypeError, KeyError, AttributeError)

logging.getLogger("google").addHandler(logging.NullHandler())  # else its warnings go to the agent's terminal (I6)


@dataclass(frozen=True)
class GcsConnection:
    """The store's connections and the requests that are made over them."""

    client: Any
    name: str

    @cached_property
    def bucket(self) -> Any:
        return self.client.bucket(self.name)

    @property
    def account(self) -> str:
        """The service account that asks, when the credentials are one's and say so; else empty."""
        account = getattr(self._session.credentials, "service_account_email", None)
        return account if isinstance(account, str) and "@" in account else ""

    @property
    def _session(self) -> Any:
        return self.client._http

    def download(self, name: str) -> requests.Response:
        """The object's reply with its body unread. Stored bytes are wanted as they are: what a stranger had gzipped
        would otherwise be unpacked on the way."""
        return self._get(f"/download/storage/v1{self.bucket.blob(name).path}", {"alt": "media"}, stream=True)

    def peek(self, prefix: str) -> requests.Response:
        fields = {"prefix": prefix, "maxResults": "1", "fields": "items(name)"}
        return self._get(f"/storage/v1{self.bucket.path}/o", fields)

    def listing(self, prefix: str, offset: str | None) -> Any:
        return self.client.list_blobs(
            self.bucket,
            prefix=prefix,
            start_offset=offset,
            page_size=PAGE_SIZE,
            fields="items(name,size,updated),nextPageToken",
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
            retry=None,
        )

    def folders(self, prefix: str) -> Any:
        return self.client.list_blobs(
            self.bucket,
            prefix=prefix,
            delimiter="/",
            page_size=PAGE_SIZE,
            fields="prefixes,nextPageToken",
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
            retry=None,
        )

    def _get(self, path: str, params: Mapping[str, str], stream: bool = False) -> requests.Response:
        reply: requests.Response = self._session.get(
            f"{self.client.api_endpoint}{path}",
            params=params,
            headers={"Accept-Encoding": "gzip"},
            stream=stream,
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
        )
        return reply


class _KeptAlive(HTTPAdapter):
    """Keeps connections, and finds out when one has died without a word: behind a NAT an idle one is just forgotten."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        probe = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        if hasattr(socket, "TCP_KEEPIDLE"):
            probe += [(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)]
        options = [*HTTPConnection.default_socket_options, *probe]
        super().init_poolmanager(*args, socket_options=options, **kwargs)


def connect(endpoint: str) -> Any:
    """A client for every thread, which retries nothing and asks for nothing by itself; Denied without credentials.

    An `endpoint` is an emulator's, used without any; "" is Cloud Storage itself.
    """
    credentials = AnonymousCredentials() if endpoint else _default_credentials()  # type: ignore[no-untyped-call]
    session = AuthorizedSession(credentials, refresh_timeout=READ_TIMEOUT)  # type: ignore[no-untyped-call]
    session.max_redirects = 0  # Cloud Storage sends nobody elsewhere
    for scheme in ("https://", "http://"):
        session.mount(scheme, _KeptAlive(pool_connections=2, pool_maxsize=CONNECTIONS, max_retries=0))
    try:
        # The project is one that is never asked for: only who makes buckets needs one.
        client: Any = storage.Client(  # type: ignore[no-untyped-call]
            project="none",
            credentials=credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
            _http=session,
        )
    except ValueError as error:
        raise Misconfigured(f"Cloud Storage cannot be used as configured ({heard(str(error))}).") from error
    # Else it asks for the bucket's metadata by the side, for traces that nobody collects: a request, a connection and
    # a permission more. Its public switch is an environment variable, which the agent would inherit.
    client._bucket_metadata_cache = None
    return client


def _default_credentials() -> Any:
    """Application Default Credentials. Where nothing is configured this asks the metadata server that a Google VM has,
    three times and GCE_METADATA_TIMEOUT (3) seconds each at most."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has advice on quota projects, which would go to the agent's terminal
            credentials, _ = google.auth.default(scopes=storage.Client.SCOPE)
    except _NO_CREDENTIALS as error:
        why = heard(str(error).partition(" To set up")[0].rstrip("."))
        raise Denied(f"There are no credentials for Cloud Storage ({why}).", LOGIN) from error
    return credentials
