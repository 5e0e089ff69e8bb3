"""pi. Measured on the version in `tested`; the contract suite runs on the real program."""

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
from wal_agent.agents.pi import events, files, inject, launch, notice, reconcile, seen, settings


class Pi:
    name = "pi"
    tested = "0.73.1"
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    again: frozenset[int] = frozenset()
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

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.pi.rehearsal import PiRehearsal

        return PiRehearsal()

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
        """Everything is in the runs' own folders."""

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
        return files.folder(env)

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
        """A resume leaves nothing behind."""
