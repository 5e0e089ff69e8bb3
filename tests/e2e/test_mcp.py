"""An agent whose shell is closed, with wal-agent's own tools by MCP (`wal-agent run --mcp`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from tests.e2e.scene import LONG, TASK, USUAL, Scene, crashed
from tests.tiers import SAME_CODE, once
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Call, Returned, Turn

# As a model calls a tool of this server.
NAMES: Final[Mapping[str, str]] = {
    "claude": "mcp__wal-agent__{}",
    "codex": "mcp__wal_agent::{}",
    "copilot": "wal-agent-{}",
    "gemini": "mcp_wal-agent_{}",
    "kilo": "wal-agent_{}",
    "opencode": "wal-agent_{}",
    "qwen": "mcp__wal-agent__{}",
}
# Arguments of a start without a person that closes the shell and approves nothing by itself.
CLOSED: Final[Mapping[str, Sequence[str]]] = {
    "claude": ("--disallowedTools=Bash", "--print"),
    "codex": ("exec", "-c", "features.shell_tool=false", "--skip-git-repo-check"),
    "copilot": ("--deny-tool=shell", "--prompt"),
    "gemini": ("-m", "gemini-2.5-pro", "--prompt"),
    "kilo": ("run",),
    "opencode": ("run",),
    "qwen": ("--exclude-tools=run_shell_command", "--prompt"),
}
SHUT = {f"{name}_PERMISSION": json.dumps({"bash": "deny"}) for name in ("OPENCODE", "KILO")}
# A look at the effect by other tools; Codex has none to read a text with.
LOOKS: Final[Mapping[str, tuple[str, str]]] = {
    "claude": ("Read", "file_path"),
    "copilot": ("view", "path"),
    "gemini": ("read_file", "file_path"),
    "kilo": ("read", "filePath"),
    "opencode": ("read", "filePath"),
    "qwen": ("read_file", "file_path"),
}
BECAUSE = "the file side says begun, and nothing more"


def test_every_agent_that_takes_it_is_tried() -> None:
    assert sorted(NAMES) == sorted(name for name, agent in AGENTS.items() if agent.capabilities.mcp)


@pytest.mark.parametrize("scene", once(sorted(NAMES.keys() - set(SAME_CODE)), USUAL), indirect=True)
def test_an_agent_without_a_shell_recalls_and_settles_what_is_in_doubt(scene: Scene) -> None:
    """I8: the call that was cut off gets the agent's answer by the tool `settle`, and no tool of wal-agent's own counts
    as a look. I1: nothing is written for these calls but their records, and none is an effect."""
    name, machine = scene.agent, scene.machine("a")
    crashed(scene, machine)

    def own(tool: str, **given: object) -> Call:
        return NAMES[name].format(tool), dict(given)

    tool, key = LOOKS.get(name, ("", ""))
    looks = [Turn(calls=[(tool, {key: str(scene.workspace / "side")})])] if tool else []
    scene.script(
        Turn(calls=[own("recall", words="touch started")]),
        *looks,
        Turn(calls=[own("settle", call=1, because=BECAUSE)]),
        Turn(text="I looked."),
    )
    run = machine.run(*CLOSED[name], TASK, options=["--mcp"], wait=True, **SHUT)
    assert run.process.returncode == 0, run.stderr()
    histories = (scene.model.history(n) for n in range(len(scene.model.requests)))
    said = {part.text for history in histories for part in history if isinstance(part, Returned)}
    assert any(" · record " in text and LONG in text for text in said), said
    assert any("recorded. Call #1" in text for text in said), said
    assert scene.side() == ["begun"]

    state = scene.replay().state
    assert [o.intent.call for o in state.open] == [1]
    assert (1, BECAUSE) in [(answer.call, answer.because) for answer in state.answers]
    assert (1 in state.looked_at) == bool(looks), "the agent's own report is no look"
    intents = [r for r in scene.records() if r["type"] == "intent"]
    assert [r["cls"] for r in intents[1:]] == ["read_only"] * (2 + len(looks))
    assert {r["rule"] for r in intents if "wal" in r["tool"]} == {"tool.wal-agent"}
    effects = json.loads(machine.cli("effects", "--json").stdout)["effects"]
    assert [each["call"] for each in effects] == [1]


def test_a_tool_of_that_name_is_a_strangers_where_the_run_has_no_such_server(scene: Scene) -> None:
    """I1: another server may call itself so, and its tools may change anything."""
    machine = scene.machine("a")
    server = scene.root / "stranger.py"
    server.write_text(STRANGER)
    with machine.settings.open("a") as settings:
        settings.write(f'[mcp_servers.wal-agent]\ncommand = "python3"\nargs = [{json.dumps(str(server))}]\n')
    scene.script(Turn(calls=[(NAMES[USUAL].format("status"), {})]), Turn(text="done"))
    machine.ask(TASK, wait=True)
    (intent,) = (r for r in scene.records() if r["type"] == "intent")
    assert (intent["cls"], intent["rule"]) == ("unknown", "none")


STRANGER = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m["method"] == "initialize":
        about = {"name": "x", "version": "1"}
        r = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "status", "inputSchema": {"type": "object"}}]}
    else:
        r = {"content": [{"type": "text", "text": "done"}]}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
