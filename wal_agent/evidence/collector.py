"""Collect facts before a call, and decide a verdict for every call in flight at a recovery (RECOVERY.md). Changes
nothing, and stays within a budget (I9).

`collect_facts` runs before every call that may change something, so it takes what it can get in 50 ms of work and
otherwise returns nothing. On a loaded machine the 2 ms that it mostly needs may take 60 ms of waiting, so waiting has a
limit of its own. The verdicts share 2 s in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from wal_agent.clock import Clock, SystemClock
from wal_agent.evidence import model
from wal_agent.evidence.call import (
    change_apart,
    changed_paths,
    facts_before,
    find_running_calls,
    judge_call,
    read_parts,
)
from wal_agent.evidence.file_state import have_other_names, share_a_file
from wal_agent.evidence.model import Budget, Context, NestedRun, Outcome, Step, call_folder, folder_fact, relocate
from wal_agent.records import Fact, Host, Intent, Opening, Verdict
from wal_agent.shell.classify import classify
from wal_agent.shell.rules import load_rules
from wal_agent.wal.state import OpenCall, State

BEFORE_WORK = 0.05  # seconds of this thread's work
BEFORE_WAIT = 1.0  # seconds in all, with what the thread waits for its turn or a slow disk
_SYSTEM = SystemClock()


def collect_facts(
    tool: str,
    input: bytes,
    workspace: Path,
    clock: Clock = _SYSTEM,
    cwd: str = "",
    work: Callable[[], float] = time.thread_time,
) -> tuple[Fact, ...]:
    """What is true before a call of what it may change: small facts, empty where nothing safe is known in time.
    `cwd`: where the agent says that it runs; an absolute one is a fact itself. `work`: seconds that this thread has
    worked."""
    load_rules()  # reading them the first time takes longer than all the rest may
    budget = Budget(clock, clock.boot() + BEFORE_WAIT, work=work, most_work=work() + BEFORE_WORK)
    folder = folder_fact(cwd)
    return (*folder, *facts_before(read_parts(tool, input, workspace, cwd=call_folder(folder)), budget))


NOW_BUDGET = 2.0  # seconds, for all calls of a recovery
_UNLOGGED = Outcome("unknown", model.UNLOGGED)


LookUp = Callable[[Step, str, float], NestedRun | None]
"""A run that a step starts, by the id of the run that made the call, and when it did."""


def decide_verdicts(
    state: State,
    inputs: Mapping[int, bytes],
    here: Host,
    workspace: Path,
    running: Sequence[str],
    gone: bool,
    clock: Clock = _SYSTEM,
    covers: Callable[[str], bool] = lambda path: False,
    verify: Callable[[str, bytes], str] | None = None,
    inner: LookUp = lambda step, run, since: None,
) -> tuple[Verdict, ...]:
    """A verdict for every open call of `state` (the log before our opening).

    `inputs`: by call number. `running`: whole command lines of processes of the old run that were still running here
    and are ended by this recovery. `gone`: nothing of the old run is running any more; for a run on another machine,
    that its last hook deadline is over. `covers`: whether an absolute path is of the working tree here that was put
    back from a capture, and is something that a capture holds (not ignored). `verify`: how to look, by tool and
    input. `inner`: looks up the run that a step starts."""
    runs = {o.opening.epoch: o.opening for o in state.openings}
    agent = state.openings[-1].opening.agent if state.openings else ""
    ended_now = find_running_calls(agent, state, inputs, running)
    until = clock.boot() + NOW_BUDGET
    calls = CallOverlap(state, inputs, workspace, Budget(clock, until - NOW_BUDGET / 2))
    found: list[Verdict] = []
    for n, o in enumerate(state.open):
        data, run = inputs.get(o.intent.call), runs.get(o.epoch)
        now = clock.boot()
        share = Budget(clock, now + max(0.0, until - now) / (len(state.open) - n))
        outcome = Outcome("unknown")
        if data is not None and now < until:
            same = run is not None and run.workspace == str(workspace)
            way = None if run is None or same else (Path(run.workspace), workspace)
            around = Context(
                same_place=same and run is not None and (run.host.boot, run.host.pidns) == (here.boot, here.pidns),
                gone=gone,
                alone=calls.ran_alone(o),
                contested=calls.is_contested(o),
                running=o.intent.call in ended_now,
                inner=partial(_find_inner_run, inner, run, o.intent.time),
            )
            facts = [Fact(what=f.what, where=relocate(way, f.where), value=f.value) for f in o.intent.before]
            parts = read_parts(o.intent.tool, data, workspace, way, call_folder(facts))
            outcome = judge_call(parts, facts, around, covers, share)
            if outcome == Outcome("unknown") and around.same_place and gone and o.intent.tool in load_rules().shells:
                outcome = Outcome("unknown", model.ENDING_NOT_KEPT)
        elif o.intent.call in ended_now:
            outcome = judge_call((), (), Context(running=True), covers, share)
        if o.intent.unlogged and outcome.finding != "completed":
            outcome = _UNLOGGED
        look = "" if verify is None or data is None else verify(o.intent.tool, data)
        found.append(Verdict(call=o.intent.call, finding=outcome.finding, why=outcome.why, verify=look))
    return tuple(found)


class CallOverlap:
    """Tells which calls may have changed what others change. What a call changes is read once. `budget`: what is not
    read in its time may change anything."""

    def __init__(
        self, state: State, inputs: Mapping[int, bytes], workspace: Path, budget: Budget | None = None
    ) -> None:
        self._state, self._inputs, self._workspace, self._budget = state, inputs, workspace, budget
        self._known: dict[int, tuple[str, ...] | None] = {}
        calls = {x.intent.call for x in state.open} | {e.intent.call for e in state.unsettled}
        # A call that has ended and is no longer in the state may have done anything.
        self._forgotten = state.next_call - 1
        while self._forgotten in calls:
            self._forgotten -= 1

    def ran_alone(self, o: OpenCall) -> bool:
        """Whether no other call can have touched what this one changes since it began: every call that was open with
        it, ended after it began or began later only reads, or is known to change other things."""
        mine = self._changes(o.intent)
        if mine is None or self._forgotten > o.intent.call:
            return False
        others = [its for its in self._others(o) if its != ()]
        if others and have_other_names(mine, o.intent.before):
            return False  # any of them may change it by its other name
        return all(change_apart(mine, its) for its in others)

    def is_contested(self, o: OpenCall) -> bool:
        """Whether another call since this one began is known to change what it changes."""
        mine = self._changes(o.intent)
        if mine is None:
            return True
        known = [its for its in self._others(o) if its is not None]
        return any(not change_apart(mine, its) or share_a_file(mine, its) for its in known)

    def _others(self, o: OpenCall) -> Iterator[tuple[str, ...] | None]:
        """What each other call changes that may have been beside this one. Also those that ended before it was logged:
        what was true before it was looked at earlier than that, and clocks step back, so no times are compared."""
        others = [x.intent for x in self._state.open if x.intent.call != o.intent.call]
        others += [e.intent for e in self._state.unsettled]
        return (self._changes(x) for x in others)

    def _changes(self, call: Intent) -> tuple[str, ...] | None:
        if call.call not in self._known:
            data = self._inputs.get(call.call)
            late = self._budget is not None and self._budget.over
            if data is None or late:
                self._known[call.call] = None
            # Where a rule of the project made it read-only, that proves nothing.
            elif call.cls == "read_only" and classify(call.tool, data, load_rules()).cls == "read_only":
                self._known[call.call] = ()
            else:
                parts = read_parts(call.tool, data, self._workspace, cwd=call_folder(call.before))
                self._known[call.call] = changed_paths(parts)
        return self._known[call.call]


def _find_inner_run(look_up: LookUp, run: Opening | None, since: float, step: Step) -> NestedRun | None:
    return None if run is None else look_up(step, run.run, since)
