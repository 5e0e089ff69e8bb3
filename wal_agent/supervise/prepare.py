"""Between the opening and the agent's start: the plan, and carrying it out (DESIGN 7). Nothing on disk is touched before
the plan (R2)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from wal_agent.agents.base import NewSession, ResumeSession
from wal_agent.capture.session import SessionCapture
from wal_agent.records import AnyRecord, Payload


@dataclass(frozen=True, slots=True)
class Prepared:
    session: NewSession | ResumeSession
    args: tuple[str, ...]

    def capture(self, put):
        return SessionCapture(self.session.id, put)

    def settle(self):
        return []


def prepare(wish, opened, here, interactive, clock, screen, check):
    screen.say(f"job {opened.keys.job}, saved to {wish.settings.bucket}")
    return Prepared(NewSession(wish.agent.session_of(wish.args) or str(uuid.uuid4())), wish.args)
