"""Codex CLI. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, Rewriting, SessionForms
from wal_agent.agents.codex import cli, conversation, hooks, resume, rewrite, session

name = "codex"
tested = "0.171.0"
also: tuple[str, ...] = ()
main_file, folder = session.MAIN, session.codex_home

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
    forms=SessionForms(("exec", "resume", "{session}"), ("exec", "fork", "{session}")),
    compactions=hooks.compactions,
    stopped_turn=hooks.stopped_turn,
    speaks=frozenset(("tool_ended", "turn_started", "turn_completed")),
    mcp=True,
    headless=("exec",),
    hook_caller="session",
    acp_server=cli.acp_server,
    forks_travel=False,  # a fork names its beginning by an offset into the other file
    ends_background=True,
    ends_its_calls=True,
    pairs_by_id=True,
    inject_prompt=resume.inject_prompt,
    rewriting=Rewriting(rewrite.units, rewrite.compact),
    exit_cause=cli.exit_cause,
)
