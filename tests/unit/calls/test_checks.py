"""What a check printed, read (calls/checks.py): I8. `done_if` may come from a stranger's file."""

from __future__ import annotations

import fnmatch
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.calls.checks import (
    MAX_LINE,
    MAX_LINES,
    MAX_RESULT,
    MAX_SHOWN,
    Reading,
    beginning,
    line_is,
    parse_done_if,
    printed_lines,
    shows_done,
)

CHECK = "./status.sh staging"
DONE = Reading(CHECK, "status: deployed *", "AGENTS.md")
QWEN = f"Command: {CHECK}\nDirectory: (root)\nOutput: status: deployed v7\nError: (none)\nExit Code: 0"


@pytest.mark.parametrize(
    "result",
    [
        {"stdout": "one\nstatus:  deployed v7 \n", "stderr": "", "interrupted": False},  # Claude Code
        {"exit_code": 0, "output": "one\r\nstatus: deployed v7\r\n"},  # Codex
        {"llmContent": "Output: status: deployed v7\nProcess Group PGID: 7"},  # Gemini CLI
        {"llmContent": "<untrusted_context>\nOutput: status: deployed v7\n</untrusted_context>"},
        {"llmContent": QWEN},
        {"text": "status: deployed v7\n<shellId: 1 completed with exit code 0>", "type": "success"},  # Copilot
        {"title": CHECK, "output": "status: deployed v7\n", "metadata": {"exit": 0, "description": "x"}},  # OpenCode
        {"content": [{"type": "text", "text": "status: deployed v7"}]},  # pi
    ],
)
def test_a_line_is_found_in_the_result_of_each_agent(result: object) -> None:
    assert shows_done(DONE, True, json.dumps(result).encode()) == "status: deployed v7"
    assert shows_done(DONE, False, json.dumps(result).encode()) == "status: deployed v7", "whatever its exit code"
    other = json.dumps(result).replace("deployed", "not deployed").encode()
    assert shows_done(DONE, True, other) is None


@pytest.mark.parametrize(
    "result",
    [
        b"",
        b"status: deployed v7",
        b"\xff",
        b"null",
        b"[" * 100_000,
        json.dumps({"command": "status: deployed v7", "title": "status: deployed v7", "stdout": ""}).encode(),
        json.dumps({"stdout": f"+ {CHECK} status: deployed v7"}).encode(),
        json.dumps({"stdout": f"# status: deployed v7\nWas: status: deployed v7\n{QWEN[:60]}"}).encode(),
        json.dumps({"stdout": "x\n" * MAX_LINES + "status: deployed v7"}).encode(),
        json.dumps({"stdout": f"status: deployed {'x' * MAX_LINE}"}).encode(),
        json.dumps({"stdout": "status: deployed v7", "more": "x" * MAX_RESULT}).encode(),
    ],
)
def test_what_is_no_whole_line_of_its_output_shows_nothing(result: bytes) -> None:
    assert shows_done(DONE, True, result) is None


def test_an_exit_of_0_is_read_only_where_the_agent_reports_it() -> None:
    by_exit = Reading(CHECK, parse_done_if("Exit  0"))
    assert shows_done(by_exit, True, b"null") == ""
    assert shows_done(by_exit, False, json.dumps({"stdout": "exit 0"}).encode()) is None


@pytest.mark.parametrize("text", ["", "  ", "*", "* **", "exit 1", "exit", "EXIT CODE 0", "exit 0 or 1"])
def test_what_would_match_anything_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_done_if(text)


@given(st.text("ab* ", min_size=1, max_size=8), st.text("ab ", max_size=10))
def test_a_line_is_matched_as_a_whole(wanted: str, line: str) -> None:
    assert line_is(wanted, line) == fnmatch.fnmatchcase(line, wanted)


@given(st.text(max_size=60), st.binary(max_size=80) | st.text(max_size=80).map(lambda t: json.dumps([t]).encode()))
def test_no_text_of_a_stranger_is_too_much(text: str, result: bytes) -> None:
    try:
        wanted = parse_done_if(text)
    except ValueError as error:
        assert str(error)
        return
    line = shows_done(Reading(CHECK, wanted), False, result)
    assert line is None or line in [*printed_lines(CHECK, result)]
    assert len(beginning(CHECK, result)) <= MAX_SHOWN


@pytest.mark.timeout(120)
def test_a_pattern_that_a_regular_expression_tries_for_years_ends() -> None:
    """The timeout is far above what a slow machine needs."""
    reading = Reading(CHECK, parse_done_if("*a" * 90 + "*b"))
    assert shows_done(reading, True, json.dumps([f"{'a' * (MAX_LINE - 2)}\n" * 400]).encode()) is None
