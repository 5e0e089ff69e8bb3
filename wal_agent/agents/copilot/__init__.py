"""GitHub Copilot CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

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
    Traits,
)
from wal_agent.agents.copilot import events, files, home, inject, launch, log, reconcile, seen, settings


class Copilot:
    name = "copilot"
    tested = "1.0.102"
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "file"
    again: frozenset[int] = frozenset()
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

    def __init__(self) -> None:
        self._open = seen.Open()  # all else is stateless

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.copilot.rehearsal import CopilotRehearsal

        return CopilotRehearsal()

    def locate(self, env: Env) -> Cli:
        return launch.locate(env)

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
        inject.sweep(env, runtime)

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return inject.inject(setup, env)

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        return launch.command(cli, args, session, interactive, env)

    def parse(self, event: str, payload: bytes) -> HookEvent:
        return events.parse(event, payload)

    def render(self, event: str, decision: Decision) -> bytes:
        return events.render(event, decision)

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        return files.session_files(session, workspace, env)

    def folder(self, env: Env) -> Path:
        return home.copilot_home(env)

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        return files.restore_path(name, session, workspace, env)

    def existing(self, session: str, workspace: Path, env: Env) -> list[Path]:
        return files.existing(session, workspace, env)

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        return files.resumable(session, workspace, env)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return reconcile.reconcile(main, session, workspace, calls)

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        return None  # its command line hands a prompt on as it is

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        return self._open.take(log.load(appended).events)

    def unhooked(self, appended: bytes) -> bool:
        return seen.unhooked(appended)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing behind."""
