"""Claude Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, RequestedCalls, SettingsWatch
from wal_agent.agents.claude.cli import (
    command,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
    settings_files,
    switch_off_reason,
)
from wal_agent.agents.claude.hooks import claude_home as folder
from wal_agent.agents.claude.hooks import hooks_to_install, inject, parse, render, run_settings_files
from wal_agent.agents.claude.resume import inject_prompt, reconcile
from wal_agent.agents.claude.session import MAIN as main_file
from wal_agent.agents.claude.session import (
    OTHERS,
    existing_files,
    proves_turn,
    requested_calls,
    restore_path,
    resumable,
    seen_calls,
    session_files,
)

name = "claude"
tested = "2.1.330"
also: tuple[str, ...] = ("2.1.197",)
capabilities = Capabilities(
    boundary="file",
    hook_caller="wrapped",  # CLAUDE_CODE_SHELL_PREFIX
    inject_prompt=inject_prompt,
    hooks_to_install=hooks_to_install,
    requested_calls=RequestedCalls(requested_calls, OTHERS),
    settings_watch=SettingsWatch(run_settings_files, settings_files, switch_off_reason),
)
