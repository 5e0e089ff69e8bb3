"""OpenCode. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Journal, Rewriting, SessionForms
from wal_agent.agents.opencode import cli, conversation, hooks, resume, rewrite, session

name = "opencode"
tested = "1.18.33"
also: tuple[str, ...] = ()
main_file, folder = session.MAIN, session.folder

locate, passthrough, is_interactive, command = cli.locate, cli.passthrough, cli.is_interactive, cli.command
hooks_off_reason, session_from_args, prompt_from_args = (
    cli.hooks_off_reason,
    cli.session_from_args,
    cli.prompt_from_args,
)
inject, parse, render, reconcile = hooks.inject, hooks.parse, hooks.render, resume.reconcile
session_files, existing_files, restore_path = session.session_files, session.existing_files, session.restore_path
resumable, seen_calls, proves_turn = resume.resumable, session.seen_calls, session.proves_turn
travels = conversation.travels

capabilities = Capabilities(
    forms=SessionForms(("run", "--session", "{session}"), ("run", "--session", "{session}", "--fork")),
    rewriting=Rewriting(rewrite.units, rewrite.compact),
    mcp=True,
    headless=("run",),
    acp=("acp",),
    speaks=frozenset(("tool_ended",)),
    exit_cause=cli.exit_cause,
    last_answer=session.last_answer,
    stored_folder=resume.stored_folder,
    not_after=resume.not_after,
    journal=Journal(session.update_journal, resume.import_session),
)
