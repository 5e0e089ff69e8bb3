"""Qwen Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Traits
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
traits = Traits(
    hooks="an extension of this run's own in `~/.qwen/extensions`",
    intent="before the tool starts",
    fail_closed="yes: the hook line refuses by itself",
    reconcile="calls that Qwen would drop get their results, lost records are bridged, the folder is rewritten",
    resume="`--resume ID`; the notice is the user's last message in the session",
    interactive="yes",
    subagents="their calls are logged; after a crash they are told with the parent's",
    limits=(
        "Qwen writes no hook's call id into its session: of equal calls it is known how many ended, not which.",
        "Qwen waits 60 s for all hooks of a call together and then runs the tool: a hook of the user's own that "
        "takes longer lets the tool run whatever wal-agent says, and so does a Qwen that is frozen together with "
        "its hooks for so long (^Z, a paused container).",
        "A hook cannot end Qwen's turn: while nothing can be saved each call is refused, and the model may go on.",
        "Calls of Qwen's hidden memory run are logged under a name of their own, and are not put back.",
        "Qwen 0.24 notes each extension that it has seen in `~/.qwen/extension-store/state.json`: the name of each "
        "run's own stays there, after its folder is gone.",
        "At its first start Qwen itself rewrites settings.json (adds `$version`; 0.15 keeps settings.json.orig).",
        "Hooks that only a running Qwen knows to be off are found when the session shows a turn without a "
        "handshake; a model that answers within about 50 ms could run one tool first.",
    ),
)
capabilities = Capabilities(
    hook_caller="session",  # since 0.24 each hook leads a session; 0.15 runs it in Qwen's own
    restart_codes=frozenset((42,)),
    sweep=sweep,
    inject_prompt=inject_prompt,
    settled_length=settled_length,
    exit_cause=exit_cause,
    hooks_to_install=hooks_to_install,
)
