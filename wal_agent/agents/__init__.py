"""One module per coding-agent CLI behind one small protocol (base.py), in one explicit dict."""

from __future__ import annotations

from wal_agent.agents.base import Agent
from wal_agent.agents.claude import Claude
from wal_agent.agents.codex import Codex
from wal_agent.agents.copilot import Copilot
from wal_agent.agents.gemini import Gemini
from wal_agent.agents.generic import Generic
from wal_agent.agents.opencode import OpenCode
from wal_agent.agents.pi import Pi
from wal_agent.agents.qwen import Qwen

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (Gemini(), Claude(), Codex(), Copilot(), Pi(), OpenCode(), Qwen(), Generic())
}
