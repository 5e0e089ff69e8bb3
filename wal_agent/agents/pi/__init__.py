"""pi. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Traits
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
traits = Traits(
    hooks="an extension in the run's own folder, by `-e`",
    intent="before the tool starts",
    fail_closed="yes: the extension blocks by itself, and pi does not start without it",
    reconcile="lost batches are put back with their results, torn lines and lost heads mended",
    resume="`--session ID`; the notice is the user's last message in the session",
    interactive="yes",
    subagents="pi has none; a pi that an extension starts is part of that extension's call",
    limits=(
        "Of several messages on one command line, a recovery repeats none: those not said yet are lost.",
        "A command that a person runs with `!` in pi is no tool call and is not logged.",
        "An extension that pi finds by itself and that rewrites the input of one of pi's own tools makes that call "
        "fail; named with `-e` before wal-agent's it may.",
        "An extension that pi finds by itself may rewrite the input of another one's tool after it was logged.",
        "Of a tool that an extension puts in the place of one of pi's own, as `read`, nothing is known.",
        "An extension that replaces pi's shell tool and hides the exit code makes a failed command look clean.",
    ),
)
capabilities = Capabilities(inject_prompt=inject_prompt, exit_cause=exit_cause)
