"""Decide what a run does about requests that come over a server (messages/requests.py): for checkpoints, and prompts.

The same setting as for control messages (`control`) says what is allowed. Nothing here changes the run but a checkpoint
that is asked for; a prompt is a message to the job like any other.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wal_agent.config import GIVES
from wal_agent.conversation.checkpoint import NOTE, newest_usable
from wal_agent.errors import Unavailable, UsageError
from wal_agent.inbox import Driver, Message, identity_of, make_message
from wal_agent.supervise.context import RunContext
from wal_agent.supervise.inbox import Inbox
from wal_agent.text import job_command
from wal_agent.wal.state import State

PROMPTS_FROM: Final = "synadia"  # the sender of prompts, which is not verified


def newest_checkpoint(state: State, job: str) -> Any:
    """Return what `wal-agent checkpoint show --json` prints. UsageError: there is none. Pure."""
    found = newest_usable(state).document
    if found is None:
        raise UsageError(f"Job {job} has no checkpoint.", f"To make one: request agent.{job}.checkpoint.create")
    return msgspec.to_builtins(found)


class RequestDesk:
    """Answers for one run, from threads of its connection. `secret`: the job is encrypted, so nothing of it is given
    away."""

    def __init__(self, context: RunContext, driver: Driver, inbox: Inbox, secret: bool) -> None:
        self._job, self._writer = context.job.keys.job, context.job.writer
        self._allowed = frozenset(filter(None, context.settings.control.split(",")))
        self._driver, self._inbox, self._secret = driver, inbox, secret

    def create_checkpoint(self, note: str) -> dict[str, object]:
        """As `wal-agent send --control checkpoint NOTE`. UsageError: it is not allowed; Unavailable."""
        self._check("checkpoint")
        if (control := self._inbox.control) is None:
            raise Unavailable(f"No agent of job {self._job} runs now: the run starts or ends.", "Try again.")
        return {"job": self._job, "answer": control("checkpoint", note[:NOTE])}

    def newest_checkpoint(self) -> Any:
        """UsageError: it is not allowed, or there is none."""
        self._check(GIVES)
        if self._secret:
            raise UsageError(
                f"Job {self._job} is encrypted, so nothing of it is sent over a server.",
                f"With its key: {job_command('checkpoint show', self._job, '')}",
            )
        return newest_checkpoint(self._writer.acked.state, self._job)

    def send(self, text: str) -> Message:
        """UsageError: it cannot be a message; BucketError."""
        message = make_message(text, PROMPTS_FROM)
        self._driver.send(message)
        return message

    def progress(self, message: Message) -> Any:
        """`waits`, `given` or `seen`, as the log says."""
        known = [m for m in self._writer.acked.state.messages if identity_of(m.sender, m.id) == message.identity]
        return "waits" if not known else "seen" if known[-1].seen else "given"

    def _check(self, verb: str) -> None:
        if verb not in self._allowed:
            raise UsageError(
                "The settings of this run do not allow it (control).",
                f'In your own wal-agent.toml: control = "{",".join(sorted({*self._allowed, verb}))}"',
            )
