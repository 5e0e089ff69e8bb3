"""Qwen Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities
from wal_agent.agents.qwen.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.qwen.hooks import hooks_to_install, inject, parse, render, sweep
from wal_agent.agents.qwen.paths import runtime_folder as folder
from wal_agent.agents.qwen.resume import inject_prompt, reconcile
from wal_agent.agents.qwen.session import MAIN as main_file
from wal_agent.agents.qwen.session import (
    existing_files,
    proves_turn,
    restore_path,
    resumable,
    seen_calls,
    session_files,
    settled_length,
)

name = "qwen"
tested = "0.24.4"
also: tuple[str, ...] = ("0.15.10",)
capabilities = Capabilities(
    hook_caller="session",  # since 0.24 each hook leads a session; 0.15 runs it in Qwen's own
    restart_codes=frozenset((42,)),
    sweep=sweep,
    inject_prompt=inject_prompt,
    settled_length=settled_length,
    exit_cause=exit_cause,
    hooks_to_install=hooks_to_install,
)
