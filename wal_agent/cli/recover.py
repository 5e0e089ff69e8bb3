"""`wal-agent recover`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, BucketUrl, JobName, KeyCommand, KeyFile, Place
from wal_agent.cli.screen import lines, say


def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and the prompt; change nothing.")] = False,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the saved session into this new folder.", metavar="FOLDER")
    ] = None,
    upto: Annotated[
        int | None, typer.Option("--upto", min=1, help="With --to: as of this record, not of the last sound one.")
    ] = None,
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
) -> None:
    """What the next `wal-agent run` would do, and the prompt that the agent would get. Or, with --to, the session's
    files out of the bucket, as far as the log is sound: the way out of a damaged one.

    Reads only: the job is not opened, nothing is restored, no process is ended. The recovery itself is `wal-agent run`.
    """
    from wal_agent.cli.options import place
    from wal_agent.errors import UsageError

    if dry_run == (to is not None) or (upto is not None and to is None):
        raise UsageError(
            "A recovery is part of a start.",
            "Use `wal-agent run`, or look first: wal-agent recover --dry-run, or take its files: --to FOLDER",
        )
    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    if to is None:
        _look(at, agent)
    else:
        _write(at, agent, to, upto)


def _look(at: Place, agent: str) -> None:
    from wal_agent.supervise.dry_run import foresee

    seen = foresee(at.bucket, at.keys, at.workspace, agent, at.settings.on_ambiguity, os.environ, at.key_id)
    say(f"{seen.plan} (nothing was changed)")
    lines(seen.rows)
    if seen.prompt:
        lines(["", *seen.prompt.splitlines()])


def _write(at: Place, agent: str, to: Path, upto: int | None) -> None:
    import random

    from wal_agent.agents import AGENTS
    from wal_agent.clock import SystemClock
    from wal_agent.encryption import wrong_key
    from wal_agent.errors import Damaged
    from wal_agent.recovery.rescue import new_folder, rescue
    from wal_agent.recovery.words import counted, size, stamp
    from wal_agent.wal import lease as leases
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.reader import reaching, replay

    try:
        seen = leases.read(at.bucket, at.keys)
    except Damaged:
        seen = None  # the files are in the log
    if seen and (problem := wrong_key(at.keys.job, seen.doc.key, at.key_id)):
        raise problem
    found = replay(at.bucket, at.keys, upto)
    if upto is None and seen:
        found = reaching(found, at.keys.job, seen.doc.seq)
    why = f"{found.damage.why} " if found.damage else ""
    if not found.state.files:
        raise Damaged(f"{why}Up to record {found.seq} of job {at.keys.job} no session was saved.")
    folder = to.absolute()
    new_folder(folder)
    blobs = Blobs(at.bucket, at.keys, SystemClock(), random.Random())
    session, env = found.state.session, os.environ
    done = rescue(
        found, at.bucket, at.keys, blobs, folder, lambda n: AGENTS[agent].restore_path(n, session, at.workspace, env)
    )
    what = f"{counted(len(done.files), 'file')} ({size(sum(done.files.values()))}) of session {session[:8]}"
    told = f"{why}{what}, as of record {found.seq} ({stamp(found.time)}), are in {folder}; nothing else was changed."
    if done.short:
        more = f", and {len(done.short) - 3} more" if len(done.short) > 3 else ""
        raise Damaged(f"{told} Not whole: {'; '.join(done.short[:3])}{more}.")
    say(told)
