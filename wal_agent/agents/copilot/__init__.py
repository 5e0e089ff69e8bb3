"""GitHub Copilot CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import (
    Env,
    HookCaller,
    HookSetup,
    Injected,
    LoggedCall,
    Reconciled,
    Rehearsal,
    SeenCall,
    Traits,
)
from wal_agent.agents.copilot import cli, hooks, resume
from wal_agent.agents.copilot import session as files
from wal_agent.agents.copilot import session as log
from wal_agent.agents.copilot import session as seen


class Copilot:
    name = "copilot"
    tested = "1.0.102"
    also: tuple[str, ...] = ()
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "file"
    hook_caller: HookCaller = "shell"
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
        self._open = seen.OpenCalls()  # all else is stateless

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.copilot.rehearsal import CopilotRehearsal

        return CopilotRehearsal()

    locate = staticmethod(cli.locate)
    hooks_off_reason = staticmethod(cli.hooks_off_reason)
    passthrough = staticmethod(cli.passthrough)
    is_interactive = staticmethod(cli.is_interactive)
    session_from_args = staticmethod(cli.session_from_args)
    prompt_from_args = staticmethod(cli.prompt_from_args)
    sweep = staticmethod(hooks.sweep)

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(cli.command)
    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)
    session_files = staticmethod(files.session_files)
    folder = staticmethod(hooks.copilot_home)
    restore_path = staticmethod(files.restore_path)
    existing_files = staticmethod(files.existing_files)
    resumable = staticmethod(files.resumable)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    def tell(self, main: bytes, session: str, workspace: Path, prompt: str) -> bytes | None:
        return None  # its command line hands a prompt on as it is

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        return self._open.take(log.load_events(appended).events)

    proves_turn = staticmethod(seen.proves_turn)
    fatal = staticmethod(cli.exit_cause)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing behind."""
