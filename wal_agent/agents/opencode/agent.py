"""The agent of one edition: OpenCode itself, or what is built from it. The contract suite runs on the real programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wal_agent.agents.base import Capabilities, Journal, Rewriting, SessionForms
from wal_agent.agents.opencode import cli, conversation, hooks, resume, rewrite, session
from wal_agent.agents.opencode.edition import Edition

if TYPE_CHECKING:
    from wal_agent.agents.base import Rehearsal


class OpenCode:
    """One edition; it implements `Agent`."""

    main_file = session.MAIN
    parse, render, reconcile = staticmethod(hooks.parse), staticmethod(hooks.render), staticmethod(resume.reconcile)
    seen_calls, proves_turn = staticmethod(session.seen_calls), staticmethod(session.proves_turn)
    travels = staticmethod(conversation.travels)

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.name, self.tested, self.also = edition.name, edition.tested, edition.also
        self.locate = edition.program.locate
        self.passthrough, self.is_interactive = partial(cli.passthrough, edition), partial(cli.is_interactive, edition)
        self.hooks_off_reason, self.command = partial(cli.hooks_off_reason, edition), partial(cli.command, edition)
        self.session_from_args = partial(cli.session_from_args, edition)
        self.prompt_from_args = partial(cli.prompt_from_args, edition)
        self.inject, self.folder = partial(hooks.inject, edition), partial(session.folder, edition)
        self.session_files = partial(session.session_files, edition)
        self.existing_files = partial(session.existing_files, edition)
        self.restore_path = partial(session.restore_path, edition)
        self.resumable = partial(resume.resumable, edition)
        self.capabilities = Capabilities(
            forms=SessionForms(("run", "--session", "{session}"), ("run", "--session", "{session}", "--fork")),
            rewriting=Rewriting(rewrite.units, rewrite.compact),
            mcp=True,
            headless=("run",),
            acp=("acp",),
            speaks=frozenset(("tool_ended",)),
            exit_cause=cli.exit_cause,
            last_answer=session.last_answer,
            stored_folder=partial(resume.stored_folder, edition),
            not_after=resume.not_after,
            timers=edition.timers,
            takes_back=edition.takes_back,
            journal=Journal(partial(session.update_journal, edition), partial(resume.import_session, edition)),
        )

    @property
    def rehearsal(self) -> Rehearsal:
        from wal_agent.agents.opencode.rehearsal import rehearsal

        return rehearsal(self.edition)
