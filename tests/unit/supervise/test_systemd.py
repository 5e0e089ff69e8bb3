"""supervise/systemd.py: the words of sd_notify(3), to a real socket."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal_agent.clock import SystemClock
from wal_agent.events import DrainStarted, Halted, LeaseRenewed, Paused, PhaseChanged, Ready, TakesLong
from wal_agent.supervise.systemd import keep_alive, notify_lines, service_manager, status_line


@pytest.fixture
def service() -> Iterator[tuple[str, socket.socket]]:
    """A stand-in for systemd: its address, and what it hears."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        address = str(Path(folder) / "n")
        heard.bind(address)
        heard.settimeout(30)
        yield address, heard


def test_it_is_ready_once_and_fed_while_the_loop_turns(service: tuple[str, socket.socket]) -> None:
    address, heard = service
    hangs = False
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    manager = service_manager(env, lambda now: hangs, SystemClock())
    assert manager is not None
    assert b"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=" in heard.recv(4096), "a long restore is no failure"
    manager.on_event(0.0, Ready())
    while not heard.recv(4096).startswith(b"READY=1"):
        pass
    while heard.recv(4096) != b"WATCHDOG=1":
        pass
    hangs = True
    heard.settimeout(0.3)
    with pytest.raises(TimeoutError):
        for _ in range(600):  # more than may wait in the socket
            heard.recv(4096)
    manager.close()


def test_that_it_is_ready_is_said_again_to_a_systemd_that_had_no_room(service: tuple[str, socket.socket]) -> None:
    address, heard = service
    manager = service_manager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000"}, lambda now: False, SystemClock())
    assert manager is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                other.sendto(b"full", address)
        manager.on_event(0.0, Ready())
    said = [heard.recv(4096)]
    while b"READY=1" not in said[-1]:
        said.append(heard.recv(4096))
    while b"READY=1" in said[-1]:
        said.append(heard.recv(4096))
    manager.close()
    assert b"full" in said, "a keep-alive may be before"
    assert said[-1] == b"WATCHDOG=1", "and no longer than until it was heard"


def test_another_process_watchdog_is_not_ours_and_without_systemd_there_is_none() -> None:
    assert service_manager({}, lambda now: False, SystemClock()) is None
    assert service_manager({"NOTIFY_SOCKET": "vsock:2:1"}, lambda now: False, SystemClock()) is None


def test_a_systemd_that_is_gone_disturbs_nobody(tmp_path: Path) -> None:
    manager = service_manager({"NOTIFY_SOCKET": "/tmp/wal-agent-no-such-socket"}, lambda now: False, SystemClock())
    assert manager is not None
    manager.on_event(0.0, Ready())
    manager.close()


def test_what_systemctl_shows() -> None:
    assert status_line(PhaseChanged("awaiting_model", "executing_tools", "bash", 1.0)) == "executing_tools bash"
    assert status_line(TakesLong("approval", 300.0, "bash")) == (
        "a person may be needed: it asks, or runs what was allowed, since 5 min: bash"
    )
    assert status_line(TakesLong("start", 300.0)) == "a person may be needed: the agent has not begun for 5 min"
    assert "its turn is over" in str(status_line(TakesLong("exit", 300.0)))
    assert notify_lines(LeaseRenewed(1)) == []
    assert notify_lines(DrainStarted("gcp", 20.0))[:2] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=80000000"]
    assert notify_lines(Paused(0.0, "rate limit")) == ["STATUS=paused: rate limit"]


def test_a_bucket_that_is_waited_for_needs_no_person() -> None:
    assert status_line(Halted(69, "It is away.", "")) == "stopped: It is away."
    assert status_line(Halted(80, "5 crashes.", "")) == "a person is needed: 5 crashes."


def test_no_secret_and_no_second_line_gets_out() -> None:
    (said,) = notify_lines(Halted(80, "password=hunter2hunter2\nREADY=1", ""))
    assert "hunter2" not in said and "\n" not in said


def test_a_loop_that_hangs_is_not_kept_alive() -> None:
    assert keep_alive(ready=True, stalled=True) == []
    assert keep_alive(ready=True, stalled=False) == ["WATCHDOG=1"]
