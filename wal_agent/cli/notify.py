"""`wal-agent notify`: where messages go, whether they arrive, and enough of one."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.options import AsJson
from wal_agent.errors import Unavailable, UsageError
from wal_agent.text import answer, moment, quote, say

if TYPE_CHECKING:
    from wal_agent.notify.message import Target


class NotifyTarget(msgspec.Struct, frozen=True):
    """Where messages go: `url` without what is secret in it. `fails`: the newest one was not taken, and `why`; `since`:
    seconds since 1970, 0 in a test."""

    url: str
    level: str
    fails: bool
    why: str
    since: float = 0.0


class Notify(JsonAnswer, frozen=True):
    """`wal-agent notify`: messages that are `waiting` to be sent, and those to be repeated `later`."""

    targets: tuple[NotifyTarget, ...]
    waiting: int
    later: int


class NotifyTest(JsonAnswer, frozen=True):
    """`wal-agent notify --test`."""

    targets: tuple[NotifyTarget, ...]


class NotifyAck(JsonAnswer, frozen=True):
    """`wal-agent notify --ack`: how many reminders were stopped."""

    stopped: int


def notify(
    test: Annotated[bool, typer.Option("--test", help="Send a test message to every URL, now.")] = False,
    ack: Annotated[bool, typer.Option("--ack", help="Stop the reminders about a halted job.")] = False,
    json: AsJson = False,
) -> None:
    """Show where notifications go (addresses hidden), which are waiting, and which failed.

    Set them in your own ~/.config/wal-agent/wal-agent.toml: [[notify]] url = "ntfys://...", level = "recovery" (or
    info, person_needed); or in WAL_AGENT_NOTIFY: URLs separated by spaces, each with or without `LEVEL=` before it.

    --test exits with 69 unless every URL took the message.
    """
    from wal_agent.notify.message import VARIABLE, load_targets, own_file
    from wal_agent.notify.outbox import acknowledge
    from wal_agent.supervise.ancestry import require_person

    if test and ack:
        raise UsageError("Say either --test or --ack.")
    if ack:
        require_person("wal-agent notify --ack")
        number = acknowledge(os.environ, None)
        if json:
            answer_json(NotifyAck(number))
        elif number == 0:
            say("there are no reminders to stop.")
        else:
            say(f"{number} {'reminder is' if number == 1 else 'reminders are'} stopped.")
        return
    targets = load_targets(os.environ)
    if not targets:
        where = f'Write [[notify]] url = "..." into {own_file(os.environ)}, or set {VARIABLE}.'
        if test:
            raise UsageError("There is no URL to send a test message to.", where)
        if json:
            answer_json(Notify((), 0, 0))
        else:
            answer([f"No notifications are configured. {where}"])
    elif test:
        _test(targets, json)
    else:
        found = _look(targets)
        if json:
            answer_json(found)
        else:
            answer(_listing(found))


def _test(targets: Sequence[Target], json: bool) -> None:
    from wal_agent.extras import require
    from wal_agent.notify.outbox import outbox_for
    from wal_agent.notify.send import deliver

    require("notify", "apprise", "A message")
    box = outbox_for(os.environ, targets)
    tested = []
    for number, target in enumerate(targets, 1):
        body = f"A test from {platform.node()}: messages of level {target.level} and above come here. Nothing to do."
        why = deliver(target, target.level, "wal-agent: a test message", body)
        tested.append(NotifyTarget(target.hidden, target.level, bool(why), quote(why)))
        if not json:
            answer([_row(number, tested[-1], why or "ok")])
        if not why:
            box.clear(target)
    failed = sum(each.fails for each in tested)
    if json:
        answer_json(NotifyTest(tuple(tested)))
    if failed:
        raise Unavailable(f"{failed} of {len(targets)} did not take the test message.", "Look at the URL and its key.")


def _look(targets: Sequence[Target]) -> Notify:
    from wal_agent.notify.outbox import count_waiting, outbox_for

    box = outbox_for(os.environ, targets)
    failures = box.failures()
    due, later = count_waiting(box.letters().values(), time.time())
    rows = ((target, failures.get(target.id)) for target in targets)
    return Notify(
        tuple(NotifyTarget(t.hidden, t.level, bool(f), f.why if f else "", f.since if f else 0.0) for t, f in rows),
        due,
        later,
    )


def _listing(found: Notify) -> list[str]:
    rows, now = [], time.time()
    for number, target in enumerate(found.targets, 1):
        said = f"fails since {moment(target.since, now)}: {target.why}" if target.fails else ""
        rows.append(_row(number, target, said))
    return [*rows, f"{'waiting':<11} {found.waiting} to be sent, {found.later} to be repeated later"]


def _row(number: int, target: NotifyTarget, said: str) -> str:
    return f"{number:<3} {target.url:<15} {target.level:<14} {said}".rstrip()
