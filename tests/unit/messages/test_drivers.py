"""Which driver the URL of --messages chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

import pytest
from msgspec.structs import replace

from wal_agent import messages
from wal_agent.bucket.base import MemoryBucket
from wal_agent.config import Settings
from wal_agent.errors import ConfigError
from wal_agent.inbox import BucketDriver, Message

STOP = Message(id="1", sender="ann", text="stop", sent=1.0)


class Other:
    """A driver of another package."""

    name = "other"

    def __init__(self, url: str, job: str, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.about = (url, job, env["TOKEN"])
        self.sent: list[Message] = []

    def fetch(self, known: Callable[[str], bool]) -> Sequence[Message]:
        return [m for m in self.sent if not known(m.identity)]

    def ack(self, identities: Collection[str]) -> None:
        self.sent = [m for m in self.sent if m.identity not in identities]

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True

    def publish(self, subject: str, message: Message) -> bool:
        return self.send(message)

    def notify(self, wake: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    found = metadata.EntryPoints([metadata.EntryPoint("other", value, messages.GROUP)])
    monkeypatch.setattr(metadata, "entry_points", lambda **by: found.select(**by))


def opened(url: str) -> Any:
    settings = Settings("memory:", "web", messages=url)
    return messages.open_driver(settings, {"TOKEN": "t"}, MemoryBucket(), "web", lambda _: None)


def test_without_a_url_it_is_the_bucket() -> None:
    assert type(opened("")) is BucketDriver


def test_another_package_brings_the_driver_of_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, f"{__name__}:Other")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Other)
    driver = opened("other://host:1")
    assert driver._server.about == ("other://host:1", "web", "t") and driver.name == "bucket+other"
    assert driver.send(STOP) and list(driver.fetch(lambda _: False)) == [STOP]
    no_status = messages.status_listener(
        Settings("memory:", "web", messages="other://host:1"),
        {},
        agent="gemini",
        now=lambda: 0.0,
        awake=lambda: 0.0,
        stalled=lambda _: False,
        say=lambda _: None,
    )
    assert no_status is None


@pytest.mark.parametrize("name", ["", "x" * 101, "-x", "a b", "a\n", "a/b"])
def test_a_message_whose_name_the_log_could_not_know_again_is_passed_over(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: it would be given again after each start. Another package may make a Message without a decoder."""
    install(monkeypatch, f"{__name__}:Other")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: Other)
    driver = opened("other://host:1")
    for message in (replace(STOP, id=name), replace(STOP, sender=name), replace(STOP, id="x" * 100)):
        driver.send(message)
    assert [m.id for m in driver.fetch(lambda _: False)] == ["x" * 100]


def test_one_that_is_missing_or_broken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "no_such_module_at_all:open")
    with pytest.raises(ConfigError, match="no_such_module_at_all"):
        opened("other://host:1")
    with pytest.raises(ConfigError, match="redis:// is installed") as refused:
        messages.status_listener(
            Settings("memory:", "web", messages="redis://host:1"),
            {},
            agent="gemini",
            now=lambda: 0.0,
            awake=lambda: 0.0,
            stalled=lambda _: False,
            say=lambda _: None,
        )
    assert "nats://, other://, tls://" in refused.value.hint
