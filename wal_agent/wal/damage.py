"""Find what a damaged log lacks, and report it: blobs that the bucket no longer has, what can be restored, and how to
go on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from wal_agent.bucket import encryption
from wal_agent.bucket import file as frame
from wal_agent.bucket.base import Bucket
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import BucketError, Damaged, UsageError
from wal_agent.records import Payload
from wal_agent.text import bucket_option, command, shorten, timestamp
from wal_agent.wal.blobs import CHUNK, Blobs, drop_overwritten
from wal_agent.wal.keys import Keys, is_blob
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.reader import Damage, KnownEnd, Replay, check_end, iter_replays_back, read_tail, replay
from wal_agent.wal.state import FileState, State

PARALLEL = 16
EACH = 200  # up to so many blobs are asked for one by one, some at a time; more by one listing of all blobs
_AROUND = {
    a + b for a in (0, encryption.SEALED_OVERHEAD) for b in (0, frame.FRAME_OVERHEAD)
}  # bytes that a stored object has more
RESTORE_HINT = "Write what can be had into a new folder with `wal-agent restore --to DIR`"
NEW_JOB_HINT = "work on under another name: --job NAME."


class BlobProblem(msgspec.Struct, frozen=True):
    """A blob that cannot be had, and one of the things that need it."""

    name: str
    what: str
    why: str


class CheckedBlobs(msgspec.Struct):
    """What was found out of blobs: which are there, and of which the content is right (`read`) or not (`bad`)."""

    there: set[str] = msgspec.field(default_factory=set)
    read: set[str] = msgspec.field(default_factory=set)
    bad: dict[str, str] = msgspec.field(default_factory=dict)


def needed_blobs(state: State, session: bool = True, tree: bool = True) -> dict[str, tuple[int, str]]:
    """Bytes of each blob that a restore of the state reads, and what needs it."""
    found: dict[str, tuple[int, str]] = {}
    for path, file in state.files.items() if session else ():
        found |= {name: (size, f"the session's file {path}") for name, size in _of_file(drop_overwritten(file))}
    if tree and state.workspace is not None:
        packs = (pack for each in (state.workspace, *state.inside.values()) for pack in each.packs)
        parts = (part for pack in packs for part in pack.parts)
        found |= {part.blob: (part.size, "the working tree") for part in parts if part.blob is not None}
    return found


def _of_file(file: FileState) -> Iterator[tuple[str, int]]:
    for n, name in enumerate(file.chunks):
        yield name, min(CHUNK, max(0, file.base_size - n * CHUNK))
    for delta in file.layers:
        for edit in delta.edits:
            if edit.data.blob is not None:
                yield edit.data.blob, edit.data.size


def find_missing_blobs(
    bucket: Bucket, keys: Keys, needed: dict[str, tuple[int, str]], known: CheckedBlobs
) -> list[BlobProblem]:
    """Those of the blobs that are not there, or are not as long as they should be. No blob is read. Adds to
    `known`, and does not ask again for what is there."""
    names = sorted(name for name in needed if name not in known.there)
    sizes = _sizes(bucket, keys, [name for name in names if is_blob(name)])
    lacks = []
    for name in names:
        size, what = needed[name]
        if name not in sizes:
            lacks.append(BlobProblem(name, what, f"Blob {name[:64]} of job {keys.job} is missing."))
        elif sizes[name] - size not in _AROUND:
            why = f"Blob {name} of job {keys.job} is damaged: it has not the {size} bytes that it should have."
            lacks.append(BlobProblem(name, what, why))
        else:
            known.there.add(name)
    return lacks


def _sizes(bucket: Bucket, keys: Keys, names: Collection[str]) -> dict[str, int]:
    """Bytes as stored, of those that are there. A listing of a folder reads all of it, so there one is enough."""
    if not names:
        return {}
    if len(names) > EACH or bucket.url.startswith(("file:", "memory:")):
        listed = ((e.key.rpartition("/")[2], e.size) for e in bucket.list(keys.blobs))
        wanted = set(names)
        return {name: size for name, size in listed if name in wanted}

    def one(name: str) -> int | None:
        found = next(iter(bucket.list(keys.blob(name))), None)  # names that go on come behind it
        return found.size if found is not None and found.key == keys.blob(name) else None

    sizes = zip(names, prefetch_map(one, names, min(PARALLEL, len(names))), strict=True)
    return {name: size for name, size in sizes if size is not None}


def find_damaged_blobs(blobs: Blobs, needed: dict[str, tuple[int, str]], known: CheckedBlobs) -> list[BlobProblem]:
    """Those of the blobs whose content is not what it should be: each is read, once for one `known`."""

    def one(name: str) -> str:
        size, _ = needed[name]
        try:
            blobs.fetch(Payload(size=size, blob=name))
        except Damaged as error:
            return error.what
        return ""

    names = sorted(needed.keys() - known.read - known.bad.keys())
    for name, why in zip(names, prefetch_map(one, names, blobs.parallel), strict=True):
        if why:
            known.bad[name] = why
        else:
            known.read.add(name)
    return [BlobProblem(name, needed[name][1], known.bad[name]) for name in sorted(needed) if name in known.bad]


def newest_restorable(
    bucket: Bucket, keys: Keys, upto: int, known: CheckedBlobs, blobs: Blobs | None = None
) -> Replay | None:
    """The newest place in the log, at record `upto` or before, whose session and working tree can be had whole; None:
    there is none. `blobs`: their content is read, too."""
    listed = {e.key.rpartition("/")[2]: e.size for e in bucket.list(keys.blobs)}
    for at in iter_replays_back(bucket, keys, upto):
        state, wanted = at.state, needed_blobs(at.state)
        if not (state.files or state.workspace):
            continue
        if any(name in known.bad or listed.get(name, -1) - size not in _AROUND for name, (size, _) in wanted.items()):
            continue
        if blobs is None or not find_damaged_blobs(blobs, wanted, known):
            return at
    return None


def damaged_log_error(d: Damage) -> Damaged:
    """Build the error for a damaged log."""
    if d.good < 1:
        return Damaged(f"{d.why} Nothing before it can be restored.", f"{NEW_JOB_HINT[:1].upper()}{NEW_JOB_HINT[1:]}")
    what = f"{d.why} Everything up to record {d.good} ({timestamp(d.time)}) can be restored."
    return Damaged(what, f"Write it into a new folder with `wal-agent restore --at {d.good} --to DIR`; {NEW_JOB_HINT}")


def sound_state(found: Replay) -> State:
    """Return the state of a log that could be read to its end. Damaged."""
    if found.damage is not None:
        raise damaged_log_error(found.damage)
    return found.state


def with_hint(error: Damaged) -> Damaged:
    """Add how to go on to `error`, of a session whose log is sound."""
    return Damaged(error.what, f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def lost_blobs_error(lacks: Sequence[BlobProblem], whole: Replay | None, keys: Keys, options: str = "") -> Damaged:
    """Build the error for missing blobs. `whole`: the newest record that can be restored; `options`: see
    `restore_command`."""
    first, others = lacks[0], len(lacks) - 1
    more = f" So {'is 1 more' if others == 1 else f'are {others} more'}." if others else ""
    what = f"{first.why[:-1]}, and {shorten(first.what, 100)} needs it.{more}"
    return Damaged(what, restore_hint(whole, keys, options) or f"{RESTORE_HINT}; {NEW_JOB_HINT}")


def restore_hint(whole: Replay | None, keys: Keys, options: str = "") -> str:
    """Return the command for the newest record that can be restored whole; "" for none."""
    if whole is None:
        return ""
    return (
        f"Record {whole.seq} ({timestamp(whole.time)}) can be had whole: `{restore_command(keys, whole.seq, options)}`"
    )


def restore_command(keys: Keys, seq: int, options: str = "") -> str:
    """Return the command. `options`: the job and its bucket, as `Place.options` gives them."""
    return command("restore", options, "--at", str(seq), "--to", f"{keys.job}-record-{seq}")


def unknown_job_error(bucket: Bucket, keys: Keys) -> UsageError:
    """Build the error for a named job of which the bucket holds nothing."""
    return UsageError(
        f"There is no job {keys.job} in {bucket.url}.",
        f"Its jobs: {command('list', bucket_option(bucket.url))}",
    )


def missing_lease_error(bucket: Bucket, keys: Keys) -> Damaged | None:
    """Build the error for a job without a lease; None where it has no log either. Raises Damaged."""
    end = read_tail(bucket, keys)
    if end.seq == 0:
        return None
    what = f"The lease of job {keys.job} is missing, but its log reaches record {end.seq}."
    return Damaged(what, "The next `wal-agent run` makes a new one and recovers.")


def explain_open_error(bucket: Bucket, keys: Keys, seen: StoredLease | None, error: Damaged) -> Damaged:
    """Replace `error`, raised while the job was opened, by one with what can be restored, where the log is damaged and
    the bucket is readable."""
    try:
        found = check_end(replay(bucket, keys), keys.job, KnownEnd.by(seen))
    except (BucketError, Damaged):
        return error
    return error if error.hint or found.damage is None else damaged_log_error(found.damage)
