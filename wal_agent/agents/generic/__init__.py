"""Any command. Nothing tells when it calls a tool, so no call is logged before it runs (no I1), and that is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Cli,
    Command,
    Decision,
    Env,
    HookCaller,
    HookEvent,
    Hookless,
    HookSetup,
    Injected,
    Journals,
    LoggedCall,
    NewSession,
    Reconciled,
    Rehearsal,
    ResumeSession,
    SeenCall,
    Traits,
)
from wal_agent.agents.generic import cli as launch
from wal_agent.agents.generic import session as files
from wal_agent.agents.generic import settings

UNLOGGED = (
    "generic: the session files are saved, but no tool call is logged before it runs; after a crash nothing is known "
    "of what was in flight."
)


class Generic(Journals, Hookless):
    name = "generic"
    tested = ""
    also: tuple[str, ...] = ()
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "file"
    hook_caller: HookCaller = "agent"
    again: frozenset[int] = frozenset()
    traits = Traits(
        hooks="none",
        intent="no: nothing is logged before a tool runs",
        fail_closed="no: there is nothing to refuse with",
        reconcile="no: files come back as they were saved last",
        resume="the words of `[generic] resume`; the notice is also in the file that WAL_AGENT_RECOVERY_PROMPT names",
        interactive="yes",
        subagents="unknown",
        limits=(
            "No tool call is known: what was in flight when the machine was lost is not told, nor kept from being "
            "done twice.",
            "What changed behind the last save (`--autosave`, and each change that the file system tells) is lost.",
            "Exit code 0 is the only sign of a completed task; any other end is recovered at the next start.",
            "A database that is open is copied as its file stands; it may come back torn.",
        ),
    )

    def rehearsal(self) -> Rehearsal | None:
        return None

    def locate(self, env: Env) -> Cli:
        return launch.locate()

    def hooks_off_reason(self, args: Sequence[str], workspace: Path, env: Env) -> str | None:
        settings.load_settings(workspace, env)
        return launch.start_problem(args, env)

    def passthrough(self, args: Sequence[str]) -> bool:
        return False

    def is_interactive(self, args: Sequence[str], tty: bool, env: Env) -> bool:
        return tty

    def session_from_args(self, args: Sequence[str]) -> str | None:
        return None

    def prompt_from_args(self, args: Sequence[str]) -> str | None:
        return None  # which of its words are one is not known, and a key may be among them

    def sweep(self, env: Env, runtime: Path) -> None:
        files.sweep(env)

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return Injected(paths=(launch.prompt_folder(setup.run_dir),))

    def command(
        self, cli: Cli, args: Sequence[str], session: NewSession | ResumeSession, interactive: bool, env: Env
    ) -> Command:
        return launch.command(args, session, env)

    def parse(self, event: str, payload: bytes) -> HookEvent:
        raise ValueError(f"generic has no hooks, so {event!r} is none of it")

    def render(self, event: str, decision: Decision) -> bytes:
        return b""

    session_files = staticmethod(files.session_files)
    folder = staticmethod(files.folder)
    restore_path = staticmethod(files.restore_path)

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        return files.existing_files(session, env)

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        return bool(files.existing_files(session, env))

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return files.reconcile(main, session)

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        return None

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        return []

    def proves_turn(self, appended: bytes) -> bool:
        return False

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        pass

    journal = staticmethod(files.write_note)

    def adopt(self, cli: Cli, session: str, workspace: Path, env: Env) -> None:
        pass

    def start_lines(self, workspace: Path, env: Env) -> list[str]:
        given = settings.load_settings(workspace, env)
        lines = [UNLOGGED]
        if not given.session:
            lines.append(
                "generic: no session file is named, so only this folder's files are saved. Name them in [generic] "
                f"session, in {settings.user_file(env)} or wal-agent.toml."
            )
        if given.resume is None:
            lines.append(
                "generic: after a crash the command is started again as it was, with the notice in the file that "
                f"{launch.PROMPT} names; words that make it go on: [generic] resume in {settings.user_file(env)}."
            )
        return lines

    folders = staticmethod(files.folders)

    def left_out(self, workspace: Path, env: Env) -> list[str]:
        return files.find_files(workspace, env).left_out

    root_of = staticmethod(files.root_of)
