"""Look for messages to jobs that do not run (`wal-agent fleet watch --on-message`).

A look takes nothing away, and reads each message once for as long as its job is at rest. The messages are foreign: only
their identities and their verbs are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.errors import WalAgentError
from wal_agent.fleet.jobs import Job, JobState
from wal_agent.inbox import MAX_AT_ONCE, Driver, Message, identity_of
from wal_agent.recovery.lease_policy import classify_stop
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

AT_REST: Final[tuple[JobState, ...]] = ("crashed", "due", "released", "closed", "paused")
SHORT: Final = 12  # hex digits of an identity that are kept


class WaitingJob(msgspec.Struct, frozen=True):
    """A job at rest and the messages that wait for it, as short identities; never none."""

    job: Job
    messages: tuple[str, ...]


def may_wake(job: Job) -> bool:
    """Whether messages may wake `job`: it does not run, and no person is needed first. Pure."""
    return job.state in AT_REST and classify_stop(job.reason) != "halted"


def waking(job: Job, messages: Sequence[Message]) -> WaitingJob | None:
    """What of `messages` wakes `job`; None: nothing. A pause is ended by a control message alone. Pure."""
    found = [m for m in messages if job.state != "paused" or m.verb == "resume"]
    return WaitingJob(job, tuple(sorted(m.identity[:SHORT] for m in found))) if found else None


class Inboxes:
    """The inboxes of the jobs of one bucket. `open` gives what carries the messages of a job; each is kept open while
    its job is at rest."""

    def __init__(self, open: Callable[[str], Driver], bucket: Bucket, say: Callable[[str], None]) -> None:
        self._open, self._bucket, self._say = open, bucket, say
        self._at: dict[tuple[str, int], tuple[Driver, dict[str, Message]]] = {}
        self._trouble = ""

    def look(self, jobs: Sequence[Job]) -> list[WaitingJob]:
        """Return the jobs that messages wake. A carrier that is away is reported once, and asked again."""
        rest = {(job.job, job.epoch): job for job in jobs if may_wake(job)}
        for gone in self._at.keys() - rest.keys():
            self._close(gone)
        found = [waking(job, self._messages(key)) for key, job in rest.items()]
        return [each for each in found if each is not None]

    def all_seen(self, job: str, messages: Sequence[str]) -> bool:
        """Whether the log of `job` has all these as seen: a run that ended left them to the next one to delete. False
        where the log cannot be read here."""
        try:
            logged = replay(self._bucket, Keys(job)).state.messages
        except WalAgentError:
            return False
        return set(messages) <= {identity_of(m.sender, m.id)[:SHORT] for m in logged if m.seen}

    def _messages(self, key: tuple[str, int]) -> list[Message]:
        if key not in self._at:
            self._at[key] = (self._open(key[0]), {})
        driver, known = self._at[key]
        try:
            if len(known) < MAX_AT_ONCE:
                known |= {m.identity: m for m in driver.fetch(known.__contains__)}
            self._trouble = ""
        except WalAgentError as error:
            if self._trouble != error.what:
                self._trouble = error.what
                self._say(f"messages: {error}")
        return list(known.values())[:MAX_AT_ONCE]

    def _close(self, key: tuple[str, int]) -> None:
        driver, _ = self._at.pop(key)
        with suppress(WalAgentError):
            driver.close()

    def close(self) -> None:
        for key in list(self._at):
            self._close(key)
