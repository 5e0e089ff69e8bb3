"""apprise itself, against a service on loopback: taken or not, and why in words that do not give the URL away."""

from __future__ import annotations

import types
from typing import Any

import pytest

from tests.unit.notify.sink import Sink, nobody
from wal_agent.notify.message import REFUSED, Target, scheme
from wal_agent.notify.send import acts_locally, deliver, scrub_url


def test_a_message_arrives_as_it_is(sink: Sink) -> None:
    body = "one\ntwo {{ templates }} <b> \\n *x* :smile: @all"
    assert deliver(Target(sink.url), "person_needed", "a title", body) == ""
    got = sink.next()
    assert (got["title"], got["message"], got["type"]) == ("a title", body, "failure")
    assert got["attachments"] == []


def test_why_not_is_told_without_the_url(sink: Sink) -> None:
    sink.status = 500
    hidden = (sink.url.rpartition(":")[2], "s3cret-p4th")
    for target in (Target(sink.url), Target(nobody()), Target("json://"), Target("nosuch://s3cret-p4th")):
        why = deliver(target, "info", "t", "b")
        assert why and why.isprintable() and len(why) < 300
        assert not any(part in why for part in hidden)
    assert "500" in deliver(Target(sink.url), "info", "t", "b")


def test_a_service_that_says_nothing_is_left(sink: Sink) -> None:
    sink.open.clear()
    why = deliver(Target(sink.patient), "info", "t", "b", seconds=1)
    assert why == "no answer within 1 s"


def test_what_acts_on_this_machine_is_refused_by_whatever_name() -> None:
    assert deliver(Target("nosuch://"), "info", "t", "b"), "loads them all"
    from apprise.manager_plugins import NotificationManager

    known: Any = NotificationManager
    found = {service.__name__ for service in known().plugins() if acts_locally(service)}
    named = {"NotifyBlink1", "NotifyDBus", "NotifyGLib", "NotifyGnome", "NotifyMacOSX", "NotifyVapid", "NotifyWindows"}
    assert found == named
    assert acts_locally(types.new_class("Foreign"))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_none_of_them_is_ever_started(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.setattr(subprocess, "Popen", None)
    assert scheme(f"{name}://x") in REFUSED
    assert deliver(Target(f"{name}://x"), "info", "t", "b") != ""


def test_scrubbing_takes_every_longer_part_of_the_url() -> None:
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ?footer=no"
    said = scrub_url(f"no {url}\nnor TIiajkdnlazkcOXrIdevi7FQ at\x1b[31m T1JJ3T3L2, error=404 footer", url)
    assert said == "no … nor … at [31m …, error=404 …"
