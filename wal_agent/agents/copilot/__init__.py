"""GitHub Copilot CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Traits
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
traits = Traits(
    hooks="a plugin in the run's own folder, by `--plugin-dir`",
    intent="before the tool starts",
    fail_closed="yes: the hook line refuses by itself",
    reconcile="lost calls are put back with their results, torn lines and lost heads mended",
    resume="`--resume ID`; the notice is the prompt of the command line",
    interactive="yes",
    subagents="their calls are logged, and told in the session file",
    limits=(
        "Copilot gives its hooks no call ids: of equal parallel calls it is known how many ended, not which.",
        "Copilot writes its session up to a second late: of what the model said then, only the calls come back.",
        "A command that Copilot leaves running in the background counts as ended when its tool returns.",
        "The todo list of a session (its `session.db`) and the snapshots of `/rewind` are not carried to another "
        "machine.",
        "With `--no-custom-instructions` the agent does not get the standing protocol.",
        "`--prefer-version` and `--no-auto-update` may make Copilot run another version than the one that is told.",
    ),
)
capabilities = Capabilities(boundary="file", hook_caller="shell", sweep=sweep, exit_cause=exit_cause)
