"""Any command. Nothing reports when it calls a tool, so no call is logged before it runs (no I1), and users are told
so.

Its session is the files that the `[generic]` settings name. It has no hooks, and its arguments are not read: which of
its words are a prompt is unknown, and a key may be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import Capabilities, Decision, Env, HookEvent, Hookless, Journal, SeenCall
from wal_agent.agents.conversation import Travels
from wal_agent.agents.generic import cli, session

name = "generic"
tested = ""
also: tuple[str, ...] = ()
main_file, folder = session.MAIN, session.folder

locate, command, inject, hooks_off_reason = cli.locate, cli.command, cli.inject, cli.hooks_off_reason
session_files, existing_files, restore_path = session.session_files, session.existing_files, session.restore_path
resumable, reconcile = session.resumable, session.reconcile


def travels(name: str, workspace: Path) -> Travels:
    """Which program reads the files is unknown, and so is what it takes from them."""
    return "text"


def passthrough(args: Sequence[str]) -> bool:
    return False


def is_interactive(args: Sequence[str], tty: bool, env: Env) -> bool:
    return tty


def session_from_args(args: Sequence[str]) -> str | None:
    return None


def prompt_from_args(args: Sequence[str]) -> str | None:
    return None


def parse(event: str, payload: bytes) -> HookEvent:
    raise ValueError(f"generic has no hooks, so {event!r} is none of it")


def render(event: str, decision: Decision) -> bytes:
    return b""


def seen_calls(appended: bytes) -> list[SeenCall]:
    return []


def proves_turn(appended: bytes) -> bool:
    return False


capabilities = Capabilities(
    headless=(),
    boundary="file",
    sweep=session.sweep,
    hookless=Hookless(cli.start_lines, session.folders, session.left_out, session.root_of),
    journal=Journal(session.write_note, lambda cli, session, workspace, env, for_client: None),
)
