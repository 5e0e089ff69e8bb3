"""The shell line that Gemini runs as a hook: `bash -c LINE`.

The extension lies in the user's own folder and every Gemini loads it, so the first line asks whether this Gemini is
this run's, and leaves at once if not (I7). The marker's name begins with GEMINI_CLI_ because Gemini passes only such
variables on where it strips the environment (GITHUB_SHA, SURFACE=Github). The pid is the second way.
"""

from __future__ import annotations

from wal_agent.agents.base import Deny, HookSetup
from wal_agent.agents.extension import owner_guard
from wal_agent.agents.gemini.hooks import deny_output
from wal_agent.agents.hook_line import GONE, HOOK_SECONDS, bash_line

MARKER = "GEMINI_CLI_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000
OF_TOOLS = {"BeforeTool", "AfterTool"}
FIRM = {*OF_TOOLS, "BeforeAgent"}  # may wait, for the bucket, or for a resumed session; the others are answered at once


def hook_line(setup: HookSetup, event: str) -> str:
    """The command for one event. Only a tool that has not run yet is refused; other broken hooks are silent (I6)."""
    deny = deny_output(Deny(GONE)) if event == "BeforeTool" else None
    return owner_guard(setup, MARKER) + bash_line(setup, "gemini", event, event in FIRM, deny)
