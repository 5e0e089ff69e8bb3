"""Claude Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, RequestedCalls, SettingsWatch, Traits
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
traits = Traits(
    hooks="one `--settings` file of this run's own, the user's merged into it",
    intent="before the tool starts",
    fail_closed="yes: the hook line refuses by itself",
    reconcile="calls in flight and calls that were not written yet are put back, torn lines mended",
    resume="`--resume ID`; the notice is the user's last message in the session",
    interactive="yes",
    subagents="their calls are logged and their sessions saved; after a crash the parent's call is told",
    limits=(
        "A hook whose own shell is killed lets the tool run: Claude Code takes only exit code 2 or words for a no.",
        "A refused call does not end the turn: Claude Code has no word for both at once.",
        "Hooks that only a running Claude Code knows to be off are found when the session shows a turn without a "
        "handshake; a model that answers within about 100 ms could run one tool first.",
        "Claude Code reads its settings again while it runs. The user's, the project's and the local ones cannot "
        "switch hooks off then; the organisation's and this run's own are watched, and a change ends the run in "
        "0.1 s, where Claude waits a second.",
        "Were hooks off all the same, the run ends at the first result in the file. Claude writes it 0.1 s late; "
        "more calls of that answer may run until then (up to 4 did). All of them are logged as unlogged.",
        "Commands that a person types behind `!` fire no hook.",
        "Since 2.1.330 a subagent runs in the background unless the call says otherwise: its call ends when it has "
        "started. After a crash the notice names those of its calls that were in flight; that it did not finish, "
        "Claude Code itself tells the model.",
        "Where Claude Code shortens what it resumed before it asks, the recovery's words are said again behind the "
        "summary; more than 10,000 characters of them as a file that it names to the model.",
    ),
)
capabilities = Capabilities(
    boundary="file",
    hook_caller="wrapped",  # CLAUDE_CODE_SHELL_PREFIX
    inject_prompt=inject_prompt,
    hooks_to_install=hooks_to_install,
    requested_calls=RequestedCalls(requested_calls, OTHERS),
    settings_watch=SettingsWatch(run_settings_files, settings_files, switch_off_reason),
)
