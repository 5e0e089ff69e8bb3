"""A bucket in Google Cloud Storage: `gs://bucket[/prefix]`. A version is the object's generation.

google-cloud-storage puts, lists and deletes, with its own retries off: a retried create that had landed would come back
as a conflict. `get` and `time` go through the same session by hand, since the SDK does not hand out a reply's Date.
Every method but `list` and a `delete` of many is one request, and connections are kept between them. Credentials are
Application Default Credentials.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from io import BytesIO
from typing import Any, Literal

import google.auth
import google_crc32c
import msgspec
import requests
from google.api_core.exceptions import GoogleAPIError
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from urllib3.exceptions import HTTPError

from wal_agent.bucket.base import (
    CONNECT_TIMEOUT,
    MAX_KEY,
    NOT_THE_STORE,
    PAGE_SIZE,
    READ_TIMEOUT,
    Entry,
    Object,
    Version,
    check_folder,
    check_key,
    check_prefix,
    checked_entries,
    checked_folders,
    delete_each,
    http_date,
    is_key,
    object_in_seconds,
    request_options,
)
from wal_agent.bucket.session import bottom, for_store, is_digest, put_timeouts, read_body, unreached
from wal_agent.bucket.upkeep import Upkeep, gs_rules
from wal_agent.budget import FOREIGN
from wal_agent.errors import ConfigError, Conflict, Denied, Misconfigured, NotFound, Unavailable, WalAgentError
from wal_agent.text import quote

Op = Literal["get", "create", "replace", "delete", "list"]

LOGIN = "Log in with `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS."
_NEEDS: dict[Op, str] = {
    "get": "storage.objects.get",
    "create": "storage.objects.create",
    "replace": "storage.objects.create and storage.objects.delete",
    "delete": "storage.objects.delete",
    "list": "storage.objects.list",
}
_WHO = re.compile(r"([\w.+-]{1,100}@[\w.-]{1,100}|Anonymous caller) does not have (storage\.[A-Za-z.]{1,60}) access")
_NO_BUCKET = re.compile(r"bucket.{0,250}? does not exist", re.IGNORECASE)
SDK_ONE_REQUEST = 8 << 20  # bytes; google-cloud-storage sends more than this in two requests or more
_BINARY = "application/octet-stream"
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
SETTINGS = "WAL_AGENT_GS"  # names what is asked of each request, of OPTIONS (docs/BUCKETS.md)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GENERATION = re.compile(r"[1-9][0-9]{0,18}")
_ASCII = re.compile(r"[!-~]*")
_SDK_ERRORS = (OSError, HTTPError, auth.GoogleAuthError, GoogleAPIError, InvalidResponse, DataCorruption)
OPTIONS: Mapping[str, str] = {"kms-key": r"projects/[\w.:-]+/locations/[\w-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+"}

_NO_CREDENTIALS = (auth.DefaultCredentialsError, ValueError, TypeError, KeyError, AttributeError)


def reply_text(body: bytes) -> str:
    """The store's own words in a reply to a refused request, made safe to print."""
    text = body.decode(errors="replace")
    try:
        text = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # a proxy's page, or nothing
    return quote(str(text))


def refusal_error(op: Op, bucket: str, key: str, who: str, status: int, text: str) -> WalAgentError:
    """The error for a reply. `bucket` and `key` are as the user writes them, `who` the account when known, else ""."""
    match status:
        case 412:
            return Conflict(f"{key} in {bucket} is another version.")
        case 404 if op in ("create", "list") or _NO_BUCKET.search(text):
            name = bucket.removeprefix("gs://").partition("/")[0]
            return Misconfigured(
                f"There is no bucket {name} in Cloud Storage.",
                f"Check the name, or make it with `gcloud storage buckets create gs://{name}`.",
            )
        case 404 if op == "replace":
            return Conflict(f"{key} in {bucket} is absent.")
        case 404:
            return NotFound(f"{bucket} holds no {key}.")
        case 401:
            return Denied(f"Cloud Storage does not accept the credentials{f' of {who}' if who else ''}.", LOGIN)
        case 403:
            return _forbidden(op, bucket, who, text)
    return Unavailable(f"Cloud Storage answered {status} for {bucket}{f' ({text})' if text else ''}.")


def _forbidden(op: Op, bucket: str, who: str, text: str) -> Denied:
    named = _WHO.search(text)
    who, permission = named.groups() if named else (who, _NEEDS[op])
    reason = f" ({text})" if text and not named else ""
    also = " (replacing an object needs storage.objects.delete too)" if op == "replace" else ""
    return Denied(
        f"{who or 'This account'} has no {permission} on {bucket}{reason}.",
        f"`gcloud auth list` shows the accounts; give this one roles/storage.objectUser on the bucket{also}.",
    )


logging.getLogger("google").addHandler(logging.NullHandler())  # else its warnings go to the agent's terminal (I6)


class GcsConnection(msgspec.Struct, frozen=True, dict=True):
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


def connect(endpoint: str) -> Any:
    """A client for every thread, which retries nothing and asks for nothing by itself; Denied without credentials.

    An `endpoint` is an emulator's, used without any; "" is Cloud Storage itself.
    """
    credentials = AnonymousCredentials() if endpoint else _default_credentials()  # type: ignore[no-untyped-call]
    session = AuthorizedSession(credentials, refresh_timeout=READ_TIMEOUT)  # type: ignore[no-untyped-call]
    for_store(session)
    try:
        # The project is one that is never asked for: only who makes buckets needs one.
        client: Any = storage.Client(  # type: ignore[no-untyped-call]
            project="none",
            credentials=credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
            _http=session,
        )
    except ValueError as error:
        raise Misconfigured(f"Cloud Storage cannot be used as configured ({quote(str(error))}).") from error
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
        why = quote(str(error).partition(" To set up")[0].rstrip("."))
        raise Denied(f"There are no credentials for Cloud Storage ({why}).", LOGIN) from error
    return credentials


class GcsBucket:
    """Nothing is asked before the first call, which loads Application Default Credentials.

    `endpoint`, or else STORAGE_EMULATOR_HOST, names an emulator, which is used without credentials.
    """

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self._kms_key = request_options(SETTINGS, OPTIONS).get("kms-key")
        self._bucket, self._folder = _parse(url)
        self.url = f"gs://{self._bucket}/{self._folder}".rstrip("/")
        self._endpoint = _with_scheme(endpoint or os.environ.get("STORAGE_EMULATOR_HOST", ""))
        self._opening = threading.Lock()
        self._opened: GcsConnection | None = None

    def get(self, key: str) -> Object:
        check_key(key)
        with self._explained("get", key):
            store = self._store()
            with closing(store.download(self._folder + key)) as reply:
                if reply.status_code != 200:
                    raise self._refused("get", key, reply.status_code, reply.raw.read(1 << 16, decode_content=True))
                return _read(reply, f"{key} in {self.url}", FOREIGN.of_object(key))

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        if if_version is not None and not _GENERATION.fullmatch(if_version):
            raise Conflict(f"{key} in {self.url} is another version.")  # 0 would mean: only if absent
        with self._explained("create" if if_version is None else "replace", key):
            blob = self._store().bucket.blob(self._folder + key, kms_key_name=self._kms_key)
            blob.cache_control = "no-store"  # what everyone may read is otherwise cached for an hour, by the store
            generation = _upload(blob, bytes(data), int(if_version or 0))
        if not _GENERATION.fullmatch(generation):
            raise Unavailable(f"Cloud Storage did not say which version of {key} it made in {self.url}.")
        return generation

    def delete(self, *keys: str) -> None:
        # Not a batch request: it costs the store as much, answers for many keys with one error, and emulators lack it.
        delete_each(self._delete, [check_key(key) for key in keys])

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._list(check_prefix(prefix), start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(check_folder(prefix))

    def time(self) -> float:
        """Whole seconds, as the store gives them, from a request that needs the permission to list only."""
        with self._explained("list"):
            reply = self._store().peek(self._folder)
            if reply.status_code != 200:
                raise self._refused("list", "", reply.status_code, reply.content)
            return http_date(reply.headers["Date"])

    def close(self) -> None:
        with self._opening:
            if self._opened is not None:
                self._opened.client.close()

    def _delete(self, key: str) -> None:
        try:
            with self._explained("delete", key):
                self._store().bucket.blob(self._folder + key).delete(
                    timeout=(CONNECT_TIMEOUT, READ_TIMEOUT), retry=None
                )
        except NotFound:
            pass

    def _list(self, prefix: str, start_after: str) -> Iterator[Entry]:
        def unordered() -> Unavailable:
            return Unavailable(f"Cloud Storage lists {self.url} out of order.")

        with self._explained("list"):
            listed = self._store().listing(self._folder + prefix, self._offset(start_after))  # which it begins with
            pages = (
                [
                    Entry(blob.name[len(self._folder) :], int(blob.size), float(int(blob.updated.timestamp())))
                    for blob in page
                    if blob.name.startswith(self._folder)
                ]
                for page in listed.pages
            )
            yield from checked_entries(pages, prefix, start_after, unordered)

    def _folders(self, prefix: str) -> Iterator[str]:
        base = self._folder + prefix
        with self._explained("list"):
            pages = (page.prefixes for page in self._store().folders(base).pages)
            yield from checked_folders(pages, base, prefix)

    def _offset(self, start_after: str) -> str | None:
        """Where the store shall begin: at or before the first name wanted, whatever text `start_after` is."""
        start = _ASCII.match(start_after[:MAX_KEY])
        return self._folder + start[0] if start and start[0] else None

    def _store(self) -> GcsConnection:
        with self._opening:
            if self._opened is None:
                self._opened = GcsConnection(connect(self._endpoint), self._bucket)
            return self._opened

    def upkeep(self) -> Upkeep:
        """See upkeep.py. Needs storage.buckets.get; raises nothing."""
        try:
            found = self._store().client.get_bucket(self._bucket, timeout=CONNECT_TIMEOUT, retry=None)
            return Upkeep(self._folder, bool(found.versioning_enabled), gs_rules(found.lifecycle_rules))
        except Exception:  # noqa: BLE001 - advice only
            return Upkeep(self._folder)

    @contextmanager
    def _explained(self, op: Op, key: str = "") -> Iterator[None]:
        """Raise what the SDK and what is below it raises as errors of the bucket contract."""
        try:
            yield
        except WalAgentError:
            raise
        except requests.TooManyRedirects as error:
            raise Unavailable(f"What answers for {self.url} leads elsewhere.", NOT_THE_STORE) from error
        except requests.JSONDecodeError as error:
            raise self._not_understood() from error
        except _SDK_ERRORS as error:
            reply = getattr(error, "response", None)
            if isinstance(error, GoogleAPIError | InvalidResponse) and isinstance(reply, requests.Response):
                raise self._refused(op, key, reply.status_code, reply.content) from error
            raise _no_reply_error(error) from error
        except _PARSE_ERRORS as error:
            raise self._not_understood() from error

    def _not_understood(self) -> Unavailable:
        return Unavailable(f"Cloud Storage answered for {self.url} what cannot be understood.", NOT_THE_STORE)

    def _refused(self, op: Op, key: str, status: int, body: bytes) -> WalAgentError:
        who = self._opened.account if self._opened else ""
        return refusal_error(op, self.url, key, who, status, reply_text(body))


def _upload(blob: Any, data: bytes, generation: int) -> str:
    """Put it in one request, whatever its size, and give the new generation back.

    There is no public way to do that with more than SDK_ONE_REQUEST bytes; `upload_from_string` itself calls the
    private method up to there. The store compares the checksum that is sent along.
    """
    options = {"timeout": put_timeouts(len(data)), "checksum": "auto", "retry": None}
    if len(data) <= SDK_ONE_REQUEST:
        blob.upload_from_string(data, content_type=_BINARY, if_generation_match=generation, **options)
        return str(blob.generation)
    reply = blob._do_multipart_upload(
        client=None,
        stream=BytesIO(data),
        content_type=_BINARY,
        size=len(data),
        predefined_acl=None,
        if_generation_match=generation,
        if_generation_not_match=None,
        if_metageneration_match=None,
        if_metageneration_not_match=None,
        **options,
    )
    return str(reply.json()["generation"])


def _read(reply: requests.Response, what: str, most: int) -> Object:
    """The object of a reply to a download, checked against the checksum that came with it."""
    if reply.headers.get("Content-Type", "").startswith("text/html") and "X-Goog-Generation" not in reply.headers:
        raise Unavailable(f"A web page answers for {what}, and not Cloud Storage.", NOT_THE_STORE)
    if not _GENERATION.fullmatch(generation := reply.headers.get("X-Goog-Generation", "")):
        raise Misconfigured(
            f"What answers for {what} is not Cloud Storage: it names no generation.", "Use another store."
        )
    updated, date = http_date(reply.headers["Last-Modified"]), http_date(reply.headers["Date"])
    data = read_body(reply, what, most)
    if not _matches(data, reply.headers.get("X-Goog-Hash", "")):
        # The store checks what it keeps, so it is the way that went wrong: the next try may be right.
        raise Unavailable(f"{what} came over the network with a wrong checksum.")
    return object_in_seconds(data, generation, updated, date)


def _matches(data: bytes, header: str) -> bool:
    """Whether the data has the checksum of an X-Goog-Hash header; also when that names none."""
    sums = dict(part.strip().split("=", 1) for part in header.split(",") if "=" in part)
    if "crc32c" in sums and google_crc32c.implementation == "c":  # in pure Python 64 MiB take most of a minute
        return is_digest(sums["crc32c"], google_crc32c.value(data).to_bytes(4, "big"))
    if "md5" in sums:
        return is_digest(sums["md5"], hashlib.md5(data, usedforsecurity=False).digest())
    return True


def _no_reply_error(error: Exception) -> WalAgentError:
    """The error for a request that got no reply."""
    lost = isinstance(error, auth.TransportError | auth.TimeoutError | auth.ResponseError)
    if isinstance(error, auth.GoogleAuthError) and not (lost or error.retryable or _reached_nobody(error)):
        return Denied(f"Google does not accept the credentials ({quote(bottom(error))}).", LOGIN)
    return Unavailable(unreached(error, "Cloud Storage", "https://storage.googleapis.com/"))


def _reached_nobody(error: BaseException) -> bool:
    # On a Google VM a metadata server that does not answer comes as a RefreshError that says it is final.
    return isinstance(error.__cause__, auth.TransportError)


def _parse(url: str) -> tuple[str, str]:
    """The bucket's name, and the prefix with a slash at its end (or nothing)."""
    name, _, path = url.partition("://")[2].partition("/")
    folder = path.rstrip("/")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{url!r} names no bucket of Cloud Storage.", "Write gs://bucket or gs://bucket/prefix.")
    if folder and not (is_key(folder) and len(folder) < MAX_KEY):  # with a key it makes the 1024 bytes of a name
        raise ConfigError(
            f"The prefix {folder!r} of {url!r} cannot be used.",
            "Its parts are made of A-Z a-z 0-9 . _ - and do not begin with a dot.",
        )
    return name, f"{folder}/" if folder else ""


def _with_scheme(endpoint: str) -> str:
    endpoint = endpoint.rstrip("/")
    return endpoint if not endpoint or "://" in endpoint else f"http://{endpoint}"
