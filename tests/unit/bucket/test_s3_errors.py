from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.bucket.s3 import Op, Refusal, Request, bucket_error, host_of, refusal_error
from wal_agent.errors import BucketError, Conflict, Denied, Misconfigured, NotFound, Unavailable

sdk: Any = exceptions  # its classes have no types
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
ARN = "arn:aws:sts::123456789012:assumed-role/ci/run-1"


def asked(op: Op = "read") -> Request:
    return Request(op, "some-bucket", "team/job/lease.json", "s3.amazonaws.com")


def reply(status: int, code: str, operation: str = "GetObject", **more: str) -> Exception:
    response = {"Error": {"Code": code, **more}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}
    return exceptions.ClientError(response, operation)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("op", "status", "code", "expected"),
    [
        ("write", 412, "PreconditionFailed", Conflict),
        ("write", 412, "412", Conflict),
        ("write", 404, "NoSuchKey", Conflict),
        ("read", 404, "NoSuchKey", NotFound),
        ("read", 404, "404", Unavailable),
        ("read", 412, "PreconditionFailed", Denied),
        ("write", 500, "PreconditionFailed", Unavailable),
        ("write", 200, "PreconditionFailed", Unavailable),
        ("write", 0, "PreconditionFailed", Unavailable),
        ("read", 500, "NoSuchKey", Unavailable),
        ("write", 409, "ConditionalRequestConflict", Unavailable),
        ("write", 409, "OperationAborted", Unavailable),
        ("write", 400, "RequestTimeout", Unavailable),
        ("write", 400, "BadDigest", Unavailable),
        ("write", 503, "SlowDown", Unavailable),
        ("write", 429, "429", Unavailable),
        ("write", 501, "NotImplemented", Misconfigured),
        ("write", 404, "NoSuchBucket", Misconfigured),
        ("list", 301, "PermanentRedirect", Misconfigured),
        ("list", 400, "IllegalLocationConstraintException", Misconfigured),
        ("read", 403, "RequestTimeTooSkewed", Misconfigured),
        ("read", 403, "AccessDenied", Denied),
        ("read", 403, "403", Denied),
        ("read", 401, "Unauthorized", Denied),
        ("read", 400, "ExpiredToken", Denied),
        ("read", 400, "InvalidToken", Denied),
        ("read", 403, "InvalidAccessKeyId", Denied),
        ("read", 403, "SignatureDoesNotMatch", Denied),
        ("read", 400, "KMS.DisabledException", Denied),
        ("read", 400, "400", Unavailable),
    ],
)
def test_a_refusal(op: Op, status: int, code: str, expected: type[BucketError]) -> None:
    assert type(bucket_error(reply(status, code), asked(op))) is expected


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (reply(404, "NoSuchBucket"), "aws s3api create-bucket --bucket some-bucket"),
        (reply(301, "PermanentRedirect", Region="eu-west-1"), "AWS_DEFAULT_REGION to eu-west-1"),
        (reply(301, "PermanentRedirect", Region="x; rm -rf /"), "aws s3api get-bucket-location"),
        (reply(403, "RequestTimeTooSkewed"), "this machine's clock"),
        (reply(403, "AccessDenied"), "needs s3:GetObject on bucket some-bucket"),
        (reply(403, "AccessDenied"), "absent unless s3:ListBucket"),
        (reply(403, "AccessDenied"), "aws sts get-caller-identity"),
        (reply(403, "AccessDenied", Message=f"User: {ARN} is not authorized to perform: s3:GetObject"), ARN),
        (
            reply(403, "AccessDenied", Message=f"User: {ARN} is not authorized to perform: kms:GenerateDataKey on"),
            "kms:GenerateDataKey",
        ),
        (
            reply(403, "AccessDenied", Message="Access Denied with an explicit deny."),
            'says: "Access Denied with an exp',
        ),
        (reply(307, "TemporaryRedirect", Region="eu-west-1"), "set AWS_DEFAULT_REGION to eu-west-1"),
        (reply(403, "InvalidAccessKeyId", AWSAccessKeyId=KEY_ID), "...MPLE"),
        (reply(403, "AccessDenied", "AssumeRole"), "AssumeRole was refused"),
        (reply(400, "ExpiredToken"), "have expired"),
    ],
)
def test_an_error_says_what_to_do_next(error: Exception, says: str) -> None:
    assert says in str(bucket_error(error, asked()))


def test_each_operation_names_the_permission_it_needs() -> None:
    needed: dict[Op, str] = {
        "read": "s3:GetObject",
        "write": "s3:PutObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    }
    for op, permission in needed.items():
        assert f"needs {permission}" in str(bucket_error(reply(403, "AccessDenied"), asked(op)))


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "Odd"])
@pytest.mark.parametrize("status", [400, 403, 503])
def test_no_secret_that_s3_repeats_is_told(status: int, code: str) -> None:
    fields = {"Token-0": SECRET, "StringToSign": SECRET, "SignatureProvided": SECRET, "AWSAccessKeyId": KEY_ID}
    said = str(bucket_error(reply(status, code, Message=f"The key {KEY_ID} is not known.", **fields), asked()))
    assert SECRET not in said
    assert KEY_ID not in said


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (
            sdk.EndpointConnectionError(endpoint_url="https://b.s3.amazonaws.com/k"),
            Unavailable,
            "b.s3.amazonaws.com cannot",
        ),
        (sdk.ConnectTimeoutError(endpoint_url="https://h/"), Unavailable, "h took no connection"),
        (sdk.ReadTimeoutError(endpoint_url="https://u:p@h:1/", error=""), Unavailable, "h:1 did not answer"),
        (sdk.ReadTimeoutError(endpoint_url=None, error=""), Unavailable, "s3.amazonaws.com did not answer"),
        (sdk.ConnectionClosedError(endpoint_url="https://h/"), Unavailable, "h closed the connection"),
        (sdk.ResponseStreamingError(error="x"), Unavailable, "in the middle"),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), Unavailable, "in the middle"),
        (sdk.SSLError(endpoint_url="https://h/", error="self-signed"), Unavailable, "AWS_CA_BUNDLE"),
        (sdk.HTTPClientError(error="odd"), Unavailable, "odd"),
        (
            sdk.ProxyConnectionError(proxy_url=f"http://u:{SECRET}@h", error="x"),
            Unavailable,
            "HTTP proxy that is set (h)",
        ),
        (sdk.NoCredentialsError(), Denied, "aws sso login"),
        (sdk.CredentialRetrievalError(provider="sso", error_msg="gone"), Denied, "sso"),
        (sdk.UnauthorizedSSOTokenError(), Denied, "SSO"),
        (sdk.ProfileNotFound(profile="x"), Misconfigured, "(x)"),
        (sdk.ConfigParseError(path="/p", error="e"), Misconfigured, "/p"),
        (ValueError("what a parser says"), Unavailable, "could not be read"),
        (RecursionError(), Unavailable, "could not be read"),
    ],
)
def test_trouble_without_a_reply(error: Exception, expected: type[BucketError], says: str) -> None:
    told = bucket_error(error, asked())
    assert type(told) is expected
    assert says in str(told)
    assert SECRET not in str(told)


@given(
    op=st.sampled_from(["read", "write", "delete", "list"]),
    status=st.integers(-1, 1000),
    code=st.sampled_from(["", "NoSuchKey", "AccessDenied", "\x1b[2J", "0"]) | st.text(),
    says=st.text(),
    key_id=st.text(),
    region=st.text(),
)
def test_whatever_a_store_says_becomes_one_printable_line(
    op: Op, status: int, code: str, says: str, key_id: str, region: str
) -> None:
    told = bucket_error(reply(status, code, Message=says, AWSAccessKeyId=key_id, Region=region), asked(op))
    assert isinstance(told, BucketError)
    assert str(told).isprintable()
    assert len(str(told)) < 1000


def test_only_a_whole_access_key_id_has_an_end_to_show() -> None:
    assert Refusal(403, "x", key_id="abcd").who == ""
    assert "short" not in str(refusal_error(Refusal(403, "InvalidAccessKeyId", key_id="short"), asked()))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://h:1/a@b", "h:1"),
        ("http://u:p@h/", "h"),
        ("http://[::1]:9", "[::1]:9"),
        ("http://[x", "[x"),
        ("AWS", "AWS"),
    ],
)
def test_a_host_is_told_without_a_password(url: str, host: str) -> None:
    assert host_of(url) == host
