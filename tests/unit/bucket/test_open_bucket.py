from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from wal_agent.bucket import default_url, folder_of, open_bucket
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/var/lib/b", "/var/lib/b"),
        ("/with space/100%/a%20b", "/with space/100%/a%20b"),
        ("file:///var/lib/b", "/var/lib/b"),
        ("FILE:///b", "/b"),
        ("file://localhost/b", "/b"),
        ("file:///a%20b/100%25/%23/%3F/%C3%A9", "/a b/100%/#/?/é"),
        ("file:///a b/é", "/a b/é"),
    ],
)
def test_a_folder(url: str, path: str) -> None:
    bucket = open_bucket(url)
    assert isinstance(bucket, FileBucket)
    assert bucket.root == Path(path)
    again = open_bucket(bucket.url)
    assert isinstance(again, FileBucket)
    assert again.root == bucket.root


def test_a_folder_whose_name_is_no_text_comes_back_too() -> None:
    url = open_bucket("/b\udcff").url
    assert url == "file:///b%FF"
    again = open_bucket(url)
    assert isinstance(again, FileBucket)
    assert again.root == Path("/b\udcff")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://b/p", "names no bucket"),
        ("gs://bucket/p?x", "prefix"),
        ("s3://b/p", "does not name an S3 bucket"),
        ("s3://bucket/p?x", "prefix"),
        ("file://relative/path", "three slashes"),
        ("file://", "three slashes"),
        ("file:///a?b", "%3F"),
        ("file:///a#b", "%23"),
        ("file:///a?", "%3F"),
        ("file:///a%00b", "zero byte"),
        ("/a\0b", "zero byte"),
        ("file://[::1/a", "is not a URL"),
        ("file:/a", "is not a bucket"),
        ("relative", "is not a bucket"),
        ("~/b", "is not a bucket"),
        ("", "is not a bucket"),
        ("http://b", "is not a bucket"),
    ],
)
def test_what_is_no_bucket_is_told_in_one_sentence(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_bucket(url)
    if url.startswith(("file://", "/")):  # as a start asks, before it opens anything
        with pytest.raises(ConfigError, match=says):
            folder_of(url)


def test_memory_is_shared_by_name_in_this_process() -> None:
    open_bucket("memory://test-open-1").put("a", b"1")
    assert open_bucket("memory://test-open-1").get("a").data == b"1"
    assert [*open_bucket("memory://test-open-2").list("")] == []
    assert open_bucket("memory://test-open-1").url == "memory://test-open-1"


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({"HOME": "/home/me"}, "file:///home/me/.local/state/wal-agent/bucket"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "/s t"}, "file:///s%20t/wal-agent/bucket"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": ""}, "file:///home/me/.local/state/wal-agent/bucket"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "rel"}, "file:///home/me/.local/state/wal-agent/bucket"),
        ({}, f"{Path(pwd.getpwuid(os.getuid()).pw_dir).as_uri()}/.local/state/wal-agent/bucket"),
    ],
)
def test_the_default_is_in_the_users_state_folder(env: dict[str, str], url: str) -> None:
    assert default_url(env) == url
    open_bucket(url)
