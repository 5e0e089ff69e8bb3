"""`wal-agent recover`."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import lines, say


def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and the prompt; change nothing.")] = False,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    as_json: AsJson = False,
) -> None:
    """What the next `wal-agent run` would do, and the prompt that the agent would get.

    Reads only, and all that a restore would: the job is not opened, nothing is restored, no process is ended. The
    recovery itself is `wal-agent run`.
    """
    from wal_agent.cli.options import place
    from wal_agent.errors import UsageError
    from wal_agent.supervise.dry_run import foresee_start
    from wal_agent.supervise.foreseen_json import foreseen_facts

    if not dry_run:
        raise UsageError(
            "A recovery is part of a start.",
            "Use `wal-agent run`, or look first: wal-agent recover --dry-run, or take its files: wal-agent restore",
        )
    at = place(agent, bucket, job, encryption_key_file, encryption_key_command, as_a_run=True)
    seen = foresee_start(at.bucket, at.keys, at.workspace, agent, at.settings, os.environ, at.key_id, at.options(agent))
    if as_json:
        print(json.dumps(foreseen_facts(seen)))
        return
    say(f"{seen.plan} (nothing was changed)")
    lines(seen.rows)
    if seen.prompt:
        lines(["", "The agent would be told:", "", *seen.prompt.splitlines()])
