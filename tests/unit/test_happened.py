"""happened.py: who looks on hears everything, and can break nothing."""

from __future__ import annotations

from wal_agent.happened import Announcer, Happening, LeaseRenewed, Ready


class Ear:
    def __init__(self, broken: bool = False) -> None:
        self.heard: list[tuple[float, Happening]] = []
        self.closed = False
        self._broken = broken

    def hear(self, at: float, happening: Happening) -> None:
        self.heard.append((at, happening))
        if self._broken:
            raise RuntimeError("no disk")

    def close(self) -> None:
        self.closed = True


def test_every_listener_hears_and_a_broken_one_is_told_once() -> None:
    broken, sound = Ear(broken=True), Ear()
    failures: list[BaseException] = []
    announcer = Announcer([broken, sound], lambda: 7.0, failures.append)
    announcer.tell(Ready())
    announcer.tell(LeaseRenewed(2))
    announcer.close()
    assert sound.heard == broken.heard == [(7.0, Ready()), (7.0, LeaseRenewed(2))]
    assert [str(error) for error in failures] == ["no disk"]
    assert broken.closed and sound.closed
