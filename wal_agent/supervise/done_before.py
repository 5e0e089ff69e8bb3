"""Find a call that was done before and that the agent makes again since it lost sight of it: behind a compaction whose
summary lacks it, or first thing after a recovery of the turn in which it was done. Each is questioned once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from wal_agent.calls.call import ReadCall
from wal_agent.calls.equality import would_repeat
from wal_agent.calls.reading import Runs, find_runs, shell_commands
from wal_agent.calls.rules.table import load_rules
from wal_agent.records import CHANGING, Class
from wal_agent.wal.state import RecentCall, State


class DoneBefore:
    """The calls that the log keeps of a job, for the conversation of one run. From hook threads."""

    def __init__(self, state: Callable[[], State], workspace: str, begun: State) -> None:
        """`begun`: the state as this run found it."""
        self._state, self._workspace = state, workspace
        self._lock = threading.Lock()
        self._questioned: set[tuple[int, int]] = set()  # number of the compaction (0: the recovery), and of the call
        self._runs: dict[int, Runs] = {}
        self._newest = begun.next_call - 1  # of the runs before
        self._cut = begun.prompt if begun.turn == "started" else None  # what began the turn that was cut off

    def before_compaction(self, call: ReadCall, session: str) -> RecentCall | None:
        """An equal call that was done before the newest compaction of this conversation, whose summary may have lost
        it; only the first time that the agent makes it again."""
        state = self._state()
        compacted = next((c for c in reversed(state.compactions) if c.session == session), None)
        if compacted is None:
            return None
        with self._lock:
            equal = self._newest_equal(call, state.recent)
            if equal is None or equal.how != "done" or equal.call > compacted.call:
                return None
            return self._question(compacted.n, equal)

    def before_recovery(self, call: ReadCall, cls: Class) -> RecentCall | None:
        """An equal call that was done in the turn that was cut off, which this run goes on with; only the first time,
        and until the agent makes a call that is no such repetition, or is given another prompt. `cls`: of the call;
        what is harmless may be done again."""
        state, cut = self._state(), self._cut
        if cut is None:
            return None
        if state.prompt is not None and state.prompt.prompt != cut.prompt:
            self._cut = None
            return None
        with self._lock:
            earlier = [c for c in state.recent if c.call <= self._newest and c.time >= cut.time]
            equal = self._newest_equal(call, [c for c in earlier if c.cls != "read_only"])
            if equal is None and (cls != "unknown" or shell_commands(call)):
                self._cut = None  # it does something new, and not by a script or a subagent that may yet repeat
            if equal is None or cls not in CHANGING or equal.how != "done":
                return None
            return self._question(0, equal)

    def _question(self, compaction: int, equal: RecentCall) -> RecentCall | None:
        key = (compaction, equal.call)
        if key in self._questioned:
            return None
        self._questioned.add(key)
        return equal

    def _newest_equal(self, call: ReadCall, among: Sequence[RecentCall]) -> RecentCall | None:
        if not among:
            return None
        folder, rules = self._workspace, load_rules()
        new = find_runs(call, folder, rules)
        known = {c.call: self._runs.get(c.call) or find_runs(ReadCall(c.tool, c.input), folder, rules) for c in among}
        self._runs = known
        return next((c for c in reversed(among) if _is_equal(c, call, known[c.call], new)), None)


def _is_equal(earlier: RecentCall, call: ReadCall, then: Runs, now: Runs) -> bool:
    if earlier.size > len(earlier.input):  # only its beginning is kept
        whole = earlier.size == len(call.input) and call.input.startswith(earlier.input)
        return whole and earlier.tool == call.tool
    return would_repeat(then, now)
