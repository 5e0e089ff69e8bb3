"""Codex CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Traits
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
traits = Traits(
    hooks="flags on this run's command line, trusted by their hashes",
    intent="before the tool starts",
    fail_closed="yes: the hook line refuses by itself",
    reconcile="calls that Codex would call aborted get their results, code mode's nested calls too",
    resume="`resume ID`; the notice is the user's last message in the session",
    interactive="yes",
    subagents="their calls are logged, their sessions saved; after a crash they are not started again",
    limits=(
        "A hook whose own shell is killed lets the tool run: Codex takes only exit code 2 or words for a no.",
        "A refused call does not end the turn: Codex has no word for both at once, and the model may go on trying.",
        "`write_stdin` fires no hook, so commands get no terminal (`features.unified_exec_tty=false`) and nothing "
        "can be typed into them. If you switch that on again by `-c`, what is typed is known only by the session. "
        "Commands that a person types with `!` are not logged.",
        "A command that a turn leaves running is ended by Codex with the turn, and told as interrupted.",
        "`codex exec` tells each hook on stderr, and a terminal shows that one runs; stdout is as without them.",
        "Hooks of your own that are given by `-c hooks...` are refused: put them into a file.",
        "Hooks that only a running Codex knows to be off are found on Linux by the session file that it has open, "
        "elsewhere by the first call that no hook told of; a model that answers within about 50 ms could run one.",
        "A call that a script of code mode makes and that fails before it runs is told by no file: it counts as "
        "interrupted at Codex's end, and after a crash it is a person's to settle (`wal-agent ack`).",
        "Session files that Codex compressed (`local_thread_store_compression`, off by default) are not read.",
        "On a terminal the shared background server is not used (`--no-daemon`).",
    ),
)
capabilities = Capabilities(
    hook_caller="session", ends_its_calls=True, inject_prompt=inject_prompt, exit_cause=exit_cause
)
