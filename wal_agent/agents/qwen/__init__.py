"""Qwen Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Rewriting, SessionForms
from wal_agent.agents.qwen import cli, conversation, hooks, resume, rewrite, session

name = "qwen"
tested = "0.24.4"
also: tuple[str, ...] = ("0.15.10",)
main_file, folder = session.MAIN, session.runtime_folder

locate, passthrough, is_interactive, command = cli.locate, cli.passthrough, cli.is_interactive, cli.command
hooks_off_reason, session_from_args, prompt_from_args = (
    cli.hooks_off_reason,
    cli.session_from_args,
    cli.prompt_from_args,
)
inject, parse, render, reconcile = hooks.inject, hooks.parse, hooks.render, resume.reconcile
session_files, existing_files, restore_path = session.session_files, session.existing_files, session.restore_path
resumable, seen_calls, proves_turn = session.resumable, session.seen_calls, session.proves_turn
travels = conversation.travels

capabilities = Capabilities(
    mcp=True,
    passes_cd=False,
    forms=SessionForms(("--resume", "{session}"), "Qwen Code has no form to copy a session"),
    compactions=session.compactions,
    stopped_turn=session.stopped_turn,
    rewriting=Rewriting(rewrite.units, rewrite.compact),
    acp=("--acp",),
    speaks=frozenset(("tool_ended", "turn_completed")),
    hook_caller="session",  # since 0.24 each hook leads a session; 0.15 runs it in Qwen's own
    restart_codes=frozenset((42,)),
    sweep=hooks.sweep,
    inject_prompt=resume.inject_prompt,
    settled_length=session.settled_length,
    timers={"cron_create": session.due, "loop_wakeup": session.due},
    takes_back=frozenset(("cron_delete",)),
    exit_cause=cli.exit_cause,
    hooks_to_install=hooks.hooks_to_install,
)
