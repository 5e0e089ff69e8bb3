"""What this machine knows of the run that a lease names, by its locks and its spool: one view for all commands (R9)."""

from __future__ import annotations

from pathlib import Path

from wal_agent.records import Host
from wal_agent.recovery.admit import Local
from wal_agent.supervise.machine import lock_state
from wal_agent.wal.lease import Seen
from wal_agent.wal.spool import Owner, look


def probe_holder(seen: Seen | None, here: Host, spools: Path, bucket_url: str, unchanged: float = 0.0) -> Local:
    """`spools`: the folder of this user's spools; `unchanged`: seconds that the lease was seen not to change."""
    if seen is None:
        return Local(here.boot, here.pidns)
    doc = seen.doc
    spool = look(spools, doc.spool, Owner(doc.job, bucket_url)) if doc.spool else "absent"
    return Local(here.boot, here.pidns, lock_state(doc.host, here), unchanged, spool, here.name, str(spools))
