"""The wire's server side: any cut of the bytes gives the same call; whatever does not fit raises."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent import hookwire
from wal_agent.hookwire import ANSWER, DATA, END, HELLO, TOLD, Call, Hello, WireError, frame

HI = Hello("run", "gemini", "BeforeTool", 12, 34)


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), min_size=1), st.booleans())
def test_any_cut_gives_the_same_call(pieces: list[bytes], cuts: list[int], told: bool) -> None:
    stream = frame(HELLO, hookwire.encode_hello(HI)) + b"".join(frame(DATA, p) for p in pieces) + frame(END)
    stream += frame(TOLD) if told else b""
    call, at = Call(), 0
    while at < len(stream):
        for cut in cuts:
            call.feed(stream[at : at + cut])
            at += cut
    assert (call.hello, bytes(call.payload), call.complete, call.told) == (HI, b"".join(pieces), True, told)


@given(st.binary(max_size=200))
def test_junk_never_completes(junk: bytes) -> None:
    call = Call()
    try:
        call.feed(junk)
    except WireError:
        return
    assert not call.complete


HELLO_FRAME = frame(HELLO, hookwire.encode_hello(HI))


@pytest.mark.parametrize(
    "stream",
    [
        frame(DATA, b"x"),
        frame(END),
        frame(TOLD),
        HELLO_FRAME + HELLO_FRAME,
        HELLO_FRAME + frame(TOLD),
        HELLO_FRAME + frame(END, b"x"),
        HELLO_FRAME + frame(END) + frame(END),
        HELLO_FRAME + frame(END) + frame(DATA, b"x"),
        HELLO_FRAME + frame(END) + frame(TOLD) + frame(TOLD),
        HELLO_FRAME + frame(ANSWER, b"x"),
        HELLO_FRAME + b"D" + (hookwire.MAX_FRAME + 1).to_bytes(4, "big"),
        frame(HELLO, b"wal-agent-hook/2\0run\0gemini\0BeforeTool\x001\x00"),
        frame(HELLO, b"wal-agent-hook/1\0run\0gemini\0BeforeTool\0x\0"),
        frame(HELLO, b"wal-agent-hook/1\0run"),
        frame(HELLO, b"\xff"),
    ],
)
def test_what_does_not_fit_is_refused(stream: bytes) -> None:
    with pytest.raises(WireError):
        Call().feed(stream)


def test_a_payload_over_the_limit_is_refused() -> None:
    call = Call(limit=10)
    call.feed(HELLO_FRAME + frame(DATA, b"x" * 10))
    with pytest.raises(WireError):
        call.feed(frame(DATA, b"x"))


def test_an_unknown_agent_pid_is_zero() -> None:
    hello = Hello("run", "gemini", "BeforeTool", 12, 0)
    assert hookwire.decode_hello(hookwire.encode_hello(hello)) == hello


def test_the_client_speaks_the_same_numbers() -> None:
    spec = importlib.util.spec_from_file_location("hook_client", hookwire.client_command()[-1])
    assert spec is not None
    assert spec.loader is not None
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    assert client.MAX_FRAME == hookwire.MAX_FRAME
    assert client.CHUNK <= hookwire.MAX_FRAME
    assert client.frame(b"D", b"abc") == frame(DATA, b"abc")
    with pytest.raises(WireError):
        frame(DATA, bytes(hookwire.MAX_FRAME + 1))
