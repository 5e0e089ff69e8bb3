"""What S3 and its SDK report, as the errors of the bucket contract: a pure function from one to the other.

What S3 says is hostile input, and its error replies repeat secrets (a rejected session token stands in them): only the
fields that are named here are read, and shown after redaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from botocore import exceptions as sdk

from wal_agent.errors import BucketError, Conflict, Denied, Misconfigured, NotFound, Unavailable
from wal_agent.shown import heard

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


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of which bucket: `key` is the object's or listing's whole name in the store, "" for all of it."""

    op: Op
    bucket: str
    key: str
    endpoint: str

    @property
    def failed(self) -> str:
        return f"Cannot {self.op} s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Refusal:
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
        return Denied(f"{asked.failed}: no AWS credentials ({heard(str(error)).rstrip('.')}).", _LOG_IN)
    if isinstance(error, _BAD_SETTINGS):
        return misconfigured_error(error, asked)
    return Unavailable(f"{asked.failed}: {_trouble(error, asked)}.", _trouble_hint(error))


def misconfigured_error(error: Exception, asked: Request) -> Misconfigured:
    """For what the SDK says of the settings that it was given or found."""
    return Misconfigured(f"{asked.failed}: {heard(str(error)).rstrip('.')}.", "Check ~/.aws/config and AWS_*.")


def delete_error(reply: Mapping[str, Any], asked: Request) -> BucketError | None:
    """For one object that a bulk delete left; None when it is gone anyway."""
    code = str(reply.get("Code", ""))
    if code == "NoSuchKey":
        return None
    return refusal_error(
        Refusal(_PER_KEY_STATUS.get(code, 400), code, heard(str(reply.get("Message", "")), 300)), asked
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
            return Unavailable(f"{failed}: {asked.endpoint} answered {_quoted(said)}.")
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


def _no_permission(said: Refusal, asked: Request) -> Denied:
    who = said.who or "these credentials"
    what = f"{asked.failed}: {who} may not; this needs {_NEEDS[asked.op]} on bucket {asked.bucket}."
    absent = (
        " S3 says the same of an object that is absent unless s3:ListBucket is granted." if asked.op == "read" else ""
    )
    return Denied(what + absent, _WHO)


def _refusal(error: sdk.ClientError) -> Refusal:
    told = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    headers = meta.get("HTTPHeaders", {})
    code = heard(str(told.get("Code", "")), 60)
    region = str(told.get("Region") or headers.get("x-amz-bucket-region") or "")
    named = getattr(error, "operation_name", "")
    return Refusal(
        status=int(meta.get("HTTPStatusCode", 0)),
        code="" if code.isdigit() else code,  # without a body the SDK puts the status there
        says=heard(str(told.get("Message", "")), 300),
        key_id=str(told.get("AWSAccessKeyId", "")),
        region=region if re.fullmatch(r"[a-z0-9-]{1,40}", region) else "",
        service=named if named.startswith(("AssumeRole", "GetRoleCredentials", "CreateToken")) else "s3",
    )


def _quoted(said: Refusal) -> str:
    return f"{said.status} {said.code}: {said.says}".rstrip(": .") if said.code else str(said.status)


def _trouble(error: Exception, asked: Request) -> str:
    host = _host(error) or asked.endpoint
    match error:
        case sdk.ProxyConnectionError():
            return f"the HTTP proxy that is set does not lead to {host}"
        case sdk.SSLError():
            return f"TLS with {host} failed ({heard(str(error.kwargs.get('error', '')))})"
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
            return f"the exchange with {host} failed ({heard(str(error.kwargs.get('error', '')))})"
    return f"the answer of {host} could not be read ({type(error).__name__})"


def _trouble_hint(error: Exception) -> str:
    return "Name a CA of its own in AWS_CA_BUNDLE." if isinstance(error, sdk.SSLError) else ""


def _host(error: Exception) -> str:
    url = getattr(error, "kwargs", {}).get("endpoint_url")
    return host_of(url) if isinstance(url, str) else ""


def host_of(url: str) -> str:
    """Host and port of a URL, without the user and password that may stand before them; what is no URL as it is."""
    found = re.match(r"\w+://(?:[^/]*@)?([^/]*)", url)
    return heard(found[1] if found else url)
