"""Gemini CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Rewriting, SessionForms
from wal_agent.agents.gemini import cli, conversation, hooks, resume, rewrite, session

name = "gemini"
tested = "0.61.0"
also: tuple[str, ...] = ()
main_file, folder = session.MAIN, session.gemini_home

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
    forms=SessionForms(("--resume", "{session}"), ("--session-file", "{file}")),
    compactions=session.compactions,
    stopped_turn=session.stopped_turn,
    speaks=frozenset(("tool_ended", "turn_completed")),
    hook_caller="shell",
    restart_codes=frozenset((199,)),
    loads_late=True,
    sweep=hooks.sweep,
    tidy=session.tidy,
    heal=resume.heal,
    inject_prompt=resume.inject_prompt,
    rewriting=Rewriting(rewrite.units, rewrite.compact, rewrite.rewind),
    exit_cause=cli.exit_cause,
    hooks_to_install=hooks.hooks_to_install,
)
