"""What each agent gets, told from the modules: docs/AGENTS.md is what `markdown` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wal_agent.agents.base import Agent

COLUMNS = ("hooks", "intent", "fail_closed", "reconcile", "resume", "interactive", "subagents")
HEADS = {"fail_closed": "fail-closed"}
STARTS = {
    "gemini": '-y -p "fix the tests"',
    "claude": '-p "fix the tests" --permission-mode acceptEdits',
    "codex": 'exec "fix the tests"',
    "opencode": 'run "fix the tests"',
    "qwen": '-y -p "fix the tests"',
    "copilot": '-p "fix the tests" --allow-all-tools',
    "pi": '-p "fix the tests"',
    "generic": "aider --yes",
}
HEAD = """\
# Agents

`wal-agent run AGENT -- ARGS` starts the agent as you have installed it; everything behind `--` is its own command
line, with or without a terminal. The same command, on any machine, carries on. This page is made from the agents'
modules: `wal-agent agents --markdown > docs/AGENTS.md`.

**Which one?** The one that you work with; what you get differs in the rows below. An agent with hooks has each tool
call logged before it runs, so that after a crash it is told which calls were in flight. `generic` runs any other
command: its files are saved and come back, and nothing is known of its calls.

**Is it installed, and do its hooks work here?** `wal-agent doctor AGENT` shows it on your program with a scripted
model. A version that was not tested proves the same once, before its first tool, and is refused (78) where it fails.

## Starting each

"""
WORDS = """
## What each gets

| word | meaning |
|---|---|
| hooks | how ours come in, for one run, without a change to a file of yours |
| intent | when the record of a tool call is durable |
| fail-closed | whether a call is refused when the log cannot be written, or its hook is missing, hangs or is killed |
| reconcile | what a resumed session is given that the agent itself would have lost |
| resume | how the session goes on, and how the recovery notice gets there |
| interactive | whether it works on a terminal as without one |
| subagents | what is known of calls that an agent's own agents make |
| tested | the version that the contract suite runs on, then older ones that a part of it runs on |

"""
LIMITS = """
## What could not be held

"""
GENERIC = """
## Any command

`generic` knows nothing of the command, so you say what its session is, with `[generic]` in a `wal-agent.toml`:

```toml
[generic]
session = ["~/.aider.chat.history.md", "state/*.json"]
resume = ["--restore-chat-history", "--message", "{prompt}"]
```

- `session`: paths with `*`, `?`, `[...]` and `**`; a folder means all that is in it. A relative one is in the
  workspace. Never saved: what may hold credentials, `.git`, links, files over 256 MiB; at most 2,000 files and 1 GiB.
- `resume`: words behind the command line when it goes on; `{prompt}` is the recovery notice, `{session}` the
  session's id. Without them the command starts as it was. Either way the variable `WAL_AGENT_RECOVERY_PROMPT` names a
  file (0600, gone with the run) that holds the notice, and `WAL_AGENT_SESSION` is the id, the same on each start of a
  session.
- The project's `wal-agent.toml` may name files inside the workspace, once you have allowed just that table
  (`wal-agent trust`), and no `resume`. Your own file, `${XDG_CONFIG_HOME:-~/.config}/wal-agent/wal-agent.toml`, may
  name files under HOME and `resume`. A restore puts back only what the settings on that machine name, so have your file
  on each.
- The command is the one that you type; the log never chooses it. Exit code 0 is the only sign of a completed task:
  behind any other end the next start recovers.
"""
ADDING = """
## Adding an agent

One module in `wal_agent/agents/` (the protocol is `base.py`, Gemini's is the example), one line in its dict, one
rehearsal (how it runs with a scripted model), the version in `tests/agents.json`, and one contract run: `pytest
tests/contract/test_agents.py -k NAME`. What is peculiar to it is tested in a file of its own, on the real program.
Then make this page again.
"""


def facts(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    return [
        {"name": agent.name, "tested": agent.tested, "also": list(agent.also), **asdict(agent.traits)}
        for agent in agents
    ]


def versions(agent: Agent) -> str:
    return ", ".join(filter(None, (agent.tested, *agent.also)))


def markdown(agents: Sequence[Agent]) -> str:
    starts = [f"    wal-agent run {agent.name} -- {STARTS.get(agent.name, '...')}\n" for agent in agents]
    return HEAD + "".join(starts) + WORDS + _table(agents) + LIMITS + _limits(agents) + GENERIC + ADDING


def _table(agents: Sequence[Agent]) -> str:
    heads = ["agent", *(HEADS.get(name, name) for name in COLUMNS), "tested"]
    rows = [
        [agent.name, *(getattr(agent.traits, name) for name in COLUMNS), versions(agent) or "any command"]
        for agent in agents
    ]
    return "".join(f"| {' | '.join(_cell(text) for text in row)} |\n" for row in (heads, ["---"] * len(heads), *rows))


def _limits(agents: Sequence[Agent]) -> str:
    blocks = []
    for agent in agents:
        told = agent.traits.limits or ("Nothing that is known.",)
        blocks.append(f"**{agent.name}**\n\n" + "".join(f"- {_line(text)}\n" for text in told))
    return "\n".join(blocks)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())


def rows(agents: Sequence[Agent]) -> list[str]:
    """For a terminal."""
    out: list[str] = []
    for agent in agents:
        out.append(f"{agent.name}  ({f'tested with {versions(agent)}' if agent.tested else 'any command'})")
        out += [f"  {HEADS.get(name, name):<12} {getattr(agent.traits, name)}" for name in COLUMNS]
        out += [f"  {'not held' if n == 0 else '':<12} {text}" for n, text in enumerate(agent.traits.limits)]
    return out
