"""Buckets: objects with conditional puts. `open_bucket` is the way in, base.py is the contract."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from wal_agent.bucket.base import Bucket, Entry, Object, Version
from wal_agent.bucket.folder import known_bucket_id
from wal_agent.errors import ConfigError
from wal_agent.extras import required
from wal_agent.paths import state_dir

__all__ = ["Bucket", "Entry", "Object", "Version", "default_url", "folder_of", "marker_of", "open_bucket"]

_in_memory: dict[str, Bucket] = {}
_in_memory_lock = threading.Lock()


def open_bucket(url: str) -> Bucket:
    """The bucket under a URL or plain absolute path; ConfigError for anything else. Nothing is made yet."""
    if url.startswith("/"):
        return _open_folder(url)
    scheme, separator, rest = url.partition("://")
    match scheme.lower() if separator else "":
        case "file":
            return _open_folder(_path_of(url))
        case "memory":
            return _open_memory(rest)
        case "gs":
            with required("gcs", "A gs:// bucket"):
                from wal_agent.bucket.gcs import GcsBucket
            return GcsBucket(url)
        case "s3":
            with required("s3", "An s3:// bucket"):
                from wal_agent.bucket.s3 import S3Bucket
            return S3Bucket(url)
        case "az":
            with required("azure", "An az:// bucket"):
                from wal_agent.bucket.azure import AzureBucket
            return AzureBucket(url)
    raise ConfigError(
        f"{url!r} is not a bucket.", "Give file:///absolute/path, an absolute path, gs://, s3:// or az://."
    )


def default_url(env: Mapping[str, str]) -> str:
    """The bucket that is used when none is named: in the user's state folder (XDG base directory specification)."""
    return (state_dir(env) / "bucket").absolute().as_uri()


def marker_of(url: str) -> str:
    """The id of the marker of the bucket `url` (as a bucket says it); "" where it has none. Unavailable, Denied."""
    from wal_agent.bucket.file import FileBucket

    return FileBucket(Path(_path_of(url))).marker() if url.startswith("file:") else ""


def folder_of(url: str) -> Path | None:
    """The folder of a bucket that is one; None for a store. ConfigError: no bucket's URL."""
    if url.startswith("/"):
        return Path(_without_zero(url))
    return Path(_path_of(url)) if url.lower().startswith("file://") else None


def _open_folder(path: str) -> Bucket:
    from wal_agent.bucket.file import FileBucket

    root = Path(_without_zero(path)).absolute()
    return FileBucket(root, known=known_bucket_id(root.as_uri(), os.environ))


def _open_memory(name: str) -> Bucket:
    from wal_agent.bucket.base import MemoryBucket

    with _in_memory_lock:
        return _in_memory.setdefault(name, MemoryBucket(url=f"memory://{name}"))


def _path_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL ({error}).", "Write: file:///home/me/bucket.") from None
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(
            f"{url} does not name an absolute path.", "Write it with three slashes: file:///home/me/bucket."
        )
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ConfigError(f"{url} holds a bare ? or #.", "In a file:// URL write %3F for ? and %23 for #.")
    return _without_zero(unquote(parts.path, errors="surrogateescape"))


def _without_zero(path: str) -> str:
    if "\0" in path:
        raise ConfigError(
            f"{path!r} is not a path: it holds a zero byte.", "Name another folder: --bucket file:///folder."
        )
    return path
