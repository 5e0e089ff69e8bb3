"""Results and the page docs/BENCHMARK.md. Pure, but for the file of results."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bench.crash.peers import PEERS, applies
from bench.crash.plan import cases
from wal_agent.drill.play import Played
from wal_agent.drill.policy import POLICIES
from wal_agent.drill.scenario import POINTS

Key = tuple[str, str, str, str, str, str, int]
RESULTS: Final = Path(__file__).with_name("results.json")
BASE: Final = "bare restart"  # of the blocked time
OURS: Final = "wal-agent"
PAGE: Final = Path(__file__).parents[2] / "docs" / "BENCHMARK.md"


@dataclass(frozen=True, slots=True)
class Result:
    """One round of one peer. `repeated`, `lost`, `wrong` and `untold` count effects; `extra`: model calls beyond those
    of a run without a kill. `per_call` to `untold` are those of drill.play.Cost."""

    agent: str
    peer: str
    policy: str
    scenario: str
    point: str
    target: str
    seed: int
    killed: bool
    repeated: int
    lost: int
    asked: int
    needless: int  # asked although a look would have shown it
    redone: int
    lost_files: int
    back: float | None
    calls: int
    extra: int
    per_call: float | None
    stored: int
    tools: int
    wrong: int
    untold: int
    stopped: int = 0  # asked by exit code 79
    exit_code: int | None = None  # of the last start; None: it did not end in time, or is not kept

    @property
    def key(self) -> Key:
        return self.agent, self.peer, self.policy, self.scenario, self.point, self.target, self.seed


def result(agent: str, peer: str, policy: str, played: Played) -> Result:
    """Return the result of a played round."""
    chosen, g = played.round, played.grade
    return Result(
        agent,
        peer,
        policy,
        chosen.scenario.name,
        chosen.point,
        chosen.target.effect,
        chosen.seed,
        g.killed,
        len(g.repeated),
        len(g.lost),
        int(g.asked),
        int(g.asked and not g.asked_well),
        g.redone,
        len(g.lost_files),
        g.back,
        g.calls or 0,
        (g.calls or 0) - len(chosen.scenario.steps) - 1,
        played.cost.per_call,
        played.cost.stored,
        played.cost.tools,
        played.cost.wrong,
        played.cost.untold,
        int(g.stopped),
        g.exit_code,
    )


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share. (0, 1) of nothing."""
    if of == 0:
        return 0.0, 1.0
    share, square = hits / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z * math.sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: int, of: int) -> str:
    """Return a share in percent with its interval."""
    if of == 0:
        return "-"
    low, high = wilson(hits, of)
    return f"{100 * hits / of:.0f} % ({100 * low:.0f}-{100 * high:.0f})"


def save(results: Iterable[Result], place: Path = RESULTS) -> None:
    rows = sorted((asdict(one) for one in results), key=lambda row: json.dumps(row, sort_keys=True))
    place.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", "utf-8")


def read(place: Path = RESULTS) -> list[Result]:
    """Return the results that are kept; none where there is no file."""
    return [Result(**row) for row in json.loads(place.read_text("utf-8"))] if place.exists() else []


def page(results: Sequence[Result]) -> str:
    """Return docs/BENCHMARK.md."""
    agents = sorted({one.agent for one in results})
    parts = [
        _HEAD.format(command="make bench-crash", rounds=len(results), agents=", ".join(agents), plan=_plan(results)),
        _short(results),
        _price(results),
        _not_best_summary(results),
        _LIMITS.format(kills=_kills(results), peers=_about(), absent=_absent()),
        _overview(results),
        "## By kill point: kills with an effect repeated or lost\n\n" + _points(results),
    ]
    for agent in agents:
        mine = [one for one in results if one.agent == agent]
        kills = len({one.key[3:] for one in mine})
        scenarios = sorted({one.scenario for one in mine})
        parts.append(f"## {agent}\n\nScenarios: {', '.join(scenarios)}. Different kills: {kills}.\n")
        for policy in POLICIES:
            rows = [one for one in mine if one.policy == policy]
            if rows:
                parts.append(f"### {agent}, a model that does `{policy}`\n\nIt {POLICIES[policy]}.\n\n{_peers(rows)}")
        parts.append(_not_best(agent, mine))
    return "\n".join(parts) + _TAIL


# ---- all agents together


def _plan(results: Sequence[Result]) -> str:
    peers = {peer.name: peer for peer in PEERS}
    wanted = {
        (agent, peer, policy, each.scenario.name, each.point, each.target.effect, each.seed)
        for each, agent, policy, peer in cases()
        if applies(peers[peer], agent)
    }
    return f"{len(wanted & {one.key for one in results})} of the {len(wanted)} rounds of the plan"


def _short(results: Sequence[Result]) -> str:
    """Count over all agents; of each peer only the kills that wal-agent has played too."""
    killed = [one for one in results if one.killed]
    own = {_kill(one) for one in killed if one.peer == OURS}
    policies = [policy for policy in POLICIES if any(one.policy == policy for one in killed)]
    heads = " | ".join(f"model: `{policy}`" for policy in policies)
    out = [f"| started again by | {heads} |", "|---|" + "---|" * len(policies)]
    for peer in _in_order(killed):
        rows = [one for one in killed if one.peer == peer and _kill(one) in own]
        found = [[one for one in rows if one.policy == policy] for policy in policies]
        cells = " | ".join(
            f"{_bad(each)} of {len(each)}: {share(_bad(each), len(each))}" if each else "-" for each in found
        )
        out.append(f"| {f'**{peer}**' if peer == OURS else peer} | {cells} |")
    return "## Kills with an effect repeated or lost\n\n" + "\n".join(out) + "\n"


def _kill(one: Result) -> tuple[str, ...]:
    return (one.agent, one.policy, *(str(each) for each in one.key[3:]))


def _price(results: Sequence[Result]) -> str:
    out = [
        "| wal-agent, model | kills | a person is asked | by exit code 79 | where a look would have shown it "
        "| extra model calls |",
        "|---|---|---|---|---|---|",
    ]
    for policy in POLICIES:
        own = [one for one in results if (one.peer, one.policy, one.killed) == (OURS, policy, True)]
        if own:
            out.append(
                f"| `{policy}` | {len(own)} | {sum(one.asked for one in own)} | {sum(one.stopped for one in own)} "
                f"| {sum(one.needless for one in own)} | {statistics.mean(one.extra for one in own):.1f} |"
            )
    return _PRICE + "\n".join(out) + "\n"


def _kills(results: Sequence[Result]) -> str:
    """Return how often each kill was played, by scenario and kill point."""
    killed = [one for one in results if one.killed]
    points = [point for point in POINTS if any(one.point == point for one in killed)]
    out = ["| scenario | " + " | ".join(f"`{point}`" for point in points) + " |", "|---|" + "---|" * len(points)]
    for scenario in sorted({one.scenario for one in killed}):
        counts = [sum((one.scenario, one.point) == (scenario, point) for one in killed) for point in points]
        out.append(f"| {scenario} | " + " | ".join(str(count or "-") for count in counts) + " |")
    return "\n".join(out) + "\n"


def _about() -> str:
    rows = [f"| {name} | {what} |" for name, what in _ABOUT.items()]
    return "\n".join(["| peer | what it is |", "|---|---|", *rows]) + "\n"


def _absent() -> str:
    rows = [f"| {name} | {why} |" for name, why in _ABSENT.items()]
    return "\n".join(["| not here | why |", "|---|---|", *rows]) + "\n"


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def _stored_per_call(own: Sequence[Result]) -> float:
    return sum(one.stored for one in own) / max(1, sum(one.tools for one in own))


def _bad(own: Sequence[Result]) -> int:
    return sum(one.repeated + one.lost > 0 for one in own)


def _overview(results: Sequence[Result]) -> str:
    """Return one table of all agents: the peers that each has."""
    peers = _in_order(results)
    out = ["## Kills with an effect repeated or lost\n", f"| agent | model | {' | '.join(peers)} |"]
    out.append("|---|---|" + "---|" * len(peers))
    for agent in sorted({one.agent for one in results}):
        for policy in POLICIES:
            rows = [one for one in results if (one.agent, one.policy, one.killed) == (agent, policy, True)]
            own = [[one for one in rows if one.peer == peer] for peer in peers]
            cells = " | ".join(f"{_bad(each)} of {len(each)}" if each else "-" for each in own)
            out += [f"| {agent} | {policy} | {cells} |"] if rows else []
    return "\n".join(out) + "\n"


def _peers(rows: Sequence[Result]) -> str:
    out = [
        "| peer | kills | with an effect repeated | with an effect lost | asked | of these without need | told wrongly "
        "| not told | steps redone | with files lost | seconds to be back | extra model calls | blocked ms per call "
        "| bytes per call |",
        "|" + "---|" * 14,
    ]
    bare = _median(one.per_call for one in rows if one.peer == BASE)
    for peer in _in_order(rows):
        own = [one for one in rows if one.peer == peer and one.killed]
        back, per_call = _median(one.back for one in own), _median(one.per_call for one in own)
        blocked = "-" if peer == BASE or bare is None or per_call is None else f"{1000 * (per_call - bare):+.0f}"
        out.append(
            f"| {peer} | {len(own)} | {share(sum(one.repeated > 0 for one in own), len(own))} "
            f"| {share(sum(one.lost > 0 for one in own), len(own))} | {sum(one.asked for one in own)} "
            f"| {sum(one.needless for one in own)} | {sum(one.wrong for one in own)} "
            f"| {sum(one.untold for one in own)} | {sum(one.redone for one in own)} "
            f"| {share(sum(one.lost_files > 0 for one in own), len(own))} "
            f"| {'-' if back is None else f'{back:.1f}'} "
            f"| {f'{statistics.mean(one.extra for one in own):.1f}' if own else '-'} | {blocked} "
            f"| {_stored_per_call(own):.0f} |"
        )
    return "\n".join(out) + "\n"


def _points(rows: Sequence[Result]) -> str:
    """Count by kill point, over all agents; of each peer only kills that wal-agent has played too."""
    own = {_kill(one) for one in rows if one.killed and one.peer == OURS}
    rows = [one for one in rows if _kill(one) in own]
    peers = _in_order(rows)
    out = ["| model | kill point | " + " | ".join(peers) + " |", "|---|---|" + "---|" * len(peers)]
    for policy in POLICIES:
        for point in POINTS:
            found = [one for one in rows if one.policy == policy and one.point == point and one.killed]
            each_peer = [[one for one in found if one.peer == peer] for peer in peers]
            cells = " | ".join(f"{_bad(each)} of {len(each)}" if each else "-" for each in each_peer)
            out += [f"| {policy} | {point} | {cells} |"] if found else []
    return "\n".join(out) + "\n"


class Worse(NamedTuple):
    """A cell in which another peer is better than wal-agent."""

    policy: str
    column: str
    mine: float
    best: float
    peer: str

    @property
    def why(self) -> str:
        return _WHY.get(f"{self.policy}: {self.column}") or _WHY[self.column]


_COLUMNS: Final[dict[str, Callable[[Sequence[Result]], float | None]]] = {
    "kills with an effect repeated": lambda own: sum(one.repeated > 0 for one in own) / len(own),
    "kills with an effect lost": lambda own: sum(one.lost > 0 for one in own) / len(own),
    "asked without need": lambda own: sum(one.needless for one in own) / len(own),
    "told wrongly": lambda own: sum(one.wrong for one in own) / len(own),
    "not told": lambda own: sum(one.untold for one in own) / len(own),
    "steps redone": lambda own: sum(one.redone for one in own) / len(own),
    "kills with files lost": lambda own: sum(one.lost_files > 0 for one in own) / len(own),
    "seconds to be back": lambda own: _median(one.back for one in own),
    "extra model calls": lambda own: statistics.mean(one.extra for one in own),
    "seconds per call": lambda own: _median(one.per_call for one in own),
    "bytes per call": lambda own: _stored_per_call(own),
}


def worse_cells(rows: Sequence[Result]) -> list[Worse]:
    """Return every cell of one agent in which another peer is better, which counts only kills that both have played."""
    found = []
    for policy in POLICIES:
        killed = [one for one in rows if one.policy == policy and one.killed]
        mine = {one.key[3:]: one for one in killed if one.peer == OURS}
        for column, value in _COLUMNS.items():
            better = []
            for peer in _in_order(killed):
                theirs = {one.key[3:]: one for one in killed if one.peer == peer}
                both = mine.keys() & theirs.keys()
                if peer == OURS or not both:
                    continue
                ours, other = value([mine[key] for key in both]), value([theirs[key] for key in both])
                if ours is not None and other is not None and other < ours - 1e-9:
                    better.append(Worse(policy, column, ours, other, peer))
            if better:
                found.append(min(better, key=lambda each: each.best - each.mine))
    return found


def _not_best(agent: str, rows: Sequence[Result]) -> str:
    head = f"### {agent}: where wal-agent is not the best\n\n"
    found = [
        f"| {w.policy} | {w.column} | {w.mine:.2f} | {w.best:.2f} ({w.peer}) | {w.why} |" for w in worse_cells(rows)
    ]
    if not found:
        return f"{head}Nowhere.\n"
    table = "\n".join(["| model | column | wal-agent | best | why |", "|---|---|---|---|---|", *found])
    return f"{head}Shares, means or medians over the kills that both have played.\n\n{table}\n"


def _not_best_summary(results: Sequence[Result]) -> str:
    agents = sorted({one.agent for one in results})
    cells = [(agent, each) for agent in agents for each in worse_cells([one for one in results if one.agent == agent])]
    out = ["| column | agents and models | why |", "|---|---|---|"]
    for column in _COLUMNS:
        whys = dict.fromkeys(each.why for _, each in cells if each.column == column)
        for why in whys:
            mine = [(agent, each) for agent, each in cells if each.column == column and each.why == why]
            where = ", ".join(
                f"{agent} ({', '.join(each.policy for a, each in mine if a == agent)})"
                for agent in dict.fromkeys(agent for agent, _ in mine)
            )
            out.append(f"| {column} | {where} | {why} |")
    table = "\n".join(out) if cells else "Nowhere."
    return f"## Where wal-agent is not the best\n\n{_ALL_CELLS}\n{table}\n"


def _in_order(rows: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.peer for one in sorted(rows, key=lambda one: (one.peer == OURS, one.peer))))


_STOPS = (
    "The model repeats the call in flight, whatever it reads. The hook refuses that until something may have checked "
    "the outcome. After three refusals, or ten where no hook ends the turn, the run ends with 79 and names the call."
)
_WHY: Final = {
    "naive: asked without need": _STOPS,
    "badly: asked without need": _STOPS,
    "naive: extra model calls": _STOPS,
    "badly: extra model calls": _STOPS,
    "badly: kills with an effect repeated": "The call had ended before the kill: made again, it runs.",
    "kills with an effect repeated": "A defect, unless chance: play the round again (see below).",
    "kills with an effect lost": "A defect, unless chance: play the round again (see below).",
    "asked without need": "The recovery prompt left open what a look would have shown.",
    "told wrongly": "A tool that outlived its agent had its effect after the look (`wrapper`), or the look is wrong.",
    "not told": "The newest records had not reached the log, or the log has no call of that effect.",
    "steps redone": "A step that may run again was cut off, or its file is missing here: the model runs it again.",
    "kills with files lost": (
        "The call in flight had written it: the tree is saved behind each call, and every 2 s while one runs."
    ),
    "seconds to be back": "wal-agent's own start, the restore, and the look at the evidence.",
    "extra model calls": "To verify is a call; a peer that does not look saves it.",
    "seconds per call": "The intent is durable before the tool starts: hooks before and after each call, and a put.",
    "bytes per call": "The log and the session; most peers keep nothing outside of the machine.",
}
_ABOUT: Final = {
    "bare restart": "The task is given again.",
    "bare resume": "The agent's own way to continue its newest session (`--resume latest`, `--continue`, "
    '`resume --last`), with the words "Go on with the task."',
    "retry loop": "A shell loop gives the task until the agent exits with 0.",
    "tmux loop": "A detached tmux session with such a loop that resumes; it outlives the process that was started.",
    "sdk batched, sdk eager": "Claude Agent SDK with a SessionStore in a folder that outlives the machine, in both "
    "of its flush modes; a restart resumes from the store.",
    "ferrofaction": "The wrapper of that name, written again from its description for today's session files: a lock, "
    "a copy of the transcript around each tool, a prompt that asks to verify.",
    "wal-agent": "`wal-agent run`, with the same command each time.",
}
_ABSENT: Final = {
    "claude-squad, overdeck": "Agents in tmux; `tmux loop` is what such a tool does at a restart.",
    "Temporal, DBOS, Restate": "Engines for code of one's own; an agent as one activity is the `retry loop`.",
    "Entire CLI": "In Go, on no package index; it saves sessions for review and does not restart an agent.",
    "reinstate": "In Go 1.25, which the machines of these figures do not have.",
    "vibe-kanban 0.1.44": "Its package downloads a program at the first start, which does not run offline.",
    "ccmanager 4.2.3": "Its package finds no program for Linux on x86_64 when install scripts are off.",
    "s-universal-agent-recovery": "Its package cannot be installed.",
}
_HEAD = """\
# Crash benchmark

How often does a coding agent repeat or lose an effect when its machine dies? `{command}` plays the rounds and
writes this page; no cell is typed by hand. It holds {plan}, of {agents}.
Each round is the real program, a scripted model on loopback, and real SIGKILLs. A peer plays the same kills, by the
same seeds. A ledger in the world, and nothing else, decides what was repeated or lost ([DRILL](DRILL.md)).

Three models stand for what real ones do after a crash: `well` believes a finding, verifies what is in doubt and asks
where nothing can show it; `naive` reads no recovery prompt and runs again what has no result in its conversation;
`badly` runs the last command again, whatever it reads.
"""
_PRICE = """\
In brackets: 95 % Wilson intervals. The row of a peer has only kills that wal-agent has played too.

The price: a person is asked. Either the model asks, or it only repeats the call in flight, and the run ends with exit
code 79.

"""
_ALL_CELLS = """\
Every cell of the tables by agent below in which a peer is better on the kills that both have played. The figures are
there.
"""
_LIMITS = """\
## How to read it

- The models are scripts, so that the peers differ and not the answers. Real models lie between them.
- The share of each kind of kill decides the totals: after a kill `before` the effect a blind repetition is right, after
  one `between` it is wrong. So read the table by kill point too. How often each was played:

{kills}
- With few kills the intervals are wide, and no single cell proves a difference.
- An effect that is missing because a person was asked is not lost, but counted as asked: by the agent (`./ask.sh`), or
  by exit code 79, which wal-agent documents as "a person must decide". Any other exit code counts for nothing.
- After the loss of a machine each peer starts in a fresh copy of the project.
- `queued` counts the prompt that was typed while the tool ran, too. Codex, Gemini, pi and Qwen keep it in memory alone,
  so it is lost with them.
- `told wrongly` and `not told` count effects at the first request behind the last start: the conversation says the
  opposite of what happened, or has no trace of an effect that happened.
- `extra model calls` are those beyond a run without a kill.
- `blocked ms per call` is the median time from an answer with a call to the next request, less that of `bare restart`.
  `bytes per call` is what the peer keeps outside of HOME and folder at the end, for each call of a tool.
- Seconds are from the last start to the first request to the model. Times are of a shared machine with two cores. Since
  2026-11-26 a round has counts alone if more than two processes for each core were ready to run; before, the load was
  not looked at. Differences of a few hundred milliseconds are noise here; [PERFORMANCE](PERFORMANCE.md) has the times
  of wal-agent alone.
- A round that does not end within ten minutes is not kept.

{peers}
{absent}
"""
_TAIL = """
## Add a peer

A peer is a class with a name and one method, `argv`, that returns the command of a start (the first has number 0).
HOME, the folder and the model's variables are set for that command; `root / "bucket"` outlives the machine.

```python
@dataclass(frozen=True, slots=True)
class Mine:
    name: str = "mine"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return ["my-wrapper", "--store", str(root / "bucket"), "--", *program, *args]
```

Add it to `PEERS` in `bench/crash/peers.py`, to `ONLY` if it knows one agent alone, to `missing` if it needs something
that a machine may lack, and to `ALL` in `bench/crash/plan.py`. An adapter that needs more than a command is a script of
some 40 lines, as `sdk.py` and `ferrofaction.py` there. Then run `python -m bench.crash --peer mine`: only rounds of the
plan that are not in `bench/crash/results.json` are played, and an interrupted run goes on. Beyond the plan, `--rounds 7
--seeds 3` plays all scenarios and kill points with the seeds 1 to 3. One kill again, with any peer, or as a drill that
shows what was printed:

```
python -m bench.crash --again --agent A --peer wal-agent --policy P --scenario S --point POINT
wal-agent drill A --model scripted --policy P --scenario S --point POINT --seed 1 --html drill.html [--bare]
```

Round n of seed N has the seed 1000 N + n in the results, counted from 0.
"""
