"""A folder that a real operation works in, its truth, and the verdict on it: facts before, kill, look after."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.evidence.tally import Truth
from tests.unit.recovery.cases import HOST, intent, opening, started, state_of, turn
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import read_calls
from wal_agent.clock import SystemClock
from wal_agent.evidence import collector
from wal_agent.evidence.collector import collect_facts
from wal_agent.records import Fact, Verdict

OLD = 1_000_000_000  # seconds since 1970: what setups set all times to
_LITTER = re.compile(r"(?:sed|Cu)[A-Za-z0-9]{6}$")  # temporary files of sed and ln: left behind, and harmless

Snapshot = dict[str, tuple[object, ...]]


def snapshot(top: Path, outside: Path | None = None, times: bool = True) -> Snapshot:
    """All that is below a folder, and one file elsewhere: kind, mode, content, number of names, and whether its time
    was set since the setup (`times`; of files only)."""
    found: Snapshot = {}
    paths = [Path(folder) / n for folder, folders, files in os.walk(top) for n in (*folders, *files)]
    for path in [*paths, *([outside] if outside is not None and outside.exists() else [])]:
        if _LITTER.search(path.name):
            continue
        s = path.lstat()
        data: object = None
        if stat.S_ISREG(s.st_mode):
            data = (path.read_bytes(), times and int(s.st_mtime) == OLD, s.st_nlink)
        elif stat.S_ISLNK(s.st_mode):
            data = str(path.readlink())
        found[os.path.relpath(path, top)] = (stat.S_IFMT(s.st_mode), stat.S_IMODE(s.st_mode), data)
    return found


def age(top: Path) -> None:
    """Sets the times of all files far back, and waits until the changes made so far show in no later tick."""
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            os.utime(Path(folder) / name, (OLD, OLD), follow_symlinks=False)
    time.sleep(0.025)


class Unhurried(SystemClock):
    """A clock by which looking takes no time: a loaded machine changes no verdict. Budgets have tests of their own."""

    def boot(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an agent's tool."""

    tool: str
    fields: dict[str, object]

    @property
    def input(self) -> bytes:
        return json.dumps(self.fields).encode()

    def facts(self, top: Path) -> tuple[Fact, ...]:
        return collect_facts(ReadCall(self.tool, self.input), top, Unhurried(), work=lambda: 0.0)


def shell(command: str) -> Call:
    return Call("run_shell_command", {"command": command, "description": "work"})


def assessed(top: Path, *calls: tuple[Call, tuple[Fact, ...]], gone: bool = True) -> tuple[Verdict, ...]:
    """The verdicts on calls that were all in flight when their machine's agent was killed."""
    state = state_of(
        opening(workspace=str(top)),
        started(),
        turn(),
        *(intent(n, c.tool, c.input, "mutation", before=facts) for n, (c, facts) in enumerate(calls, 1)),
    )
    inputs = {n: c.input for n, (c, _) in enumerate(calls, 1)}
    return collector.decide_verdicts(state, read_calls(state, inputs), HOST, top, collector.Remains(gone), Unhurried())


def truth(was: object, now: object, after: object) -> Truth:
    """What became of an operation, by all that it leaves when it is let alone."""
    if now == after:
        return "same" if was == after else "done"
    return "untouched" if now == was else "between"
