"""Name the subjects and the streams of a job on a NATS server. Pure.

A stream must cover no subject that somebody sends requests to: the stream would answer them itself.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec


class Stream(msgspec.Struct, frozen=True):
    """A stream that is created where it is missing. `per_subject`: how many messages of a subject it keeps, -1: all."""

    name: str
    subjects: tuple[str, ...]
    per_subject: int = -1


EVENTS: Final = Stream(
    "WALAGENT_EVENTS",
    (
        "agent.*.checkpoint.created",
        "agent.*.checkpoint.restored",
        "agent.*.checkpoint.failed",
        "agent.*.status",
    ),
    per_subject=48,
)
INBOX: Final = Stream("WALAGENT_INBOX", ("agent.*.inbox", "agent.*.inbox.*", "agent.*.control.*"))
OUTBOX: Final = Stream("WALAGENT_OUTBOX", ("agent.*.outbox.>",))


def job_token(job: str) -> str:
    """Return a job's name as one token of a subject: a dot, which would part it, is written as `~`, which no job's name
    has."""
    return job.replace(".", "~")


def subject(job: str, *words: str) -> str:
    """Return `agent.<job>.<words>`."""
    return ".".join(("agent", job_token(job), *words))


def token(text: str) -> str:
    """Return any text as one token."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)[:64] or "-"


class Persona(msgspec.Struct, frozen=True):
    """A job as the Synadia Agent Protocol 0.3 names it (section 2): three tokens of a subject."""

    agent: str
    owner: str
    session: str

    def subject(self, verb: Literal["hb", "prompt", "status"]) -> str:
        return f"agents.{verb}.{self.agent}.{self.owner}.{self.session}"


def persona_of(agent: str, owner: str, job: str) -> Persona:
    return Persona(token(agent), token(owner), job_token(job))
