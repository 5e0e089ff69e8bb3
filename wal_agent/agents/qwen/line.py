"""The shell line that Qwen Code runs as a hook: `bash -c LINE`.

Exit code 2 with words on stderr blocks a tool, and so does a deny in JSON; nothing else does: a hook that is missing,
late, killed or says nothing lets it run.
"""

from __future__ import annotations

from wal_agent.agents.base import Deny, HookSetup
from wal_agent.agents.extension import owner_guard
from wal_agent.agents.hook_line import GONE, HOOK_SECONDS, sh_line
from wal_agent.agents.qwen.hooks import FIRM, deny_output

MARKER = "QWEN_WAL_AGENT_RUN"
HOOK_TIMEOUT_MS = HOOK_SECONDS * 1000


def hook_line(setup: HookSetup, event: str) -> str:
    """The command for one event. Only a tool that has not run yet is refused; other broken hooks are silent (I6)."""
    deny = deny_output(Deny(GONE)) if event == "PreToolUse" else None
    return owner_guard(setup, MARKER) + sh_line(setup, "qwen", event, event in FIRM, deny)
