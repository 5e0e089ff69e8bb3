"""The listener: it leaves messages without anyone waiting, and a start ends what insists."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.notify.sink import nobody
from tests.unit.supervise.crew import until
from wal_agent import events as h
from wal_agent import notify
from wal_agent.errors import ConfigError
from wal_agent.notify import outbox, post
from wal_agent.notify import outbox as letters
from wal_agent.notify.message import VARIABLE, Facts, Target
from wal_agent.notify.outbox import Outbox, outbox_for
from wal_agent.notify.post import Post, ends_with_us

FACTS = Facts("shop", "gs://acme", "gemini", "vm-22", "/w/shop")
TARGET = Target("json://127.0.0.1:9/s3cret")
RECOVERED = h.Recovered(3, "vm-17", 1000.0, "crash", ("completed",), 0, 1.9)
HALTED = h.Halted(80, "5 crashes in 10 minutes", "See: wal-agent log")
TAKEN = h.LeaseTaken("shop", "gs://acme", "r", 2, "dead", "vm-22", "gemini", "1", "/w/shop", 30.0)


class Desk:
    """A post whose sender is a counter."""

    def __init__(self, tmp_path: Path, target: Target = TARGET, attended: bool = False, linger: bool = False) -> None:
        self.env = {"HOME": str(tmp_path)}
        self.box = outbox_for(self.env, [target])
        self.started = 0
        self.post = Post(FACTS, [target], self.box, self.env, self.start, attended, linger)

    def start(self) -> None:
        self.started += 1

    def tell(self, *events: h.Event) -> list[str]:
        """And close; what waits then."""
        for event in events:
            self.post.on_event(2000.0, event)
        self.post.close()
        return titles(self.box)


def titles(box: Outbox) -> list[str]:
    return [waiting.title for waiting in box.letters().values()]


def test_what_people_are_told_waits_in_the_box_and_a_sender_is_started(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.tell(h.Ready(), RECOVERED, h.LeaseRenewed(3)) == ["shop: recovered on vm-22"]
    assert desk.started == 1


def test_nothing_is_left_for_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Target("json://x", "person_needed"))
    assert desk.tell(RECOVERED, h.Paused(3000.0, "x")) == [] and desk.started == 0


def test_nobody_waits_for_the_disk_or_for_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tells is back while the first letter is still being written, and so is the end of the run."""
    monkeypatch.setattr(post, "HAND_OVER", 0.01)
    stuck, entered = threading.Event(), threading.Event()

    def start() -> None:
        entered.set()
        stuck.wait(60)

    env = {"HOME": str(tmp_path)}
    found = Post(FACTS, [TARGET], outbox_for(env, [TARGET]), env, start)
    found.on_event(1.0, RECOVERED)
    assert entered.wait(60)
    for _ in range(1000):
        found.on_event(2.0, HALTED)
    found.close()
    assert not stuck.is_set()
    stuck.set()


def test_a_start_ends_the_reminders_of_this_job_only(tmp_path: Path) -> None:
    assert Desk(tmp_path).tell(HALTED) == ["shop: stopped with 80, a person is needed"]
    desk = Desk(tmp_path)
    (name,) = desk.box.letters()
    desk.box.change(name, lambda known: letters.next_reminder(known, 0.0))
    other = Facts("other", "gs://acme", "gemini", "vm-22", "/w/other")
    second = Post(other, [TARGET], desk.box, desk.env, lambda: None)
    second.on_event(1.0, TAKEN)
    second.close()
    assert titles(desk.box) != []
    assert desk.tell(TAKEN) == []


def test_a_loop_of_starts_is_told_once_in_a_while(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    loop: list[h.Event] = [TAKEN, HALTED] * 5
    desk.tell(*loop)
    waiting = list(desk.box.letters().values())
    assert [w.round for w in waiting if w.due <= time.time()] == [1], "told once"
    assert [w.round for w in waiting if w.insists] == [2], "and in mind once"


class Days:
    """Starts that all halt, a long time after one another, with a service that takes everything at once."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self.path = tmp_path
        for module in (post, outbox):
            monkeypatch.setattr(module, "time", self)

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def monotonic(self) -> float:
        return time.monotonic()

    def start(self, *events: h.Event) -> list[int]:
        """The rounds that are told until five hours later."""
        desk, found = Desk(self.path), []
        desk.tell(TAKEN, *events)
        for _ in range(20):
            for name, waiting in desk.box.letters().items():
                if waiting.due <= self.now:
                    found.append(waiting.round)
                    desk.box.change(name, lambda known: letters.mark_delivered(known, TARGET))
                    desk.box.change(name, lambda known: letters.next_reminder(known, self.now))
            self.now += 60.0
        return found


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(tmp_path, monkeypatch)


def test_a_halt_that_comes_again_at_each_start_is_told_four_times_in_all(days: Days) -> None:
    """By whatever starts it every twenty minutes for most of a day."""
    told = [n for count in range(20) for n in days.start(h.Halted(80, f"{count} crashes in 10 minutes", ""))]
    assert told == [1, 2, 3, 4]
    assert days.start(h.Halted(73, "record 7 is damaged", "")) == [1, 2], "another one is news"


def test_a_halt_is_news_again_when_it_was_acknowledged_or_the_job_ran_well(days: Days, tmp_path: Path) -> None:
    for _ in range(16):
        days.start(HALTED)
    notify.acknowledge({"HOME": str(tmp_path)}, "gs://acme", "shop")
    assert days.start(HALTED) == [1, 2]
    for _ in range(16):
        days.start(HALTED)
    assert days.start(h.Ready(), h.LeaseSettled("released", "drained"), HALTED) == [], "it did not run for long"
    assert days.start(h.Ready(), h.LeaseSettled("closed", ""), HALTED)[:1] == [1], "it came to its end"
    days.now += 2 * 86_400
    assert days.start(HALTED)[:1] == [1], "that was long ago"


def test_a_job_that_works_for_a_while_runs_well(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(16):
        days.start(HALTED)
    monkeypatch.setattr(post, "HEALTHY_AFTER", 0.0)
    desk = Desk(days.path)
    desk.post.on_event(1.0, TAKEN)
    desk.post.on_event(1.0, h.Ready())
    until(lambda: not desk.box.known_halts(days.now), "it runs well")
    assert [w.round for w in desk.box.letters().values()] == []
    assert desk.tell(HALTED) != []


def test_who_sits_there_reads_a_refusal_on_the_screen(tmp_path: Path) -> None:
    assert Desk(tmp_path, attended=True).tell(HALTED) == []
    assert Desk(tmp_path, attended=True).tell(RECOVERED, TAKEN, HALTED) != []


def test_what_waits_from_before_is_sent_on(tmp_path: Path) -> None:
    Desk(tmp_path).tell(RECOVERED)
    desk = Desk(tmp_path)
    until(lambda: desk.started == 1, "a sender for what an earlier run left")
    desk.tell()


def test_a_disk_that_takes_nothing_is_told_to_who_speaks_next(tmp_path: Path) -> None:
    (tmp_path / ".local").write_text("in the way")
    desk = Desk(tmp_path)
    with pytest.raises(OSError):
        desk.tell(RECOVERED)


def test_where_the_sender_dies_with_us_it_is_waited_for_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "LINGER", 120.0)
    desk = Desk(tmp_path, linger=True)
    desk.post.on_event(1.0, RECOVERED)
    (name,) = until(lambda: list(desk.box.letters()), "it waits")
    closing = threading.Thread(target=desk.post.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    desk.box.change(name, lambda known: letters.mark_failed(known, TARGET, 1.0, 0.0))
    closing.join(60)
    assert not closing.is_alive(), "a service that is down was tried: that is enough"


def test_when_the_sender_dies_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 5)
    assert not ends_with_us({"SYSTEMD_EXEC_PID": "1"}) and ends_with_us({"SYSTEMD_EXEC_PID": str(os.getpid())})
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert ends_with_us({})


# ---- the factory


@pytest.fixture
def listener(tmp_path: Path) -> Callable[..., Post | None]:
    def make(**env: str) -> Post | None:
        own = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **env}
        return notify.listener(own, job="shop", bucket="gs://acme", agent="gemini", workspace=tmp_path)

    return make


def test_without_a_url_there_is_no_listener_and_nothing_is_loaded(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = """
import sys, pathlib, wal_agent.supervise.settings
from wal_agent import notify
made = notify.listener({"HOME": sys.argv[1]}, job="x", bucket="y", agent="z", workspace=pathlib.Path("/"))
heavy = [n for n in sys.modules if n.split(".")[0] in ("apprise", "requests") or n.startswith("wal_agent.notify.p")]
print(made, heavy, notify.trouble({"HOME": sys.argv[1]}))
"""
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["None", "[]"]


def test_what_cannot_be_meant_stops_the_start(tmp_path: Path, listener: Callable[..., Post | None]) -> None:
    (tmp_path / ".config/wal-agent").mkdir(parents=True)
    (tmp_path / ".config/wal-agent/wal-agent.toml").write_text("[[notify]]\nurl = 5\n")
    with pytest.raises(ConfigError):
        listener()
    assert notify.trouble({"HOME": str(tmp_path)}) == ""


def test_a_sink_that_is_down_is_told_once_at_a_start_and_in_status_while_it_lasts(
    tmp_path: Path, listener: Callable[..., Post | None]
) -> None:
    env = {"HOME": str(tmp_path), VARIABLE: nobody()}
    made = listener(**env)
    assert made is not None
    made.on_event(1.0, RECOVERED)
    made.close()
    line = until(lambda: notify.trouble(env), "it has failed")
    assert line.startswith("notifications do not reach URL 1 (json) since ") and "s3cret" not in line
    assert notify.trouble(env, once=True) == line and notify.trouble(env, once=True) == "" and notify.trouble(env)
    box = outbox_for(env, [TARGET])
    assert not box.failures(), "of other URLs nothing is known"
    (box,) = outbox.list_boxes(env)
    for name in box.letters():
        box.change(name, lambda _: None)
    until(lambda: not box.served, "with nothing to send it ends")


def test_an_acknowledgement_reaches_every_box_and_never_fails(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.tell(HALTED)
    notify.acknowledge(desk.env, "gs://acme", "other")
    assert any(w.insists for w in desk.box.letters().values())
    notify.acknowledge(desk.env, "gs://acme", "shop")
    assert not any(w.insists for w in desk.box.letters().values())
    notify.acknowledge({"HOME": "/nowhere"}, "gs://acme", "shop")
