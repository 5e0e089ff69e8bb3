"""Results and the page docs/BENCHMARK.md. Pure, but for the file of results."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from wal_agent.drill.play import Played
from wal_agent.drill.policy import POLICIES
from wal_agent.drill.scenario import POINTS

Key = tuple[str, str, str, str, str, str, int]
RESULTS: Final = Path(__file__).with_name("results.json")
BASE: Final = "bare restart"  # of the blocked time
PAGE: Final = Path(__file__).parents[2] / "docs" / "BENCHMARK.md"


@dataclass(frozen=True, slots=True)
class Result:
    """One round of one peer. `repeated`, `lost`, `wrong` and `untold` count effects; `extra`: model calls beyond those
    of a run without a kill. The last five are those of drill.play.Cost."""

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


def _played(results: Sequence[Result]) -> str:
    """Name the kills that the figures rest on."""
    order = [str(point) for point in POINTS]
    points = sorted({(order.index(one.point), one.point, one.scenario) for one in results if one.killed})
    return ", ".join(f"`{point}` in {scenario}" for _, point, scenario in points) or "none"


def _about() -> str:
    rows = [f"| {name} | {what} |" for name, what in _ABOUT.items()]
    return "\n".join(["| peer | what it is |", "|---|---|", *rows]) + "\n"


def page(results: Sequence[Result]) -> str:
    """Return docs/BENCHMARK.md."""
    agents = sorted({one.agent for one in results})
    parts = [
        _HEAD.format(
            command="make bench-crash",
            rounds=len(results),
            agents=", ".join(agents),
            peers=_about(),
            played=_played(results),
        ),
        _overview(results),
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
        parts.append(f"### {agent} by kill point: share of kills with an effect repeated or lost\n\n{_points(mine)}")
        parts.append(_not_best(agent, mine))
    return "\n".join(parts) + _TAIL


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
    peers = _in_order(rows)
    out = ["| model | kill point | " + " | ".join(peers) + " |", "|---|---|" + "---|" * len(peers)]
    for policy in POLICIES:
        for point in POINTS:
            found = [one for one in rows if one.policy == policy and one.point == point and one.killed]
            own = [[one for one in found if one.peer == peer] for peer in peers]
            cells = " | ".join(f"{_bad(each)} of {len(each)}" if each else "-" for each in own)
            out += [f"| {policy} | {point} | {cells} |"] if found else []
    return "\n".join(out) + "\n"


def _not_best(agent: str, rows: Sequence[Result]) -> str:
    """List every cell in which another peer is better than wal-agent, with the reason of its column."""
    columns: dict[str, Callable[[Sequence[Result]], float]] = {
        "kills with an effect repeated": lambda own: sum(one.repeated > 0 for one in own) / len(own),
        "kills with an effect lost": lambda own: sum(one.lost > 0 for one in own) / len(own),
        "asked without need": lambda own: sum(one.needless for one in own) / len(own),
        "told wrongly": lambda own: sum(one.wrong for one in own) / len(own),
        "not told": lambda own: sum(one.untold for one in own) / len(own),
        "steps redone": lambda own: sum(one.redone for one in own) / len(own),
        "kills with files lost": lambda own: sum(one.lost_files > 0 for one in own) / len(own),
        "seconds to be back": lambda own: _median(one.back for one in own) or 0.0,
        "extra model calls": lambda own: statistics.mean(one.extra for one in own),
        "seconds per call": lambda own: _median(one.per_call for one in own) or 0.0,
        "bytes per call": _stored_per_call,
    }
    found = []
    for policy in POLICIES:
        killed = [one for one in rows if one.policy == policy and one.killed]
        peers = {peer: [one for one in killed if one.peer == peer] for peer in _in_order(killed)}
        if "wal-agent" not in peers:
            continue
        for name, value in columns.items():
            mine = value(peers["wal-agent"])
            better = [(value(own), peer) for peer, own in peers.items() if value(own) < mine - 1e-9]
            if better:
                best, peer = min(better)
                why = _WHY.get(f"{policy}: {name}") or _WHY[name]
                found.append(f"| {policy} | {name} | {mine:.2f} | {best:.2f} ({peer}) | {why} |")
    head = f"### {agent}: where wal-agent is not the best\n\n"
    if not found:
        return f"{head}Nowhere.\n"
    table = "\n".join(["| model | column | wal-agent | best | why |", "|---|---|---|---|---|", *found])
    return f"{head}Shares, means or medians over the kills.\n\n{table}\n"


def _in_order(rows: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.peer for one in sorted(rows, key=lambda one: (one.peer == "wal-agent", one.peer))))


_IGNORES = (
    "The model ignores what it reads and repeats the call in flight; the hook refuses that call until a later one may "
    "have checked it, which this script never does. A person is needed."
)
_LOOPS = "The script repeats a refused call until the drill's limit of 60 requests; a real model reads the refusal."
_WHY: Final = {
    "naive: kills with an effect lost": _IGNORES,
    "naive: extra model calls": _LOOPS,
    "badly: extra model calls": _LOOPS,
    "badly: kills with an effect lost": _IGNORES,
    "badly: kills with an effect repeated": "The call had ended before the kill: made again, it runs.",
    "kills with an effect repeated": "A defect, unless chance: play the round again (see below).",
    "kills with an effect lost": "A defect, unless chance: play the round again (see below).",
    "asked without need": "The recovery prompt left open what a look would have shown.",
    "told wrongly": "A tool that outlived its agent had its effect after the look (`wrapper`), or the look is wrong.",
    "not told": "The newest records had not reached the log, or the log has no call of that effect.",
    "steps redone": "A step that may run again was cut off, or its file is missing here: the model runs it again.",
    "kills with files lost": "A file newer than the last capture of the tree.",
    "seconds to be back": "wal-agent's own start, the restore, and the look at the evidence.",
    "extra model calls": "To verify is a call; a peer that does not look saves it.",
    "seconds per call": "The intent is durable before the tool starts: hooks before and after each call, and a put.",
    "bytes per call": "The log (refused calls too) and the session; most peers keep nothing outside of the machine.",
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
_HEAD = """\
# Crash benchmark

How often does a coding agent repeat or lose an effect when its machine dies? `{command}` plays the rounds and
writes this page; no cell is typed by hand. It holds {rounds} rounds of {agents}: the real program, a scripted model on
loopback, and real SIGKILLs. A peer plays the same scenarios with the same seeds, so the same kills.
[DRILL](DRILL.md) explains the scenarios, the kill points, and how a ledger in the world, and nothing else, decides what
was repeated or lost.

Read the tables with these limits in mind:

- The models are scripts, so that the peers differ and not the answers. Real models lie between them.
- The figures rest on these kills alone: {played}. The share of each kind decides the totals: after a kill `before` the
  effect a blind repetition is right, after one `between` it is wrong. The tables by kill point tell them apart.
- In brackets are 95 % Wilson intervals over the kills. With few kills they are
  wide, and no single cell proves a difference.
- An effect that is missing because the agent asked a person and stopped is not lost, but counted as asked.
- After the loss of a machine each peer starts in a fresh copy of the project.
- `told wrongly` and `not told` count effects at the first request behind the last start: the conversation says the
  opposite of what happened, or has no trace of an effect that happened.
- `extra model calls` are those beyond a run without a kill.
- `blocked ms per call` is the median time from an answer with a call to the next request, less that of `bare restart`.
  `bytes per call` is what the peer keeps outside of HOME and folder at the end, for each call of a tool.
- Seconds are from the last start to the first request to the model. Times are of a shared machine with two cores;
  several rounds at a time (`--jobs`) make them longer, and most so where more processes start. Differences of a few
  hundred milliseconds are noise here; [PERFORMANCE](PERFORMANCE.md) has the times of wal-agent alone.

{peers}
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

Add it to `PEERS` in `bench/crash/peers.py`, to `ONLY` if it knows one agent alone, and to `missing` if it needs
something that a machine may lack. `sdk.py` and `ferrofaction.py` there are adapters that need more than a command. Then
run `python -m bench.crash --peer mine`: only rounds that are not in `bench/crash/results.json` are played. One round
again:

```
wal-agent drill AGENT --model scripted --policy P --scenario S --seed N [--bare]
```

Its round n has the seed 1000 N + n in the results, counted from 0.
"""
