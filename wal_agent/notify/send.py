"""`python -m wal_agent.notify.send BOX`: the one process that sends what waits in a box, and ends when nothing does.

It is nobody's: own session, no terminal, no descriptors but its lock, low priority. The run that started it may end or
be killed, and it may be killed itself: what a URL took is written down before the next one is tried, and the next
sender goes on. (Killed between a service's answer and that line, it sends this one message to this one URL again.)
The URLs come on stdin: they are in no argument, no environment and no file of ours.

apprise delivers one message to one URL. It is imported only where something is sent: it loads 180 services. The URL
is a person's own, and apprise does more than is wanted here: nothing is loaded from other paths, kept on disk, filled
in as a template or attached, and what acts on this machine is refused once more, by what apprise makes of it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import cast

from wal_agent.notify import outbox as letters
from wal_agent.notify.message import REFUSED, Level, Target
from wal_agent.notify.outbox import SENDER, Letter, Outbox
from wal_agent.safefs import try_lock
from wal_agent.text import quote

TIMEOUT = 30  # seconds for one URL, whatever the service's own are
_MOST = 200  # characters of a reason
_PART = re.compile(r"[^/:@?&=#,+]{4,}")
_REFUSED_MESSAGE = "the service did not take it"
POLL_INTERVAL = 0.5  # seconds between two looks into the box
MIN_REST = 20.0  # seconds of waiting that are worth forgetting apprise for
_HEAVY = "apprise"


def deliver(target: Target, level: Level, title: str, body: str, seconds: int = TIMEOUT) -> str:
    """Empty where the service took it, else why not, in a few words without the URL's. In the main thread only."""
    with warnings.catch_warnings(), _apprise_log() as logged:
        warnings.simplefilter("ignore")  # they are apprise's makers' to read
        from apprise import Apprise, AppriseAsset, NotifyType

        asset = AppriseAsset(storage_mode="memory", allow_templates=False, pgp_autogen=False, pem_autogen=False)
        types = {"info": NotifyType.INFO, "recovery": NotifyType.WARNING, "person_needed": NotifyType.FAILURE}
        try:
            with _at_most(seconds):
                service = Apprise.instantiate(target.url, asset=asset)
                if service is None:
                    return _why(logged, target, "apprise cannot use this URL")
                if acts_locally(type(service)):
                    return "it acts on this machine, so it is not used"
                if service.notify(body=body, title=title, notify_type=types[level]):
                    return ""
        except _TooLong:
            return f"no answer within {seconds} s"
        except Exception as error:  # noqa: BLE001 - whatever a service raises
            logged.append(f"{type(error).__name__}: {error}")
        return _why(logged, target, _REFUSED_MESSAGE)


def acts_locally(service: type) -> bool:
    """Also by another of its names; and nothing that is not apprise's own."""
    names: set[str] = set()
    for attribute in ("protocol", "secure_protocol"):
        value = getattr(service, attribute, None) or ()
        names |= {value} if isinstance(value, str) else set(value)
    return bool(names & REFUSED) or not service.__module__.startswith("apprise.plugins.")


def scrub_url(text: str, url: str) -> str:
    """The text on one line, without secrets and without any longer part of the URL."""
    for part in sorted({url, *_PART.findall(url)}, key=len, reverse=True):
        text = text.replace(part, "…")
    return quote(text, _MOST)


def _why(logged: list[str], target: Target, else_: str) -> str:
    return scrub_url("; ".join(dict.fromkeys(logged)), target.url) or else_


class _TooLong(BaseException):
    """Not an Exception: services catch those."""


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.logged) < 5:
            self.logged.append(record.getMessage())


@contextmanager
def _apprise_log() -> Iterator[list[str]]:
    """What apprise logs at the level of warnings: the only words that it has for why."""
    logger, kept = logging.getLogger("apprise"), _Kept()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield kept.logged
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagate


Deliver = Callable[[Target, Level, str, str], str]


# ---- the run's side


def start_sender(box: Outbox, targets: Sequence[Target], env: Mapping[str, str]) -> int:
    """Start a sender, which leaves again where there is one; its pid."""
    words = [sys.executable, "-P", "-m", "wal_agent.notify.send", str(box.folder.absolute())]
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: value for name, value in env.items() if "WAL_AGENT_" not in name},
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(_packed(targets))
    process.returncode = 0  # whoever collects the run's dead children collects it, too; nobody waits for it
    return process.pid


def _packed(targets: Sequence[Target]) -> bytes:
    return json.dumps([[target.url, target.level] for target in targets]).encode()


# ---- the sender's


def main() -> None:
    box = Outbox(Path(sys.argv[1]))
    targets = [Target(url, cast(Level, level)) for url, level in json.loads(sys.stdin.buffer.read())]
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the run blocks what it waits for
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 15)
    while box.letters():  # again after the lock is free: who left one just now has seen it held
        lock = os.open(box.folder / SENDER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(lock, "ab"):
            if not try_lock(lock):
                return
            run_sender(box, targets, _deliver, rest=lambda: _rest(box, targets))


def _deliver(target: Target, level: Level, title: str, body: str) -> str:

    return deliver(target, level, title, body)


def run_sender(
    box: Outbox,
    targets: Sequence[Target],
    deliver: Deliver,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Until the box is empty. `rest` is called before a long wait, and need not come back."""
    while True:
        before = box.stamp()
        found = box.letters()
        if not found:
            return
        sent = False
        for name, waiting in found.items():
            sent |= _send(box, name, waiting, targets, deliver, now, jitter)
        if sent:
            continue
        pause = letters.seconds_to_next(found.values(), targets, now())
        if pause > MIN_REST:
            rest()
        while pause > 0 and box.stamp() == before:
            sleep(min(POLL_INTERVAL, pause))
            pause = letters.seconds_to_next(found.values(), targets, now())


def _send(
    box: Outbox,
    name: str,
    waiting: Letter,
    targets: Sequence[Target],
    deliver: Deliver,
    now: Callable[[], float],
    jitter: Callable[[], float],
) -> bool:
    """What is due of one letter. Whether the box has changed."""
    if letters.is_stale(waiting, now()):
        box.change(name, lambda _: None)
        return True
    changed = False
    for target in letters.pending_targets(waiting, targets):
        if letters.next_attempt(waiting, target, now()) > now():
            continue
        why = deliver(target, waiting.level, letters.title_of(waiting), letters.body_of(waiting))
        changed = True
        if why:
            box.fail(target, why, now())
            box.change(name, lambda known, t=target: letters.mark_failed(known, t, now(), jitter()))  # type: ignore[misc]
        else:
            box.change(name, lambda known, t=target: letters.mark_delivered(known, t))  # type: ignore[misc]
            box.clear(target)
    if changed:
        box.change(
            name,
            lambda known: known if letters.pending_targets(known, targets) else letters.next_reminder(known, now()),
        )
    elif not letters.pending_targets(waiting, targets):  # nobody wants it
        box.change(name, lambda _: None)
        changed = True
    return changed


def _rest(box: Outbox, targets: Sequence[Target]) -> None:
    """Wait as a process without apprise: 15 MB instead of 60 for the hours of a reminder. The lock closes with it."""
    if _HEAVY not in sys.modules:
        return
    reading, writing = os.pipe()
    os.write(writing, _packed(targets))  # fits: MOST * MAX_URL are less than a pipe holds
    os.close(writing)
    os.dup2(reading, 0)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "wal_agent.notify.send", str(box.folder)], os.environ)


if __name__ == "__main__":
    main()
