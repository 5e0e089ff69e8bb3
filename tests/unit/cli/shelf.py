"""A job for the commands to look at: in a real folder, with a secret and control characters wherever text can stand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from wal_agent.bucket.base import Bucket
from wal_agent.bucket.file import FileBucket
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Cause,
    Checkpoint,
    Compaction,
    CompactionDone,
    Cut,
    Edit,
    End,
    FileDelta,
    FileGone,
    Handoff,
    Host,
    Intent,
    Mark,
    MessageGiven,
    MessageSeen,
    Payload,
    PhaseChange,
    Progress,
    Recovery,
    Rewrite,
    RunEnded,
    RunsOn,
    StateGone,
    StatePut,
    StepBegun,
    StepEnded,
    StepPaused,
    Turn,
    Verdict,
    Workspace,
)
from wal_agent.recovery.lease_policy import Acquire, Local, admit
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, OpeningFields, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore

Run = Callable[..., tuple[int, str, str]]  # of the arguments: exit code, stdout, stderr
KEYS = Keys("shop")
SECRET = "ghp_" + "a1B2c3D4e5" * 4
EVIL = "\x1b[2J\x9b31m\u202e"  # clears the screen, colours it, turns the text round


@cache
def _validator(schema: str) -> Any:
    whole = json.loads((Path(__file__).parents[3] / "docs/reference/answers.json").read_text())
    kinds = (ref["$ref"].rpartition("/")[2] for ref in whole["oneOf"])
    kind = next(k for k in kinds if whole["$defs"][k]["properties"]["schema"]["enum"] == [schema])
    return Draft202012Validator({"$defs": whole["$defs"], "$ref": f"#/$defs/{kind}"})


def check_answer(answer: Any) -> None:
    """An answer with --json is one of the documented ones, with each field that docs/reference/answers.json has."""
    _validator(answer["schema"]).validate(answer)


def payload(value: Any) -> Payload:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Payload(size=len(data), data=data)


def intent(call: int, tool: str = "run_shell_command", **input: Any) -> Intent:
    return Intent(time=5.0, call=call, tool=tool, input=payload(input), cls="unknown", rule="shell", session="s")


def records() -> list[AnyRecord]:
    """One of each, and what may be shown of them carries the secret or the control characters."""
    return [
        Handoff(time=0.9, before=f"{SECRET}{EVIL}", agent=f"{EVIL}"),
        MessageGiven(time=0.95, sender=f"{EVIL}", id=f"{SECRET}", sent=1.0, text=payload(f"{SECRET}{EVIL}".encode())),
        MessageSeen(time=0.96, sender=f"{EVIL}", id=f"{SECRET}"),
        AgentStarted(time=1.0, pid=7, session=f"3f2a{EVIL}", resumed=False),
        Turn(time=2.0, state="started", session="s", prompt=payload(f"use {SECRET} {EVIL}".encode())),
        intent(1, command=f"curl -H 'Authorization: Bearer {SECRET}' x{EVIL}"),
        End(time=6.0, call=1, how="failed", by="hook", why=f"said {SECRET}{EVIL}", result=payload({"out": SECRET})),
        intent(2, tool=f"mcp{EVIL}", note=f"token={SECRET}"),
        RunsOn(time=6.5, call=2, by="hook", why=f"said {SECRET}{EVIL}", task=f"{SECRET}{EVIL}", result=payload(SECRET)),
        Cut(time=6.6, call=2, by="session", why=f"said {SECRET}{EVIL}", result=payload({"out": SECRET})),
        FileDelta(
            time=7.0,
            path=f"plans/{EVIL}",
            size=3,
            sha256="0" * 64,
            edits=(Edit(offset=0, data=payload(SECRET.encode())),),
            session="s",
        ),
        FileGone(time=8.0, path=f"plans/{EVIL}"),
        Workspace(time=8.5, holds=1, commit="0" * 40, left_out=(f"{SECRET}{EVIL}",)),
        Recovery(
            time=9.0,
            from_epoch=1,
            verdicts=(Verdict(call=2, finding="unknown", why=f"saw {SECRET}"),),
            told=f"{SECRET}{EVIL}",
        ),
        Answer(time=9.2, call=2, looked=(1,), because=f"looked {SECRET}{EVIL}"),
        Progress(time=9.3, title=f"{SECRET}{EVIL}", note=f"{SECRET}{EVIL}"),
        Checkpoint(time=9.4, number=1, trigger="manual", body=f"{SECRET}{EVIL}".encode()),
        Compaction(time=9.45, n=1, session=f"s{EVIL}", trigger=f"{SECRET}"),
        CompactionDone(time=9.45, n=1, session=f"s{EVIL}", missing=(f"{SECRET}{EVIL}",)),
        Mark(time=9.45, name=f"{SECRET}{EVIL}", session=f"s{EVIL}", key=f"{SECRET}{EVIL}"),
        Rewrite(time=9.45, n=1, kind="compact", session=f"{SECRET}{EVIL}", path="p", size=1, sha256="0", result="1"),
        StatePut(time=9.45, step="cursor", version=1, value=payload(f"{SECRET}{EVIL}".encode())),
        StatePut(time=9.45, step=f"{SECRET}{EVIL}", version=2, value=payload(b"")),
        StateGone(time=9.45, step=f"{SECRET}{EVIL}"),
        StepBegun(time=9.46, name="one", command=("curl", "-H", f"Authorization: Bearer {SECRET}", EVIL)),
        StepPaused(time=9.46, name="one", until=20.0, reason=f"{SECRET}{EVIL}"),
        StepEnded(time=9.47, name="one", how="done", stdout=payload(f"{SECRET}{EVIL}".encode()), stdout_size=60),
        StepBegun(time=9.48, name=f"{EVIL}", command=(f"{SECRET}{EVIL}",)),
        PhaseChange(time=9.5, phase="awaiting_approval", was="executing_tools", tool=f"mcp{EVIL} {SECRET}"),
        RunEnded(time=10.0, code=-9, completed=False, why=f"killed {SECRET}{EVIL}"),
    ]


LAST = 1 + len(records())  # the number of a full log's newest record: the opening is the first one


@dataclass
class Shelf:
    """A bucket in a folder."""

    folder: Path

    @property
    def bucket(self) -> Bucket:
        return FileBucket(self.folder)

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def open(self, run: str = "a", host: str = "vm-1", ttl: float = 30.0, lock: str = "", phase: str = "") -> OpenedJob:
        """Take the job, from a dead owner if one has it."""
        bucket = self.bucket
        seen = leases.read_lease(bucket, KEYS)
        decided = admit(seen, Local("", "", unchanged=1e6))
        assert isinstance(decided, Acquire)
        cause: Cause = decided.cause
        return open_job(
            JobStore(bucket, KEYS, rng=random.Random(7), parallel=1),
            claim=LeaseRequest(
                run=run,
                host=Host(name=host, boot=f"boot-{run}", pidns="1", pid=7, lock=lock),
                agent="gemini",
                workspace="/w",
                ttl=ttl,
                phase=phase,
            ),
            fields=OpeningFields(
                agent_version="0.61.0", version="0", args=("--api-key", "hunter2hunter2", "-p", "work")
            ),
            seen=seen,
            cause=cause,
        )


def commit(job: OpenedJob) -> None:
    while job.writer.commit_once() == "acked":
        pass


def full(folder: Path, host: str = "vm-1") -> Shelf:
    """A job that is held by a run elsewhere and has all of `records`."""
    shelf = Shelf(folder)
    job = shelf.open(host=host)
    for record in records():
        job.writer.append(record)
        commit(job)
    return shelf
