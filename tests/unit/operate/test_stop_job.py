"""operate/stop_job.py: a run that no signal reaches is asked through the bucket, and only that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.supervise.crew import short_folder
from tests.unit.wal.world import KEYS, TTL, World, drain, intent
from wal_agent.errors import ConfigError, LeaseHeld, PersonNeeded
from wal_agent.inbox import BucketDriver, Message, address_to_run, is_for_run
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.stop_job import FAR_DEADLINE, StopRequest, stop_job
from wal_agent.records import MessageGiven, MessageSeen, Payload
from wal_agent.wal.job import OpenedJob, close_job


class Far:
    """A run on another machine. `then`: what happens there each time that the person's command waits."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.job: OpenedJob = self.world.open("far")
        self.env = {"WAL_AGENT_RUNTIME_DIR": str(folder / "r")}
        self.folder = folder
        self.driver = BucketDriver(self.world.bucket, "shop")
        self.lines: list[str] = []
        self.then: Callable[[], object] = lambda: None
        sleep = self.world.clock.sleep

        def wait(seconds: float) -> None:
            sleep(seconds)
            self.then()

        self.world.clock.sleep = wait  # type: ignore[method-assign]

    def asked(self) -> list[Message]:
        return list(self.driver.fetch(lambda _: False))

    def stop(self, done: bool = False) -> str:
        request = StopRequest(" --job shop", self.folder, done, self.driver.send, self.lines.append)
        return stop_job(JobAccess(self.world.bucket, KEYS, TTL, self.env), self.world.clock, request).said

    def lives(self) -> None:
        self.job.lease.renew(phase="awaiting_user")

    def obeys(self) -> None:
        """As a run that looks for messages."""
        (message,) = self.asked()
        assert message.verb == "drain" and is_for_run(message.text, "far")
        close_job(self.job, "released", "preempted (message)")


@pytest.fixture
def far() -> Iterator[Far]:
    with short_folder() as folder:
        yield Far(folder)


def test_a_run_elsewhere_is_asked_and_waited_for(far: Far) -> None:
    rounds = iter((far.lives, far.lives, far.obeys))
    far.then = lambda: next(rounds)()
    said = far.stop()
    assert said.startswith("job shop is saved and stopped") and "wal-agent resume --job shop" in said
    assert len(far.lines) == 1 and "host-far" in far.lines[0], "in time, so there is only the first line"


def test_done_closes_it_so_that_nobody_carries_on(far: Far) -> None:
    far.then = far.obeys
    assert "is closed" in far.stop(done=True)
    seen = far.world.seen()
    assert seen is not None and seen.doc.state == "closed"


def test_a_message_stops_only_the_run_that_it_was_sent_to(far: Far) -> None:
    """One that comes too late finds another run, which goes on."""
    far.then = far.obeys
    far.stop()
    (message,) = far.asked()
    assert message.text == address_to_run("far") and not is_for_run(message.text, "next")
    assert is_for_run("", "next") and is_for_run("any words", "next")


def test_a_machine_that_is_dead_is_named_with_its_last_heartbeat(far: Far) -> None:
    far.world.clock.at += 3 * TTL
    said = far.stop()
    assert "was cut off" in said and "90 s ago" in said and "resume" in said
    assert far.asked() == [], "nobody is there to be asked"


def test_a_machine_that_dies_while_it_is_asked(far: Far) -> None:
    said = far.stop()
    assert "was cut off" in said and far.asked()


def test_a_run_that_does_not_obey_is_left_alone_in_the_end(far: Far) -> None:
    began = far.world.clock.at
    far.then = far.lives
    with pytest.raises(LeaseHeld) as refused:
        far.stop()
    assert far.world.clock.at - began >= FAR_DEADLINE and len(far.lines) > 10
    assert refused.value.hint.endswith(f"wal-agent unlock --job shop --epoch {far.job.lease.epoch}")
    assert all("last heartbeat" in line for line in far.lines)


def test_a_run_that_refuses_ends_the_wait_at_once(far: Far) -> None:
    """Its settings forbid `drain`; the line says who, why, and what to do."""

    def refuses() -> None:
        (message,) = far.asked()
        sender, id, why = message.sender, message.id, "the settings do not allow it\x1b[2J"
        given = MessageGiven(time=1.0, sender=sender, id=id, sent=1.0, verb="drain", text=Payload(size=0, data=b""))
        far.job.writer.append(given, MessageSeen(time=1.0, sender=sender, id=id, refused=why))
        drain(far.job)
        far.lives()

    began, far.then = far.world.clock.at, refuses
    with pytest.raises(ConfigError) as refused:
        far.stop()
    assert far.world.clock.at - began < FAR_DEADLINE / 10
    assert "host-far" in refused.value.what and "the settings do not allow it" in refused.value.what
    assert "\x1b" not in refused.value.what
    assert refused.value.hint.endswith(f"wal-agent unlock --job shop --epoch {far.job.lease.epoch}")


def test_the_wait_says_that_an_agent_waits_for_a_person(far: Far) -> None:
    far.lives()
    rounds = iter([far.lives] * 12 + [far.obeys])
    far.then = lambda: next(rounds)()
    far.stop()
    assert len(far.lines) > 1 and all("waits for a person" in line for line in far.lines)


def test_another_run_that_has_the_job_meanwhile_is_not_stopped(far: Far) -> None:
    def taken() -> None:
        close_job(far.job, "released", "drained (SIGTERM)")
        far.world.open("next")
        far.then = lambda: None

    far.then = taken
    with pytest.raises(LeaseHeld) as refused:
        far.stop(done=True)
    assert "meanwhile" in refused.value.what


def test_done_needs_an_answer_for_each_call_in_flight(far: Far) -> None:
    """I8."""
    far.job.writer.append(intent(1))
    drain(far.job)
    far.then = far.obeys
    with pytest.raises(PersonNeeded):
        far.stop(done=True)
