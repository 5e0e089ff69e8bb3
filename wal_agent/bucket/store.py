"""What buckets in object stores over HTTP share: whole seconds, bounds, and listings that are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime

from wal_agent.bucket.base import Entry, Object, Version, is_key
from wal_agent.errors import Damaged

MAX_BYTES = 256 << 20  # of an object that is read into memory; wal-agent's end at 64 MiB
PAGE_SIZE = 1000  # entries; the most that the stores put into one page
CONNECTIONS = 32  # kept open; blobs are uploaded in parallel beside the writer, the renewer and the reader
# An append has 20 s: a connection or a reply that does not come leaves time for another send of the same bytes.
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0  # seconds


def object_in_seconds(data: bytes, version: Version, updated: float, date: float) -> Object:
    """An object of a store that cuts its times to whole seconds.

    An age that is too high would make a live owner seem dead, so `now` is a second early: then the age is at most the
    true one, and at most two seconds less."""
    return Object(data, version, updated, max(updated, date - 1.0))


def http_date(header: str) -> float:
    """Seconds since 1970 of an HTTP date, which is always in GMT; ValueError or TypeError when it is none."""
    return parsedate_to_datetime(header).replace(tzinfo=UTC).timestamp()


def too_large_error(what: str) -> Damaged:
    return Damaged(f"{what} is larger than {MAX_BYTES >> 20} MiB; wal-agent writes no such object.")


def checked_entries(
    listed: Iterable[Entry], prefix: str, start_after: str, unordered: Callable[[], Exception]
) -> Iterator[Entry]:
    """The entries that were asked for, without what a stranger put there. Raises what `unordered` gives where the store
    does not list in the order of names: the end of a log could not be found there."""
    last = start_after
    for entry in listed:
        if not is_key(entry.key) or not entry.key.startswith(prefix) or entry.key <= start_after:
            continue
        if entry.key <= last:
            raise unordered()
        last = entry.key
        yield entry


def checked_folders(names: Iterable[str], base: str, prefix: str) -> Iterator[str]:
    """The names of folders right below `prefix` (`base` in the store), each once: emulators repeat a folder on each
    page that has objects of it."""
    given = set[str]()
    for name in names:
        below = name.removeprefix(base).removesuffix("/")
        if name == f"{base}{below}/" and "/" not in below and is_key(prefix + below) and below not in given:
            given.add(below)
            yield below
