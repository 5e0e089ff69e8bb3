"""`wal-agent mcp`: the messages of its four methods, and the commands that its tools run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from wal_agent.calls.reading import tool_name
from wal_agent.calls.rules.table import OWN_TOOLS, load_rules
from wal_agent.cli.commands import COMMANDS
from wal_agent.cli.mcp import TOOLS, VERSIONS, answers, run_command

MOST = 2_000  # bytes: each request of the model may carry them, about four to a token


class Commands:
    """What the server runs, and what that answers."""

    def __init__(self, code: int = 0, says: str = "") -> None:
        self.ran: list[tuple[list[str], str]] = []
        self._answer = code, says

    def __call__(self, argv: list[str], stdin: str) -> tuple[int, str]:
        self.ran.append((argv, stdin))
        return self._answer


def ask(*lines: object, run: Commands | None = None) -> list[dict[str, Any]]:
    sent = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return [json.loads(line) for line in answers(io.BytesIO(sent), run or Commands())]


def request(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def call(tool: str, run: Commands, **arguments: object) -> dict[str, Any]:
    (said,) = ask(request("tools/call", name=tool, arguments=arguments), run=run)
    result: dict[str, Any] = said["result"]
    return result


@pytest.mark.parametrize(("wanted", "given"), [(VERSIONS[1], VERSIONS[1]), ("2099-01-01", VERSIONS[0])])
def test_a_version_is_agreed(wanted: str, given: str) -> None:
    (said,) = ask(request("initialize", protocolVersion=wanted, capabilities={}))
    assert said["result"]["protocolVersion"] == given and said["result"]["capabilities"] == {"tools": {}}


def test_only_requests_are_answered_and_nothing_stops_the_server() -> None:
    lines = (b"no json", b"[]", b"\xff", b"", {"jsonrpc": "2.0", "method": "notifications/initialized"})
    said = ask(*lines, request("ping"), request("resources/list"), request("tools/call", name="rm"))
    assert [each.get("error", {}).get("code") for each in said] == [None, -32601, -32602]
    assert {each["id"] for each in said} == {7}


def test_what_each_request_carries_is_small() -> None:
    tools = [
        {key: value for key, value in tool.described(name).items() if key != "annotations"}
        for name, tool in TOOLS.items()
    ]
    assert len(json.dumps(tools)) <= MOST


def test_each_tool_is_a_command_for_the_agent_and_is_known_to_the_rules() -> None:
    """I8: nothing that a person decides. I1: nothing that runs what the agent names."""
    assert set(TOOLS) <= set(COMMANDS)
    assert not set(TOOLS) & {"ack", "trust", "rewind", "rm", "run", "task", "step", "stop", "pause", "unlock", "key"}
    named = {tool_name(tool) for tool, rule in load_rules().tools.items() if rule.rule == OWN_TOOLS}
    assert named == {f"wal_agent_{name}" for name in TOOLS}


def test_arguments_are_never_options() -> None:
    run = Commands(says="found")
    said = call("recall", run, words="--regex .* --bucket=file:///x", call="3")
    assert run.ran == [(["recall", "--call=3", "--", "--regex", ".*", "--bucket=file:///x"], "")]
    assert said == {"content": [{"type": "text", "text": "found"}], "isError": False}
    call("settle", run, call=3, because="--job=other")
    call("inbox", run, id="--all")
    call("checkpoint", run, title="--json", progress=0, plan="- [x] a")
    assert [argv for argv, _ in run.ran[1:]] == [
        ["settle", "--because=--job=other", "--", "3"],
        ["inbox", "--", "--all"],
        ["checkpoint", "--title=--json", "--plan=-", "--progress=0"],
    ]
    assert run.ran[-1][1] == "- [x] a"


@pytest.mark.parametrize(
    "given", [{}, {"call": 1}, {"call": "x", "because": "y"}, {"call": 1, "because": "y", "job": "z"}]
)
def test_wrong_arguments_run_nothing_and_are_told_to_the_model(given: dict[str, object]) -> None:
    run = Commands()
    assert call("settle", run, **given)["isError"] and not run.ran


def test_a_command_that_fails_is_an_error_with_its_words() -> None:
    said = call("status", Commands(70, "wal-agent: it is away\x1b[31m.\n"))
    assert said["isError"] and said["content"][0]["text"].startswith("wal-agent: it is away")
    assert "\x1b" not in said["content"][0]["text"]
    assert run_command(["recall", "--", "a\0b"], "")[0] == 64
    assert run_command(["recall"], "")[0] == 64, "the real command"


def test_outside_of_a_run_it_serves_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "wal_agent", "mcp"], env={}, capture_output=True, text=True)
    assert done.returncode == 64 and done.stderr.count("\n") == 1
