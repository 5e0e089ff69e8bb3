"""Have a live run on this machine make a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wal_agent.bucket.base import Bucket
from wal_agent.errors import UsageError
from wal_agent.operate.at_rest import require_lease
from wal_agent.supervise import control
from wal_agent.supervise.control import ask_own_run
from wal_agent.text import job_command
from wal_agent.wal.keys import Keys


def checkpoint_own_run(env: Mapping[str, str], question: dict[str, Any]) -> dict[str, Any] | None:
    """Have the run whose tool this is make a checkpoint; its job and number, None where no run answers. UsageError: it
    refuses."""
    return control.unless_refused(ask_own_run(env, control.CHECKPOINT, question))


def checkpoint_job(bucket: Bucket, keys: Keys, question: dict[str, Any]) -> dict[str, Any]:
    """Have the job's live run on this machine make a checkpoint; its job and number. UsageError: no run answers, or it
    refuses."""
    doc = require_lease(bucket, keys).doc
    held = doc.state == "held"
    job = (bucket.url, keys.job)
    answer = control.ask_run(doc.host, doc.run, job, control.CHECKPOINT, question) if held else None
    said = control.unless_refused(answer)
    if said is None:
        raise UsageError(
            f"Job {keys.job} does not run on this machine, so no checkpoint was made.",
            f"Its state as of its newest record: {job_command('checkpoint show', *reversed(job))}",
        )
    return said
