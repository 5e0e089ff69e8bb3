"""`wal-agent notify`: where messages go, whether they arrive, and enough of one."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.errors import Unavailable, UsageError
from wal_agent.text import answer, moment, say

if TYPE_CHECKING:
    from wal_agent.notify.message import Target


def notify(
    test: Annotated[bool, typer.Option("--test", help="Send a test message to every URL, now.")] = False,
    ack: Annotated[bool, typer.Option("--ack", help="Stop the reminders about a halted job.")] = False,
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
        if number == 0:
            say("there are no reminders to stop.")
        else:
            say(f"{number} {'reminder is' if number == 1 else 'reminders are'} stopped.")
        return
    targets = load_targets(os.environ)
    if not targets:
        where = f'Write [[notify]] url = "..." into {own_file(os.environ)}, or set {VARIABLE}.'
        if test:
            raise UsageError("There is no URL to send a test message to.", where)
        answer([f"No notifications are configured. {where}"])
    elif test:
        _test(targets)
    else:
        answer(_listing(targets))


def _test(targets: Sequence[Target]) -> None:
    from wal_agent.extras import require
    from wal_agent.notify.outbox import outbox_for
    from wal_agent.notify.send import deliver

    require("notify", "apprise", "A message")
    box = outbox_for(os.environ, targets)
    failed = 0
    for number, target in enumerate(targets, 1):
        body = f"A test from {platform.node()}: messages of level {target.level} and above come here. Nothing to do."
        why = deliver(target, target.level, "wal-agent: a test message", body)
        answer([_row(number, target, why or "ok")])
        failed += bool(why)
        if not why:
            box.clear(target)
    if failed:
        raise Unavailable(f"{failed} of {len(targets)} did not take the test message.", "Look at the URL and its key.")


def _listing(targets: Sequence[Target]) -> list[str]:
    from wal_agent.notify.outbox import count_waiting, outbox_for

    box = outbox_for(os.environ, targets)
    failures, now = box.failures(), time.time()
    rows = []
    for number, target in enumerate(targets, 1):
        failure = failures.get(target.id)
        said = f"fails since {moment(failure.since, now)}: {failure.why}" if failure else ""
        rows.append(_row(number, target, said))
    due, later = count_waiting(box.letters().values(), now)
    return [*rows, f"{'waiting':<11} {due} to be sent, {later} to be repeated later"]


def _row(number: int, target: Target, said: str) -> str:
    return f"{number:<3} {target.hidden:<15} {target.level:<14} {said}".rstrip()
