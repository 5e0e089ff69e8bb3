"""Qwen Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Cli,
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
from wal_agent.agents.qwen import cli, hooks, paths, resume
from wal_agent.agents.qwen import session as files
from wal_agent.agents.qwen import session as seen


class Qwen:
    name = "qwen"
    tested = "0.24.4"
    also: tuple[str, ...] = ("0.15.10",)
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    hook_caller: HookCaller = "session"  # since 0.24 each hook leads a session; 0.15 runs it in Qwen's own
    again = frozenset((42,))
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

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.qwen.rehearsal import QwenRehearsal

        return QwenRehearsal()

    def locate(self, env: Env) -> Cli:
        return cli.PROGRAM.locate(env)

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
    folder = staticmethod(paths.runtime_folder)
    restore_path = staticmethod(files.restore_path)
    existing_files = staticmethod(files.existing_files)
    resumable = staticmethod(files.resumable)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    tell = staticmethod(resume.inject_prompt)
    seen_calls = staticmethod(seen.seen_calls)
    settled_length = staticmethod(seen.settled_length)
    proves_turn = staticmethod(seen.proves_turn)
    fatal = staticmethod(cli.exit_cause)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing."""
