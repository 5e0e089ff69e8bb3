"""Google Compute Engine: `instance/preempted`, which a request can wait on (30 s of notice for a spot machine).

Source: cloud.google.com/compute/docs/instances/create-use-spot and .../metadata/querying-metadata (wait_for_change,
last_etag, timeout_sec, Metadata-Flavor).
"""

from __future__ import annotations

from wal_agent.supervise.preemption.ask import MetadataClient
from wal_agent.supervise.preemption.data import MetadataError, Notice, Server

GCP_PATH = "/computeMetadata/v1/instance/preempted"
FLAVOR = {"Metadata-Flavor": "Google"}
GCP_NOTICE = 30.0  # seconds that a spot machine has from its notice on
GCP_WAIT = 60  # seconds that one request waits for a change
SLACK = 10.0  # seconds by which its reply may come late


class Gcp:
    period = 1.0  # the waiting is done there; this is for a server that does not wait

    def __init__(self, server: Server) -> None:
        self._asker = MetadataClient(server)
        self._etag = ""

    def look(self) -> Notice | None:
        """The first look asks how it stands, each later one waits until that is another."""
        wait = f"?wait_for_change=true&timeout_sec={GCP_WAIT}&last_etag={self._etag}" if self._etag else ""
        reply = self._asker.ask("GET", GCP_PATH + wait, FLAVOR, timeout=GCP_WAIT + SLACK if wait else SLACK)
        if reply.status != 200 or reply.headers.get("metadata-flavor") != "Google":
            raise MetadataError(f"it answers {reply.status}, not as Google's metadata server does")
        etag = reply.headers.get("etag", "")
        self._etag = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else "0"
        return Notice("gcp", GCP_NOTICE, drain=True) if reply.body.strip().upper() == b"TRUE" else None

    def close(self) -> None:
        self._asker.close()
