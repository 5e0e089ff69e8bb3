"""Gemini CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities
from wal_agent.agents.gemini.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.gemini.hooks import gemini_home as folder
from wal_agent.agents.gemini.hooks import hooks_to_install, inject, parse, render, sweep
from wal_agent.agents.gemini.resume import inject_prompt, reconcile
from wal_agent.agents.gemini.session import MAIN as main_file
from wal_agent.agents.gemini.session import (
    existing_files,
    proves_turn,
    restore_path,
    resumable,
    seen_calls,
    session_files,
    tidy,
)

name = "gemini"
tested = "0.61.0"
also: tuple[str, ...] = ()
capabilities = Capabilities(
    hook_caller="shell",
    restart_codes=frozenset((199,)),
    loads_late=True,
    sweep=sweep,
    tidy=tidy,
    inject_prompt=inject_prompt,
    exit_cause=exit_cause,
    hooks_to_install=hooks_to_install,
)
