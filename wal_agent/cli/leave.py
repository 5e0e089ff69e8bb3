"""`wal-agent uninstall`."""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from wal_agent.answers import answer_json
from wal_agent.cli.display import can_ask
from wal_agent.cli.options import AsJson
from wal_agent.errors import PersonNeeded
from wal_agent.text import answer, lines

if TYPE_CHECKING:
    from wal_agent.operate.leave import Leaving

PROGRAM = "uv tool uninstall wal-agent (or: pipx uninstall wal-agent; rm -r ~/.wal-agent)"


def uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Remove everything that wal-agent wrote on this machine, and show what stays. Asks at a terminal.

    Its hooks in agents' settings, its mark on project folders, and its own folders go, with the bucket on this disk
    and the key of `wal-agent key`. Jobs in other buckets, your own settings and the agents' own sessions stay. Refused
    while a run of this user and HOME is alive (75). The command that removes the program is printed.
    """
    from wal_agent.operate.leave import foresee_leaving, leave
    from wal_agent.supervise.ancestry import require_person

    if not dry_run:
        require_person("wal-agent uninstall")
    found = foresee_leaving(os.environ)
    if not dry_run:
        if not yes:
            lines(describe_leaving(found, "would be removed"))
            if not can_ask():
                raise PersonNeeded(
                    "There is no terminal to ask at, so nothing was removed.",
                    "If you want it: wal-agent uninstall --yes",
                )
            typer.confirm("Remove all this, with the jobs in it, for good?", default=False, abort=True, err=True)
        found = leave(os.environ)
    if json:
        answer_json(replace(found, dry_run=dry_run))
    else:
        answer(describe_leaving(found, "would be removed" if dry_run else "removed"))


def describe_leaving(found: Leaving, verb: str) -> list[str]:
    """What goes and what stays, in lines."""
    rows = [f"{verb}:"]
    rows += [f"  hooks in {path}" for path in found.hooks]
    rows += [f"  the mark on folder {path} (an extended attribute)" for path in found.marked]
    beside = groupby(found.folders, os.path.dirname)
    for parent, (first, *others) in beside:
        rows.append(f"  {len(others) + 1} folders of runs in {parent}" if others else f"  {first}")
    if found.unsaved:
        rows.append(f"  among them {found.unsaved} segments of a log that no bucket has yet")
    if not found.hooks and not found.marked and not found.folders:
        rows = [f"nothing {verb}: there is nothing of wal-agent's here."]
    rows += [f"stays, since you wrote it: {path}" for path in found.stays]
    return [*rows, f"the program itself: {PROGRAM}"]
