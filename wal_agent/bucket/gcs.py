"""A bucket in Google Cloud Storage: `gs://bucket[/prefix]`. A version is the object's generation.

google-cloud-storage puts, lists and deletes, with its own retries off: a retried create that had landed would come back
as a conflict. `get` and `time` go through the same session by hand, since the SDK does not hand out a reply's Date.
Every method but `list` and a `delete` of many is one request, and connections are kept between them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import google_crc32c
import requests
from google.api_core.exceptions import GoogleAPIError
from google.auth import exceptions as auth
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from urllib3.exceptions import HTTPError

from wal_agent.ahead import ahead
from wal_agent.bucket.base import (
    MAX_KEY,
    Entry,
    Object,
    Version,
    check_folder,
    check_key,
    check_prefix,
    is_key,
    object_in_seconds,
)
from wal_agent.bucket.gcs_client import CONNECT_TIMEOUT, READ_TIMEOUT, GcsConnection, connect
from wal_agent.bucket.gcs_errors import LOGIN, Op, refusal_error, reply_text
from wal_agent.errors import ConfigError, Conflict, Damaged, Denied, Misconfigured, NotFound, Unavailable, WalAgentError
from wal_agent.shown import heard

MAX_BYTES = 256 << 20  # bytes of an object that is read at all; ours end at 64 MiB
DELETERS = 16
SLOWEST = 256 << 10  # bytes a second; a line slower than this is as good as none
SDK_ONE_REQUEST = 8 << 20  # bytes; google-cloud-storage sends more than this in two requests or more

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_GENERATION = re.compile(r"[1-9][0-9]{0,18}")
_ASCII = re.compile(r"[!-~]*")
_BINARY = "application/octet-stream"
_SDK_ERRORS = (OSError, HTTPError, auth.GoogleAuthError, GoogleAPIError, InvalidResponse, DataCorruption)
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


class GcsBucket:
    """Nothing is asked before the first call, which loads Application Default Credentials.

    `endpoint`, or else STORAGE_EMULATOR_HOST, names an emulator, which is used without credentials.
    """

    def __init__(self, url: str, endpoint: str | None = None) -> None:
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
                return _read(reply, f"{key} in {self.url}")

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        check_key(key)
        if if_version is not None and not _GENERATION.fullmatch(if_version):
            raise Conflict(f"{key} in {self.url} is another version.")  # 0 would mean: only if absent
        with self._explained("create" if if_version is None else "replace", key):
            blob = self._store().bucket.blob(self._folder + key)
            blob.cache_control = "no-store"  # what everyone may read is otherwise cached for an hour, by the store
            generation = _upload(blob, bytes(data), int(if_version or 0))
        if not _GENERATION.fullmatch(generation):
            raise Unavailable(f"Cloud Storage did not say which version of {key} it made in {self.url}.")
        return generation

    def delete(self, *keys: str) -> None:
        names = dict.fromkeys(check_key(key) for key in keys)
        if len(names) < 2:
            for key in names:
                self._delete(key)
            return
        # Not a batch request: it costs the store as much, answers for many keys with one error, and emulators lack it.
        for _ in ahead(self._delete, names, min(DELETERS, len(names))):
            pass

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._list(check_prefix(prefix), start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(check_folder(prefix))

    def time(self) -> float:
        """Whole seconds, as the store tells them, from a request that needs the permission to list only."""
        with self._explained("list"):
            reply = self._store().peek(self._folder)
            if reply.status_code != 200:
                raise self._refused("list", "", reply.status_code, reply.content)
            return _seconds(reply.headers["Date"])

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
        last = start_after
        with self._explained("list"):
            for blob in self._store().listing(self._folder + prefix, self._offset(start_after)):
                key = blob.name.removeprefix(self._folder)
                ours = blob.name.startswith(self._folder + prefix) and is_key(key)
                if not ours or key <= start_after:  # the store's offset is inclusive
                    continue
                if key <= last:
                    raise Unavailable(f"Cloud Storage lists {self.url} out of order.")
                last = key
                yield Entry(key, int(blob.size), float(int(blob.updated.timestamp())))

    def _folders(self, prefix: str) -> Iterator[str]:
        base = self._folder + prefix
        told = set[str]()
        with self._explained("list"):
            for page in self._store().folders(base).pages:
                for name in page.prefixes:
                    below = name.removeprefix(base).removesuffix("/")
                    if name != f"{base}{below}/" or "/" in below or not is_key(prefix + below):
                        continue
                    if below not in told:  # emulators tell a folder on each page that has objects of it
                        told.add(below)
                        yield below

    def _offset(self, start_after: str) -> str | None:
        """Where the store shall begin: at or before the first name wanted, whatever text `start_after` is."""
        start = _ASCII.match(start_after[:MAX_KEY])
        return self._folder + start[0] if start and start[0] else None

    def _store(self) -> GcsConnection:
        with self._opening:
            if self._opened is None:
                self._opened = GcsConnection(connect(self._endpoint), self._bucket)
            return self._opened

    @contextmanager
    def _explained(self, op: Op, key: str = "") -> Iterator[None]:
        """Raise what the SDK and what is below it raises as errors of the bucket contract."""
        try:
            yield
        except WalAgentError:
            raise
        except _SDK_ERRORS as error:
            reply = getattr(error, "response", None)
            if isinstance(error, GoogleAPIError | InvalidResponse) and isinstance(reply, requests.Response):
                raise self._refused(op, key, reply.status_code, reply.content) from error
            raise _no_reply_error(error) from error
        except _PARSE_ERRORS as error:
            raise Unavailable(f"Cloud Storage answered for {self.url} what cannot be understood.") from error

    def _refused(self, op: Op, key: str, status: int, body: bytes) -> WalAgentError:
        who = self._opened.account if self._opened else ""
        return refusal_error(op, self.url, key, who, status, reply_text(body))


def _upload(blob: Any, data: bytes, generation: int) -> str:
    """Put it in one request, whatever its size, and give the new generation back.

    There is no public way to do that with more than SDK_ONE_REQUEST bytes; `upload_from_string` itself calls the
    private method up to there. The store compares the checksum that is sent along.
    """
    # The first of the two bounds the sending as a whole, so large data need more.
    slack = len(data) / SLOWEST
    options = {"timeout": (CONNECT_TIMEOUT + slack, READ_TIMEOUT + slack), "checksum": "auto", "retry": None}
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


def _read(reply: requests.Response, what: str) -> Object:
    """The object of a reply to a download, checked against the checksum that came with it."""
    if not _GENERATION.fullmatch(generation := reply.headers.get("X-Goog-Generation", "")):
        raise Misconfigured(
            f"What answers for {what} is not Cloud Storage: it names no generation.", "Use another store."
        )
    updated, date = _seconds(reply.headers["Last-Modified"]), _seconds(reply.headers["Date"])
    data = _body(reply, what)
    if not _matches(data, reply.headers.get("X-Goog-Hash", "")):
        # The store checks what it keeps, so it is the way that went wrong: the next try may be right.
        raise Unavailable(f"{what} came over the network with a wrong checksum.")
    return object_in_seconds(data, generation, updated, date)


def _body(reply: requests.Response, what: str) -> bytes:
    if int(reply.headers.get("Content-Length", 0)) > MAX_BYTES:
        raise Damaged(f"{what} is larger than {MAX_BYTES >> 20} MiB; wal-agent writes no such object.")
    data = bytearray()
    for chunk in reply.raw.stream(1 << 20, decode_content=False):
        data += chunk
        if len(data) > MAX_BYTES:
            raise Damaged(f"{what} is larger than {MAX_BYTES >> 20} MiB; wal-agent writes no such object.")
    return bytes(data)


def _matches(data: bytes, header: str) -> bool:
    """Whether the data has the checksum of an X-Goog-Hash header; also when that names none."""
    sums = dict(part.strip().split("=", 1) for part in header.split(",") if "=" in part)
    if "crc32c" in sums and google_crc32c.implementation == "c":  # in pure Python 64 MiB take most of a minute
        return _same(sums["crc32c"], google_crc32c.value(data).to_bytes(4, "big"))
    if "md5" in sums:
        return _same(sums["md5"], hashlib.md5(data, usedforsecurity=False).digest())
    return True


def _same(text: str, digest: bytes) -> bool:
    try:
        return base64.b64decode(text, validate=True) == digest
    except binascii.Error:
        return False


def _seconds(header: str) -> float:
    """Seconds since 1970 of an HTTP date, which is always in GMT; ValueError or TypeError when it is none."""
    return parsedate_to_datetime(header).replace(tzinfo=UTC).timestamp()


def _no_reply_error(error: Exception) -> WalAgentError:
    """The error for a request that got no reply."""
    lost = isinstance(error, auth.TransportError | auth.TimeoutError | auth.ResponseError)
    if isinstance(error, auth.GoogleAuthError) and not (lost or error.retryable or _reached_nobody(error)):
        return Denied(f"Google does not accept the credentials ({heard(_root(error))}).", LOGIN)
    return Unavailable(f"Cloud Storage could not be reached ({heard(_root(error))}).")


def _reached_nobody(error: BaseException) -> bool:
    # On a Google VM a metadata server that does not answer comes as a RefreshError that says it is final.
    return isinstance(error.__cause__, auth.TransportError)


def _root(error: BaseException) -> str:
    """What went wrong at the bottom; the layers above wrap it in what only their authors understand."""
    inner = (*error.args, getattr(error, "reason", None))
    below = next((one for one in inner if isinstance(one, BaseException)), None)
    if below is not None:
        return _root(below)
    # google-auth's second argument is the whole reply of the login server.
    text = str(error.args[0]) if isinstance(error, auth.GoogleAuthError) and error.args else str(error)
    return text or type(error).__name__


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
