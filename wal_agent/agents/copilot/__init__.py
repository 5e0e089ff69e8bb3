"""GitHub Copilot CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities
from wal_agent.agents.copilot.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.copilot.hooks import copilot_home as folder
from wal_agent.agents.copilot.hooks import inject, parse, render, sweep
from wal_agent.agents.copilot.resume import reconcile
from wal_agent.agents.copilot.session import MAIN as main_file
from wal_agent.agents.copilot.session import (
    existing_files,
    proves_turn,
    restore_path,
    resumable,
    seen_calls,
    session_files,
)

name = "copilot"
tested = "1.0.102"
also: tuple[str, ...] = ()
capabilities = Capabilities(boundary="file", hook_caller="shell", sweep=sweep, exit_cause=exit_cause)
