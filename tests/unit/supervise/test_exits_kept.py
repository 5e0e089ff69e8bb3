"""From how an agent ended to what is started next, through exits, keep and the plan: whatever happens, no restart comes
at once a second time, and none begins what was begun from nothing."""

from __future__ import annotations

import math
import random
import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.unit.recovery.cases import MAIN, captured, end, intent, opening, started, state_of, turn
from wal_agent.agents.base import ExitCause
from wal_agent.records import AnyRecord, RunEnded
from wal_agent.recovery import lease_policy
from wal_agent.recovery.plan import LocalFacts, Refuse, Start, decide
from wal_agent.recovery.plan import Policy as Asked
from wal_agent.supervise.exits import ExitFacts, ShutdownPlan, classify_exit, lease_state_after, quota_pause
from wal_agent.supervise.restart import Again, RestartPolicy, decide_restart
from wal_agent.supervise.run_end import RunResult

DOWNS = [ShutdownPlan(kind, "", 0.0, 1.0, "", resume_at=9e9) for kind in ("pause", "hang")]
LIMIT = 5

runs = st.fixed_dictionaries(
    {
        "code": st.sampled_from([0, 1, 130, 137, -6, -9, -11]),
        "turn": st.sampled_from(["none", "started", "completed"]),
        "calls": st.integers(0, 2),
        "inside": st.booleans(),
        "down": st.sampled_from([None, None, None, *DOWNS]),
        "death": st.sampled_from([None, None, ExitCause("quota", "429", 0.5), ExitCause("context", "too long", 0.0)]),
        "oom": st.integers(0, 1),
        "signals": st.sampled_from([frozenset[int](), frozenset[int]({signal.SIGHUP})]),
        "lived": st.sampled_from([0.0, 1.0, 700.0]),
        "clock": st.sampled_from([0.0, 0.0, -5000.0, 5000.0]),  # the wall's jump, which no boot clock sees
    }
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(runs, min_size=1, max_size=12), st.booleans(), st.integers(0, 99))
def test_no_two_restarts_come_at_once_and_none_begins_anew(
    lives: list[dict[str, object]], interactive: bool, seed: int
) -> None:
    records: list[AnyRecord] = []
    rng, policy = random.Random(seed), RestartPolicy("on", explicit=True, limit=LIMIT)
    boot, wall, call = 1000.0, 1e6, 0
    history: list[float] = []
    delays: list[float] = []
    rested, cause, again = -math.inf, "first", False
    for epoch, life in enumerate(lives, 1):
        wall += life["clock"]  # type: ignore[operator]
        ours = opening(epoch, cause, time=wall)  # type: ignore[arg-type]
        state = state_of(*records)
        decided = decide(state, ours, LocalFacts(MAIN), Asked(crash_limit=LIMIT))
        assert not (again and isinstance(decided, Start))
        if isinstance(decided, Refuse):
            return
        records += [ours, started()]
        turned = life["turn"] != "none"
        if turned:
            records += [turn(), captured()]
            for n in range(1, life["calls"] + 1):  # type: ignore[operator]
                call += 1
                records.append(intent(call, input=b"%d" % call))
                if n < life["calls"] or not life["inside"]:  # type: ignore[operator]
                    records.append(end(call))
            if life["turn"] == "completed":
                records.append(turn("completed"))
        boot, wall = boot + life["lived"], wall + life["lived"]  # type: ignore[operator]
        code, down = life["code"], life["down"]
        assert isinstance(code, int) and (down is None or isinstance(down, ShutdownPlan))
        over = life["turn"] != "started"
        done = over and (turned or code == 0)
        facts = ExitFacts(code, over, interactive, down, "", life["signals"], life["oom"], b"", life["death"])  # type: ignore[arg-type]
        word, state = classify_exit(facts), state_of(*records)
        where, until = lease_policy.crash_place(state, epoch), down.resume_at if down and down.kind == "pause" else 0.0
        if word.cls == "quota" and not interactive:
            until = wall + quota_pause(word, where, state.ends)
        records.append(
            RunEnded(time=wall, code=code, completed=done, cls=word.cls, why=word.why, place=where, until=until)
        )
        wanted = lease_state_after(
            word.cls, clean=over and down is None, untold=False, interactive=interactive, until=until
        )
        cause = "released" if state.open else wanted
        shell = 128 - code if code < 0 else code
        finished = RunResult(shell, word.cls, word.why, until, interactive, done)
        got = decide_restart(history, finished, boot, rng, policy, rested)
        if not isinstance(got, Again):
            return
        again = True
        delays.append(got.delay)
        assert got.delay > 0 or (got.attempt == 0 and until > 0)
        if got.attempt:
            history.append(boot)
            assert sum(at > boot - policy.window for at in history) <= LIMIT
        else:
            rested = boot
        if life["lived"] != 700.0:
            assert delays[-2:] != [0.0, 0.0]
        boot, wall = boot + got.delay, wall + got.delay
