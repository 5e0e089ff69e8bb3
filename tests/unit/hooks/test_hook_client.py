"""The hook client as a process, against a socket: it prints what the server says, or nothing at all."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wal_agent import hookwire

Serve = Callable[[socket.socket], None]


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    path = str(tmp_path / "s")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1)
    yield sock, path
    sock.close()


def take(client: socket.socket) -> hookwire.Call:
    call = hookwire.Call()
    while not call.complete:
        call.feed(client.recv(1 << 16))
    return call


def run_client(
    listening: tuple[socket.socket, str], serve: Serve, payload: bytes = b"{}", seconds: int = 5
) -> tuple[int, bytes]:
    sock, path = listening
    ended = threading.Event()

    def accept() -> None:
        client, _ = sock.accept()
        with client:
            serve(client)
        ended.set()

    threading.Thread(target=accept, daemon=True).start()
    argv = [*hookwire.client_command(), path, "run", "gemini", "BeforeTool", "77", str(seconds)]
    done = subprocess.run(argv, input=payload, capture_output=True, timeout=30, check=False)
    ended.wait(5)
    return done.returncode, done.stdout


def test_it_carries_the_payload_prints_the_answer_and_says_so(listening: tuple[socket.socket, str]) -> None:
    calls: list[hookwire.Call] = []

    def serve(client: socket.socket) -> None:
        calls.append(take(client))
        client.sendall(hookwire.answer(b"answer\0"))
        while not calls[0].told:
            calls[0].feed(client.recv(100))

    payload = os.urandom(3_000_001)
    assert run_client(listening, serve, payload) == (0, b"answer\0")
    (call,) = calls
    assert call.hello is not None
    assert (call.hello.run, call.hello.agent, call.hello.event, call.hello.agent_pid) == (
        "run",
        "gemini",
        "BeforeTool",
        77,
    )
    assert bytes(call.payload) == payload
    assert call.told


def close_at_once(client: socket.socket) -> None:
    pass


def close_after_the_payload(client: socket.socket) -> None:
    take(client)


def half_an_answer(client: socket.socket) -> None:
    take(client)
    client.sendall(hookwire.answer(b"x" * 100)[:50])


def half_a_head(client: socket.socket) -> None:
    take(client)
    client.sendall(b"A\0")


def another_frame(client: socket.socket) -> None:
    take(client)
    client.sendall(hookwire.frame(b"T"))


def too_much(client: socket.socket) -> None:
    take(client)
    client.sendall(b"A\xff\xff\xff\xff" + bytes(1 << 16))


def silence(client: socket.socket) -> None:
    take(client)
    client.recv(1)


@pytest.mark.parametrize(
    "serve", [close_at_once, close_after_the_payload, half_an_answer, half_a_head, another_frame, too_much, silence]
)
def test_without_a_whole_answer_it_prints_nothing_and_fails(listening: tuple[socket.socket, str], serve: Serve) -> None:
    code, out = run_client(listening, serve, seconds=1)
    assert code != 0
    assert out == b""


def test_without_a_server_it_fails(tmp_path: Path) -> None:
    argv = [*hookwire.client_command(), str(tmp_path / "none"), "run", "gemini", "BeforeTool", "", "5"]
    done = subprocess.run(argv, input=b"{}", capture_output=True, timeout=30, check=False)
    assert (done.returncode != 0, done.stdout) == (True, b"")


def test_it_is_told_of_no_answer_when_nobody_reads_it(listening: tuple[socket.socket, str]) -> None:
    """R7: the pipe to the shell is closed, so the agent was told nothing; no T is sent."""
    sock, path = listening
    argv = [*hookwire.client_command(), path, "run", "gemini", "BeforeTool", "", "5"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    client, _ = sock.accept()
    with client:
        call = take(client)
        process.stdout.close()
        client.sendall(hookwire.answer(b"answer\0"))
        while data := client.recv(100):
            call.feed(data)
    assert process.wait(5) != 0
    assert not call.told


def test_it_imports_only_built_in_modules() -> None:
    """Its start is on the way of every tool call: no site, no json, no socket.py."""
    lines = Path(hookwire.client_command()[-1]).read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported == {"_signal", "_socket", "posix", "sys"}
