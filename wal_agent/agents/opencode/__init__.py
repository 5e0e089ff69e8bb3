"""OpenCode. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Journal
from wal_agent.agents.opencode.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.opencode.hooks import inject, parse, render
from wal_agent.agents.opencode.resume import import_session, reconcile, resumable, stored_folder
from wal_agent.agents.opencode.session import MAIN as main_file
from wal_agent.agents.opencode.session import (
    existing_files,
    folder,
    proves_turn,
    restore_path,
    seen_calls,
    session_files,
    update_journal,
)

name = "opencode"
tested = "1.18.33"
also: tuple[str, ...] = ()
capabilities = Capabilities(
    exit_cause=exit_cause, stored_folder=stored_folder, journal=Journal(update_journal, import_session)
)
