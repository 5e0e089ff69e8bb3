"""`wal-agent trust`: a person lets this folder's project decide what its files ask for (config.Consents)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.cli.display import can_ask
from wal_agent.config import Consents, Want
from wal_agent.errors import ConfigError, UsageError
from wal_agent.text import answer, lines, say


def trust(
    show: Annotated[
        bool, typer.Option("--show", help="Show what is asked for and what is allowed; do not ask.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Withdraw everything that was allowed for this folder.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow everything without asking.")] = False,
) -> None:
    """Allow settings that this folder's wal-agent.toml and .wal-agent/prompts may not decide alone.

    A consent applies to this folder and these values; a changed value is asked for again. It is kept in your own state
    folder. Agents may not use this command: inside a run it is refused (79).
    """
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.settings import wants_of

    if show + revoke + yes > 1:
        raise UsageError("--show, --revoke and --yes go alone.")
    workspace = Path.cwd().resolve()
    consents = Consents(workspace, os.environ)
    if not show:
        require_person("wal-agent trust")
    if revoke:
        had = consents.revoke()
        say(f"{'nothing is allowed any more' if had else 'nothing was allowed'} for {workspace}.")
        return
    wants = wants_of(workspace, os.environ)
    missing = [want for want in wants if not consents.allows(want)]
    if show or not missing:
        answer([row for want in wants for row in describe_want(want, "not allowed" if want in missing else "allowed")])
        if not wants:
            answer([f"nothing in {workspace} asks for your consent."])
        elif not missing:
            answer([f"all that {workspace} asks for is allowed."])
        return
    if yes:
        lines([row for want in missing for row in describe_want(want)])
        consents.allow(missing)
        say(f"allowed for {workspace}. To take it back: wal-agent trust --revoke")
    elif not ask_consent(missing, workspace):
        lines([row for want in missing for row in describe_want(want)])
        raise ConfigError(
            f"There is no terminal to ask at, so nothing is allowed for {workspace}.",
            "If you want all of it: wal-agent trust --yes",
        )


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
