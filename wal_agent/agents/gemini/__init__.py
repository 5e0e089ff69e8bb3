"""Gemini CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

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
from wal_agent.agents.gemini import cli, hooks, resume
from wal_agent.agents.gemini import session as files
from wal_agent.agents.gemini import session as seen


class Gemini:
    name = "gemini"
    tested = "0.61.0"
    also: tuple[str, ...] = ()
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    hook_caller: HookCaller = "shell"
    again = frozenset((199,))
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

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.gemini.rehearsal import GeminiRehearsal

        return GeminiRehearsal()

    locate = staticmethod(cli.locate)
    hooks_off_reason = staticmethod(cli.hooks_off_reason)
    passthrough = staticmethod(cli.passthrough)
    is_interactive = staticmethod(cli.is_interactive)
    session_from_args = staticmethod(cli.session_from_args)
    prompt_from_args = staticmethod(cli.prompt_from_args)

    def sweep(self, env: Env, runtime: Path) -> None:
        hooks.sweep(env)

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(cli.command)

    def standing(self, env: Env) -> HooksToInstall:
        return hooks.hooks_to_install(env)

    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)
    session_files = staticmethod(files.session_files)

    def folder(self, env: Env) -> Path:
        return hooks.gemini_home(env)

    restore_path = staticmethod(files.restore_path)
    existing_files = staticmethod(files.existing_files)
    resumable = staticmethod(files.resumable)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    tell = staticmethod(resume.inject_prompt)
    seen_calls = staticmethod(seen.seen_calls)
    proves_turn = staticmethod(seen.proves_turn)
    fatal = staticmethod(cli.exit_cause)
    tidy = staticmethod(files.tidy)
    grows_when_loaded: Literal[True] = True
