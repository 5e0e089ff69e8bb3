"""Ask a person at the terminal for what this folder's project may decide."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from wal_agent.cli.display import can_ask
from wal_agent.config import Consents, Want
from wal_agent.errors import ConfigError
from wal_agent.text import lines, say


def ask_consent(wants: Sequence[Want], workspace: Path) -> bool:
    """Ask at the terminal, and store a yes; return False without a terminal. ConfigError: the answer is no."""
    from wal_agent.supervise.ancestry import outer_runs

    if outer_runs() or not can_ask():
        return False
    say(f"the project in {workspace} wants to decide what is yours to decide:")
    lines([row for want in wants for row in describe_want(want)])
    if not typer.confirm("Allow this, for this folder?", default=False, err=True):
        raise ConfigError(
            f"{wants[0].setting} in {wants[0].place} was not allowed.",
            "A flag, a variable or your own file goes before it.",
        )
    Consents(workspace, os.environ).allow(wants)
    say("allowed. To take it back: wal-agent trust --revoke")
    return True


def describe_want(want: Want, state: str = "") -> list[str]:
    """A want for people: what it is, where, and what it does."""
    return [
        f"  {want.setting} = {want.shown}" + (f"  ({state})" if state else ""),
        f"      in {want.place}; {want.means}",
    ]
