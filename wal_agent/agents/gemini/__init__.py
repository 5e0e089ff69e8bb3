"""Gemini CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Traits
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
traits = Traits(
    hooks="an extension of this run's own in `~/.gemini/extensions`",
    intent="before the tool starts",
    fail_closed="yes: the hook line refuses by itself",
    reconcile="lost batches are put back with their results, stubs and torn lines mended",
    resume="`--resume ID`; the notice is the user's last message in the session",
    interactive="yes",
    subagents="their calls are logged; after a crash they are told with the parent's",
    limits=(
        "Gemini gives calls no ids: of equal parallel calls it is known how many ended, not which.",
        "Hooks that only a running Gemini knows to be off are found when the session shows a turn without a "
        "handshake; a model that answers within about 50 ms could run one tool first.",
        "Gemini ends when its last name look-up does: with `privacy.usageStatisticsEnabled` on and a name server "
        "that does not answer that is long after its turn. Without a terminal wal-agent says so after 10 s.",
        "MCP tools are unknown, as hooks hand on no hints; a rule of the project can make one a mutation.",
    ),
)
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
