"""Claude Code. Measured on the version in `tested`; the contract suite runs on the real program."""

from __future__ import annotations

from wal_agent.agents.base import Capabilities, RequestedCalls, Rewriting, SessionForms, SettingsWatch
from wal_agent.agents.claude import cli, conversation, hooks, resume, rewrite, session

name = "claude"
tested = "2.1.332"
also: tuple[str, ...] = ("2.1.197",)
main_file, folder = session.MAIN, hooks.claude_home

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
    acp_server=cli.acp_server,
    forms=SessionForms(("--resume", "{session}"), ("--resume", "{session}", "--fork-session")),
    compactions=session.compactions,
    stopped_turn=session.stopped_turn,
    speaks=frozenset(("tool_ended", "turn_started", "turn_completed")),
    boundary="file",
    timers={"ScheduleWakeup": session.due, "CronCreate": session.due},
    takes_back=frozenset(("CronDelete",)),
    hook_caller="wrapped",  # CLAUDE_CODE_SHELL_PREFIX
    inject_prompt=resume.inject_prompt,
    turn_failure=session.turn_failure,
    rewriting=Rewriting(rewrite.units, rewrite.compact, rewrite.rewind),
    hooks_to_install=hooks.hooks_to_install,
    requested_calls=RequestedCalls(session.requested_calls, session.OTHERS),
    settings_watch=SettingsWatch(hooks.run_settings_files, cli.settings_files, cli.switch_off_reason),
)
