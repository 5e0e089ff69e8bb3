"""Give a live run the messages of its job (docs/MESSAGES.md). Guards I1 and I8 for them.

A thread polls for messages; what it finds waits here for the agent's next boundary, where a hook can say something to
the model. The record is durable before the words are given. A message counts as seen when the agent has completed a
turn behind that; a crash before leaves it to the recovery, which looks into the restored session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from wal_agent.calls.quote import fenced, safe
from wal_agent.concurrency import start_daemon
from wal_agent.errors import UsageError, WalAgentError
from wal_agent.inbox import MAX_TEXT, Driver, Message, identity_of
from wal_agent.records import MessageGiven, MessageSeen, Payload
from wal_agent.redact import redact
from wal_agent.supervise.context import RunContext
from wal_agent.text import plural, shorten
from wal_agent.wal.state import MAX_OUTCOME, MessageAt, State
from wal_agent.wording import messages

NEAR: Final = 2.0  # seconds between two polls of a local folder
SOON: Final = 0.05  # seconds between the word that a message has come and the poll
REST: Final = 10  # times as long between two polls while the agent waits for a person
GIVE_WAIT: Final = 2.0  # seconds that a hook waits for the log, where there is a message
MAX_GIVEN: Final = 5  # messages at one boundary
MAX_SHOWN: Final = 6000  # characters of one
MAX_REPEATED: Final = 50  # messages in a recovery prompt
REPEATED_SHOWN: Final = 400  # characters of each there
ROOM_REPEATED: Final = 1500  # tokens of all of them there, of the 4,000 that a recovery prompt has


def unseen(state: State) -> tuple[MessageAt, ...]:
    """The messages that were given and may not have been seen, oldest first. Pure."""
    return tuple(m for m in state.messages if not m.seen and not m.verb)


def unlogged_messages(state: State, identities: Sequence[str]) -> tuple[str, ...]:
    """Those of `identities` that the log does not know. Pure."""
    known = {identity_of(m.sender, m.id) for m in state.messages}
    return tuple(each for each in identities if each not in known)


def describe(message: Message, most: int = MAX_SHOWN) -> str:
    """The words for the model. Pure."""
    block = fenced(safe(message.text, MAX_TEXT), most, indent="")
    return messages.message_text(message.id, message.sender, message.sent, block, len(message.text) > most)


def repeat_messages(lost: Sequence[Message]) -> str:
    """The part of a recovery prompt on messages that may not have been seen; "" for none. Pure."""
    from wal_agent.recovery.prompt import estimate_tokens

    texts: list[str] = []
    room = ROOM_REPEATED - estimate_tokens(messages.messages_repeated("", len(lost)))
    for message in lost[:MAX_REPEATED]:
        text = describe(message, REPEATED_SHOWN)
        room -= estimate_tokens(text) + 2
        if room < 0:
            break
        texts.append(text)
    return messages.messages_repeated("\n\n".join(texts), len(lost) - len(texts)) if lost else ""


class Inbox:
    """The messages of one run. `control` carries out a verb with its argument and returns the outcome; UsageError: it
    is refused. It is set while the agent runs: before, and while the run ends, control messages wait."""

    def __init__(self, context: RunContext, driver: Driver, every: float, repeated: Sequence[MessageAt] = ()) -> None:
        """`every`: seconds between two polls. `repeated`: what the recovery prompt of this run holds."""
        self._driver, self._every = driver, every
        self._writer, self._clock = context.job.writer, context.clock
        self._allowed = frozenset(filter(None, context.settings.control.split(",")))
        self._lock = threading.Lock()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._waiting: list[Message] = []
        self._given = [(m.sender, m.id) for m in repeated]  # until a turn is completed
        self._mine = {identity_of(*each) for each in self._given}  # what this run has given, its prompt too
        self._acked: set[str] = set()  # identities that the driver was told to forget
        self.control: Callable[[str, str], str] | None = None
        self.resting: Callable[[], bool] = lambda: False  # whether only a person can go on
        self.problem = ""

    @property
    def waiting(self) -> int:
        """How many messages wait for the agent's next boundary."""
        return len(self._waiting)

    def take_control(self, control: Callable[[str, str], str] | None) -> None:
        """Set who carries out control messages; what waits for that is looked at now."""
        self.control = control
        if control is not None:
            self._wake.set()

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
        """Seconds to the next poll: a listing costs money, and an agent that waits for a person reads nothing."""
        return self._every * REST if self._every > NEAR and self.resting() else self._every

    def turn_started(self) -> None:
        """A person has gone on: poll at once, if the last poll may be long ago."""
        if self._every > NEAR:
            self._wake.set()

    def look(self) -> None:
        """Look once: take what is new, carry out control messages, let go what was seen."""
        # One that was given to a session that is gone is given again.
        logged = self._writer.state.messages
        over = {identity_of(m.sender, m.id) for m in logged if m.seen or m.verb}
        for lost in [m for m in logged if m.verb and not m.seen and identity_of(m.sender, m.id) not in self._mine]:
            self._mine.add(identity_of(lost.sender, lost.id))
            self._settle(lost, refused="it is not known whether it was carried out")
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
        """At most once in the job's life: the record comes first. What is refused is recorded too, so that its sender
        reads of it (`wal-agent inbox`), and its object goes."""
        control = self.control
        if control is None or not self._record([message]):
            return
        self._mine.add(message.identity)
        try:
            if message.verb not in self._allowed:
                raise UsageError("the settings of this run do not allow it (control)")
            argument = message.text.strip()
            answer = self._acknowledge(argument) if message.verb == "ack" else control(message.verb, argument)
            self._settle(message, answer=answer)
        except UsageError as error:
            self._settle(message, refused=f"{error.what} {error.hint}".strip())

    def _settle(self, message: Message | MessageAt, refused: str = "", answer: str = "") -> None:
        """Record the outcome of a control message, or that a message needs no reader any more."""
        refused, answer = (shorten(redact(words), MAX_OUTCOME) for words in (refused, answer))
        now = self._clock.now()
        with suppress(WalAgentError):
            record = MessageSeen(time=now, sender=message.sender, id=message.id, refused=refused, answer=answer)
            self._writer.append(record)

    def _acknowledge(self, id: str) -> str:
        """Take messages out that a person has dealt with: the agent is not given them (any more). UsageError: none of
        this id waits, or was given and not seen."""
        with self._lock:
            waiting = [m for m in self._waiting if m.id == id]
            unread = [m for m in unseen(self._writer.state) if m.id == id]
        if not waiting and not unread:
            raise UsageError(f"no message {shorten(id, 60)!r} waits")
        if waiting and not self._record(waiting):
            raise UsageError("the bucket cannot be reached now")
        with self._lock:
            self._waiting = [m for m in self._waiting if m.id != id]
            self._mine |= {m.identity for m in waiting}
        both: list[Message | MessageAt] = [*waiting, *unread]
        done = {identity_of(m.sender, m.id): m for m in both}
        for each in done.values():
            self._settle(each)
        return f"{plural(len(done), 'message')} acknowledged"

    def take(self) -> str:
        """The words for the agent at a boundary, their records durable; "" where nothing waits, or the log cannot have
        them now: then they wait for the next boundary."""
        if not self._waiting:  # most calls: no lock
            return ""
        with self._lock:
            given, self._waiting = self._waiting[:MAX_GIVEN], self._waiting[MAX_GIVEN:]
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
