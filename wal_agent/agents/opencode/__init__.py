"""OpenCode. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Journal, Traits
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
traits = Traits(
    hooks="a plugin by `OPENCODE_CONFIG_CONTENT`, for this run only",
    intent="before the tool starts",
    fail_closed="yes: the plugin throws, and OpenCode then runs no tool",
    reconcile="each open call gets its real outcome; a session of another folder is moved into this one",
    resume="`--session ID`; the plugin says the recovery prompt",
    interactive="yes",
    subagents="their calls and sessions are saved with the parent's",
    limits=(
        "OpenCode keeps sessions in one database, so a journal of the session is saved and is imported again.",
        "So a fork (`--from`) works only in the folder that its session has on this machine, or where it has none.",
        "What a restore replaces in that database, and the journals, stay in wal-agent's state folder.",
        "A tool that outlives OpenCode's crash runs on; its end is unknown.",
        "`opencode serve`, `web`, `acp` and `attach` are refused: others begin their sessions.",
        "Undo (`/undo`) reaches back only to what this machine has snapshots of.",
    ),
)
capabilities = Capabilities(
    exit_cause=exit_cause, stored_folder=stored_folder, journal=Journal(update_journal, import_session)
)
