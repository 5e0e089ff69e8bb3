"""Small builders for the tests of this folder."""

from __future__ import annotations

from msgspec.structs import replace

from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Cause,
    Class,
    End,
    Fact,
    FileDelta,
    Host,
    Intent,
    Opening,
    Payload,
    RunEnded,
    Turn,
)
from wal_agent.wal.state import OpeningAt, State, apply

MAIN = "session.jsonl"
HOST = Host(name="vm-17", boot="b17", pidns="4", pid=7, lock="/run/l")
OTHER = Host(name="vm-22", boot="b22", pidns="4", pid=8, lock="/run/l")


def opening(epoch: int = 1, cause: Cause = "first", host: Host = HOST, **more: object) -> Opening:
    fields: dict[str, object] = {
        "time": 1000.0 * epoch,
        "run": f"r{epoch}",
        "agent": "gemini",
        "agent_version": "0.61.0",
        "version": "0.1",
        "workspace": "/w/shop",
        "args": ("-p", "do it"),
    }
    return Opening(epoch=epoch, cause=cause, host=host, **{**fields, **more})  # type: ignore[arg-type]


def started(session: str = "s1", resumed: bool = False) -> AgentStarted:
    return AgentStarted(time=1.0, pid=1, session=session, resumed=resumed)


def turn(state: str = "started", session: str = "s1") -> Turn:
    return Turn(time=1.0, state=state, session=session)  # type: ignore[arg-type]


def payload(data: bytes) -> Payload:
    return Payload(size=len(data), data=data)


def intent(
    call: int = 1,
    tool: str = "run_shell_command",
    input: bytes = b'{"command":"make"}',
    cls: Class = "unknown",
    session: str = "s1",
    before: tuple[Fact, ...] = (),
    time: float = 5.0,
) -> Intent:
    return Intent(
        time=time, call=call, tool=tool, input=payload(input), cls=cls, rule="r", session=session, before=before
    )


def end(call: int = 1) -> End:
    return End(time=6.0, call=call, how="done", by="hook", result=payload(b"{}"))


def answer(call: int = 1, *looked: int, because: str = "") -> Answer:
    return Answer(time=6.5, call=call, looked=looked, because=because)


def captured(session: str = "s1", path: str = MAIN, settled: int = 0) -> FileDelta:
    return FileDelta(time=7.0, path=path, size=0, sha256="0" * 64, edits=(), session=session, settled=settled)


def run_ended(completed: bool = True, until: float = 0.0, reason: str = "") -> RunEnded:
    return RunEnded(time=8.0, code=0, completed=completed, until=until, reason=reason)


def with_home(state: State, home: Opening | None) -> State:
    """The state of a log in which the agent was started last under `home`; None: never."""
    if home is None:
        return replace(state, home=-1)
    known = home in [at.opening for at in state.openings]
    openings = state.openings if known else (OpeningAt(0, home), *state.openings)
    return replace(state, openings=openings, home=home.epoch)


def state_of(*records: AnyRecord) -> State:
    """The state after these records, each in its own segment."""
    state = State()
    for seq, record in enumerate(records, 1):
        state = apply(state, seq, record.epoch if isinstance(record, Opening) else state.epoch, record)
    return state
