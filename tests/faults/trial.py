"""What stands in a bucket is hostile: each kind of damage gets one clear sentence and exit code 73, or is healed by
rule; what can be had is offered, and nothing outside the target is touched (I3, I4, I7).

Whole jobs, made by the real writer (ruins.py), are damaged and then read by the real commands, with 1.5 GB of memory
and a minute (prober.py). Here: what must hold of every command, whatever it met.
"""

from __future__ import annotations

import json
import re
import shutil

from tests.faults.prober import Said
from tests.faults.ruins import (
    LAST,
    MAIN,
    PLAN,
    Damage,
    Machine,
    contents,
    listing,
    opened,
)

EVIL = "\x1b[2J\x9b31m\r\nwal-agent: all is well\u202e"
READS = (("status",), ("status", "--json"), ("log",), ("recover", "--dry-run", "--json"), ("gc", "--dry-run"))
RUN = ("run", "gemini", "--", "-p", "go")
SHORT = 2100  # characters that a message may have, whatever stands in the bucket


class Ruin:
    """A machine whose bucket holds the job; the expectations that every damage must meet."""

    def __init__(self, machine: Machine, history: list[bytes]) -> None:
        self.machine, self.history = machine, history

    def damage(self, damage: Damage) -> None:
        with opened(self.machine.url) as bucket:
            damage(bucket)

    def contents(self) -> dict[str, bytes | None]:
        with opened(self.machine.url) as bucket:
            return contents(bucket)

    def reads(self, *argv: str) -> Said:
        """A command that only reads: neither the machine nor the bucket changes, and what it says is sane."""
        files, objects = self.machine.untouched(), self.contents()
        said = sane(self.machine(*argv))
        assert self.machine.untouched() == files, argv
        assert self.contents() == objects, argv
        return said

    def runs(self) -> Said:
        """A start: it may write its own state and what the agent resumes, and nothing else."""
        machine = self.machine
        before = machine.untouched()
        said = sane(machine(*RUN))
        ours = re.compile(r"home/(\.local(/.*)?|\.gemini|\.gemini/(tmp|projects\.json|extensions)(/.*)?)")
        changed = {k for k, v in machine.untouched().items() if before.get(k) != v and not ours.fullmatch(k)}
        assert changed == set() and before.keys() <= machine.untouched().keys()
        return said

    def refused(self, what: str, offers: str = "", *, good: int | None = None) -> None:
        """Every command that needs what is damaged says so in one line, 73; the agent is not started."""
        for argv in (("status",), ("status", "--json"), ("recover", "--dry-run"), ("ack", "2", "--done")):
            self._one_line(self.reads(*argv), what, offers, good)
        self._one_line(self.runs(), what, offers, good)
        assert not self.machine.began

    def _one_line(self, said: Said, what: str, offers: str, good: int | None) -> None:
        assert said.code == 73, said
        assert len(said.ours) == 1, said.err
        assert re.search(what, said.ours[0]) and offers in said.ours[0], said.ours[0]
        if good is not None:
            assert re.search(rf"Everything up to record {good} \(", said.ours[0]), said.ours[0]

    def healed(self) -> None:
        """As if nothing had happened: the full state is there, and a start recovers it."""
        status = self.reads("status", "--json")
        assert status.code == 0 and json.loads(status.out)["session_bytes"] == len(self.history[LAST]) + 7
        assert self.reads("recover", "--dry-run").code == 0
        self.holds(LAST)
        assert self.runs().code == 0 and self.machine.began

    def holds(self, record: int, *more: str, main: int | None = None, code: int = 0) -> Said:
        """`restore` gives the session exactly as of `record` (the main file as of `main`), and touches nothing
        but its folder."""
        target = self.machine.work / "out"
        before, objects = self.machine.untouched(), self.contents()
        said = sane(self.machine("restore", "--to", "out", *more))
        assert said.code == code and len(said.ours) == 1, said
        assert f"as of record {record} (" in said.ours[0]
        found = {k: v[1] for k, v in listing(target / "session").items() if v[1] is not None}
        assert found.get(MAIN) == self.history[record if main is None else main]
        assert found.keys() <= {MAIN, PLAN} and found.get(PLAN, b"# next\n") == b"# next\n"
        assert {mode & 0o777 for mode, _ in listing(target).values()} <= {0o700, 0o600}
        assert target.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(target)
        assert self.machine.untouched() == before and self.contents() == objects
        return said


def sane(said: Said) -> Said:
    """What holds of every command's words, whatever it read: no trace of Python, nothing that a terminal obeys, no line
    that the bucket forged, no page of it, and no death by memory or time."""
    assert 0 <= said.code <= 80 and said.code != 70, said
    assert "Traceback" not in said.err and "a bug in wal-agent" not in said.err, said
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err), said
    assert all(len(line) <= SHORT for line in said.ours), max(map(len, said.ours))
    assert not any(line.startswith("wal-agent: all is well") for line in said.err.split("\n"))
    return said
