"""OpenCode. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Cli,
    Env,
    HookCaller,
    HookSetup,
    Injected,
    LoggedCall,
    Reconciled,
    Rehearsal,
    SessionFile,
    Traits,
)
from wal_agent.agents.opencode import cli as fatal
from wal_agent.agents.opencode import cli as launch
from wal_agent.agents.opencode import hooks, resume
from wal_agent.agents.opencode import session as journal
from wal_agent.agents.opencode import session as place
from wal_agent.agents.opencode import session as seen


class OpenCode:
    name = "opencode"
    tested = "1.18.33"
    also: tuple[str, ...] = ()
    main_file = place.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    hook_caller: HookCaller = "agent"
    again: frozenset[int] = frozenset()
    traits = Traits(
        hooks="a plugin by `OPENCODE_CONFIG_CONTENT`, for this run only",
        intent="before the tool starts",
        fail_closed="yes: the plugin throws, and OpenCode then runs no tool",
        reconcile="each open call gets its real outcome; a session of another folder is moved into this one",
        resume="`--session ID`; the plugin says the recovery prompt",
        interactive="yes",
        subagents="their calls and sessions are saved with the parent's",
        limits=(
            "OpenCode keeps sessions in one database, so a journal of the session is saved and is imported again.",
            "So a fork (`--from`) works only in the folder that its session has on this machine, or where it has none.",
            "What a restore replaces in that database, and the journals, stay in wal-agent's state folder.",
            "A tool that outlives OpenCode's crash runs on; its end is unknown.",
            "`opencode serve`, `web`, `acp` and `attach` are refused: others begin their sessions.",
            "Undo (`/undo`) reaches back only to what this machine has snapshots of.",
        ),
    )

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.opencode.rehearsal import OpenCodeRehearsal

        return OpenCodeRehearsal()

    locate = staticmethod(launch.locate)
    hooks_off_reason = staticmethod(hooks.hooks_off_reason)
    passthrough = staticmethod(launch.passthrough)
    is_interactive = staticmethod(launch.is_interactive)
    session_from_args = staticmethod(launch.session_from_args)
    prompt_from_args = staticmethod(launch.prompt_from_args)

    def sweep(self, env: Env, runtime: Path) -> None:
        """Nothing is injected outside the run's own folder."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(launch.command)
    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)

    def session_files(self, session: str, workspace: Path, env: Env) -> list[SessionFile]:
        return place.session_files(session, env)

    folder = staticmethod(place.folder)

    def restore_path(self, name: str, session: str, workspace: Path, env: Env) -> Path:
        return place.restore_path(name, session, env)

    def existing_files(self, session: str, workspace: Path, env: Env) -> list[Path]:
        return place.existing_files(session, env)

    def resumable(self, session: str, workspace: Path, env: Env) -> bool:
        return resume.resumable(session, env)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        return None  # the plugin says it, byte for byte

    seen_calls = staticmethod(seen.seen_calls)
    proves_turn = staticmethod(seen.proves_turn)
    fatal = staticmethod(fatal.exit_cause)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing that hurts."""

    def journal(self, session: str, workspace: Path, env: Env) -> None:
        journal.update_journal(session, workspace, env)

    stored_folder = staticmethod(resume.stored_folder)

    def adopt(self, cli: Cli, session: str, workspace: Path, env: Env) -> None:
        resume.import_session(cli, session, workspace, env)
