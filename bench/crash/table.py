"""Results and the page docs/BENCHMARK.md. Pure, but for the file of results."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
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
    head = _HEAD.format(agents=", ".join(agents), plan=_plan(results))
    parts = [head, _short(results), _chart(results), _price(results), _not_best_summary(results), _LIMITS, _PEERS]
    return "\n".join(part for part in parts if part)


def tables(results: Sequence[Result]) -> str:
    """Return what the page leaves out: each agent, model and kill point, with all that is counted."""
    parts = [
        "## How often each kill was played\n\n" + _kills(results),
        _overview(results),
        "## By kill point: kills with an effect repeated or lost\n\n" + _points(results),
    ]
    for agent in sorted({one.agent for one in results}):
        mine = [one for one in results if one.agent == agent]
        kills = len({one.key[3:] for one in mine})
        scenarios = sorted({one.scenario for one in mine})
        parts.append(f"## {agent}\n\nScenarios: {', '.join(scenarios)}. Different kills: {kills}.\n")
        for policy in POLICIES:
            rows = [one for one in mine if one.policy == policy]
            if rows:
                parts.append(f"### {agent}, a model that does `{policy}`\n\nIt {POLICIES[policy]}.\n\n{_peers(rows)}")
        parts.append(_not_best(agent, mine))
    return "\n".join(parts)


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


def _chart(results: Sequence[Result]) -> str:
    """Draw the share of bad kills by peer, all models together, of the kills of `_short`."""
    killed = [one for one in results if one.killed]
    own = {_kill(one) for one in killed if one.peer == OURS}
    lines = []
    for peer in _in_order(killed):
        rows = [one for one in killed if one.peer == peer and _kill(one) in own]
        if rows:
            part = _bad(rows) / len(rows)
            lines.append(f"{peer:<14}{'#' * round(50 * part):<51}{100 * part:3.0f} % of {len(rows)}")
    return "All models together:\n\n```\n" + "\n".join(lines) + "\n```\n"


def _kill(one: Result) -> tuple[str, ...]:
    return (one.agent, one.policy, *(str(each) for each in one.key[3:]))


def _price(results: Sequence[Result]) -> str:
    found = []
    for policy in POLICIES:
        own = [one for one in results if (one.peer, one.policy, one.killed) == (OURS, policy, True)]
        if own:
            asked, stopped, needless = (
                sum(getattr(one, name) for one in own) for name in ("asked", "stopped", "needless")
            )
            found.append(
                f"- `{policy}`: {asked} of {len(own)} kills, {stopped} of them by exit code 79; "
                f"in {needless} a look would have shown the outcome."
            )
    return _PRICE + "\n".join(found) + "\n"


def _kills(results: Sequence[Result]) -> str:
    """Return how often each kill was played, by scenario and kill point."""
    killed = [one for one in results if one.killed]
    points = [point for point in POINTS if any(one.point == point for one in killed)]
    out = ["| scenario | " + " | ".join(f"`{point}`" for point in points) + " |", "|---|" + "---|" * len(points)]
    for scenario in sorted({one.scenario for one in killed}):
        counts = [sum((one.scenario, one.point) == (scenario, point) for one in killed) for point in points]
        out.append(f"| {scenario} | " + " | ".join(str(count or "-") for count in counts) + " |")
    return "\n".join(out) + "\n"


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
    cells = [each for agent in agents for each in worse_cells([one for one in results if one.agent == agent])]
    of = len({(one.agent, one.policy) for one in results if one.peer == OURS and one.killed})
    counts = Counter((each.column, each.why) for each in cells)
    rows = [f"| {column} | {counts[column, why]} of {of} | {why} |" for column, why in counts]
    table = (
        "\n".join(["| a peer is better in | agents and models | why |", "|---|---|---|", *rows]) if rows else "Nowhere."
    )
    return f"## Where wal-agent is not the best\n\nCounted over the kills that both have played.\n\n{table}\n"


def _in_order(rows: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.peer for one in sorted(rows, key=lambda one: (one.peer == OURS, one.peer))))


_STOPS = "The model only repeats the call in flight. The hook refuses that, and the run ends with 79, naming the call."
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
_HEAD = """\
# Crash benchmark

<!-- Generated by: make bench-crash -->

How often does a coding agent repeat or lose an effect when its machine dies? Each round is the real program, a scripted
model on loopback, and a real SIGKILL. All ways to start again get the same kills. A ledger in the world, and nothing
else, decides what was repeated or lost ([DRILL](DRILL.md)). Measured: {plan}, of {agents}.

Three models stand for what real ones do after a crash: `well` believes a finding, verifies what is in doubt and asks
where nothing can show it; `naive` reads no recovery prompt and runs again what has no result in its conversation;
`badly` runs the last command again, whatever it reads. Three do what a small real model did: `respells` is `naive` in
other words each time, `talks` says that it will check and ends its turn, `deaf` checks and runs the command again,
whatever that shows.

```
make bench-crash                      # play the rounds that are not kept, and write this page
python -m bench.crash --tables        # each agent, model and kill point: repeated, lost, asked, seconds, bytes
python -m bench.crash --again --agent A --peer wal-agent --policy P --scenario S --point POINT   # one kill again
```
"""
_PRICE = """\
## The price: a person is asked

Either the model asks, or it only repeats the call in flight and the run ends with exit code 79.

"""
_LIMITS = """\
## How to read it

- The models are scripts, so that the peers differ and not the answers. Real models lie between them.
- In brackets: 95 % Wilson intervals. They are wide; no single cell proves a difference.
- The row of a peer has only kills that wal-agent has played too.
- The share of each kind of kill decides the totals. After a kill before the effect a blind repetition is right, after
  one between effect and outcome it is wrong. `--tables` has each kind.
- An effect that is missing because a person was asked counts as asked, not as lost.
- A prompt that was typed while a tool ran counts too. Codex, Gemini, pi and Qwen keep it in memory alone, and lose it.
- Times are of a shared machine with two cores; a few hundred milliseconds are noise. [PERFORMANCE](PERFORMANCE.md) has
  those of wal-agent alone.
- A round that does not end within ten minutes is not kept. Codex has no rounds in the background: it ends what a
  command leaves running.
"""
_PEERS = """\
## Peers

| peer | what it is |
|---|---|
| bare restart | The task is given again. |
| bare resume | The agent's own way to continue its newest session, with the words "Go on with the task." |
| retry loop | A shell loop gives the task until the agent exits with 0. |
| tmux loop | A detached tmux session with such a loop that resumes. |
| sdk batched, sdk eager | Claude Agent SDK with a SessionStore outside of the machine, in both flush modes. |
| ferrofaction | That wrapper, written again from its description: a lock, transcript copies, a prompt to verify. |
| wal-agent | `wal-agent run`, with the same command each time. |

Not played: claude-squad and overdeck (at a restart they are the `tmux loop`), Temporal, DBOS and Restate (an agent as
one activity is the `retry loop`), Entire CLI (restarts no agent), reinstate, vibe-kanban, ccmanager and
s-universal-agent-recovery (could not be run on this machine). `bench/README.md` says how to add one.
"""
