"""Claude Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Env,
    HookCaller,
    HookSetup,
    HooksToInstall,
    Injected,
    LoggedCall,
    Reconciled,
    Rehearsal,
    Traits,
)
from wal_agent.agents.claude import cli, hooks, resume
from wal_agent.agents.claude import session as files
from wal_agent.agents.claude import session as seen


class Claude:
    name = "claude"
    tested = "2.1.330"
    also: tuple[str, ...] = ("2.1.197",)
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "file"
    hook_caller: HookCaller = "wrapped"  # CLAUDE_CODE_SHELL_PREFIX
    again: frozenset[int] = frozenset()
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

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.claude.rehearsal import ClaudeRehearsal

        return ClaudeRehearsal()

    locate = staticmethod(cli.locate)
    hooks_off_reason = staticmethod(cli.hooks_off_reason)
    run_settings_files = staticmethod(hooks.run_settings_files)
    switches = staticmethod(cli.settings_files)
    switch_off_reason = staticmethod(cli.switch_off_reason)
    passthrough = staticmethod(cli.passthrough)
    is_interactive = staticmethod(cli.is_interactive)
    session_from_args = staticmethod(cli.session_from_args)
    prompt_from_args = staticmethod(cli.prompt_from_args)

    def sweep(self, env: Env, runtime: Path) -> None:
        """Nothing: all is in the run's folder."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(cli.command)

    def standing(self, env: Env) -> HooksToInstall:
        return hooks.hooks_to_install(env)

    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)
    session_files = staticmethod(files.session_files)

    def folder(self, env: Env) -> Path:
        return hooks.claude_home(env)

    restore_path = staticmethod(files.restore_path)
    existing_files = staticmethod(files.existing_files)
    resumable = staticmethod(files.resumable)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    tell = staticmethod(resume.inject_prompt)
    seen_calls = staticmethod(seen.seen_calls)
    other_files = files.OTHERS
    requested_calls = staticmethod(seen.requested_calls)
    proves_turn = staticmethod(seen.proves_turn)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """Nothing: Claude Code leaves nothing beside the session's own file."""
