from __future__ import annotations

import json

import pytest

from wal_agent.bucket.gcs import Op, refusal_error, reply_text
from wal_agent.errors import Conflict, Denied, Misconfigured, NotFound, Unavailable, WalAgentError
from wal_agent.text import quote

BUCKET = "gs://bucket-1/p"
OPS: list[Op] = ["get", "create", "replace", "delete", "list"]
NO_BUCKET = "The specified bucket does not exist."


def error(op: Op, status: int, text: str = "", who: str = "") -> WalAgentError:
    return refusal_error(op, BUCKET, "a/b", who, status, text)


@pytest.mark.parametrize(
    ("op", "status", "text", "kind"),
    [
        ("create", 412, "", Conflict),
        ("replace", 412, "", Conflict),
        ("replace", 404, "No such object: bucket-1/p/a/b", Conflict),
        ("replace", 404, NO_BUCKET, Misconfigured),
        ("create", 404, "Not Found", Misconfigured),
        ("get", 404, "No such object: bucket-1/p/a/b", NotFound),
        ("get", 404, NO_BUCKET, Misconfigured),
        ("delete", 404, "", NotFound),
        ("list", 404, "", Misconfigured),
        *((op, status, "", Unavailable) for op in OPS for status in (302, 400, 408, 409, 429, 500, 503, 599)),
        *((op, status, "", Denied) for op in OPS for status in (401, 403)),
    ],
)
def test_what_a_status_means(op: Op, status: int, text: str, kind: type[WalAgentError]) -> None:
    assert type(error(op, status, text)) is kind


def test_a_missing_bucket_is_named_without_the_prefix_and_with_the_command_that_makes_it() -> None:
    assert "`gcloud storage buckets create gs://bucket-1`" in str(error("get", 404, NO_BUCKET))


def test_the_store_knows_best_who_lacks_what() -> None:
    text = "bot@proj.iam.gserviceaccount.com does not have storage.objects.delete access to the object."
    denied = str(error("replace", 403, text, who="other@x"))
    assert "bot@proj.iam.gserviceaccount.com has no storage.objects.delete on gs://bucket-1/p." in denied
    assert "other@x" not in denied
    assert "gcloud auth list" in denied


@pytest.mark.parametrize(
    ("op", "permission"),
    [
        ("get", "storage.objects.get"),
        ("create", "storage.objects.create"),
        ("replace", "storage.objects.create and storage.objects.delete"),
        ("delete", "storage.objects.delete"),
        ("list", "storage.objects.list"),
    ],
)
def test_a_store_that_says_nothing_leaves_it_to_us(op: Op, permission: str) -> None:
    assert f"bot@proj has no {permission} on gs://bucket-1/p." in str(error(op, 403, who="bot@proj"))


def test_another_reason_to_refuse_is_told_in_the_stores_words() -> None:
    reason = "Object is subject to bucket's retention policy."
    assert reason in str(error("delete", 403, reason))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (json.dumps({"error": {"message": "Try\nagain\x1b[31m."}}).encode(), "Try again [31m."),
        (b"<html>\r\nno</html>", "<html> no</html>"),
        (b'{"error": "x"}', '{"error": "x"}'),
        (b"[1]", "[1]"),
        (b"\xff\x00", "\N{REPLACEMENT CHARACTER}"),
        (b"[" * 100_000, "[" * 200 + "..."),
        (b"", ""),
    ],
    ids=range(7),
)
def test_a_strangers_text_becomes_one_short_line(body: bytes, text: str) -> None:
    assert quote(reply_text(body)) == text


def test_a_secret_that_the_store_repeats_is_not_told() -> None:
    token = "ya29." + "a0" * 30
    assert token not in str(error("get", 401, reply_text(token.encode()))) + str(
        error("get", 500, reply_text(token.encode()))
    )
