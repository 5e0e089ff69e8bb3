"""What a bucket does by itself with a log: versions that pile up, and rules that delete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import fresh_bucket, shared
from tests.unit.bucket.test_s3 import only_the_servers_credentials
from wal_agent.bucket.base import BucketDecorator, MemoryBucket
from wal_agent.bucket.s3 import S3Bucket
from wal_agent.bucket.upkeep import Rule, Upkeep, advise, gs_rules, s3_rules, upkeep_of

__all__ = ["only_the_servers_credentials"]
OLD = Rule("team/", noncurrent=True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Upkeep("team/x/", True, ()), ["noncurrent"]),
        (Upkeep("team/x/", True, (OLD,)), []),
        (Upkeep("team/x/", True, (Rule("other/", noncurrent=True),)), ["noncurrent"]),
        (Upkeep("team/x/", True, (Rule("", noncurrent=True, narrowed=True),)), ["noncurrent"]),
        (Upkeep("team/x/", False, ()), []),
        (Upkeep("team/x/", None, None), []),
        (Upkeep("team/x/", True, None), []),
        (Upkeep("team/x/", False, (Rule("", current=True),)), ["whole bucket"]),
        (Upkeep("team/x/", True, (OLD, Rule("team/x/job/log", current=True))), ["team/x/job/log"]),
        (Upkeep("team/x/", False, (Rule("team/y/", current=True),)), []),
    ],
)
def test_what_a_person_is_told(found: Upkeep, words: list[str]) -> None:
    said = advise(found)
    assert len(said) == len(words) and all(word in text for word, text in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ({"Status": "Enabled", "Prefix": "a/", "Expiration": {"Days": 3}}, (Rule("a/", current=True),)),
        (
            {"Status": "Enabled", "Filter": {"Prefix": "a/"}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}},
            (Rule("a/", noncurrent=True),),
        ),
        (
            {"Status": "Enabled", "Filter": {"And": {"Prefix": "a/", "Tags": []}}, "Expiration": {"Date": "x"}},
            (Rule("a/", current=True, narrowed=True),),
        ),
        ({"Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": True}}, (Rule(),)),
        ({"Status": "Disabled", "Expiration": {"Days": 3}}, ()),
        ({}, ()),
    ],
)
def test_rules_of_s3(rule: dict[str, Any], read: tuple[Rule, ...]) -> None:
    assert s3_rules([rule]) == read


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ({"action": {"type": "Delete"}, "condition": {"age": 3}}, (Rule(current=True),)),
        ({"action": {"type": "Delete"}, "condition": {"isLive": False}}, (Rule(noncurrent=True),)),
        (
            {"action": {"type": "Delete"}, "condition": {"numNewerVersions": 2, "matchesPrefix": ["a/", "b/"]}},
            (Rule("a/", noncurrent=True), Rule("b/", noncurrent=True)),
        ),
        (
            {"action": {"type": "Delete"}, "condition": {"age": 3, "matchesSuffix": [".x"]}},
            (Rule(current=True, narrowed=True),),
        ),
        ({"action": {"type": "SetStorageClass"}, "condition": {"age": 3}}, ()),
        ({}, ()),
    ],
)
def test_rules_of_gs(rule: dict[str, Any], read: tuple[Rule, ...]) -> None:
    assert gs_rules([rule]) == read


def test_a_store_of_s3_is_asked() -> None:
    """Ministack, with what an operator sets; and one that has nothing set."""
    server = shared("ministack")
    made = S3Bucket(f"{fresh_bucket(server)}/team/x", server.endpoint)
    try:
        made.put("a", b"1")
        assert upkeep_of(BucketDecorator(made)) == Upkeep("team/x/", False, ())
        client = made._client(10.0)
        client.put_bucket_versioning(Bucket=made._bucket, VersioningConfiguration={"Status": "Enabled"})
        rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 7}}
        client.put_bucket_lifecycle_configuration(Bucket=made._bucket, LifecycleConfiguration={"Rules": [rule]})
        assert upkeep_of(made) == Upkeep("team/x/", True, (Rule(current=True),))
    finally:
        made.close()


def test_other_stores_have_no_such_thing() -> None:
    assert upkeep_of(MemoryBucket()) is None


def test_what_the_store_does_not_say_is_no_error() -> None:
    nobody = S3Bucket("s3://nothing-is-here", "http://127.0.0.1:9")
    assert upkeep_of(nobody) == Upkeep("", None, None)
