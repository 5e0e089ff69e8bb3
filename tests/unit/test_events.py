"""events.py: who looks on hears everything, and can break nothing."""

from __future__ import annotations

import threading

from wal_agent.events import Event, EventBus, LeaseLost, LeaseRenewed, LostOnce, Ready


class Ear:
    def __init__(self, broken: bool = False) -> None:
        self.heard: list[tuple[float, Event]] = []
        self.closed = False
        self._broken = broken

    def on_event(self, at: float, event: Event) -> None:
        self.heard.append((at, event))
        if self._broken:
            raise RuntimeError("no disk")

    def close(self) -> None:
        self.closed = True


def test_every_listener_hears_and_a_broken_one_is_told_once() -> None:
    broken, sound = Ear(broken=True), Ear()
    failures: list[BaseException] = []
    bus = EventBus([broken, sound], lambda: 7.0, failures.append)
    bus.emit(Ready())
    bus.emit(LeaseRenewed(2))
    bus.close()
    assert sound.heard == broken.heard == [(7.0, Ready()), (7.0, LeaseRenewed(2))]
    assert [str(error) for error in failures] == ["no disk"]
    assert broken.closed and sound.closed


def test_who_comes_later_hears_from_then_on() -> None:
    first, later = Ear(), Ear()
    bus = EventBus([first], lambda: 7.0, lambda _: None)
    bus.emit(Ready())
    bus.add(later)
    bus.emit(LeaseRenewed(2))
    bus.close()
    assert len(first.heard) == 2 and later.heard == [(7.0, LeaseRenewed(2))] and later.closed


class Meeting(Ear):
    """Its end comes when all the others are at theirs."""

    def __init__(self, all_of_them: threading.Barrier) -> None:
        super().__init__()
        self._all = all_of_them

    def close(self) -> None:
        self._all.wait(60)
        super().close()


def test_the_listeners_ends_are_waited_for_together() -> None:
    """One after the other, none of these would come to its end."""
    barrier = threading.Barrier(3)
    ears = [Meeting(barrier) for _ in range(3)]
    EventBus(ears, lambda: 7.0, lambda _: None, last=60).close()
    assert all(ear.closed for ear in ears)


def test_one_that_hangs_at_its_end_is_left_behind() -> None:
    hangs, sound = Meeting(threading.Barrier(2)), Ear()
    EventBus([hangs, sound], lambda: 7.0, lambda _: None, last=1.0).close()
    assert sound.closed and not hangs.closed


def test_a_lost_lease_is_told_once_whoever_finds_it() -> None:
    heard: list[Event] = []
    emit = LostOnce(heard.append)
    for event in (Ready(), LeaseLost("epoch 9"), LeaseLost("the log"), Ready()):
        emit(event)
    assert heard == [Ready(), LeaseLost("epoch 9"), Ready()]
