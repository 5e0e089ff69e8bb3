"""What a restored session holds, for every agent: whatever of it was damaged, its model takes it (I3, I4).

`tests/fixtures/sessions` has a session of each real CLI, with what its hooks reported of the calls; long texts are
cut.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent, LoggedCall, RequestedCall, Rewriting, Unit
from wal_agent.agents.claude.session import load_session
from wal_agent.agents.opencode.database import load_rows
from wal_agent.agents.opencode.resume import not_after
from wal_agent.agents.session_files import Json, canonical_json, decode_json, encode_json
from wal_agent.agents.valid import conversation_faults

RECORDED = Path(__file__).parents[2] / "fixtures/sessions"
AGENT = [AGENTS[path.stem] for path in sorted(RECORDED.glob("*.jsonl"))]
EACH = pytest.mark.parametrize("agent", AGENT, ids=lambda agent: str(agent.name))
WORKSPACE = Path("/home/u/ws")


def recorded(agent: Agent) -> tuple[bytes, str, list[LoggedCall]]:
    """The main file, the session's id, and the calls as the log has them."""
    about = json.loads((RECORDED / f"{agent.name}.calls.json").read_text())
    calls = [
        LoggedCall(n, tool, input.encode(), None if result is None else result.encode(), failed, "", started, id)
        for n, tool, input, result, failed, started, id in about["calls"]
    ]
    return (RECORDED / f"{agent.name}.jsonl").read_bytes(), about["session"], calls


def claude_units(main: bytes) -> tuple[Unit, ...]:
    asks: list[Unit] = []
    answers: dict[str, list[str]] = {}
    for entry in load_session(main).entries:
        made = tuple(RequestedCall(c["id"], c["name"], encode_json(c["input"])) for c in entry.calls())
        asks += [Unit(entry.uuid, b"", asks=made)] if made else []
        for result in entry.results():
            answers.setdefault(result["tool_use_id"], []).append(result["tool_use_id"])
    known = {call.id for unit in asks for call in unit.asks}
    lost = [Unit("", b"", answers=(id,)) for id in answers.keys() - known]
    return (*(replace(u, answers=tuple(id for c in u.asks for id in answers.get(c.id, []))) for u in asks), *lost)


def units(agent: Agent, main: bytes) -> tuple[Unit, ...]:
    if agent.name == "claude":  # of a batch, all results but one are on branches of their own, which Claude joins
        return claude_units(main)
    rewriting = agent.capabilities.rewriting
    assert isinstance(rewriting, Rewriting)
    return rewriting.units(main)


def reconciled(agent: Agent, main: bytes, calls: Sequence[LoggedCall]) -> bytes:
    _, session, _ = recorded(agent)
    made = agent.reconcile(main, session, WORKSPACE, calls).data
    assert agent.reconcile(made, session, WORKSPACE, calls).data == made
    return made


SENT_AS_IT_IS = ("copilot", "opencode", "pi", "qwen")  # the others put messages of their own in front


def faults(agent: Agent, main: bytes) -> list[str]:
    shown = units(agent, main)
    begun = [f"it begins with {shown[0].data[:100]!r}"] if agent.name in SENT_AS_IT_IS and shown[0].asks else []
    return begun + conversation_faults(shown, agent.capabilities.pairs_by_id)


def lacking(agent: Agent, main: bytes, calls: Sequence[LoggedCall]) -> list[LoggedCall]:
    """The log's calls that the model does not get, or not with a result."""
    shown = units(agent, main)
    answered = {id for unit in shown for id in unit.answers}
    told = [call for unit in shown for call in unit.asks if call.id in answered]
    ids = {call.id for call in told}
    equal = Counter((call.tool, canonical_json(decode_json(call.input))) for call in told)
    missing = []
    for call in calls:
        key = call.tool, canonical_json(decode_json(call.input))
        equal[key] -= 1
        if call.call_id not in ids and equal[key] < 0:
            missing.append(call)
    return missing


@EACH
def test_a_session_without_damage_is_valid(agent: Agent) -> None:
    main, session, calls = recorded(agent)
    made = agent.reconcile(main, session, WORKSPACE, calls)
    assert made.put_back == 0
    assert faults(agent, made.data) == []
    assert lacking(agent, made.data, calls) == []


@EACH
def test_no_conversation_begins_with_a_call(agent: Agent) -> None:
    """I3: what came before the call was not saved, or was damaged. The log's prompt is told: none is in the file."""
    _, session, calls = recorded(agent)
    made = agent.reconcile(b"", session, WORKSPACE, calls)
    assert (made.prompts, made.put_back) == ((), len(calls))
    assert faults(agent, made.data) == [] and lacking(agent, made.data, calls) == []
    assert agent.reconcile(b"", session, WORKSPACE, []).messages == 0


def _damage(kind: str, lines: list[bytes], at: int, place: float) -> list[bytes]:
    line = lines[at]
    half = int(len(line) * place)
    match kind:
        case "lost":
            return [*lines[:at], *lines[at + 1 :]]
        case "cut":
            return [*lines[:at], line[:half], *lines[at + 1 :]]
        case "glued":
            return [*lines[:at], line[:half] + b"".join(lines[at + 1 : at + 2]), *lines[at + 2 :]]
        case "split":
            return [*lines[:at], line[:half], line[half:], *lines[at + 1 :]]
    return [*lines[:at], line[:half] + b"\0" * len(line[half:]), *lines[at + 1 :]]


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    kinds = st.sampled_from(("lost", "cut", "glued", "split", "NUL"))
    return draw(st.lists(st.tuples(kinds, st.integers(0, 1000), st.floats(0.01, 0.99)), min_size=1, max_size=4))


@EACH
@settings(max_examples=examples(40), phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink))
@given(damage=damages())
def test_what_was_damaged_comes_from_the_log_or_goes_with_its_other_half(
    agent: Agent, damage: list[tuple[str, int, float]]
) -> None:
    """Records that were lost, cut, glued to half of another, split over lines or overwritten with NULs."""
    main, _, calls = recorded(agent)
    lines = main.splitlines()
    for kind, at, place in damage:
        lines = _damage(kind, lines, at % len(lines), place)
    made = reconciled(agent, b"\n".join(lines) + b"\n", calls)
    assert faults(agent, made) == []
    assert lacking(agent, made, calls) == []
    without = reconciled(agent, b"\n".join(lines) + b"\n", [])
    assert faults(agent, without) == []


def _claude(record: Json) -> Iterator[str]:
    message = record.get("message", {})
    for block in message["content"] if isinstance(message.get("content"), list) else ():
        if block["type"] == "tool_result" and "No such tool" not in str(block["content"]):
            yield block["content"].removesuffix(_READ_BACK)


def _gemini(record: Json) -> Iterator[str]:
    for call in record.get("toolCalls", ()):
        yield from call["result"][0]["functionResponse"]["response"].values()


def _qwen(record: Json) -> Iterator[str]:
    for part in record["message"]["parts"] if record["type"] == "tool_result" else ():
        yield from part["functionResponse"]["response"].values()


def _codex(record: Json) -> Iterator[str]:
    if record["payload"].get("type") in ("function_call_output", "custom_tool_call_output"):
        yield re.sub(r"(?m)^(Chunk ID|Wall time|Original token count): .*\n", "", record["payload"]["output"])


def _pi(record: Json) -> Iterator[str]:
    if record.get("message", {}).get("role") == "toolResult":
        yield "\n".join(block["text"] for block in record["message"]["content"])


def _copilot(record: Json) -> Iterator[str]:
    if record["type"] == "tool.execution_complete":
        yield record["data"]["result"]["content"] if record["data"]["success"] else record["data"]["error"]["message"]


def _opencode(record: Json) -> Iterator[str]:
    if record["type"] == "part" and record["data"]["type"] == "tool":
        yield record["data"]["state"]["output"]


_READ_BACK = " (file state is current in your context \u2014 no need to Read it back)"  # may be untrue after a recovery
RESULTS = {
    "claude": _claude,
    "codex": _codex,
    "copilot": _copilot,
    "gemini": _gemini,
    "opencode": _opencode,
    "pi": _pi,
    "qwen": _qwen,
}


def results(agent: Agent, main: bytes) -> list[str]:
    """What the model gets of the calls, as the session has it."""
    return sorted({text for line in main.splitlines() for text in RESULTS[agent.name](json.loads(line))})


@EACH
def test_a_result_from_the_log_is_spelled_as_the_agent_itself_had_written_it(agent: Agent) -> None:
    """All that the session had of calls and results is lost; what comes back is what the model had read before."""
    main, _, calls = recorded(agent)
    lines = main.splitlines(keepends=True)
    if agent.name == "opencode":
        begun = [line for line in lines if b'"callID"' not in line]
    else:
        first = next(n for n, line in enumerate(lines) if any(True for _ in RESULTS[agent.name](json.loads(line))))
        begun = lines[:first]
    assert results(agent, reconciled(agent, b"".join(begun), calls)) == results(agent, main)


@pytest.mark.parametrize("lost", ["nothing", "the result", "the call"])
def test_pi_tells_the_calls_that_a_tool_made_in_that_tools_result(lost: str) -> None:
    """I8: hooks report them as `<its id>/<n>`, which no API takes as an id."""
    agent = AGENTS["pi"]
    main, _, calls = recorded(agent)
    maker = calls[-1]
    if lost != "nothing":
        calls[-1] = replace(maker, result=None)
    nested = [
        LoggedCall(
            90, "bash", b'{"command":"./charge 1"}', b'"charged 1"', False, "", maker.started, f"{maker.call_id}/1"
        ),
        LoggedCall(
            91, "bash", b'{"command":"./charge 2"}', None, False, "no trace of it", maker.started, f"{maker.call_id}/2"
        ),
        LoggedCall(92, "bash", b'{"command":"./charge 3"}', b'"charged 3"', False, "", maker.started, "gone/3"),
    ]
    lines = [line for line in main.splitlines(keepends=True) if b"All done." not in line]
    if lost != "nothing":
        lines = [line for line in lines if maker.call_id.encode() not in line or b'"toolCall"' in line]
    if lost == "the call":
        lines = [line for line in lines if maker.call_id.encode() not in line]
    made = reconciled(agent, b"".join(lines), [*calls, *nested])
    assert faults(agent, made) == []
    assert lacking(agent, made, calls) == []
    ids = {call.id for unit in units(agent, made) for call in unit.asks}
    assert ids == {call.call_id for call in calls} | {"wal_call_92"}, "the maker of the last is unknown"
    told = "\n".join(results(agent, made))
    assert "charged 3" in told
    assert all((words in told) == (lost != "nothing") for words in ("./charge 1", "charged 1", "no trace of it"))


@pytest.mark.parametrize("ahead", [-1.0, 0.001, 300.0, 100_000.0])
def test_nothing_that_opencode_orders_lies_after_this_machines_clock(ahead: float) -> None:
    """By times and ids it orders messages; with a clock that is behind, a new prompt would stand before them."""
    main, _, calls = recorded(AGENTS["opencode"])
    made = reconciled(AGENTS["opencode"], main, calls)
    newest = max(moment for moment, _ in moments(made))
    now = newest / 1000 - ahead
    moved = b"".join(not_after(made, now))
    assert b"".join(not_after(moved, now)) == moved
    if ahead < 0:
        assert moved == made
    assert all(time <= now * 1000 for time, _ in moments(moved)) or ahead < 0
    assert [key for _, key in sorted(moments(made))] == [key for _, key in sorted(moments(moved))]
    assert faults(AGENTS["opencode"], moved) == []
    assert lacking(AGENTS["opencode"], moved, calls) == []
    assert AGENTS["opencode"].reconcile(moved, recorded(AGENTS["opencode"])[1], WORKSPACE, calls).put_back == 0
    known = {row.id for row in load_rows(moved).of("message")}
    named = {row.message for row in load_rows(moved).of("part")}
    assert named | {row.data["parentID"] for row in load_rows(moved).of("message") if row.role == "assistant"} <= known


def moments(main: bytes) -> list[tuple[float, str]]:
    """The time (ms) of each message and part, by its id, and the end of that id, which stays."""
    rows = load_rows(main)
    found = []
    for row in [*rows.of("message"), *rows.of("part")]:
        number = int(row.id[4:16], 16)
        turn = round((row.created * 4096 - number) / (1 << 48)) * (1 << 48)  # an id holds 48 bits of its time
        found.append(((number + turn) / 4096, row.id[16:]))
    return found
