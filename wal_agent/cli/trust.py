"""`wal-agent trust`: a person lets this folder's project decide what its files ask for (config.Consents)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.consent import ask_consent, describe_want
from wal_agent.cli.options import AsJson
from wal_agent.config import Consents
from wal_agent.errors import ConfigError, UsageError
from wal_agent.redact import redact
from wal_agent.text import answer, lines, say


class ShownWant(msgspec.Struct, frozen=True):
    """What a file of the project (`place`) asks for, and what that does."""

    setting: str
    value: str
    place: str
    means: str
    allowed: bool


class Trust(JsonAnswer, frozen=True):
    """`wal-agent trust`, as it is when the command ends."""

    folder: str
    wants: tuple[ShownWant, ...]


def trust(
    show: Annotated[
        bool, typer.Option("--show", help="Show what is asked for and what is allowed; do not ask.")
    ] = False,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Withdraw everything that was allowed for this folder.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow everything without asking.")] = False,
    json: AsJson = False,
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
        if json:
            _answer(consents, workspace)
            return
        say(f"{'nothing is allowed any more' if had else 'nothing was allowed'} for {workspace}.")
        return
    wants = wants_of(workspace, os.environ)
    missing = [want for want in wants if not consents.allows(want)]
    if json and (show or not missing):
        _answer(consents, workspace)
    elif show or not missing:
        answer([row for want in wants for row in describe_want(want, "not allowed" if want in missing else "allowed")])
        if not wants:
            answer([f"nothing in {workspace} asks for your consent."])
        elif not missing:
            answer([f"all that {workspace} asks for is allowed."])
    elif yes:
        lines([row for want in missing for row in describe_want(want)])
        consents.allow(missing)
        say(f"allowed for {workspace}. To take it back: wal-agent trust --revoke")
        if json:
            _answer(consents, workspace)
    elif not ask_consent(missing, workspace):
        lines([row for want in missing for row in describe_want(want)])
        raise ConfigError(
            f"There is no terminal to ask at, so nothing is allowed for {workspace}.",
            "If you want all of it: wal-agent trust --yes",
        )
    elif json:
        _answer(consents, workspace)


def _answer(consents: Consents, workspace: Path) -> None:
    """What is allowed now, for programs."""
    from wal_agent.supervise.settings import wants_of

    wants = wants_of(workspace, os.environ)
    asked = tuple(ShownWant(w.setting, redact(w.shown), str(w.place), w.means, consents.allows(w)) for w in wants)
    answer_json(Trust(str(workspace), asked))
