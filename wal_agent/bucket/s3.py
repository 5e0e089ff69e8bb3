"""A bucket in S3, or in a store that speaks like it, by boto3: one request for each put, get and delete.

Conditions are If-None-Match: * and If-Match; a version is the ETag, which repeats for equal bytes. Ceph's gateway
compares If-Match with the ETag without its quotes: that is found out when a replace is refused for the first time. The
SDK sends no put a second time: it would meet the first one and report a conflict. Credentials, region, profile and
endpoint are found by the SDK as it always does (AWS_*, ~/.aws).

What S3 replies is hostile input, and its error replies repeat secrets (a rejected session token is in them): only the
fields that are named here are read, and shown after redaction.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import mktime_tz, parsedate_tz
from typing import Any, Literal, TypeVar

import boto3.session
import msgspec
from botocore import exceptions as sdk
from botocore.config import Config

from wal_agent.bucket.base import (
    CONNECT_TIMEOUT,
    CONNECTIONS,
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
    is_key,
    object_in_seconds,
    request_options,
    too_large_error,
)
from wal_agent.bucket.http import paced_pools
from wal_agent.bucket.upkeep import Upkeep, s3_rules
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
from wal_agent.text import quote

Op = Literal["read", "write", "delete", "list"]

_NEEDS: dict[Op, str] = {
    "read": "s3:GetObject",
    "write": "s3:PutObject and, to replace what stands there, s3:GetObject",
    "delete": "s3:DeleteObject",
    "list": "s3:ListBucket",
}
_WHO = "Look who you are with `aws sts get-caller-identity`."
_LOG_IN = (
    "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with `aws sso login`; "
    "check with `aws sts get-caller-identity`."
)

_UNDECIDED_STATUS = {307, 408, 409, 425, 429}
_UNDECIDED = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_UNKNOWN_CALLER = {"InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch"}
_ELSEWHERE = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "Redirect"}
_PER_KEY_STATUS = {"AccessDenied": 403, "InternalError": 500, "NoSuchKey": 404, "SlowDown": 503}

_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.UnauthorizedSSOTokenError,
)
_BAD_SETTINGS = (
    sdk.ConfigNotFound,
    sdk.ConfigParseError,
    sdk.EndpointProviderError,
    sdk.BaseEndpointResolverError,
    sdk.InvalidConfigError,
    sdk.InvalidDNSNameError,
    sdk.InvalidEndpointConfigurationError,
    sdk.InvalidProxiesConfigError,
    sdk.InvalidS3AddressingStyleError,
    sdk.InvalidS3UsEast1RegionalEndpointConfigError,
    sdk.MissingDependencyException,
    sdk.ParamValidationError,
    sdk.ProfileNotFound,
    sdk.UnknownCredentialError,
    sdk.UnsupportedS3ConfigurationError,
    sdk.ValidationError,
)
BULK = 1 << 20  # bytes; of a larger put, megabytes may still be in the kernel's buffer when the wait for a reply begins
BULK_TIMEOUT = 60.0
MAX_NAME = 1024  # S3's most, of the prefix and a key together
SETTINGS = "WAL_AGENT_S3"  # names what a bucket's policy asks of each request, of OPTIONS (docs/BUCKETS.md)
T = TypeVar("T")
_BUCKET = re.compile(r"(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
_ETAG = re.compile(r'"[!#-~]*"|[0-9A-Za-z._/+=-]+')  # not `*`, nor a list, which If-Match would understand otherwise
_PRINTABLE = re.compile(r"[ -~]*")
OPTIONS: Mapping[str, str] = {
    "sse": r"AES256|aws:kms|aws:kms:dsse",
    "kms-key": r"[\w:/+=,.@-]{1,2048}",
    "bucket-key": r"on|off",
    "acl": r"private|bucket-owner-read|bucket-owner-full-control",
    "tagging": r"[\w%&=.:/+@ -]{1,3000}",
    "storage-class": r"(?!GLACIER$|DEEP_ARCHIVE$)[A-Z_]{1,40}",
    "checksum": r"md5|crc32|sha1|sha256",
    "owner": r"[0-9]{12}",
    "payer": r"requester",
}


class Request(msgspec.Struct, frozen=True):
    """What was asked of which bucket: `key` is the object's or listing's whole name in the store, "" for all of it."""

    op: Op
    bucket: str
    key: str
    endpoint: str

    @property
    def failed(self) -> str:
        return f"Cannot {self.op} s3://{self.bucket}/{self.key}"


class Refusal(msgspec.Struct, frozen=True):
    """An error reply of S3. `code` is "" where the reply was not S3's; `region` is where S3 says that the bucket is."""

    status: int
    code: str
    says: str = ""
    key_id: str = ""
    region: str = ""
    service: str = "s3"

    @property
    def who(self) -> str:
        """The caller, as far as the reply names it; of an access key id no more than its end."""
        if named := re.search(r"\barn:aws[a-z-]*:(?:iam|sts)::\d{12}:[\w+=,.@/-]{1,200}", self.says):
            return named[0]
        return f"access key id ...{self.key_id[-4:]}" if re.fullmatch(r"[A-Z0-9]{16,128}", self.key_id) else ""


def bucket_error(error: Exception, asked: Request) -> BucketError:
    """The bucket's error for anything that the SDK raised."""
    if isinstance(error, sdk.ClientError):
        return refusal_error(_refusal(error), asked)
    if isinstance(error, _NO_CREDENTIALS):
        return Denied(f"{asked.failed}: no AWS credentials ({quote(str(error)).rstrip('.')}).", _LOG_IN)
    if isinstance(error, _BAD_SETTINGS):
        return misconfigured_error(error, asked)
    if _of_credentials(error):
        return credentials_error(error, asked)
    return Unavailable(f"{asked.failed}: {_trouble(error, asked)}.", _trouble_hint(error))


def credentials_error(error: Exception, asked: Request) -> Denied:
    """For what the SDK raises, unexplained, where what is set up gives no credentials (credential_process)."""
    why = f"{type(error).__name__}: {quote(str(error)).rstrip('.')}"
    return Denied(
        f"{asked.failed}: no AWS credentials, since what is to give them gives nothing that can be read ({why}).",
        f"Check credential_process in ~/.aws/config by hand. {_LOG_IN}",
    )


def _of_credentials(error: BaseException) -> bool:
    """Whether the SDK raised it while it looked for credentials: its own errors there have a class that says so."""
    if isinstance(error, sdk.BotoCoreError):
        return False
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") in ("botocore.credentials", "botocore.tokens"):
            return True
        at = at.tb_next
    return False


def misconfigured_error(error: Exception, asked: Request) -> Misconfigured:
    """For what the SDK says of the settings that it was given or found."""
    return Misconfigured(f"{asked.failed}: {quote(str(error)).rstrip('.')}.", "Check ~/.aws/config and AWS_*.")


def delete_error(reply: Mapping[str, Any], asked: Request) -> BucketError | None:
    """For one object that a bulk delete left; None when it is gone anyway."""
    code = str(reply.get("Code", ""))
    if code == "NoSuchKey":
        return None
    return refusal_error(
        Refusal(_PER_KEY_STATUS.get(code, 400), code, quote(str(reply.get("Message", "")), 300)), asked
    )


def refusal_error(said: Refusal, asked: Request) -> BucketError:
    """The bucket's error for an error reply. The first that fits wins."""
    failed = asked.failed
    match said:
        case Refusal(status=501):
            what = f"{failed}: the store at {asked.endpoint} does not implement what is needed ({_quoted(said)})."
            return Misconfigured(what, "Use a store with conditional puts, or file://.")
        # A status above 499 comes first: S3 has sent 200 with PreconditionFailed in it, which the SDK shows as 500, and
        # whether such a put landed nobody knows.
        case Refusal(status=status) if not 300 <= status < 500 or status in _UNDECIDED_STATUS:
            moved = f"If it stays so, set AWS_DEFAULT_REGION to {said.region}." if status == 307 and said.region else ""
            return Unavailable(f"{failed}: {asked.endpoint} answered {_quoted(said)}.", moved)
        case Refusal(service=service) if service != "s3":
            return Denied(f"{failed}: no AWS credentials, since {service} was refused ({_quoted(said)}).", _LOG_IN)
        case Refusal(status=412) if asked.op == "write":
            return Conflict(f"s3://{asked.bucket}/{asked.key} is another version.")
        case Refusal(code="NoSuchKey") if asked.op == "write":
            return Conflict(f"s3://{asked.bucket}/{asked.key} is absent.")
        case Refusal(code="NoSuchKey") if asked.op == "read":
            return NotFound(f"s3://{asked.bucket} holds no {asked.key}.")
        case Refusal(code=code) if code in _UNDECIDED:
            return Unavailable(f"{failed}: {asked.endpoint} answered {_quoted(said)}.")
        case Refusal(code="NoSuchBucket"):
            make = f"Create it with `aws s3api create-bucket --bucket {asked.bucket}`, or correct the name."
            return Misconfigured(f"{failed}: there is no bucket {asked.bucket} at {asked.endpoint}.", make)
        case Refusal(code="RequestTimeTooSkewed"):
            what = f"{failed}: this machine's clock is too far from that of {asked.endpoint}."
            return Misconfigured(what, "Set the clock (NTP), then try again.")
        case Refusal(status=status, code=code) if code in _ELSEWHERE or status in (301, 302, 308):
            where = f"region {said.region}" if said.region else "another region"
            find = said.region or f"what `aws s3api get-bucket-location --bucket {asked.bucket}` tells"
            what = f"{failed}: the bucket is in {where}, not in the one that is set."
            return Misconfigured(what, f"Set AWS_DEFAULT_REGION to {find}.")
        case Refusal(code=code) if code in _EXPIRED:
            return Denied(f"{failed}: the AWS credentials have expired.", _LOG_IN)
        case Refusal(code=code) if code in _UNKNOWN_CALLER:
            whose = f" of {said.who}" if said.who else ""
            return Denied(f"{failed}: {asked.endpoint} does not accept the credentials{whose} ({code}).", _LOG_IN)
        case Refusal(status=401 | 403):
            return _no_permission(said, asked)
        case Refusal(code=""):
            return Unavailable(f"{failed}: {asked.endpoint} answered {said.status}, and not as S3 does.")
    return Denied(f"{failed}: {asked.endpoint} refused it ({_quoted(said)}).")


def _not_understood(said: Refusal) -> bool:
    """Whether the store says that it cannot do what was asked in this way."""
    known = _UNDECIDED | _EXPIRED | _UNKNOWN_CALLER | _ELSEWHERE
    return said.status in (405, 501) or (said.status == 400 and bool(said.code) and said.code not in known)


def _no_permission(said: Refusal, asked: Request) -> Denied:
    who = said.who or "these credentials"
    what = f"{asked.failed}: {who} may not; this needs {_NEEDS[asked.op]} on bucket {asked.bucket}."
    absent = (
        " S3 says the same of an object that is absent unless s3:ListBucket is granted." if asked.op == "read" else ""
    )
    words = f' It says: "{said.says.rstrip(".")}".' if said.says else ""
    return Denied(what + words + absent, _WHO)


def _refusal(error: sdk.ClientError) -> Refusal:
    reply = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    headers = meta.get("HTTPHeaders", {})
    code = quote(str(reply.get("Code", "")), 60)
    region = str(reply.get("Region") or headers.get("x-amz-bucket-region") or "")
    named = getattr(error, "operation_name", "")
    return Refusal(
        status=int(meta.get("HTTPStatusCode", 0)),
        code="" if code.isdigit() else code,  # without a body the SDK puts the status there
        says=quote(str(reply.get("Message", "")), 300),
        key_id=str(reply.get("AWSAccessKeyId", "")),
        region=region if re.fullmatch(r"[a-z0-9-]{1,40}", region) else "",
        service=named if named.startswith(("AssumeRole", "GetRoleCredentials", "CreateToken")) else "s3",
    )


def _quoted(said: Refusal) -> str:
    return f"{said.status} {said.code}: {said.says}".rstrip(": .") if said.code else str(said.status)


def _trouble(error: Exception, asked: Request) -> str:
    url = getattr(error, "kwargs", {}).get("endpoint_url")
    host = host_of(url) if isinstance(url, str) else asked.endpoint
    match error:
        case sdk.ProxyConnectionError():
            proxy = host_of(str(error.kwargs.get("proxy_url", "")))
            return f"the HTTP proxy that is set ({proxy}) cannot be reached, or does not lead to {host}"
        case sdk.SSLError():
            return f"TLS with {host} failed ({quote(str(error.kwargs.get('error', '')))})"
        case sdk.ConnectTimeoutError():
            return f"{host} took no connection in time"
        case sdk.EndpointConnectionError():
            return f"{host} cannot be reached"
        case sdk.ReadTimeoutError():
            return f"{host} did not answer in time"
        case sdk.ConnectionClosedError():
            return f"{host} closed the connection before it answered"
        case sdk.IncompleteReadError() | sdk.ResponseStreamingError():
            return f"{host} closed the connection in the middle of its answer"
        case sdk.HTTPClientError():
            return f"the exchange with {host} failed ({quote(str(error.kwargs.get('error', '')))})"
    return f"the answer of {host} could not be read ({type(error).__name__})"


def _trouble_hint(error: Exception) -> str:
    return "Name a CA of its own in AWS_CA_BUNDLE." if isinstance(error, sdk.SSLError) else ""


def host_of(url: str) -> str:
    """Host and port of a URL, without the user and password that may stand before them; what is no URL as it is."""
    found = re.match(r"\w+://(?:[^/]*@)?([^/]*)", url)
    return quote(found[1] if found else url)


class Extra(msgspec.Struct, frozen=True):
    """Parameters of the SDK for these settings: of every request, and of puts besides."""

    every: Mapping[str, str]
    put: Mapping[str, Any]
    md5: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Extra:
        named = {
            "sse": "ServerSideEncryption",
            "kms-key": "SSEKMSKeyId",
            "acl": "ACL",
            "tagging": "Tagging",
            "storage-class": "StorageClass",
        }
        every = {"owner": "ExpectedBucketOwner", "payer": "RequestPayer"}
        put: dict[str, Any] = {named[name]: value for name, value in options.items() if name in named}
        if "kms-key" in options:
            put.setdefault("ServerSideEncryption", "aws:kms")
        if "bucket-key" in options:
            put["BucketKeyEnabled"] = options["bucket-key"] == "on"
        checksum = options.get("checksum", "")
        if checksum and checksum != "md5":
            put["ChecksumAlgorithm"] = checksum.upper()
        shared = {every[name]: value for name, value in options.items() if name in every}
        return cls(shared, put | shared, checksum == "md5")

    def of_put(self, data: bytes) -> Mapping[str, Any]:
        return {**self.put, "ContentMD5": _md5(data)} if self.md5 else self.put


class S3Bucket:
    """`s3://bucket[/prefix]`. `endpoint` is for tests; nothing is asked, nor any AWS setting read, before first use."""

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self._extra = Extra.of(request_options(SETTINGS, OPTIONS))
        self._bucket, self._root = parse_url(url)
        self.url = f"s3://{self._bucket}/{self._root}".rstrip("/")
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[float, Any] = {}  # by read timeout
        self._forms = threading.Lock()
        self._bare: bool | None = None  # how If-Match is sent: without quotes, with them; None: not known yet
        self._one_by_one = False  # the store takes no delete of many

    def get(self, key: str) -> Object:
        name = self._name(check_key(key))
        with self._asking("read", name) as client:
            reply = client.get_object(Bucket=self._bucket, Key=name, **self._extra.every)
            data = self._body(reply, name)
            return object_in_seconds(
                data, self._etag(reply, name), _second(reply["LastModified"].timestamp()), _date(reply)
            )

    def put(self, key: str, data: bytes, *, if_version: Version | None = None) -> Version:
        name = self._name(check_key(key))
        if if_version is not None and not _ETAG.fullmatch(if_version):
            raise Conflict(f"{key} in {self.url} is another version.")
        if if_version is None:
            return self._put(name, data, IfNoneMatch="*")
        bare = self._bare
        try:
            made = self._put(name, data, IfMatch=_bare(if_version) if bare else if_version)
        except Conflict:
            if bare is not None or not self._compares_bare(name):
                raise
            # The first put was refused, so this is the only one.
            return self._put(name, data, IfMatch=_bare(if_version))
        if bare is None:
            self._bare = False
        return made

    def delete(self, *keys: str) -> None:
        names = [*dict.fromkeys(self._name(check_key(key)) for key in keys)]
        for start in range(0, len(names), PAGE_SIZE):
            self._delete(names[start : start + PAGE_SIZE])

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return self._list(check_prefix(prefix), start_after)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._folders(check_folder(prefix))

    def time(self) -> float:
        """Now by the store's clock, cut to whole seconds."""
        name = self._name("")
        with self._asking("list", name) as client:
            asked = {"Prefix": name, "MaxKeys": 1, **self._extra.every}
            return _date(_check_complete(client.list_objects_v2(Bucket=self._bucket, **asked)))

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _put(self, name: str, data: bytes, **condition: str) -> Version:
        with self._asking("write", name, BULK_TIMEOUT if len(data) > BULK else READ_TIMEOUT) as client:
            more = {**condition, **self._extra.of_put(data)}
            return self._etag(client.put_object(Bucket=self._bucket, Key=name, Body=bytes(data), **more), name)

    def _compares_bare(self, name: str) -> bool:
        """Whether the store compares If-Match with the ETag without its quotes (Ceph's gateway), so that the ETag as it
        was given, which S3 wants, never matches. Tried once, beside `name`. Unavailable."""
        with self._forms:
            if self._bare is None:
                scratch = f"{name.rpartition('/')[0]}/probe/form-{secrets.token_hex(8)}".lstrip("/")
                try:
                    self._bare = not self._is_amazon and self._try_bare(scratch)
                except Denied:
                    return False
                finally:
                    with suppress(BucketError):
                        self._delete([scratch])
            return self._bare

    def _try_bare(self, scratch: str) -> bool:
        """A store that ignores what it does not understand must not be asked so: it would replace anything."""
        first = self._put(scratch, b"1", IfNoneMatch="*")
        return (
            self._refuses(scratch, b"2", first)
            and self._refuses(scratch, b"3", hashlib.md5(b"another", usedforsecurity=False).hexdigest())
            and not self._refuses(scratch, b"4", _bare(first))
        )

    def _refuses(self, name: str, data: bytes, etag: str) -> bool:
        try:
            self._put(name, data, IfMatch=etag)
        except Conflict:
            return True
        return False

    def upkeep(self) -> Upkeep:
        """See upkeep.py. Needs s3:GetBucketVersioning and s3:GetLifecycleConfiguration; raises nothing."""
        owner = {name: value for name, value in self._extra.every.items() if name == "ExpectedBucketOwner"}
        versioning, rules = None, None
        with suppress(WalAgentError), self._asking("list", "") as client:
            versioning = client.get_bucket_versioning(Bucket=self._bucket, **owner).get("Status") == "Enabled"
        try:
            found = self._client(READ_TIMEOUT).get_bucket_lifecycle_configuration(Bucket=self._bucket, **owner)
            rules = s3_rules(found.get("Rules", ()))
        except sdk.ClientError as error:
            none = error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration"
            rules = () if none else None
        except Exception:  # noqa: BLE001 - advice only
            rules = None
        return Upkeep(self._name(""), versioning, rules)

    @property
    def _is_amazon(self) -> bool:
        return re.fullmatch(r"(.*\.)?amazonaws\.com(\.cn)?(:\d+)?", self._asked("write", "").endpoint) is not None

    def _name(self, key: str) -> str:
        return f"{self._root}/{key}" if self._root else key

    def _etag(self, reply: Mapping[str, Any], name: str) -> Version:
        etag = reply.get("ETag")
        if isinstance(etag, str) and etag.startswith("W/"):
            what = f"What answers for s3://{self._bucket}/{name} gave a weak ETag, which names no version"
            raise Unavailable(f"{what}.", "A proxy rewrites what the store says: let it not compress, or go past it.")
        if not isinstance(etag, str) or not _ETAG.fullmatch(etag):
            what = f"What answers for s3://{self._bucket}/{name} gave no strong ETag"
            raise Unavailable(f"{what}, so what became of it is not known.", NOT_THE_STORE)
        return etag

    def _body(self, reply: Mapping[str, Any], name: str) -> bytes:
        body, size, most = reply["Body"], reply.get("ContentLength"), FOREIGN.of_object(name)
        try:
            if size is None and "transfer-encoding" not in reply["ResponseMetadata"]["HTTPHeaders"]:
                raise Unavailable(f"The store did not say how long s3://{self._bucket}/{name} is.")
            data: bytes = b"" if size and size > most else body.read(None if size else most + 1)
        finally:
            body.close()
        if max(size or 0, len(data)) > most:
            raise too_large_error(f"s3://{self._bucket}/{name}", most)
        return data

    def _delete(self, names: Sequence[str]) -> None:
        if len(names) > 1 and not self._one_by_one:
            if self._delete_many(names):
                return
            self._one_by_one = True
        delete_each(self._delete_one, names)

    def _delete_one(self, name: str) -> None:
        with self._asking("delete", name) as client:
            client.delete_object(Bucket=self._bucket, Key=name, **self._extra.every)

    def _delete_many(self, names: Sequence[str]) -> bool:
        """False: the store does not have this request, or not with the checksum that the SDK sends with it."""
        with self._asking("delete", names[0]) as client:
            try:
                wanted = {"Objects": [{"Key": name} for name in names]}
                reply = client.delete_objects(Bucket=self._bucket, Delete=wanted, **self._extra.every)
            except sdk.ClientError as refused:
                if _not_understood(_refusal(refused)):
                    return False
                raise
        for left in reply.get("Errors", []):
            if (error := delete_error(left, self._asked("delete", str(left.get("Key", names[0]))))) is not None:
                raise error
        # An answer that was cut off names neither what is gone nor what is left.
        answered = {str(one.get("Key")) for one in (*reply.get("Deleted", []), *reply.get("Errors", []))}
        if missing := set(names) - answered:
            raise Unavailable(f"The store did not say whether {len(missing)} objects of {self.url} were deleted.")
        return True

    def _list(self, prefix: str, start_after: str) -> Iterator[Entry]:
        def unordered() -> Misconfigured:
            what = f"{self.url} does not list in the order of names, so the end of a log cannot be found there."
            return Misconfigured(what, "Use a general purpose bucket.")

        first = {"StartAfter": self._name(after)} if (after := _start(start_after)) else {}
        pages = self._pages(prefix, first, {}, self._entries)
        return checked_entries(pages, prefix, start_after, unordered)

    def _folders(self, prefix: str) -> Iterator[str]:
        pages = self._pages(prefix, {}, {"Delimiter": "/"}, _prefixes)
        return checked_folders(pages, self._name(prefix), prefix)

    def _pages(
        self,
        prefix: str,
        first: Mapping[str, str],
        each: Mapping[str, str],
        read: Callable[[Mapping[str, Any]], Sequence[T]],
    ) -> Iterator[Sequence[T]]:
        """What `read` finds on each page. `first` and `each` go with the first request, and with every one."""
        name, more = self._name(prefix), dict(first)
        while True:
            with self._asking("list", name) as client:
                asked = {"Prefix": name, "MaxKeys": PAGE_SIZE, **each, **more, **self._extra.every}
                reply = _check_complete(client.list_objects_v2(Bucket=self._bucket, **asked))
                page = read(reply)
                token = reply["NextContinuationToken"] if reply["IsTruncated"] else None
                if token is not None and token == more.get("ContinuationToken"):
                    raise Unavailable(f"The listing of s3://{self._bucket}/{name} does not get on.")
            yield page
            if not token:
                return
            more = {"ContinuationToken": token}

    def _entries(self, reply: Mapping[str, Any]) -> Sequence[Entry]:
        return [self._entry(found) for found in reply.get("Contents", [])]

    def _entry(self, found: Mapping[str, Any]) -> Entry:
        key = found["Key"]
        root = self._name("")
        # Outside the root it gets a name that is no key.
        own = key[len(root) :] if key.startswith(root) else ""
        return Entry(own, int(found["Size"]), _second(found["LastModified"].timestamp()))

    @contextmanager
    def _asking(self, op: Op, name: str, timeout: float = READ_TIMEOUT) -> Iterator[Any]:
        try:
            yield self._client(timeout)
        except WalAgentError:
            raise
        except Exception as error:  # the SDK's parser raises anything on bytes that are no answer of S3
            raise bucket_error(error, self._asked(op, name)) from error

    def _asked(self, op: Op, name: str) -> Request:
        at = next((str(client.meta.endpoint_url) for client in self._clients.values()), self._endpoint or "AWS")
        return Request(op, self._bucket, name, host_of(at))

    def _client(self, timeout: float) -> Any:
        with self._lock:
            if timeout not in self._clients:
                self._session = self._session or boto3.session.Session()  # type: ignore[no-untyped-call]
                try:
                    self._clients[timeout] = _client(self._session, self._endpoint, timeout)
                except ValueError as error:
                    say = credentials_error if _of_credentials(error) else misconfigured_error
                    raise say(error, self._asked("list", self._name(""))) from error
            return self._clients[timeout]


def parse_url(url: str) -> tuple[str, str]:
    """Bucket and prefix ("" or without slashes at its ends) of an s3:// URL; ConfigError for anything else."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    root = path.rstrip("/")
    if scheme.lower() != "s3":
        raise ConfigError(f"{url!r} is not a bucket in S3.", "Write it as s3://bucket or s3://bucket/prefix.")
    if not _BUCKET.fullmatch(bucket):
        rules = "3 to 63 of the characters a-z 0-9 . -, a letter or digit at both ends."
        raise ConfigError(f"{url!r} does not name an S3 bucket.", f"A bucket's name is {rules}")
    if bucket.endswith("--x-s3"):
        what = f"s3://{bucket} is a directory bucket: these do not list in the order of names."
        raise ConfigError(what, "Use a general purpose bucket.")
    if root and (not is_key(root) or len(root) + 1 + MAX_KEY > MAX_NAME):
        what = f"{url!r} has a prefix that cannot be used."
        rules = (
            f"Use A-Z a-z 0-9 . _ - and / between parts, no part begins with a dot, {MAX_NAME - MAX_KEY - 1} in all."
        )
        raise ConfigError(what, rules)
    return bucket, root


def _client(session: Any, endpoint: str | None, read_timeout: float) -> Any:
    config = Config(  # type: ignore[no-untyped-call]
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=read_timeout,
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # More than that is not understood by every store that speaks S3.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # AWS_REGION is what EKS and others set, and this SDK does not read it. Most other stores do not care for a region.
    region = session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would go to the agent's terminal (I6)
        client = session.client("s3", region_name=region, endpoint_url=endpoint, config=config)
    pools = client._endpoint.http_session._pool_classes_by_scheme  # there is no public way to bound a whole reply
    pools.update(paced_pools(pools))
    client.meta.events.register_last("before-call.s3", _as_one_request)
    client.meta.events.register_last("before-call.s3.DeleteObjects", _with_md5)
    return client


def _as_one_request(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["headers"].pop("Expect", None)  # 100-continue would cost each put a round trip more
    # A reply that names another region is not followed: for a 307 the SDK asks HeadBucket again and again.
    context.get("s3_redirect", {})["redirected"] = True


def _with_md5(params: dict[str, Any], **_: Any) -> None:
    """Stores older than the SDK's CRC32 insist on Content-MD5 for this one request."""
    params["headers"]["Content-MD5"] = _md5(params["body"])


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _check_complete(listing: Mapping[str, Any]) -> Mapping[str, Any]:
    """The SDK takes an answer without a body for a listing without objects, whatever its Content-Length says; but an
    empty listing is what shows that a log ends (I2)."""
    if "IsTruncated" not in listing:
        raise Unavailable("The store's listing was cut off.")
    return listing


def _prefixes(listing: Mapping[str, Any]) -> Sequence[str]:
    return [str(found["Prefix"]) for found in listing.get("CommonPrefixes", [])]


def _bare(etag: Version) -> str:
    return etag.strip('"')


def _date(reply: Mapping[str, Any]) -> float:
    date = parsedate_tz(reply["ResponseMetadata"]["HTTPHeaders"].get("date", ""))
    if date is None:
        raise Unavailable("The store answered without a Date, so its clock is not known.")
    return float(mktime_tz(date))


def _second(moment: float) -> float:
    """Listings may give more of a time than the header of an object."""
    return float(math.floor(moment))


def _start(start_after: str) -> str:
    """The part of it that may be sent: what is after it is also after this."""
    found = _PRINTABLE.match(start_after)
    return found[0][:MAX_KEY] if found else ""
