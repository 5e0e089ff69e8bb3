"""One message on its way to its URLs: when it is tried, and when it is done. Pure.

Each URL gets it once: what has taken it is not asked again, what failed is tried again alone, with growing pauses, for
`PATIENCE`. A message that insists comes back at `LATER` until somebody acts. Times are seconds since 1970: they must
mean something to the next process, and to the next boot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from wal_agent.notify.message import Level, Message, reaches
from wal_agent.notify.targets import Target

PATIENCE = 600.0  # seconds for which one URL is tried
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 90.0
LATER = (900.0, 3600.0, 14_400.0)  # seconds, each after the one before: four times in all
STALE = 86_400.0  # seconds; what nobody could send for a day is dropped
WINDOW = 900.0  # seconds in which a message is not said again


class Try(msgspec.Struct, frozen=True):
    """`first`: when the URL was tried first; `again`: when it is next."""

    count: int
    first: float
    again: float


class Letter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`about`: which job it tells of (`about` below). `took`, `gave_up` and `tries`: ids of targets, in this round.
    `key`: the message's, by its hash."""

    about: str
    level: Level
    title: str
    body: str
    made: float
    due: float
    later: tuple[float, ...] = ()
    round: int = 1
    took: tuple[str, ...] = ()
    gave_up: tuple[str, ...] = ()
    tries: dict[str, Try] = {}
    key: str = ""

    @property
    def insists(self) -> bool:
        return bool(self.later) or self.round > 1


class Halt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What people know of a halt whose job was started again: another start that halts in the same way goes on where
    that was. `rounds` are told, `due` is when the next one is, `heard` when the halt came last."""

    about: str
    rounds: int
    due: float
    heard: float


def letter(
    message: Message, about: str, now: float, said_before: bool = False, halt: Halt | None = None
) -> Letter | None:
    """None: nothing is to be sent. `said_before`: people have just been told this, so it is not said at once; how often
    they were told of a halt, `halt` says."""
    later: tuple[float, ...] = LATER if message.insists else ()
    if not later:
        return None if said_before else _letter(message, about, now, now, (), 1)
    if halt is None and said_before:
        halt = Halt(about, 1, now + LATER[0], now)
    if halt is None:
        return _letter(message, about, now, now, LATER, 1)
    if not 1 <= halt.rounds <= len(LATER):
        return None
    due = min(max(now, halt.due), now + LATER[halt.rounds - 1])  # also when the clock was set back
    return _letter(message, about, now, due, LATER[halt.rounds :], halt.rounds + 1)


def _letter(message: Message, about: str, now: float, due: float, later: tuple[float, ...], round: int) -> Letter:
    return Letter(
        about=about,
        level=message.level,
        title=message.title,
        body=message.body,
        made=now,
        due=due,
        later=later,
        round=round,
    )


def cut_short(waiting: Letter) -> Halt:
    """What is known of a halt when its job is started again. The first round is told in any case."""
    if waiting.round == 1:
        return Halt(waiting.about, 1, waiting.made + LATER[0], waiting.made)
    return Halt(waiting.about, waiting.round - 1, waiting.due, waiting.made)


def told(waiting: Letter, now: float) -> Halt | None:
    """The same when its last round is over; None: nobody was reached."""
    if not (waiting.insists and (waiting.took or waiting.gave_up)):
        return None
    return Halt(waiting.about, waiting.round, now, now)


def left(waiting: Letter, targets: Iterable[Target]) -> list[Target]:
    """Who has still to get it in this round."""
    done = {*waiting.took, *waiting.gave_up}
    return [t for t in targets if reaches(waiting.level, t.level) and t.id not in done]


def when(waiting: Letter, target: Target, now: float) -> float:
    """When it is to be sent to `target`. A clock that was set back puts it off no longer than it ever waits."""
    tried = waiting.tries.get(target.id)
    at, most = (tried.again, LONGEST_PAUSE) if tried else (waiting.due, LATER[-1])
    return at if at - now <= most else now


def wake(letters: Iterable[Letter], targets: Sequence[Target], now: float) -> float:
    """Seconds until the next one is to be sent; 0: now, or there is nothing."""
    times = [when(waiting, target, now) - now for waiting in letters for target in left(waiting, targets)]
    return max(0.0, min(times, default=0.0))


def taken(waiting: Letter, target: Target) -> Letter:
    return msgspec.structs.replace(waiting, took=(*waiting.took, target.id))


def failed(waiting: Letter, target: Target, now: float, jitter: float) -> Letter:
    """`jitter`: from 0 to 1."""
    before = waiting.tries.get(target.id, Try(0, now, now))
    if now - before.first >= PATIENCE:
        return msgspec.structs.replace(waiting, gave_up=(*waiting.gave_up, target.id))
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(before.count, 10)) * (1 - jitter / 4)
    tried = Try(before.count + 1, before.first, now + pause)
    return msgspec.structs.replace(waiting, tries={**waiting.tries, target.id: tried})


def next_round(waiting: Letter, now: float) -> Letter | None:
    """When all have had it: the letter again, later; None: it is done."""
    if not waiting.later or now - waiting.made > STALE:
        return None
    return msgspec.structs.replace(
        waiting,
        due=now + waiting.later[0],
        later=waiting.later[1:],
        round=waiting.round + 1,
        took=(),
        gave_up=(),
        tries={},
    )


def stale(waiting: Letter, now: float) -> bool:
    return now - waiting.made > STALE


def title(waiting: Letter) -> str:
    return waiting.title if waiting.round == 1 else f"{waiting.title} (told for the {_ORDINAL[waiting.round]} time)"


def body(waiting: Letter) -> str:
    return waiting.body if waiting.round == 1 else f"{waiting.body}\nYou know? wal-agent notify --ack"


_ORDINAL = {2: "second", 3: "third", 4: "fourth"}
