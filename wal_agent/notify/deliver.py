"""One message to one URL, by apprise. Imported only where something is sent: it loads 180 services.

The URL is a person's own, and apprise does more than is wanted here: nothing is loaded from other paths, kept on disk,
filled in as a template or attached, and what acts on this machine is refused once more, by what apprise makes of it.
"""

from __future__ import annotations

import logging
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from wal_agent.notify.message import Level
from wal_agent.notify.targets import REFUSED, Target
from wal_agent.text import quote

TIMEOUT = 30  # seconds for one URL, whatever the service's own are
_MOST = 200  # characters of a reason
_PART = re.compile(r"[^/:@?&=#,+]{4,}")
_UNTOLD = "the service did not take it"


def deliver(target: Target, level: Level, title: str, body: str, seconds: int = TIMEOUT) -> str:
    """Empty where the service took it, else why not, in a few words without the URL's. In the main thread only."""
    with warnings.catch_warnings(), _listening() as told:
        warnings.simplefilter("ignore")  # they are apprise's makers' to read
        from apprise import Apprise, AppriseAsset, NotifyType

        asset = AppriseAsset(storage_mode="memory", allow_templates=False, pgp_autogen=False, pem_autogen=False)
        types = {"info": NotifyType.INFO, "recovery": NotifyType.WARNING, "person_needed": NotifyType.FAILURE}
        try:
            with _at_most(seconds):
                service = Apprise.instantiate(target.url, asset=asset)
                if service is None:
                    return _why(told, target, "apprise cannot use this URL")
                if acts_locally(type(service)):
                    return "it acts on this machine, so it is not used"
                if service.notify(body=body, title=title, notify_type=types[level]):
                    return ""
        except _TooLong:
            return f"no answer within {seconds} s"
        except Exception as error:  # noqa: BLE001 - whatever a service raises
            told.append(f"{type(error).__name__}: {error}")
        return _why(told, target, _UNTOLD)


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


def _why(told: list[str], target: Target, else_: str) -> str:
    return scrub_url("; ".join(dict.fromkeys(told)), target.url) or else_


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
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.told) < 5:
            self.told.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What apprise logs at the level of warnings: the only words that it has for why."""
    logger, kept = logging.getLogger("apprise"), _Kept()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield kept.told
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagate
