"""On the real CLIs: before an agent compacts its conversation the log has it, and afterwards it is told."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import Machine, Scene
from tests.tiers import deep, once
from wal_agent.rehearsal.model import HistoryText, Returned, Turn

PHRASE = "the heron sleeps in building seven"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the agent types `wal-agent`
FORCED = {  # what makes each one compact behind an answer that cost so many tokens
    "claude": ((), {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}),
    "codex": (("-c", "model_auto_compact_token_limit=1000"), {}),
}


@pytest.mark.parametrize("scene", once(sorted(FORCED), "codex"), indirect=True)
def test_the_log_has_the_conversation_before_it_is_compacted(scene: Scene) -> None:
    """The checkpoint and the record are there before the summary is asked for; the summary knows nothing, and the
    next request has the task and the way back all the same."""
    machine = scene.machine("vm-1")

    def spoken(n: int) -> str:
        return "\n".join(part.text for part in scene.model.history(n) if isinstance(part, HistoryText))

    shell = machine.rehearsal.shell
    args, env = FORCED[scene.agent]
    scene.script(
        Turn(PHRASE, calls=[shell("echo begin >> side")]),
        *(Turn(calls=[shell(f"echo {n} >> side")]) for n in range(4)),  # Claude Code compacts nothing that is short
        Turn(calls=[shell("echo work >> side")], tokens=190_000),
        *([Turn("<summary>We did something.</summary>")] if scene.agent == "claude" else []),  # Codex's is no turn
        Turn(calls=[shell("echo work >> side")]),
        Turn(calls=[shell("wal-agent recall heron building")]),
        Turn("All is done."),
    )
    (machine.home / ".profile").write_text(f"PATH='{PATH}'\n")  # Codex' shell is a login shell
    run = machine.run(*args, *machine.rehearsal.args("move the shop to v2"), wait=True, **env, PATH=PATH)
    assert run.process.returncode == 0, run.stderr()
    log = scene.records()
    kinds = [r["type"] for r in log]
    at = kinds.index("compaction")
    before = [r for r in log[:at] if r["type"] == "checkpoint"]
    assert before and before[-1]["trigger"] == "pre_compaction"
    (found,) = scene.replay().state.compactions
    assert found.files and found.session == scene.replay().state.session
    if scene.agent == "claude":  # its summary is asked for with our words
        asked = next(text for text in map(spoken, range(len(scene.model.requests))) if "Keep in the summary" in text)
        assert "The user's newest message begins: `move the shop to v2`" in asked
    told = next(text for text in map(spoken, range(len(scene.model.requests))) if "was compacted" in text)
    assert "wal-agent recall" in told and "move the shop" in told and PHRASE not in told
    assert any(PHRASE in part.text for part in scene.model.history() if isinstance(part, Returned))
    calls = [r for r in scene.records() if r["type"] == "intent" and "recall" in r["input"]["data"]]
    assert [r["cls"] for r in calls] == ["read_only"]
    assert scene.side().count("work") == 1, "what was done before the compaction is questioned before it runs again"
    assert any("you ran this very call" in part.text for part in scene.model.history() if isinstance(part, Returned))


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_killed_inside_the_compaction_the_agent_has_its_task_and_its_conversation(scene: Scene) -> None:
    """The machine dies while the summary is being made: the record and the capture are in the log before it."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    args, env = FORCED[scene.agent]
    scene.script(
        Turn(PHRASE, calls=[shell("echo begin >> side")]),
        *(Turn(calls=[shell(f"echo {n} >> side")]) for n in range(4)),
        Turn(calls=[shell("echo work >> side")], tokens=190_000),
        Turn("<summary>We did something.</summary>"),
    )
    held = scene.hold_turn(6)
    run = machine.run(*args, *machine.rehearsal.args("move the shop to v2"), wait=False, **env, PATH=PATH)
    scene.asked(7)
    run.kill()
    run.died()
    held.set()
    machine.end()
    assert [r["type"] for r in scene.records()].count("compaction") == 1
    asked = len(scene.model.requests)
    scene.script(Turn("All is done."))
    again = machine.run(*args, *machine.rehearsal.args("move the shop to v2"), wait=True, PATH=PATH)
    assert again.process.returncode == 0, again.stderr()
    first = "\n".join(part.text for part in scene.model.history(asked) if isinstance(part, HistoryText))
    assert "[wal-agent recovery]" in first and "move the shop to v2" in first and PHRASE in first
    assert scene.side() == ["begin", *map(str, range(4)), "work"]


def bulk(n: int) -> str:
    """Words that Gemini's own check for loops takes for no loop."""
    letters = random.Random(n)
    return " ".join("".join(letters.choices("abcdefghijklmnop", k=6)) for _ in range(400))


def force(machine: Machine) -> None:
    """Make the agent compact its conversation behind an answer that cost many tokens, or at the next resume."""

    def change(name: str, **values: Any) -> None:
        path = machine.home / name
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))

    match machine.agent:
        case "gemini":
            change(".gemini/settings.json", model={"compressionThreshold": 0.00001})
        case "qwen":
            change(".qwen/settings.json", context={"autoCompactThreshold": 0.5})
        case "opencode":
            file = ".config/opencode/opencode.json"
            provider = json.loads((machine.home / file).read_text())["provider"]
            provider["scripted"]["models"]["scripted"]["limit"] = {"context": 60_000, "output": 8_000}
            change(file, provider=provider)
        case "pi":
            provider = json.loads((machine.home / ".pi/agent/models.json").read_text())["providers"]
            provider["scripted"]["models"][0]["contextWindow"] = 100_000
            change(".pi/agent/models.json", providers=provider)
            change(".pi/agent/settings.json", compaction={"reserveTokens": 20_000, "keepRecentTokens": 200})


# Until the log has seen the new history, in the agent's file or from a hook.
SEEN = "for n in $(seq 10); do wal-agent log --json -n 20 | grep -q 'compaction_don[e]' && break; sleep 0.1; done"
SNAPSHOT = "<state_snapshot>The scripted summary says little of what there was.</state_snapshot>"
RESUMES = ("gemini", "pi")  # which compact behind a turn, or in front of the next


@deep
@pytest.mark.parametrize("scene", ["gemini", "qwen", "opencode", "pi", "copilot"], indirect=True)
def test_what_a_new_history_lacks_is_said_where_a_hook_can_speak(scene: Scene) -> None:
    """The record and the checkpoint are there, and a request behind the compaction has the task and the way back."""
    machine = scene.machine("vm-1")
    shell, name = machine.rehearsal.shell, scene.agent
    force(machine)
    tokens = 120_000 if name == "qwen" else 190_000
    scene.script(
        Turn(f"{PHRASE} {bulk(0)}", calls=[shell("echo begin >> side")]),
        *(Turn(bulk(n + 1), calls=[shell(f"echo {n} >> side")]) for n in range(4)),
        Turn(calls=[shell("echo work >> side")], tokens=100 if name in RESUMES else tokens),
        Turn(SNAPSHOT, when="Please create a detailed summary"),
        *([Turn("That is it.", tokens=tokens)] if name in RESUMES else []),
        *(Turn(calls=[shell(SEEN)]) for _ in range(4)),  # Copilot puts its summary into place in front of a later one
        Turn(calls=[shell("echo after >> side")]),
        Turn("All is done."),
    )
    run = machine.run(*machine.rehearsal.args("move the shop to v2"), wait=True, PATH=PATH)
    assert run.process.returncode == 0, run.stderr()
    if name in RESUMES:
        run = machine.run(*machine.rehearsal.args("go on"), options=("--continue",), wait=True, PATH=PATH)
        assert run.process.returncode == 0, run.stderr()
    log = scene.records()
    kinds = [r["type"] for r in log]
    at = kinds.index("compaction")
    assert "checkpoint" in kinds[:at] and "compaction_done" in kinds[at:]
    assert name == "copilot" or log[at]["tokens"] > 0  # which writes its file late
    behind = [
        "\n".join(part.text for part in scene.model.history(n) if isinstance(part, HistoryText | Returned))
        for n in range(len(scene.model.requests))
    ]
    told = next(text for text in behind if "[wal-agent] Your conversation was compacted" in text)
    asked = "go on" if name in RESUMES else "move the shop to v2"  # the newest words of the person's
    assert "wal-agent recall" in told and asked in told and PHRASE not in told
    assert PHRASE in machine.cli("recall", "heron", "building").stdout, "what the new history lacks is found"
    if name == "gemini":  # whose session a recovery writes anew, without what was compacted
        scene.script(Turn(calls=[shell("echo more >> side")]), Turn("It was killed."))
        asked_before, held = len(scene.model.requests), scene.hold_turn(1)
        run = machine.run(*machine.rehearsal.args("go on"), options=("--continue",), PATH=PATH)
        scene.asked(asked_before + 2)
        run.kill()
        run.died()
        held.set()
        machine.end()
        scene.script(Turn("All is done."))
        run = machine.run(*machine.rehearsal.args("go on"), options=("--continue",), wait=True, PATH=PATH)
        assert run.process.returncode == 0, run.stderr()
        shutil.rmtree(machine.home / ".local/state/wal-agent/recall")
        found = json.loads(machine.cli("recall", "heron", "building", "--json").stdout)["hits"]
        assert [PHRASE in hit["text"] for hit in found if hit["role"] == "assistant"] == [True], found
    if name in ("qwen", "opencode", "pi"):
        assert any("Keep in the summary, word for word" in json.dumps(body) for body in scene.model.asides)


@pytest.mark.parametrize("scene", once(sorted(FORCED), "codex"), indirect=True)
def test_an_empty_summary_is_mended_with_a_compact_form(scene: Scene) -> None:
    """With --restart the agent begins again, and the model gets what was asked and done in the place of nothing."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    args, env = FORCED[scene.agent]
    scene.script(
        Turn(PHRASE, calls=[shell("echo begin >> side")]),
        *(Turn(calls=[shell(f"echo {n} >> side")]) for n in range(4)),
        Turn(calls=[shell("echo work >> side")], tokens=190_000),
        *([Turn("<summary></summary>")] if scene.agent == "claude" else []),  # Codex's is "ok", which says nothing
        Turn(calls=[shell(SEEN)]),  # so that the turn is not over before Claude Code's file is read
        *(Turn("All is done.") for _ in range(3)),
    )
    run = machine.run(
        *args, *machine.rehearsal.args("move the shop to v2"), options=("--restart",), wait=True, **env, PATH=PATH
    )
    assert run.process.returncode == 0, run.stderr()
    assert [c.lost for c in scene.replay().state.compactions] == [True]
    assert [(r["type"], r["kind"]) for r in scene.records() if r["type"] == "rewrite"] == [("rewrite", "compact")]
    last = "\n".join(part.text for part in scene.model.history() if isinstance(part, HistoryText))
    assert "in compact form" in last and "move the shop to v2" in last and "echo work >> side" in last
    assert scene.side() == ["begin", *map(str, range(4)), "work"]
