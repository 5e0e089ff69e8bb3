"""recovery/effects.py: which calls and steps are effects, and what is known of each."""

from __future__ import annotations

import json
from typing import Any

from wal_agent.calls.rules.table import load_rules
from wal_agent.records import (
    Answer,
    AnyRecord,
    Cut,
    End,
    Host,
    Intent,
    Opening,
    Payload,
    Recovery,
    RunsOn,
    StepBegun,
    StepEnded,
    Verdict,
)
from wal_agent.recovery.effects import Effect, effects_of


def opening(epoch: int, agent: str = "gemini") -> Opening:
    host = Host(name=f"vm-{epoch}", boot="b", pidns="p", pid=1, lock="/l")
    return Opening(
        time=1.0, run="r", epoch=epoch, cause="dead", host=host, agent=agent, agent_version="1", version="1",
        workspace="/w",
    )  # fmt: skip


def call(number: int, command: str = "git tag v1", cls: Any = "mutation", tool: str = "run_shell_command") -> Intent:
    data = json.dumps({"command": command}).encode()
    size = len(data)
    return Intent(time=2.0, call=number, tool=tool, input=Payload(size=size, data=data), cls=cls, rule="r", session="s")


def end(number: int, how: Any, **more: Any) -> End:
    return End(time=3.0, call=number, how=how, by=more.pop("by", "hook"), **more)


def recovery(**findings: Any) -> Recovery:
    verdicts = tuple(Verdict(call=int(k[1:]), finding=v, why=f"why {v}", verify="look") for k, v in findings.items())
    return Recovery(time=4.0, from_epoch=1, verdicts=verdicts, told="")


def listed(*records: AnyRecord) -> dict[object, Effect]:
    found = effects_of(enumerate(records, 1), load_rules(), lambda payload: payload.data or b"")
    assert [one.record for one in found] == sorted((one.record for one in found), reverse=True)
    return {one.call or one.step: one for one in reversed(found)}  # of two tries of a step the newest


def test_what_reads_was_denied_or_did_not_start_is_no_effect() -> None:
    found = listed(
        opening(1),
        call(1, cls="read_only"), end(1, "done"),
        call(2), end(2, "refused"),
        call(3), end(3, "verified", by="recovery", finding="not_started"),
        call(4, tool="write_todos", cls="idempotent"), end(4, "done"),
        call(5), end(5, "resolved", by="person", finding="not_started"),
        StepBegun(time=1.0, name="one", command=("x",)), StepEnded(time=1.0, name="one", how="not_done"),
        call(6), end(6, "done"),
    )  # fmt: skip
    assert list(found) == [6] and found[6].host == "vm-1" and found[6].undo.commands == ("git tag -d v1",)


def test_what_only_tells_wal_agent_something_is_no_effect() -> None:
    """A step is one of its own; what else a command does stays one."""
    told = (
        "wal-agent checkpoint --note hi",
        "printf '[x] a\\n' | wal-agent checkpoint --plan - >/dev/null",
        "wal-agent state set a 1; echo $?",
    )
    found = listed(
        opening(1),
        *(call(n, text, cls="idempotent") for n, text in enumerate(told, 1)),
        call(11, "wal-agent step send -- mail x", cls="idempotent"),
        StepBegun(time=1.0, name="send", command=("mail", "x")),
        call(12, "wal-agent checkpoint --note hi && make"),
        call(13, "wal-agent state get a > out.txt", cls="idempotent"),
        call(14, "wal-agent run claude", cls="idempotent"),
        call(15, "wal-agent state set a $(deploy)", cls="unknown"),
    )
    assert set(found) == {"send", 12, 13, 14, 15}


def test_a_plan_is_no_effect_and_a_query_of_any_other_agent_is() -> None:
    """Copilot keeps its plan in a table of its own; a tool of that name may ask any database."""
    query = {"tool": "sql", "command": "UPDATE todos SET status = 'done'"}
    found = listed(
        opening(1, "copilot"), call(1, **query), call(2, tool="sql", command="DROP TABLE orders"),
        opening(2, "pi"), call(3, **query),
        opening(3, "claude"), call(4, tool="TaskCreate"),
    )  # fmt: skip
    assert set(found) == {2, 3}


def test_each_effect_says_what_is_known_of_it() -> None:
    found = listed(
        opening(1),
        call(1), end(1, "failed", why="code 1"),
        call(2), call(3), call(4), call(5), call(6), call(7),
        StepBegun(time=1.0, name="lost", command=("git", "tag", "v1"), verify="look"),
        StepBegun(time=1.0, name="twice", command=("x",)), StepEnded(time=1.0, name="twice", how="failed"),
        StepBegun(time=1.0, name="twice", command=("x",)), StepEnded(time=1.0, name="twice", how="done"),
        opening(2),
        recovery(_2="completed", _3="partial", _4="unknown", _5="unknown", _6="not_started"),
        end(2, "verified", by="recovery", finding="completed"),
        Answer(time=5.0, call=4, because="I looked"),
        end(5, "resolved", by="person", finding="completed"),
        call(8), call(9), call(10),
        Cut(time=5.0, call=9, by="hook", why="Esc"), RunsOn(time=5.0, call=10, by="hook", why="&"),
    )  # fmt: skip
    assert {key: one.result for key, one in found.items()} == {
        1: "failed", 2: "verified", 3: "open", 4: "open", 5: "resolved", 7: "open", 8: "open", 9: "cut", 10: "runs_on",
        "lost": "open", "twice": "done",
    }  # fmt: skip
    assert {key for key, one in found.items() if one.needs_a_look} == {3, 4, 7, 9, "lost"}
    assert (found[4].because, found[4].why, found[4].verify, found[4].by) == (
        "I looked", "why unknown", "look", "recovery",
    )  # fmt: skip
    assert found["lost"].undo.commands == ("git tag -d v1",) and found[7].by == ""


def test_a_hostile_log_lists_and_does_not_fail() -> None:
    assert listed(end(9, "done"), StepEnded(time=1.0, name="x", how="done"), recovery(_3="unknown")) == {}
    found = listed(call(1), call(1, "rm -rf /"), end(1, "done"), end(1, "refused"))
    assert found[1].result == "done" and found[1].undo.commands == ("git tag -d v1",)
