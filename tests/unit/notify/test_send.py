"""The sender: each URL gets each message once, what fails is tried alone and told once, and it is nobody's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.unit.notify.sink import Sink
from tests.unit.supervise.crew import until
from wal_agent.notify import outbox as letters
from wal_agent.notify import send
from wal_agent.notify.message import Notification, Target
from wal_agent.notify.outbox import RETRY_PERIOD, SENDER, Outbox, outbox_for

ONE, TWO, LOUD = Target("json://one"), Target("json://two"), Target("json://loud", "person_needed")


def put(box: Outbox, title: str, now: float = 0.0, halt: bool = False) -> None:
    message = Notification("person_needed" if halt else "recovery", title, "body", title, halt)
    assert box.put(title, lambda said, halt: letters.make_letter(message, "job", now, said, halt), now)


@dataclass
class World:
    """A clock that sleeping moves on, and services that fail while their time is below `up`."""

    box: Outbox
    now: float = 0.0
    up: dict[str, float] = field(default_factory=dict)
    sent: list[tuple[float, str, str]] = field(default_factory=list)
    tried: int = 0
    asleep: Callable[[], None] = lambda: None

    def deliver(self, target: Target, level: str, title: str, body: str) -> str:
        self.tried += 1
        if self.now < self.up.get(target.url, 0.0):
            return "refused"
        self.sent.append((round(self.now), target.url, title))
        return ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.asleep()

    def serve(self, *targets: Target) -> None:
        send.run_sender(self.box, targets, self.deliver, lambda: self.now, self.sleep, lambda: 0.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(outbox_for({"HOME": str(tmp_path)}, [ONE, TWO]))


def test_everything_is_sent_once_in_order_to_those_who_want_it(world: World) -> None:
    put(world.box, "a")
    put(world.box, "b")
    world.serve(ONE, TWO, LOUD)
    assert world.sent == [(0, t.url, title) for title in ("a", "b") for t in (ONE, TWO)]
    assert world.box.letters() == {} and world.now == 0.0


def test_one_that_is_down_is_tried_alone_and_told_once(world: World) -> None:
    world.up[TWO.url] = 60.0
    put(world.box, "a")
    told: list[float] = []
    world.asleep = lambda: told.extend(f.since for f in world.box.failures().values())
    world.serve(ONE, TWO)
    (first, second) = world.sent
    assert first == (0, ONE.url, "a") and second[1:] == (TWO.url, "a") and 60 <= second[0] <= 160
    assert set(told) == {0.0} and world.box.failures() == {}, "one failure, which ends when it takes a message"


def test_one_that_never_answers_is_given_up_and_the_failure_stays(world: World) -> None:
    world.up[ONE.url] = 1e9
    put(world.box, "a")
    world.serve(ONE)
    assert world.sent == [] and world.box.letters() == {} and RETRY_PERIOD <= world.now < 2 * RETRY_PERIOD
    assert world.tried < 20 and [f.why for f in world.box.failures().values()] == ["refused"]


def test_a_halt_comes_back_until_it_is_acknowledged(world: World) -> None:
    put(world.box, "halt", halt=True)
    world.asleep = lambda: world.box.cancel("job") if world.now > 5000 else None  # type: ignore[assignment]
    world.serve(ONE)
    assert [at for at, _, _ in world.sent] == [0, 900, 4500]


def test_and_four_times_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "POLL_INTERVAL", 600.0)
    put(world.box, "halt", halt=True)
    world.serve(ONE, LOUD)
    assert len(world.sent) == 8 and world.box.letters() == {}


def test_a_long_wait_is_no_reason_to_keep_apprise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rests(Exception):
        pass

    def rest() -> None:
        raise Rests

    put(world.box, "halt", halt=True)
    with pytest.raises(Rests):
        send.run_sender(world.box, [ONE], world.deliver, lambda: world.now, world.sleep, lambda: 0.0, rest)
    assert len(world.sent) == 1


def test_a_message_in_a_long_wait_is_sent_at_once(world: World) -> None:
    put(world.box, "halt", halt=True)

    def news() -> None:
        world.asleep = lambda: world.box.cancel(None)  # type: ignore[assignment]
        put(world.box, "news", world.now)

    world.asleep = news
    world.serve(ONE)
    assert [title for _, _, title in world.sent] == ["halt", "news"] and world.now <= 3 * send.POLL_INTERVAL


# ---- real processes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., int]]:
    pids: list[int] = []

    def go(box: Outbox, *targets: Target, **env: str) -> int:
        pids.append(send.start_sender(box, targets, {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **env}))
        return pids[-1]

    yield go
    for pid in pids:
        ended(pid)


def ended(pid: int) -> None:
    """Kill and collect it, where that is still to be done: the number of one that was collected may be another's."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return found


def test_a_sender_that_is_killed_loses_nothing_and_doubles_nothing(
    tmp_path: Path, sink: Sink, other: Sink, start: Callable[..., int]
) -> None:
    taken, slow = Target(sink.patient), Target(other.patient)
    box = outbox_for({"HOME": str(tmp_path)}, [taken, slow])
    put(box, "a", 1e10)
    other.open.clear()
    first = start(box, taken, slow)
    assert sink.next()["title"] == other.next()["title"] == "a"
    ended(first)
    assert len(box.letters()) == 1 and not box.served
    other.open.set()
    assert wait(start(box, taken, slow)) == 0
    assert other.next()["title"] == "a" and box.letters() == {}
    assert sink.rest() == [] and other.rest() == []


def test_there_is_one_sender_and_it_is_nobodys(tmp_path: Path, sink: Sink, start: Callable[..., int]) -> None:
    target = Target(sink.patient)
    box = outbox_for({"HOME": str(tmp_path)}, [target])
    put(box, "a", 1e10)
    sink.open.clear()
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    env = {"WAL_AGENT_RUN": "x", "GEMINI_CLI_WAL_AGENT_RUN": "x", "WAL_AGENT_NOTIFY": sink.url, "HTTPS_PROXY": "kept"}
    one = start(box, target, **env)
    assert sink.next()["title"] == "a"
    assert wait(start(box, target)) == 0, "the second leaves again"
    process = psutil.Process(one)
    assert box.served and os.getsid(one) == one and process.terminal() is None and process.cwd() == "/"
    assert not any("WAL_AGENT_" in name for name in process.environ()) and process.environ()["HTTPS_PROXY"] == "kept"
    assert not any("s3cret" in word for word in (*process.cmdline(), *process.environ().values()))
    names = open_files(one)
    assert str(tmp_path) not in names and str(box.folder / SENDER) in names and process.nice() > 0
    os.close(held)
    put(box, "b", 1e10)
    sink.open.set()
    assert sink.next()["title"] == "b", "the first takes what came meanwhile"
    assert wait(one) == 0 and sink.rest() == []


def test_signals_that_a_run_blocks_end_it(tmp_path: Path, sink: Sink, start: Callable[..., int]) -> None:
    target = Target(sink.patient)
    box = outbox_for({"HOME": str(tmp_path)}, [target])
    put(box, "a", 1e10)
    sink.open.clear()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = start(box, target)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sink.next()
    os.kill(pid, signal.SIGTERM)
    assert wait(pid) == -signal.SIGTERM


def test_it_waits_hours_as_a_small_process_and_a_start_ends_it(
    tmp_path: Path, sink: Sink, start: Callable[..., int]
) -> None:
    target = Target(sink.patient)
    box = outbox_for({"HOME": str(tmp_path)}, [target])
    put(box, "halt", 1e10, halt=True)
    pid = start(box, target)
    sink.next()

    def light() -> bool:
        heavy = "_ssl" in Path(f"/proc/{pid}/maps").read_text()  # what sends has it
        waits = next(iter(box.letters().values())).round == 2 and not heavy
        return waits and str(box.folder / SENDER) in open_files(pid)

    until(light, "it waits")
    until(lambda: box.served, "it has its lock")  # not earlier: who asks holds the lock for a moment
    assert box.cancel("job") == 1
    assert wait(pid) == 0 and sink.rest() == []
