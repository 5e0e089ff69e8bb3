"""A bucket in Azure Blob Storage: `az://ACCOUNT.blob.core.windows.net/container[/prefix]`, one request for each call.

The URL is that of the container in Azure with another scheme, so that it names the account. Conditions are
If-None-Match: * and If-Match; a version is the ETag, which Azure makes anew for each write. The requests are made here,
and not by azure-storage-blob: that reads a broken download again by itself, hides a reply's Date, and costs each start
500 modules. azure-identity gets tokens, and is loaded only where neither a key nor a SAS is set.

What Azure replies is hostile input, and a SAS is part of the URLs that are asked: no URL of a request is shown, and of
replies only the fields that are named here, after redaction.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from email.utils import formatdate
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote as percent
from urllib.parse import unquote, urlencode, urlsplit
from xml.etree import ElementTree

import msgspec
import requests
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from wal_agent.bucket import session
from wal_agent.bucket.base import (
    CONNECT_TIMEOUT,
    MAX_KEY,
    NOT_THE_STORE,
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
)
from wal_agent.budget import FOREIGN
from wal_agent.errors import (
    BucketError,
    ConfigError,
    Conflict,
    Denied,
    Misconfigured,
    NotFound,
    Unavailable,
    WalAgentError,
)
from wal_agent.extras import required
from wal_agent.text import quote

Op = Literal["read", "create", "replace", "delete", "list"]
T = TypeVar("T")

_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_NEEDS: dict[Op, str] = {
    "read": f"{_BLOBS}/read (in a SAS: r)",
    "create": f"{_BLOBS}/write (in a SAS: c, w)",
    "replace": f"{_BLOBS}/write (in a SAS: w)",
    "delete": f"{_BLOBS}/delete (in a SAS: d)",
    "list": f"{_BLOBS}/read (in a SAS: l)",
}
LOGIN: Final = (
    "Set AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or log in with `az login`; "
    "check with `az account show`."
)
_SKEW: Final = 15 * 60  # seconds, from which on Azure takes no signature
_UNDECIDED: Final = {408, 425, 429}
_MISSING: Final = {"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
_UNKNOWN: Final = {"FeatureVersionMismatch", "InvalidHeaderValue", "UnsupportedHeader", "UnsupportedQueryParameter"}
_NEVER: Final = {"BlobImmutableDueToPolicy", "LeaseIdMissing", "PublicAccessNotPermitted"}
_UNKNOWN_CALLER: Final = {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"}

PAGE_SIZE = 5000  # the most that Azure puts into one page: a listing cannot begin behind a name
MAX_NAME = 1024
_VERSION = "2021-12-02"  # of the service's interface
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
_HOST = re.compile(
    r"[a-z0-9]{3,24}(\.z\d{1,3})?\.blob\."
    r"(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net)"
)
_CONTAINER = re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*")
_ETAG = re.compile(r'"[\w.-]{1,100}"', re.ASCII)

logging.getLogger("azure").addHandler(logging.NullHandler())  # else warnings go to the agent's terminal (I6)
logging.getLogger("msal").addHandler(logging.NullHandler())


class Request(msgspec.Struct, frozen=True):
    """What was asked: `name` is the blob's or listing's whole name in `container`, "" for all of it."""

    op: Op
    host: str  # of the account, as in the bucket's URL
    container: str
    name: str

    @property
    def what(self) -> str:
        return f"az://{self.host}/{self.container}/{self.name}"

    @property
    def failed(self) -> str:
        return f"Cannot {self.op} {self.what}"


class Refusal(msgspec.Struct, frozen=True):
    """A reply that is no success. `code` is "" where it is not Azure's. `ahead`: by how many seconds Azure's clock is
    before this machine's."""

    status: int
    code: str = ""
    says: str = ""
    detail: str = ""
    ahead: float = 0.0

    @property
    def expired(self) -> bool:
        return "not valid in the specified time frame" in self.detail or "is expired" in f"{self.says} {self.detail}"


def refusal_error(said: Refusal, asked: Request) -> BucketError:
    """The bucket's error for a refusal. The first that fits wins."""
    failed, writes = asked.failed, asked.op in ("create", "replace")
    match said:
        case Refusal(status=501) | Refusal(status=400, code="FeatureVersionMismatch" | "InvalidHeaderValue"):
            what = f"{failed}: {asked.host} does not have what is needed ({_quoted(said)})."
            return Misconfigured(what, "Use another store, or file://.")
        case Refusal(status=status) if not 300 <= status < 500 or status in _UNDECIDED:
            return Unavailable(
                f"{failed}: {asked.host} answered {_quoted(said)}.", NOT_THE_STORE if status < 300 else ""
            )
        case Refusal(status=412, code="ConditionNotMet" | "") | Refusal(status=409, code="BlobAlreadyExists") if writes:
            return Conflict(f"{asked.what} is another version.")
        case Refusal(code=code) if code in _MISSING:
            account = asked.host.partition(".")[0]
            make = f"az storage container create --auth-mode login --account-name {account} --name {asked.container}"
            what = f"{failed}: there is no container {asked.container} in {asked.host}."
            return Misconfigured(what, f"Check the name, or make it with `{make}`.")
        case Refusal(code="BlobNotFound" | "ResourceNotFound") if asked.op == "replace":
            return Conflict(f"{asked.what} is absent.")
        case Refusal(code="BlobNotFound" | "ResourceNotFound") if asked.op in ("read", "delete"):
            return NotFound(f"There is no {asked.what}.")
        case Refusal(status=401 | 403, code=code) if said.expired:
            return Denied(f"{failed}: the Azure credentials have expired.", LOGIN)
        case Refusal(code="AuthenticationFailed", ahead=ahead) if abs(ahead) > _SKEW:
            what = f"{failed}: this machine's clock is too far from that of {asked.host}."
            return Misconfigured(what, "Set the clock (NTP), then try again.")
        case Refusal(code=code) if code in _UNKNOWN_CALLER:
            return Denied(f"{failed}: {asked.host} does not accept the credentials ({_quoted(said)}).", LOGIN)
        case Refusal(status=401 | 403):
            return _no_permission(said, asked)
        case Refusal(code=code) if code in _NEVER:
            return Denied(f"{failed}: {asked.host} refused it ({_quoted(said)}).", "Change that in Azure.")
        case Refusal(code=""):
            what = f"{failed}: {asked.host} answered {said.status}, and not as Azure does."
            return Unavailable(what, NOT_THE_STORE)
    return Unavailable(f"{failed}: {asked.host} answered {_quoted(said)}.")


def _no_permission(said: Refusal, asked: Request) -> Denied:
    what = f"{asked.failed}: these credentials may not; this needs {_NEEDS[asked.op]}."
    words = f' It says: "{_quoted(said)}".' if said.code else ""
    role = "Give the role Storage Blob Data Contributor on the container, and look at the account's network rules."
    return Denied(what + words, role)


def _quoted(said: Refusal) -> str:
    return f"{said.status} {said.code}: {said.says}".rstrip(": .") if said.code else str(said.status)


def parse_refusal(status: int, body: bytes, code: str, ahead: float) -> Refusal:
    """`code`: of the header. Total."""
    said: dict[str, str] = {}
    with suppress(ElementTree.ParseError):
        root = ElementTree.fromstring(body)
        if root.tag == "Error":
            said = {child.tag: child.text or "" for child in root}
    named = code or said.get("Code", "")
    message = said.get("Message", "").partition("\nRequestId:")[0]
    # Of what else it says, a signature may be part.
    detail = said.get("AuthenticationErrorDetail", "") if named in _UNKNOWN_CALLER else ""
    return Refusal(status, quote(named, 60), quote(message, 300), quote(detail, 300), ahead)


class SharedKey(AuthBase):
    """Signs a request with the account's key. Source: learn.microsoft.com, "Authorize with Shared Key"."""

    _SIGNED = (
        *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
        *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
    )

    def __init__(self, account: str, key: bytes) -> None:
        self._account, self._key = account, key

    def __call__(self, request: Any) -> Any:
        signature = hmac.new(self._key, self._text(request).encode(), hashlib.sha256).digest()
        request.headers["Authorization"] = f"SharedKey {self._account}:{base64.b64encode(signature).decode()}"
        return request

    def _text(self, request: Any) -> str:
        headers = {name.lower(): str(value) for name, value in request.headers.items()}
        if headers.get("content-length") == "0":
            del headers["content-length"]
        at = urlsplit(request.url)
        asked = sorted(part.partition("=")[::2] for part in at.query.split("&") if part)
        lines = [request.method, *(headers.get(name, "") for name in self._SIGNED)]
        lines += [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
        lines += [f"/{self._account}{at.path}", *(f"{unquote(n).lower()}:{unquote(v)}" for n, v in asked)]
        return "\n".join(lines)


class Sas(AuthBase):
    def __init__(self, token: str) -> None:
        self._token = token.lstrip("?")

    def __call__(self, request: Any) -> Any:
        request.url += f"{'&' if '?' in request.url else '?'}{self._token}"
        return request


class Token(AuthBase):
    """A token of whoever azure-identity finds; it is asked for a new one a while before the old one ends."""

    _SCOPE, _EARLY = "https://storage.azure.com/.default", 300.0

    def __init__(self) -> None:
        with required("azure", "An az:// bucket without a key or SAS"):
            from azure.core import exceptions
            from azure.identity import ChainedTokenCredential, DefaultAzureCredential

        self._errors = exceptions
        self._lost: BaseException | None = None
        found = DefaultAzureCredential(connection_timeout=CONNECT_TIMEOUT, read_timeout=READ_TIMEOUT, retry_total=2)
        self._credential = ChainedTokenCredential(*(_noted(one, self._ask) for one in found.credentials))
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self._current()}"
        return request

    def forget(self) -> None:
        self._until = 0.0

    def _current(self) -> str:
        with self._lock:
            if time.time() >= self._until - self._EARLY:
                try:
                    found = self._credential.get_token(self._SCOPE)
                except (self._errors.AzureError, ValueError) as error:
                    if time.time() < self._until:
                        return self._token
                    raise self._failed(error) from error
                self._token, self._until = found.token, float(found.expires_on)
            return self._token

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """The chain makes one error of all; what was not answered is not refused."""
        self._lost = None
        try:
            return ask()
        except self._errors.AzureError as error:
            cause: BaseException | None = error
            while cause and not isinstance(cause, self._errors.ServiceRequestError | self._errors.ServiceResponseError):
                cause = cause.__cause__ or cause.__context__
            # Of one that is not set up ("unavailable"), it is how that was found out.
            self._lost = None if type(error).__name__ == "CredentialUnavailableError" else cause
            raise

    def _failed(self, error: Exception) -> BucketError:
        if self._lost is not None:
            return Unavailable(
                session.unreached(self._lost, "Microsoft Entra ID", "https://login.microsoftonline.com/")
            )
        tried = str(error).partition("Attempted credentials:")[2].partition("To mitigate")[0] or str(error)
        return Denied(f"There are no credentials for Azure ({quote(tried, 600).rstrip('.')}).", LOGIN)


def _noted(credential: Any, ask: Callable[[Callable[[], Any]], Any]) -> Any:
    """A credential that is asked through `ask`; the chain of them tells its class."""

    def get_token(self: object, *scopes: str, **options: Any) -> Any:
        return ask(lambda: credential.get_token(*scopes, **options))

    return type(type(credential).__name__, (), {"get_token": get_token})()


class Account(msgspec.Struct, frozen=True):
    """Where an account is asked, and what it is shown."""

    endpoint: str
    key: bytes = b""
    sas: str = ""

    def auth(self, name: str) -> AuthBase:
        if self.key:
            return SharedKey(name, self.key)
        return Sas(self.sas) if self.sas else Token()


def find_account(host: str, env: Mapping[str, str]) -> Account:
    """The account of a bucket's URL as the variables of the Azure CLI set it; what they say is never shown.
    Misconfigured."""
    name = host.partition(".")[0]
    text = env.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if text:
        source = "AZURE_STORAGE_CONNECTION_STRING"
        parts = dict(part.strip().partition("=")[::2] for part in text.split(";") if part.strip())
        owner, key = parts.get("AccountName", ""), parts.get("AccountKey", "")
        sas, endpoint = parts.get("SharedAccessSignature", ""), parts.get("BlobEndpoint", "").rstrip("/")
        if not (key or sas):
            raise Misconfigured(f"{source} holds neither AccountKey nor SharedAccessSignature.", LOGIN)
    else:
        source, endpoint = "AZURE_STORAGE_ACCOUNT", ""
        key, sas = env.get("AZURE_STORAGE_KEY", ""), env.get("AZURE_STORAGE_SAS_TOKEN", "")
        owner = env.get("AZURE_STORAGE_ACCOUNT", "") if key or sas else ""
    if owner and owner != name:
        what = f"{source} is for the account {quote(owner, 30)}, and the bucket's URL names {name}."
        raise Misconfigured(what, f"Name the bucket az://{host}/CONTAINER with that account, or set the variable anew.")
    try:
        found = Account(endpoint or f"https://{host}", base64.b64decode(key, validate=True), "" if key else sas)
    except binascii.Error:
        raise Misconfigured("The key that is set for Azure is not one: it is not base64.", LOGIN) from None
    at = urlsplit(found.endpoint)
    local = at.hostname in ("127.0.0.1", "::1", "localhost")
    if at.scheme not in ("http", "https") or not at.hostname or at.query:
        raise Misconfigured(
            f"BlobEndpoint in {source} is no URL of a store.", "Write https://HOST or http://HOST:PORT."
        )
    if at.scheme == "http" and not (found.key or local):
        what = f"BlobEndpoint in {source} is http://, over which anyone could read a SAS or a token."
        raise Misconfigured(what, "Write https://, or use AccountKey, which is not sent.")
    return found


class AzureBucket:
    """Nothing is asked, nor any setting read, before the first call. `endpoint` is for tests: it stands for the one in
    the connection string."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        self._host, self._container, self._root = parse_url(url)
        self.url = f"az://{self._host}/{self._container}/{self._root}".rstrip("/")
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._session: requests.Session | None = None

    def get(self, key: str) -> Object:
        name = self._name(check_key(key))
        with self._asking("read", name, "GET") as reply:
            self._expect(reply, "read", name, 200)
            etag = self._etag(reply, name)
            updated, date = http_date(reply.headers["Last-Modified"]), http_date(reply.headers["Date"])
            data = session.read_body(reply, f"{key} in {self.url}", FOREIGN.of_object(key))
            digest = reply.headers.get("Content-MD5", "")
            if digest and not session.is_digest(digest, _md5(data)):
                raise Unavailable(f"{key} in {self.url} came over the network with a wrong checksum.")
            return object_in_seconds(data, etag, updated, date)

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        name, data = self._name(check_key(key)), bytes(data)
        if if_version is not None and not _ETAG.fullmatch(if_version):
            raise Conflict(f"{key} in {self.url} is another version.")
        op: Op = "create" if if_version is None else "replace"
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-MD5": base64.b64encode(_md5(data)).decode(),
            "x-ms-blob-type": "BlockBlob",
            **({"If-None-Match": "*"} if if_version is None else {"If-Match": if_version}),
        }
        with self._asking(op, name, "PUT", headers=headers, data=data) as reply:
            self._expect(reply, op, name, 201)
            return self._etag(reply, name)

    def delete(self, *keys: str) -> None:
        # Not Azure's batch: it costs the store as much, and answers for many keys with one error.
        delete_each(self._delete, [self._name(check_key(key)) for key in keys])

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._list(check_prefix(prefix), start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(check_folder(prefix))

    def time(self) -> float:
        """Whole seconds, as the store gives them, from a request that needs the permission to list only."""
        with self._listing(self._name(""), {"maxresults": "1"}) as (reply, _):
            return http_date(reply.headers["Date"])

    def close(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.close()

    def _delete(self, name: str) -> None:
        with (
            suppress(NotFound),
            self._asking("delete", name, "DELETE", headers={"x-ms-delete-snapshots": "include"}) as reply,
        ):
            self._expect(reply, "delete", name, 202)

    def _list(self, prefix: str, start_after: str) -> Iterator[Entry]:
        def unordered() -> Misconfigured:
            what = f"{self.url} does not list in the order of names, so the end of a log cannot be found there."
            return Misconfigured(what, "Use an account without hierarchical namespace.")

        return checked_entries(self._pages(prefix, {}, self._entries), prefix, start_after, unordered)

    def _folders(self, prefix: str) -> Iterator[str]:
        pages = self._pages(prefix, {"delimiter": "/"}, _prefixes)
        return checked_folders(pages, self._name(prefix), prefix)

    def _pages(
        self, prefix: str, more: Mapping[str, str], read: Callable[[ElementTree.Element], Sequence[T]]
    ) -> Iterator[Sequence[T]]:
        """What `read` finds on each page."""
        name, marker = self._name(prefix), ""
        while True:
            at = {"marker": marker} if marker else {}
            with self._listing(name, {"maxresults": str(PAGE_SIZE), **more, **at}) as (_, listing):
                page, following = read(listing), listing.findtext("NextMarker") or ""
                if following and following == marker:
                    raise Unavailable(f"The listing of az://{self._host}/{self._container}/{name} does not get on.")
            yield page
            if not following:
                return
            marker = following

    @contextmanager
    def _listing(self, name: str, asked: Mapping[str, str]) -> Iterator[tuple[requests.Response, ElementTree.Element]]:
        query = {"restype": "container", "comp": "list", **({"prefix": name} if name else {}), **asked}
        with self._asking("list", name, "GET", query) as reply:
            self._expect(reply, "list", name, 200)
            try:
                found = ElementTree.fromstring(session.read_body(reply, f"A listing of {self.url}", FOREIGN.object))
            except ElementTree.ParseError as error:
                raise self._not_understood() from error
            # What ends early must not pass for the end of a log (I2).
            if found.tag != "EnumerationResults" or found.find("NextMarker") is None:
                raise self._not_understood()
            yield reply, found

    def _entries(self, listing: ElementTree.Element) -> Sequence[Entry]:
        return [self._entry(found) for found in listing.iterfind("Blobs/Blob")]

    def _entry(self, found: ElementTree.Element) -> Entry:
        name, root = found.findtext("Name") or "", self._name("")
        own = name[len(root) :] if name.startswith(root) else ""  # outside the root it gets a name that is no key
        updated = http_date(found.findtext("Properties/Last-Modified") or "")
        return Entry(own, int(found.findtext("Properties/Content-Length") or ""), updated)

    @contextmanager
    def _asking(
        self,
        op: Op,
        name: str,
        method: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Iterator[requests.Response]:
        """The reply with its body unread. What `requests` and the parsing raise comes as errors of the contract."""
        try:
            opened = self._open()
            path = f"/{self._container}" if op == "list" else f"/{self._container}/{name}"
            asked = f"?{urlencode(query, quote_via=percent)}" if query else ""
            with closing(
                opened.request(
                    method,
                    f"{self._endpoint}{path}{asked}",
                    headers={**(headers or {}), "x-ms-version": _VERSION, "x-ms-date": formatdate(usegmt=True)},
                    data=data,
                    stream=True,
                    allow_redirects=False,
                    timeout=session.put_timeouts(len(data or b"")),
                )
            ) as reply:
                yield reply
        except WalAgentError:
            raise
        except (OSError, HTTPError) as error:
            raise Unavailable(session.unreached(error, self._host, f"https://{self._host}/")) from error
        except _PARSE_ERRORS as error:
            raise self._not_understood() from error

    def _expect(self, reply: requests.Response, op: Op, name: str, status: int) -> None:
        if reply.status_code == status:
            return
        body, code = reply.raw.read(1 << 16, decode_content=True), reply.headers.get("x-ms-error-code", "")
        ahead = 0.0
        with suppress(*_PARSE_ERRORS):
            ahead = http_date(reply.headers["Date"]) - time.time()
        if reply.status_code == 401 and self._session is not None and isinstance(self._session.auth, Token):
            self._session.auth.forget()
        said = parse_refusal(reply.status_code, body, code, ahead)
        raise refusal_error(said, Request(op, self._host, self._container, name))

    def _open(self) -> requests.Session:
        with self._lock:
            if self._session is None:
                account = find_account(self._host, os.environ)
                self._endpoint = self._endpoint or account.endpoint
                made = requests.Session()
                session.for_store(made)
                made.auth = account.auth(self._host.partition(".")[0])  # with one, ~/.netrc is not looked at
                made.headers["Accept-Encoding"] = "identity"
                self._session = made
            return self._session

    def _name(self, key: str) -> str:
        if "./" in key or key.endswith("."):
            what = f"{key} in {self.url} cannot be: Azure drops a dot at the end of a name or folder."
            raise Misconfigured(what, "Use a job name that does not end with a dot.")
        return f"{self._root}/{key}" if self._root else key

    def _etag(self, reply: requests.Response, name: str) -> Version:
        etag = reply.headers.get("ETag", "")
        if not _ETAG.fullmatch(etag):
            what = f"What answers for az://{self._host}/{self._container}/{name} gave no strong ETag"
            raise Unavailable(f"{what}, so what became of it is not known.", NOT_THE_STORE)
        return etag

    def _not_understood(self) -> Unavailable:
        return Unavailable(f"What answers for {self.url} cannot be understood.", NOT_THE_STORE)


def parse_url(url: str) -> tuple[str, str, str]:
    """The account's host, the container, and the prefix ("" or without slashes at its ends). ConfigError."""
    host, _, rest = url.partition("://")[2].partition("/")
    container, _, path = rest.partition("/")
    root = path.rstrip("/")
    if not _HOST.fullmatch(host):
        account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        known = account if re.fullmatch("[a-z0-9]{3,24}", account) else "ACCOUNT"
        short = url.partition("://")[2].rstrip("/") if _CONTAINER.fullmatch(host) else "CONTAINER/PREFIX"
        what = f"{quote(url)!r} does not name the account, which is part of what a job is found by."
        raise ConfigError(what, f"Write az://{known}.blob.core.windows.net/{short}.")
    if not _CONTAINER.fullmatch(container):
        rules = "3 to 63 of the characters a-z 0-9 -, a letter or digit at both ends, no two - in a row."
        raise ConfigError(f"{quote(url)!r} names no container.", f"A container's name is {rules}")
    if root and (not is_key(root) or root.endswith(".") or "./" in root or len(root) + 1 + MAX_KEY > MAX_NAME):
        rules = f"Its parts are made of A-Z a-z 0-9 . _ - without a dot at their ends, {MAX_NAME - MAX_KEY - 1} in all."
        raise ConfigError(f"{quote(url)!r} has a prefix that cannot be used.", rules)
    return host, container, root


def _prefixes(listing: ElementTree.Element) -> Sequence[str]:
    return [found.text or "" for found in listing.iterfind("Blobs/BlobPrefix/Name")]


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
