"""GitHub Copilot CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Rewriting, SessionForms
from wal_agent.agents.copilot import cli, conversation, hooks, resume, rewrite, session

name = "copilot"
tested = "1.0.102"
also: tuple[str, ...] = ()
main_file, folder = session.MAIN, hooks.copilot_home

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
    forms=SessionForms(("--resume", "{session}"), "Copilot has no form to copy a session"),
    acp=("--acp",),
    speaks=frozenset(("tool_ended", "turn_started")),
    compactions=session.compactions,
    stopped_turn=session.stopped_turn,
    rewriting=Rewriting(rewrite.units, rewrite.compact),
    boundary="file",
    hook_caller="shell",
    sweep=hooks.sweep,
    exit_cause=cli.exit_cause,
    scheduled=session.scheduled,
)
