"""Qwen Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Cli,
    Command,
    Decision,
    Env,
    HookEvent,
    HookSetup,
    Injected,
    LoggedCall,
    NewSession,
    Reconciled,
    Rehearsal,
    ResumeSession,
    SeenCall,
    SessionFile,
    Standing,
    Traits,
)
from wal_agent.agents.qwen import events, files, inject, launch, notice, places, reconcile, seen, settings, standing


class Qwen:
    name = "qwen"
    tested = "0.15.10"
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
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
            "takes longer lets the tool run whatever wal-agent says.",
            "A hook cannot end Qwen's turn: while nothing can be saved each call is refused, and the model may go on.",
            "Calls of Qwen's hidden memory run are logged under a name of their own, and are not put back.",
            "At its first start Qwen itself rewrites settings.json (it adds `$version` and keeps settings.json.orig).",
            "Hooks that only a running Qwen knows to be off are found when the session shows a turn without a "
            "handshake; a model that answers within about 50 ms could run one tool first.",
        ),
    )

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.qwen.rehearsal import QwenRehearsal

        return QwenRehearsal()

    def locate(self, env: Env) -> Cli:
        return launch.PROGRAM.locate(env)

    def hooks_off(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        return settings.hooks_off(args, workspace, env)

    def passthrough(self, args: Sequence[str]) -> bool:
        return launch.passthrough(args)

    def is_interactive(self, args: Sequence[str], tty: bool, env: Env) -> bool:
        return launch.is_interactive(args, tty, env)

    def session_of(self, args: Sequence[str]) -> str | None:
        return launch.session_of(args)

    def prompt_of(self, args: Sequence[str]) -> str | None:
        return launch.prompt_of(args)

    def sweep(self, env: Env, runtime: Path) -> None:
        inject.sweep(env)

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return inject.inject(setup, env)

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        return launch.command(cli, args, session, interactive, env)

    def standing(self, env: Env) -> Standing:
        return standing.standing(env)

    def parse(self, event: str, payload: bytes) -> HookEvent:
        return events.parse(event, payload)

    def render(self, event: str, decision: Decision) -> bytes:
        return events.render(event, decision)

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        return files.session_files(session, workspace, env)

    def folder(self, env: Env) -> Path:
        return places.runtime(env)

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        return files.restore_path(name, session, workspace, env)

    def existing(self, session: str, workspace: Path, env: Env) -> list[Path]:
        return files.existing(session, workspace, env)

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        return files.resumable(session, workspace, env)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return reconcile.reconcile(main, session, workspace, calls)

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        return notice.tell(main, session, workspace, prompt)

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        return seen.seen_calls(appended)

    def unhooked(self, appended: bytes) -> bool:
        return seen.unhooked(appended)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing."""
