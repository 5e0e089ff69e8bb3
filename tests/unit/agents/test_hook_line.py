"""The wire's server side: any cut of the bytes gives the same call; whatever does not fit raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent import paths
from wal_agent.agents import hook_line
from wal_agent.agents.base import HookEvent
from wal_agent.agents.hook_line import ANSWER, DATA, END, HELLO, TOLD, Call, Hello, WireError, frame, on, parser
from wal_agent.limits import explain

HI = Hello("run", "gemini", "BeforeTool", 12, 34)


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), min_size=1), st.booleans())
def test_any_cut_gives_the_same_call(pieces: list[bytes], cuts: list[int], told: bool) -> None:
    stream = frame(HELLO, hook_line.encode_hello(HI)) + b"".join(frame(DATA, p) for p in pieces) + frame(END)
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


HELLO_FRAME = frame(HELLO, hook_line.encode_hello(HI))


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
        HELLO_FRAME + b"D" + (hook_line.MAX_FRAME + 1).to_bytes(4, "big"),
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
    assert hook_line.decode_hello(hook_line.encode_hello(hello)) == hello


def test_a_body_over_the_limit_is_not_framed() -> None:
    assert len(frame(DATA, bytes(hook_line.MAX_FRAME))) == hook_line.HEAD.size + hook_line.MAX_FRAME
    with pytest.raises(WireError):
        frame(DATA, bytes(hook_line.MAX_FRAME + 1))


# ---- which client -------------------------------------------------------------------------------------------------

SPEAKS = f'#!/bin/sh\n[ "$*" = {hook_line.VERSION} ]\n'


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the compiled client, in an installed package that holds both."""
    package = tmp_path / "wal_agent"
    hooks = package / "_shipped" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "client.py").touch()
    (hooks / "client").write_text(SPEAKS)
    (hooks / "client").chmod(0o755)
    monkeypatch.setattr(paths, "PACKAGE", package)
    return hooks / "client"


def test_the_native_client_is_taken_where_it_runs(native: Path) -> None:
    assert hook_line.native_client() == native
    assert hook_line.client_command() == (str(native),)


def missing(native: Path) -> None:
    native.unlink()


def not_executable(native: Path) -> None:
    native.chmod(0o644)


def writable_by_all(native: Path) -> None:
    native.chmod(0o757)


def a_link(native: Path) -> None:
    native.rename(native.with_name("other"))
    native.symlink_to("other")


def of_another_wire(native: Path) -> None:
    native.write_text(SPEAKS.replace("/1", "/0"))


def of_another_machine(native: Path) -> None:
    native.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))


@pytest.mark.parametrize(
    "unfit", [missing, not_executable, writable_by_all, a_link, of_another_wire, of_another_machine]
)
def test_without_a_native_client_that_is_ours_and_runs_it_is_python(
    native: Path, unfit: Callable[[Path], None]
) -> None:
    unfit(native)
    assert hook_line.native_client() is None
    python, *flags, script = hook_line.client_command()
    assert Path(python).is_file()
    assert (flags, script) == (["-I", "-S", "-E"], str(native.with_name("client.py")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_native_client_of_another_user_is_not_taken(native: Path) -> None:
    os.chown(native, 65534, 65534)
    assert hook_line.native_client() is None


def test_this_checkout_has_a_native_client() -> None:
    """All that runs an agent here runs it with this one: a missing one would be a suite that tests the other."""
    assert hook_line.native_client(), "there is none: install a C compiler, then `make clean`"


@pytest.mark.parametrize("payload", [b"", b"[1]", b'{"a": "\xff"}', b"[" * 5000, b'{"a": 1}', b'{"a": "x"}'])
def test_what_cannot_be_read_is_an_error_in_words(payload: bytes) -> None:
    """I5: its line refuses, and the run reports it without a word of a bug."""

    class Payload(msgspec.Struct):
        a: str

    def build(payload: Payload) -> HookEvent:
        raise ValueError("it names no tool")

    with pytest.raises(ValueError) as refused:
        parser({"Pre": on(Payload, build)})("Pre", payload)
    assert str(explain(refused.value)) == str(refused.value) and "Pre" in str(refused.value)
