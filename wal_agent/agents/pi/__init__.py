"""pi. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities
from wal_agent.agents.pi.cli import (
    command,
    exit_cause,
    hooks_off_reason,
    is_interactive,
    locate,
    passthrough,
    prompt_from_args,
    session_from_args,
)
from wal_agent.agents.pi.hooks import inject, parse, render
from wal_agent.agents.pi.resume import inject_prompt, reconcile
from wal_agent.agents.pi.session import MAIN as main_file
from wal_agent.agents.pi.session import (
    existing_files,
    folder,
    proves_turn,
    restore_path,
    resumable,
    seen_calls,
    session_files,
)

name = "pi"
tested = "0.73.1"
also: tuple[str, ...] = ()
capabilities = Capabilities(inject_prompt=inject_prompt, exit_cause=exit_cause)
