"""A session that was damaged before it was restored: each real CLI resumes it, and its model's API takes what it sends.

The sessions are those of `tests/fixtures/sessions`, in which the line of a call is missing and its result is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.agent_box import Box, Run, done
from wal_agent.agents import AGENTS
from wal_agent.agents.base import LoggedCall
from wal_agent.rehearsal.model import Called, Returned, Turn

RECORDED = Path(__file__).parents[1] / "fixtures/sessions"
WITHOUT = {  # what is in the line with the calls of the first batch
    "claude": b'"type":"tool_use"',
    "codex": b'"function_call"',
    "copilot": b'"assistant.message"',
    "gemini": b'"toolCalls"',
    "opencode": b'"callID"',
    "pi": b'"toolCall"',
    "qwen": b'"functionCall"',
}


LOGGED = ("claude", "codex", "copilot", "qwen")  # of the others, nobody has the call any more


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_lost_call(name: str, agent_cli: Callable[[str], Path], tmp_path: Path) -> None:
    """I3: it comes back from the log with its result; where the log has it no more, the result goes too."""
    agent = AGENTS[name]
    box = Box(tmp_path, agent_cli(name), agent)
    about = json.loads((RECORDED / f"{name}.calls.json").read_text())
    calls = [LoggedCall(n, t, i.encode(), r.encode(), bad, "", at, id) for n, t, i, r, bad, at, id in about["calls"]]
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if WITHOUT[name] in line)
    run = Run(box, session=about["session"])
    with box.model(Turn("verified")) as model:
        box.env(model)
        left = b"".join(lines[:lost] + lines[lost + 1 :])
        made = agent.reconcile(left, run.session, box.ws, calls if name in LOGGED else [])
        inject_prompt = agent.capabilities.inject_prompt
        main = b"".join(inject_prompt(made.data, run.session, box.ws, "go on")) if inject_prompt else made.data
        box.restore(main, run.session)
        code, _, err = done(run.start(model, "do it", resume="go on"))
        run.close()
        assert code == 0, err
        history = model.history()
    asked = {part.id for part in history if isinstance(part, Called)}
    assert {part.id for part in history if isinstance(part, Returned)} == asked
    told = json.dumps([part.input for part in history if isinstance(part, Called)])
    if name in LOGGED:
        assert "echo one" in told
    else:
        assert any("left out" in text for text in made.left_out) or name == "opencode"  # call and result are one there
