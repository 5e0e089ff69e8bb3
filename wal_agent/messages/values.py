"""Keep the values of a job's steps in a JetStream KV bucket of its own, fenced by the lease's epoch (docs/STEPS.md).

The end of the stream is the lock, as the end of the log is (decisions 001 and 058): each write names the sequence that
it follows, and the server refuses it if anything was written since. The first write of a run is a mark with its epoch.
An earlier run does not know that sequence, so its write is refused; then it reads the mark and has lost the job.
All that is read is hostile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, TypeVar

import msgspec
import nats.errors
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, Header, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from wal_agent import msgspec_compat
from wal_agent.errors import Conflict, Damaged, Exhausted, Fenced, Unavailable, UsageError
from wal_agent.messages.connection import Connection
from wal_agent.messages.nats_driver import TAKEN
from wal_agent.text import shorten

T = TypeVar("T")
DEADLINE: Final = 10.0  # seconds for one method
OVERHEAD: Final = 2048  # bytes for subject and headers below the server's max_payload
MAX_NAMES: Final = 5000  # that are read; a job keeps fewer
BATCH: Final = 500
BATCH_WAIT: Final = 2.0  # seconds
MARK: Final = "=epoch"  # key of the mark; key_of never returns it
META: Final = "WalAgent"  # header of a value
OPERATION: Final = "KV-Operation"  # header of a deletion (ADR-8 of NATS)

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # seconds since 1970


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a value beside its bytes. `expires` 0: never; `first`: openings when its name was new."""

    time: Time = 0.0
    expires: Time = 0.0
    attempt: Count = 1
    first: Count = 1


class EpochMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which epoch has the bucket. `base` is added to a sequence, so that no version equals one of the log."""

    epoch: Count = 0
    base: Count = 0


class ValueAt(msgspec.Struct, frozen=True):
    """A value under its name. `seq`: its place in the stream."""

    seq: int
    version: int
    size: int
    meta: Meta


class Known(msgspec.Struct, frozen=True):
    """The bucket as of sequence `last` of the stream, read over connection number `link`."""

    link: int
    last: int
    base: int
    values: Mapping[str, ValueAt]


_meta = msgspec_compat.of_json(Meta)
_mark = msgspec_compat.of_json(EpochMark)


def key_of(name: str) -> str:
    """Return the key of a step's name: `=XX` for each character that a key cannot have. Pure."""
    return re.sub(r"[^A-Za-z0-9_/-]", lambda found: f"={ord(found[0]):02X}", name)


def name_of(key: str) -> str:
    """Return the name of a key. Pure."""
    return re.sub(r"=([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), key)


class KvValues:
    """The values of one job. Methods block, are called from threads, and raise Unavailable where the server is away."""

    def __init__(self, link: Connection, bucket: str, epoch: int = 0, fresh: bool = False, base: int = 0) -> None:
        """`epoch`: of the run that writes, 0: only read. `fresh`: the job begins, so values in the bucket are of a
        deleted one. `base`: the newest version in the log."""
        self._link, self._bucket = link, bucket
        self._stream, self._prefix = f"KV_{bucket}", f"$KV.{bucket}."
        self._epoch, self._fresh, self._base = epoch, fresh, base
        self._lock = asyncio.Lock()
        self._now: Known | None = None
        if epoch:
            link.serve(self._mark_early)

    def known(self) -> Known:
        """Return names and versions. Fenced: a later run has marked the bucket; Damaged: the mark is not ours;
        Exhausted: there are too many names."""
        return self._call(self._ready)

    def put(
        self, name: str, data: bytes, after: Known, *, time: float, expires: float, attempt: int, first: int
    ) -> int:
        """Keep `data` under `name` and return its version. Conflict: something was written after `after`; UsageError:
        the server takes no message of this size."""
        meta = Meta(time=time, expires=expires, attempt=attempt, first=first)
        headers = {META: msgspec.json.encode(meta).decode()}

        async def act(client: Client) -> int:
            most = client.max_payload - OVERHEAD
            if len(data) > most:
                what = f"The value has {len(data)} bytes; this NATS server takes {most}."
                raise UsageError(what, "Keep it in a file, and its name here; or raise max_payload of the server.")
            seq = await self._write(client, name, data, headers, after)
            at = ValueAt(seq, after.base + seq, len(data), meta)
            self._now = replace(after, last=seq, values={**after.values, name: at})
            return at.version

        return self._call(act)

    def delete(self, names: Sequence[str], after: Known) -> None:
        """Delete the values of `names`. Conflict."""

        async def act(client: Client) -> None:
            known = after
            for name in names:
                seq = await self._write(client, name, b"", {OPERATION: "DEL"}, known)
                values = {each: at for each, at in known.values.items() if each != name}
                self._now = known = replace(known, last=seq, values=values)
                with suppress(APIError):  # the marker is of no use any more
                    await client.jetstream(timeout=DEADLINE).delete_msg(self._stream, seq)

        if names:
            self._call(act)

    def read(self, at: ValueAt) -> bytes:
        """Return the bytes of a value. Unavailable: it was replaced or deleted."""

        async def act(client: Client) -> bytes:
            try:
                return (await client.jetstream(timeout=DEADLINE).get_msg(self._stream, at.seq)).data or b""
            except NotFoundError as error:
                self._now = None
                raise Unavailable("The value has changed meanwhile.", "Read it again.") from error

        return self._call(act)

    def close(self) -> None:
        self._link.close()

    def _call(self, act: Callable[[Client], Awaitable[T]]) -> T:
        async def locked(client: Client) -> T:
            async with self._lock:
                return await act(client)

        try:
            return self._link.call(locked, DEADLINE)
        except APIError as error:
            why = shorten(str(error.description), 200)
            raise Unavailable(f"The NATS server refused it: {why}.", "Try again.") from error

    # ---- in the loop

    async def _mark_early(self, client: Client) -> None:
        """Mark the bucket with each new connection, before the first question: an earlier run can put nothing then."""
        with suppress(Fenced, Damaged, Exhausted):
            async with self._lock:
                await asyncio.wait_for(self._ready(client), DEADLINE)

    async def _write(self, client: Client, name: str, data: bytes, headers: dict[str, str], after: Known) -> int:
        self._now = None  # without an answer it is not known what is there
        follows = {Header.EXPECTED_LAST_SEQUENCE.value: str(after.last)}
        api = client.jetstream(timeout=DEADLINE)
        try:
            subject = self._prefix + key_of(name)
            return (await api.publish(subject, data, stream=self._stream, headers={**headers, **follows})).seq
        except APIError as error:
            if error.err_code == TAKEN:
                raise Conflict("Something else was written meanwhile.") from error
            raise

    async def _ready(self, client: Client) -> Known:
        """Return what is there, read anew where something was written since, in a bucket that this run has marked."""
        api = client.jetstream(timeout=DEADLINE)
        while True:
            link = self._link.number
            try:
                last = (await api.stream_info(self._stream)).state.last_seq  # first: what is newer is a conflict later
            except NotFoundError:
                if not self._epoch:
                    return Known(link, 0, 0, {})
                await self._create(api)
                continue
            if self._now is not None and (self._now.link, self._now.last) == (link, last):
                return self._now
            mark = await self._read_mark(api)
            if self._epoch and mark.epoch > self._epoch:
                raise Fenced(f"Another run has the job, with epoch {mark.epoch}; this one has {self._epoch}.")
            if self._epoch and mark.epoch < self._epoch:
                await self._take(api, mark, last)
                continue
            self._now = Known(link, last, mark.base, await self._read_all(api, mark.base))
            return self._now

    async def _create(self, api: JetStreamContext) -> None:
        """Create the stream as `nats kv add` does, but allow to delete single messages."""
        await api.add_stream(
            StreamConfig(
                name=self._stream,
                subjects=[f"{self._prefix}>"],
                storage=StorageType.FILE,
                max_msgs_per_subject=1,
                allow_rollup_hdrs=True,
                allow_direct=True,
            )
        )

    async def _read_mark(self, api: JetStreamContext) -> EpochMark:
        try:
            found = await api.get_last_msg(self._stream, self._prefix + MARK)
            return EpochMark() if (found.headers or {}).get(OPERATION) else _mark.decode(found.data or b"")
        except NotFoundError:
            return EpochMark()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            what = f"{MARK} in the KV bucket {self._bucket} was not written by wal-agent."
            raise Damaged(what, f"Look: nats kv get {self._bucket} '{MARK}'") from error

    async def _take(self, api: JetStreamContext, mark: EpochMark, last: int) -> None:
        """Mark the bucket with this epoch, unless something was written after `last`."""
        if self._fresh:
            await api.purge_stream(self._stream)  # sequences go on
        body = msgspec.json.encode(EpochMark(epoch=self._epoch, base=max(mark.base, self._base)))
        headers = {Header.EXPECTED_LAST_SEQUENCE.value: str(last)}
        try:
            await api.publish(self._prefix + MARK, body, stream=self._stream, headers=headers)
        except APIError as error:
            if error.err_code != TAKEN:
                raise
        else:
            self._fresh = False

    async def _read_all(self, api: JetStreamContext, base: int) -> dict[str, ValueAt]:
        """Read keys and headers of all values, without their bytes."""
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, headers_only=True, mem_storage=True, inactive_threshold=30.0)
        reader = await api.pull_subscribe(f"{self._prefix}>", stream=self._stream, config=config)
        info = await reader.consumer_info()
        found: dict[str, ValueAt] = {}
        try:
            left = info.num_pending or 0
            while left:
                try:
                    messages = await reader.fetch(min(BATCH, left), timeout=BATCH_WAIT)
                except nats.errors.TimeoutError:  # the rest was deleted meanwhile, or the server is slow
                    left = (await reader.consumer_info()).num_pending or 0
                    continue
                for message in messages:
                    left = message.metadata.num_pending
                    key = message.subject.removeprefix(self._prefix)
                    if key != MARK and (at := value_at(message, base)) is not None:
                        found[name_of(key)] = at
                if len(found) > MAX_NAMES:  # none is left out: a value that seems to be missing may be costly
                    what = f"The KV bucket {self._bucket} has more than {MAX_NAMES} keys."
                    raise Exhausted(what, f"Delete those that are not this job's: nats kv ls {self._bucket}")
        finally:
            with suppress(Exception):
                await reader.unsubscribe()
                await api.delete_consumer(self._stream, info.name)
        return found


def value_at(message: Msg, base: int) -> ValueAt | None:
    """Return what the headers of a message say of a value; None for a deletion. Values of other clients have only a
    time and a size."""
    headers = message.headers or {}
    if headers.get(OPERATION):
        return None
    seq = message.metadata.sequence.stream
    meta = Meta(time=message.metadata.timestamp.timestamp())
    with suppress(msgspec.MsgspecError, ValueError):
        meta = _meta.decode(headers[META].encode()) if META in headers else meta
    size = headers.get("Nats-Msg-Size", "0")
    return ValueAt(seq, base + seq, int(size) if re.fullmatch("[0-9]{1,12}", size) else 0, meta)
