"""`wal-agent recall`: search all that the job ever said and did."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict, replace

from wal_agent.answers import answer_json
from wal_agent.cli.display import HEADED, answer_lines
from wal_agent.cli.options import HERE, AsJson, JobOptions, with_job
from wal_agent.errors import Damaged, UsageError
from wal_agent.text import answer, printable, redraw, say, timestamp

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext

MOST = 50  # hits
MAX_TASKS = 16  # whose logs are searched with that of their caller

Words = Annotated[list[str] | None, typer.Argument(help="Words to search for; all must match.", metavar="WORDS...")]


@with_job
def recall(
    words: Words = None,
    call: Annotated[
        int, typer.Option("--call", min=0, help="Show this call: its input and its result.", show_default=False)
    ] = 0,
    before: Annotated[
        int,
        typer.Option(
            "--before",
            min=0,
            help="Only what was said before compaction N (`wal-agent log` has the numbers).",
            show_default=False,
        ),
    ] = 0,
    role: Annotated[
        str, typer.Option("--role", help="Only what this role said.", metavar="user|assistant|tool|system")
    ] = "",
    regex: Annotated[
        str, typer.Option("--regex", help="Search for a regular expression (Python's), in any case.", metavar="RE")
    ] = "",
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=MOST, help="Maximum number of hits.")] = 10,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Search the whole conversation of a job: all runs, agents and machines, also what was compacted.

    For the agent after a compaction, and for you. Best hits first; secrets are redacted. If nothing has all of the
    words, matches of any word are shown. With --before or --role and no words, the newest of it comes first. The exit
    code is 1 if nothing was found.
    """

    from wal_agent.conversation.recall import Hit, Hits, Query
    from wal_agent.conversation.recall import recall as search
    from wal_agent.conversation.transcript import ROLES
    from wal_agent.wal.keys import Keys

    wanted = tuple(word for text in words or () for word in text.split())
    if wanted and regex:
        raise UsageError("Words and --regex do not go together.", "Put them into the expression.")
    if not (wanted or regex or call or before or role):
        raise UsageError("Name what to look for.", "For example: wal-agent recall migration failed")
    said_by = next((known for known in ("", *ROLES) if known == role), None)
    if said_by is None:
        raise UsageError(f"--role {role[:40]} is not possible.", f"Allowed: {', '.join(ROLES)}.")
    try:
        pattern = re.compile(regex, re.IGNORECASE) if regex else None
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--regex is no regular expression: {error}.", "Quote it, or search for words.") from error
    query = Query(wanted, call, before, said_by, limit, pattern)
    at = which.open()
    with suppress(Damaged):  # the log can be read without the lease
        at.lease()

    def progress(done: int) -> None:
        redraw("another search reads the log; this one waits" if done < 0 else f"{done} records read" if done else "")

    found = search(at.bucket, at.keys, at.blobs, query, os.environ, in_memory=bool(at.key_id), progress=progress)
    hits = [("", hit) for hit in found]
    if not (call or before):  # then those of its tasks, the newest first
        for task in _tasks(at, max(0, limit - len(hits))):
            below = replace(at, keys=Keys(task))
            more = search(at.bucket, below.keys, below.blobs, query, os.environ, in_memory=bool(at.key_id))
            hits += [(task, hit) for hit in more][: max(0, limit - len(hits))]
    if json:
        answer_json(Hits(tuple(Hit(**asdict(hit), job=task) for task, hit in hits)))
    for task, hit in [] if json else hits:
        where = f"record {hit.record}" if hit.record else f"session {hit.session[:8]}"
        where = f"{where} of task {task}" if task else where
        number = f"#{hit.call} " if hit.call else ""
        what = f"{number}{hit.tool} {hit.kind}".replace("  ", " ") if hit.call or hit.tool else hit.role or hit.kind
        when = timestamp(hit.time) if hit.time else ""
        answer_lines([" · ".join(filter(None, (printable(what), where, when)))], HEADED)
        answer([f"    {printable(line)}" for line in hit.text.splitlines() if line.strip()][:12])
    if not hits:
        say("nothing was found.")
        raise typer.Exit(1)


def _tasks(at: JobContext, room: int) -> list[str]:
    """The newest tasks of the job that are searched too. `room`: for so many hits."""
    from wal_agent.fleet.jobs import is_job
    from wal_agent.wal.reader import replay

    return [*filter(is_job, replay(at.bucket, at.keys).state.tasks)][::-1][:MAX_TASKS] if room else []
