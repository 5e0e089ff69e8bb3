"""The job of a run that a call started (`wal-agent run`), looked up for the evidence: reads its lease and log alone.

Which bucket is the person's word: their settings as the inner run had them. One that only the command names is not
asked, since an agent wrote the command.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from wal_agent import __version__
from wal_agent.agents import AGENTS
from wal_agent.bucket import open_bucket
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.encrypted import EncryptedBucket
from wal_agent.bucket.retry import RetryBucket
from wal_agent.clock import SystemClock
from wal_agent.config import Settings, load
from wal_agent.encryption import id_of, load_key
from wal_agent.errors import WalAgentError
from wal_agent.records import Host
from wal_agent.recovery.step import InnerRun, Step
from wal_agent.supervise.machine import lock_state
from wal_agent.supervise.within import call_with_timeout
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import Seen
from wal_agent.wal.reader import replay

INNER_RUN_TIMEOUT = 1.5  # for one look; a recovery has 2 s for all evidence


@dataclass(frozen=True, slots=True)
class InnerCommand:
    """What the words of a `wal-agent run` name: the agent, and job and bucket where they do."""

    agent: str
    job: str | None = None
    bucket: str | None = None


def parse_inner_command(words: Sequence[str]) -> InnerCommand | None:
    """`words`: all of the command. None: no agent is named."""
    own = list(words[2 : words.index("--")] if "--" in words else words[2:])
    found: dict[str, str] = {}
    agent = ""
    while own:
        word = own.pop(0)
        name, eq, value = word.partition("=")
        if name in ("--job", "--bucket"):
            found[name] = value if eq else own.pop(0) if own else ""
        elif word in AGENTS and not agent:
            agent = word
    return InnerCommand(agent, found.get("--job"), found.get("--bucket")) if agent else None


@dataclass(frozen=True, slots=True)
class InnerRuns:
    """Looks up inner runs for one recovery. `settings`, `env`: those of the outer run."""

    settings: Settings
    env: Mapping[str, str]
    here: Host

    def __call__(self, step: Step, run: str, since: float) -> InnerRun | None:
        """What became of the run that `step` started inside `run` after `since`. None: it cannot be told."""
        try:
            return call_with_timeout(INNER_RUN_TIMEOUT, lambda: self._look(step, run, since), None)
        except (WalAgentError, OSError, ValueError):
            return None

    def _look(self, step: Step, run: str, since: float) -> InnerRun | None:
        said = parse_inner_command(step.words)
        if said is None:
            return None
        settings = load(said.agent, step.cwd.resolve(), self.env, {"job": said.job})
        url = settings.bucket if said.bucket is None else said.bucket
        if url not in (settings.bucket, self.settings.bucket):
            return None
        key = load_key(self.settings.encryption_key_file, self.settings.encryption_key_command, self.env)
        with closing(open_bucket(url)) as plain:
            bucket = RetryBucket(plain, SystemClock(), random.Random())
            keys = Keys(settings.job)
            seen = leases.read(bucket, keys)
            if seen is None:
                return InnerRun(settings.job, began=False)
            if seen.doc.key not in ("", id_of(key)):
                return None
            return self._told(EncryptedBucket(bucket, key) if seen.doc.key else bucket, keys, seen, run, since)

    def _told(self, bucket: Bucket, keys: Keys, seen: Seen, run: str, since: float) -> InnerRun | None:
        found = replay(bucket, keys)
        if found.damage is not None:
            return None
        openings = [o.opening for o in found.state.openings]
        mine = [opening for opening in openings if run in opening.parents]
        if not mine:
            # Other versions may not say where they were started, and a clock may have stepped back since.
            whole = len(openings) == found.state.opened and all(o.version == __version__ for o in openings)
            return InnerRun(keys.job, began=False) if whole else None
        if mine[-1].time < since or mine[-1].epoch != seen.doc.epoch:
            return None  # an earlier call's; or somebody else had the job behind it
        return InnerRun(keys.job, True, self._state(seen))

    def _state(self, seen: Seen) -> Literal["closed", "released", "cut_off", "held"]:
        doc = seen.doc
        if doc.state == "held":
            return "cut_off" if lock_state(doc.host, self.here) == "dead" else "held"
        return "cut_off" if doc.state == "unlocked" else doc.state
