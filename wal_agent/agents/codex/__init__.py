"""Codex CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities
from wal_agent.agents.codex.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.codex.hooks import inject, parse, render
from wal_agent.agents.codex.resume import inject_prompt, reconcile
from wal_agent.agents.codex.session import MAIN as main_file
from wal_agent.agents.codex.session import codex_home as folder
from wal_agent.agents.codex.session import (
    existing_files,
    proves_turn,
    restore_path,
    resumable,
    seen_calls,
    session_files,
)

name = "codex"
tested = "0.169.0"
also: tuple[str, ...] = ()
capabilities = Capabilities(
    hook_caller="session", ends_its_calls=True, inject_prompt=inject_prompt, exit_cause=exit_cause
)
