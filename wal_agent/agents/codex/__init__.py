"""Codex CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import Env, HookCaller, HookSetup, Injected, LoggedCall, Reconciled, Rehearsal, Traits
from wal_agent.agents.codex import cli, hooks, resume
from wal_agent.agents.codex import session as files
from wal_agent.agents.codex import session as home
from wal_agent.agents.codex import session as seen


class Codex:
    name = "codex"
    tested = "0.169.0"
    also: tuple[str, ...] = ()
    main_file = files.MAIN
    boundary: Literal["hooks", "file"] = "hooks"
    hook_caller: HookCaller = "session"
    again: frozenset[int] = frozenset()
    ends_its_calls: Literal[True] = True
    traits = Traits(
        hooks="flags on this run's command line, trusted by their hashes",
        intent="before the tool starts",
        fail_closed="yes: the hook line refuses by itself",
        reconcile="calls that Codex would call aborted get their results, code mode's nested calls too",
        resume="`resume ID`; the notice is the user's last message in the session",
        interactive="yes",
        subagents="their calls are logged, their sessions saved; after a crash they are not started again",
        limits=(
            "A hook whose own shell is killed lets the tool run: Codex takes only exit code 2 or words for a no.",
            "A refused call does not end the turn: Codex has no word for both at once, and the model may go on trying.",
            "`write_stdin` fires no hook, so commands get no terminal (`features.unified_exec_tty=false`) and nothing "
            "can be typed into them. If you switch that on again by `-c`, what is typed is known only by the session. "
            "Commands that a person types with `!` are not logged.",
            "A command that a turn leaves running is ended by Codex with the turn, and told as interrupted.",
            "`codex exec` tells each hook on stderr, and a terminal shows that one runs; stdout is as without them.",
            "Hooks of your own that are given by `-c hooks...` are refused: put them into a file.",
            "Hooks that only a running Codex knows to be off are found on Linux by the session file that it has open, "
            "elsewhere by the first call that no hook told of; a model that answers within about 50 ms could run one.",
            "A call that a script of code mode makes and that fails before it runs is told by no file: it counts as "
            "interrupted at Codex's end, and after a crash it is a person's to settle (`wal-agent ack`).",
            "Session files that Codex compressed (`local_thread_store_compression`, off by default) are not read.",
            "On a terminal the shared background server is not used (`--no-daemon`).",
        ),
    )

    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.codex.rehearsal import CodexRehearsal

        return CodexRehearsal()

    locate = staticmethod(cli.locate)
    hooks_off_reason = staticmethod(cli.hooks_off_reason)
    passthrough = staticmethod(cli.passthrough)
    is_interactive = staticmethod(cli.is_interactive)
    session_from_args = staticmethod(cli.session_from_args)
    prompt_from_args = staticmethod(cli.prompt_from_args)

    def sweep(self, env: Env, runtime: Path) -> None:
        """All that is made for a run is in its folder."""

    def inject(self, setup: HookSetup, env: Env) -> Injected:
        return hooks.inject(setup, env)

    command = staticmethod(cli.command)
    parse = staticmethod(hooks.parse)
    render = staticmethod(hooks.render)
    session_files = staticmethod(files.session_files)
    folder = staticmethod(home.codex_home)
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
