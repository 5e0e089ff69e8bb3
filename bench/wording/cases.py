"""Conversations as an agent has them after a crash, made of the texts that wal-agent ships.

They have the shape of pi's, the agent with the shortest system prompt: what its recorded requests hold, with a round's
folder, host and times replaced.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.wording import HERE
from wal_agent import wording
from wal_agent.agents.base import ACT, LoggedCall
from wal_agent.agents.session_files import unknown_result
from wal_agent.calls.call import ReadCall
from wal_agent.drill.scenario import ASK, Scenario, Step, load, names
from wal_agent.records import Intent, Payload
from wal_agent.recovery.inflight import InFlight, group_calls
from wal_agent.recovery.project_rules import load_all
from wal_agent.recovery.prompt import FinishedCall, PromptInput, render_prompt
from wal_agent.wal.state import OpenCall
from wal_agent.wording import messages
from wal_agent.wording.findings import ENDING_NOT_KEPT

Message = dict[str, Any]

TUNED: Final = (*(name for name in names() if name != "mail"), "invite", "refund")  # mail has no check
_OURS: Final = sorted(path.stem for path in (HERE / "scenarios").glob("*.toml"))
APART: Final = tuple(name for name in _OURS if name not in TUNED)  # never read while tuning
KINDS: Final = {
    "notice": "a resumed session, the notice, then the message that starts the turn",
    "new session": "no session was saved: the notice and the task",
    "refusal": "after the notice the model made the same call again, and it was refused",
}
TOOLS: Final = json.loads((HERE / "tools.json").read_text("utf-8"))
SHOP: Final = "/srv/shop"  # the workspace
AT: Final = 43_200.0  # seconds since 1970: 12:00:00 UTC
_SYSTEM: Final = """\
You are a coding agent. You do the user's task in the project's folder, with the tools that you have. Be concise.

# Project Context

Project-specific instructions and guidelines:

## {shop}/AGENTS.md

# Rules of this project
{rules}


Current date: 2026-11-26
Current working directory: {shop}

{protocol}"""


class Case(msgspec.Struct, frozen=True):
    """`ways`: the beginnings of the commands that count for each way to go on."""

    scenario: str
    kind: str
    messages: tuple[Message, ...]
    ways: Mapping[str, tuple[str, ...]]


def scenario(name: str) -> Scenario:
    own = HERE / "scenarios" / f"{name}.toml"
    (found,) = load(str(own) if own.exists() else name)
    return found


def case(name: str, kind: str) -> Case:
    """Make the conversation of this kind, in which the first call that may not happen twice was cut off."""
    told = scenario(name)
    n = next(n for n, step in enumerate(told.steps) if step.once)
    cut = told.steps[n]
    call, facts = _facts(told, cut)
    system = {"role": "system", "content": _system(told)}
    if kind == "new session":
        ended = [FinishedCall("bash", json.dumps({"command": s.run}).encode(), "done") for s in told.steps[:n]]
        text = render_prompt(msgspec.structs.replace(facts, task=told.prompt, finished=tuple(ended)))
        return Case(name, kind, (system, _user(text.rstrip())), _ways(told, n, call.verify))
    talk = [system, _user(told.prompt)]
    for k, step in enumerate(told.steps[:n]):
        talk += _call(f"call_{k}", step.run, f"ok: {step.effect}\n")
    note = messages.cut_off_note("unknown", ENDING_NOT_KEPT)
    result = unknown_result(LoggedCall(2, "bash", b"", None, True, note))
    talk += [*_call(f"call_{n}", cut.run, result), _user(render_prompt(facts).rstrip())]
    talk.append(_user(ACT))
    if kind == "refusal":
        talk += _call(
            "call_again", cut.run, messages.deny_in_flight("`bash`", call.calls[0], call.look, call.behind_cd)
        )
    return Case(name, kind, tuple(talk), _ways(told, n, call.verify))


def _facts(told: Scenario, cut: Step) -> tuple[InFlight, PromptInput]:
    data = json.dumps({"command": cut.run}).encode()
    intent = Intent(
        call=2, time=AT, tool="bash", input=Payload(size=len(data), data=data), cls="mutation", rule="", session="s"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "AGENTS.md").write_text(f"# Rules of this project\n{told.rules.strip()}\n", "utf-8")
        rules = load_all(Path(folder))
        open, read = [OpenCall(seq=1, epoch=1, intent=intent)], {2: ReadCall("bash", data)}
        (call,) = group_calls(open, (), read, (), rules, ("", SHOP))
    call = msgspec.structs.replace(call, because=ENDING_NOT_KEPT)
    facts = PromptInput(
        "crash", "vm", "vm", True, stopped=AT, saved=AT, now=AT + 4, calls=(call,), tree=messages.TREE_KEPT
    )
    return call, facts


def _system(told: Scenario) -> str:
    protocol = (wording.FOLDER / "protocol.md").read_text("utf-8")
    return _SYSTEM.format(shop=SHOP, rules=told.rules.strip(), protocol=protocol)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _call(id: str, command: str, result: str) -> list[Message]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]}
    return [called, {"role": "tool", "tool_call_id": id, "content": result}]


def _ways(told: Scenario, n: int, verify: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The commands of each way, as they stand in a call behind model.FORCED."""
    cut, rest = told.steps[n], [*told.steps[:n], *told.steps[n + 1 :]]
    ways = {
        "verify": [cut.verify, *verify],
        "repeat": [cut.run],
        "ask": [f"{ASK} "],
        "go on": [step.run for step in rest],
        "settle": ["wal-agent "],
    }
    known = [command for commands in ways.values() for command in commands]
    return {
        way: tuple(f' "{text}' for command in commands for text in _spellings(command, known))
        for way, commands in ways.items()
    }


def _spellings(command: str, known: Sequence[str]) -> tuple[str, ...]:
    """How a model begins this command, behind a blank too. Its last argument may be another one, unless others begin as
    the rest does: that is still a check, or a repeat."""
    begun = command.rsplit(" ", 1)[0]
    if any(other != command and other.startswith(begun) for other in known):
        begun = command
    script = begun.removeprefix("./")
    bare = (begun, *(f"{shell} {name}" for shell in ("bash", "sh") for name in {begun, script} if begun != script))
    typed = (*bare, *(f"cd {SHOP} && {each}" for each in bare))
    return (*typed, *(f" {each}" for each in typed))
