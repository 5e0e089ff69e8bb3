"""calls: a call is read once, at its hook or for a recovery, whoever asks something of it.

Counts what the grammar parses, by text, and decodings of the call's input as JSON, from the gate on: the frame in which
a hook brings it is decoded before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import HOST, intent, opening, started, state_of, turn
from tests.unit.supervise.crew import Post, starting
from tests.unit.wal.world import intent as asked_intent
from wal_agent.agents.base import Allow, Deny, ToolEnded
from wal_agent.calls.reading import read_calls
from wal_agent.calls.rules.table import load_rules
from wal_agent.calls.shell import reader
from wal_agent.evidence.collector import Remains, decide_verdicts
from wal_agent.recovery.inflight import AskedCall, group_calls
from wal_agent.supervise.gate import Gate, RecoveredCalls


class Count:
    """`parses`: by text; `decodings`: of the input."""

    def __init__(self) -> None:
        self.parses: Counter[bytes] = Counter()
        self.decodings = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, input: bytes) -> Iterator[Count]:
    found = Count()
    parse_tree, loads, decode = reader._parse_tree, json.loads, msgspec.json.decode

    def count_parse(source: bytes) -> Any:
        found.parses[source] += 1
        return parse_tree(source)

    def count_loads(data: Any, **more: Any) -> Any:
        found.decodings += data in (input, input.decode())
        return loads(data, **more)

    def count_decode(data: Any, **more: Any) -> Any:
        found.decodings += data in (input, input.decode())
        return decode(data, **more)

    with monkeypatch.context() as m:
        m.setattr(reader, "_parse_tree", count_parse)
        m.setattr(json, "loads", count_loads)
        m.setattr(msgspec.json, "decode", count_decode)
        yield found


CALLS = [
    ("Bash", "git push origin main"),
    ("Bash", "rm -rf build && mkdir build && cp a build/"),
    ("Bash", "sudo env A=b make deploy > out.txt"),
    ("exec_command", "sleep 9 &"),
    ("run_shell_command", "cat a"),
]


@pytest.mark.parametrize(("tool", "command"), CALLS)
def test_a_hook_parses_its_text_once_and_decodes_its_input_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, command: str
) -> None:
    """Also with an open call beside it, which it may repeat, and a loop to notice; its after-hook with it."""
    post = Post(tmp_path)
    post.job.writer.append(asked_intent(1))
    post.commit()
    other = AskedCall(1, "Bash", b'{"command":"./charge.sh 5"}', ("cat ledger",))
    post.gate = Gate(post.context, load_rules, lambda: True, RecoveredCalls(post.context, asked=[other]))
    post.gate._ends_background = True
    field = load_rules().shells[tool].field
    event = replace(starting(tool, **{field: command}), cwd=str(tmp_path))
    with post.committing():
        for _ in range(2):  # what is read of the other call is read at the first
            with counted(monkeypatch, event.input) as before:
                assert post.gate.begin_call(event) == Allow()
            with counted(monkeypatch, event.input) as after:
                assert post.gate.finish_call(ToolEnded("s", tool, event.input, b"ok", False))
    assert (before.parses, before.decodings) == ({command.encode(): 1}, 1)
    assert (after.parses, after.decodings) == ({}, 1)


def test_a_call_that_repeats_one_in_flight_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8. The text inside of another one is parsed for itself."""
    post = Post(tmp_path)
    post.job.writer.append(asked_intent(1))
    post.commit()
    event = starting("Bash", command="bash -c './charge.sh 5'")
    asked = AskedCall(1, "Bash", event.input)
    post.gate = Gate(post.context, load_rules, lambda: True, RecoveredCalls(post.context, asked=[asked]))
    assert isinstance(post.gate.begin_call(event), Deny)
    with counted(monkeypatch, event.input) as found:
        assert isinstance(post.gate.begin_call(event), Deny)
    assert found.parses == {b"bash -c './charge.sh 5'": 1, b"./charge.sh 5": 1} and found.decodings == 1


@pytest.mark.parametrize(("tool", "command"), CALLS)
def test_a_recovery_reads_each_open_call_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, command: str
) -> None:
    """For the processes that still run, the verdicts, and what the agent is told."""
    data = json.dumps({load_rules().shells[tool].field: command}).encode()
    state = state_of(opening(workspace=str(tmp_path)), started(), turn(), intent(1, tool, data, "unknown"))
    with counted(monkeypatch, data) as found:
        calls = read_calls(state, {1: data})
        verdicts = decide_verdicts(state, calls, HOST, tmp_path, Remains(True, ["x"]))
        assert group_calls(state.open, (), calls, verdicts, load_rules())
    assert (found.parses[command.encode()], found.decodings) == (1, 1)
