"""pi. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import Env, HookCaller, HookSetup, Injected, LoggedCall, Reconciled, Rehearsal, Traits
from wal_agent.agents.pi import cli, hooks, resume
from wal_agent.agents.pi import session as files
from wal_agent.agents.pi import session as seen


class Pi:
    name = "pi"
    tested = "0.73.1"
    also: tuple[str, ...] = ()
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    hook_caller: HookCaller = "agent"
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

    locate = staticmethod(cli.locate)
    hooks_off_reason = staticmethod(cli.hooks_off_reason)
    passthrough = staticmethod(cli.passthrough)
    is_interactive = staticmethod(cli.is_interactive)
    session_from_args = staticmethod(cli.session_from_args)
    prompt_from_args = staticmethod(cli.prompt_from_args)

    def sweep(self, env: Env, runtime: Path) -> None:
        """Everything is in the runs' own folders."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(cli.command)
    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)
    session_files = staticmethod(files.session_files)
    folder = staticmethod(files.folder)
    restore_path = staticmethod(files.restore_path)
    existing_files = staticmethod(files.existing_files)
    resumable = staticmethod(files.resumable)

    def reconcile(self, main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
        return resume.reconcile(main, session, workspace, calls)

    tell = staticmethod(resume.inject_prompt)
    seen_calls = staticmethod(seen.seen_calls)
    proves_turn = staticmethod(seen.proves_turn)
    fatal = staticmethod(cli.exit_cause)

    def tidy(self, session: str, workspace: Path, env: Env) -> None:
        """A resume leaves nothing behind."""
