"""Give a live run the messages of its job (docs/MESSAGES.md). Guards I1 and I8 for them.

A thread looks for messages; what it finds waits here for the agent's next boundary, where a hook can say something to
the model. The record is durable before the words are given. A message counts as seen when the agent has completed a
turn behind that; a crash before leaves it to the recovery, which looks into the restored session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from wal_agent.concurrency import start_daemon
from wal_agent.errors import WalAgentError
from wal_agent.inbox import MOST_TEXT, Driver, Message, identity_of
from wal_agent.records import MessageGiven, MessageSeen, Payload
from wal_agent.recovery import messages
from wal_agent.shell.quote import fenced, safe
from wal_agent.supervise.context import RunContext
from wal_agent.wal.state import MessageAt, State

NEAR: Final = 2.0  # seconds between two looks into a local folder
SOON: Final = 0.05  # seconds between the word that a message has come and the look
REST: Final = 10  # times as long between two looks while the agent waits for a person
GIVE_WAIT: Final = 2.0  # seconds that a hook waits for the log, where there is a message
MOST_GIVEN: Final = 5  # messages at one boundary
MOST_SHOWN: Final = 6000  # characters of one
MOST_TOLD: Final = 50  # messages in a recovery prompt
TOLD_SHOWN: Final = 400  # characters of each there
ROOM_TOLD: Final = 6000  # characters of all of them there


def unseen(state: State) -> tuple[MessageAt, ...]:
    """The messages that were given and may not have been seen, oldest first. Pure."""
    return tuple(m for m in state.messages if not m.seen and not m.verb)


def describe(message: Message, most: int = MOST_SHOWN) -> str:
    """The words for the model. Pure."""
    block = fenced(safe(message.text, MOST_TEXT), most, indent="")
    return messages.message_text(message.id, message.sender, message.sent, block, len(message.text) > most)


def tell_again(lost: Sequence[Message]) -> str:
    """The part of a recovery prompt on messages that may not have been seen; "" for none. Pure."""
    texts: list[str] = []
    for message in lost[:MOST_TOLD]:
        text = describe(message, TOLD_SHOWN)
        if sum(map(len, texts)) + len(text) > ROOM_TOLD:
            break
        texts.append(text)
    return messages.messages_told_again("\n\n".join(texts), len(lost) - len(texts)) if lost else ""


class Inbox:
    """The messages of one run. `control` carries out a verb with its argument; it is set once the agent runs."""

    def __init__(self, context: RunContext, driver: Driver, every: float, told: Sequence[MessageAt] = ()) -> None:
        """`every`: seconds between two looks. `told`: what the recovery prompt of this run holds."""
        self._driver, self._every = driver, every
        self._writer, self._clock = context.job.writer, context.clock
        self._allowed = frozenset(filter(None, context.settings.control.split(",")))
        self._lock = threading.Lock()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._waiting: list[Message] = []
        self._given = [(m.sender, m.id) for m in told]  # until a turn is completed
        self._mine = {identity_of(*each) for each in self._given}  # what this run has given, or was told
        self._acked: set[str] = set()  # identities that the driver was told to forget
        self.control: Callable[[str, str], None] = lambda verb, text: None
        self.resting: Callable[[], bool] = lambda: False  # whether only a person can go on
        self.problem = ""

    @property
    def waiting(self) -> int:
        """How many messages wait for the agent's next boundary."""
        return len(self._waiting)

    def start(self) -> None:
        self._driver.notify(self._wake.set)
        start_daemon("inbox", self._watch)

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                self.problem = ""
            except (WalAgentError, OSError) as error:
                self.problem = getattr(error, "what", str(error))  # the log reports a bucket that is away; tried again
            if self._wake.wait(self._pause()):
                self._stop.wait(SOON)  # a sender that does not stop is no reason to do nothing else
                self._wake.clear()

    def _pause(self) -> float:
        """Seconds to the next look: a listing costs money, and an agent that waits for a person reads nothing."""
        return self._every * REST if self._every > NEAR and self.resting() else self._every

    def turn_started(self) -> None:
        """A person has gone on: look at once, if the last look may be long ago."""
        if self._every > NEAR:
            self._wake.set()

    def look(self) -> None:
        """Look once: take what is new, carry out control messages, let go what was seen."""
        # One that was given to a session that is gone is given again.
        over = {identity_of(m.sender, m.id) for m in self._writer.state.messages if m.seen or m.verb}
        for message in self._driver.fetch(lambda identity: identity in over or self._is_here(identity)):
            if message.verb:
                self._carry_out(message)
                continue
            with self._lock:
                if not self._is_here(message.identity):
                    self._waiting.append(message)
        seen = {identity_of(m.sender, m.id) for m in self._writer.acked.state.messages if m.seen} - self._acked
        if seen:
            self._driver.ack(seen)
            self._acked |= seen

    def _is_here(self, identity: str) -> bool:
        return identity in self._mine or any(m.identity == identity for m in self._waiting)

    def _carry_out(self, message: Message) -> None:
        """At most once in the job's life: the record comes first."""
        self._mine.add(message.identity)
        if message.verb not in self._allowed:
            self.problem = f"{message.sender} asked for {message.verb}, which your settings do not allow (control)."
            return
        if self._record([message]):
            seen = MessageSeen(time=self._clock.now(), sender=message.sender, id=message.id)
            with suppress(WalAgentError):
                self._writer.append(seen)
            self.control(message.verb, message.text)

    def take(self) -> str:
        """The words for the agent at a boundary, their records durable; "" where nothing waits, or the log cannot have
        them now: then they wait for the next boundary."""
        if not self._waiting:  # most calls: no lock
            return ""
        with self._lock:
            given, self._waiting = self._waiting[:MOST_GIVEN], self._waiting[MOST_GIVEN:]
            self._mine |= {m.identity for m in given}
        if not given:
            return ""
        if not self._record(given):
            with self._lock:
                self._waiting = [*given, *self._waiting]
            return ""
        with self._lock:
            self._given += [(m.sender, m.id) for m in given]
        return "\n\n".join(map(describe, given))

    def _record(self, given: Sequence[Message]) -> bool:
        """Whether the log holds that they are given."""
        now = self._clock.now()
        records = [
            MessageGiven(
                time=now,
                sender=m.sender,
                id=m.id,
                sent=m.sent,
                text=_payload(m.text),
                verb=m.verb,
                driver=self._driver.name,
            )
            for m in given
        ]
        try:
            return self._writer.append(*records).wait(GIVE_WAIT) != "undecided"
        except WalAgentError:
            return False

    def turn_completed(self) -> None:
        """The agent has completed a turn: what it was given before, it has seen."""
        with self._lock:
            given, self._given = self._given, []
        if given:
            now = self._clock.now()
            self._writer.append(*(MessageSeen(time=now, sender=sender, id=id) for sender, id in given))


def _payload(text: str) -> Payload:
    data = text.encode("utf-8", "replace")
    return Payload(size=len(data), data=data)
