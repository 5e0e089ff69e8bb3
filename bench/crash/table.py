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
PAGE: Final = Path(__file__).parents[2] / "docs" / "BENCHMARK.md"


@dataclass(frozen=True, slots=True)
class Result:
    """One round of one peer. `repeated` and `lost` count effects."""

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
    parts = [_HEAD.format(command="make bench-crash", rounds=len(results), agents=", ".join(agents))]
    for agent in agents:
        mine = [one for one in results if one.agent == agent]
        seeds = len({one.seed for one in mine})
        scenarios = sorted({one.scenario for one in mine})
        parts.append(f"## {agent}\n\nScenarios: {', '.join(scenarios)}. Rounds of each: {seeds}.\n")
        for policy in POLICIES:
            rows = [one for one in mine if one.policy == policy]
            if rows:
                parts.append(f"### A model that does `{policy}`\n\nIt {POLICIES[policy]}.\n\n{_peers(rows)}")
        parts.append(f"### By kill point: share of kills with an effect repeated or lost\n\n{_points(mine)}")
        parts.append(_not_best(mine))
    return "\n".join(parts) + _TAIL


def _peers(rows: Sequence[Result]) -> str:
    out = [
        "| peer | kills | with an effect repeated | with an effect lost | asked | of these without need | "
        "steps redone | with files lost | seconds to be back | model calls |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for peer in _in_order(rows):
        own = [one for one in rows if one.peer == peer and one.killed]
        back = [one.back for one in own if one.back is not None]
        out.append(
            f"| {peer} | {len(own)} | {share(sum(one.repeated > 0 for one in own), len(own))} "
            f"| {share(sum(one.lost > 0 for one in own), len(own))} | {sum(one.asked for one in own)} "
            f"| {sum(one.needless for one in own)} | {sum(one.redone for one in own)} "
            f"| {share(sum(one.lost_files > 0 for one in own), len(own))} "
            f"| {f'{statistics.median(back):.1f}' if back else '-'} "
            f"| {f'{statistics.mean(one.calls for one in own):.1f}' if own else '-'} |"
        )
    return "\n".join(out) + "\n"


def _points(rows: Sequence[Result]) -> str:
    peers = _in_order(rows)
    out = ["| model | kill point | " + " | ".join(peers) + " |", "|---|---|" + "---|" * len(peers)]
    for policy in POLICIES:
        for point in POINTS:
            found = [one for one in rows if one.policy == policy and one.point == point and one.killed]
            if found:
                bad = [[one.repeated + one.lost > 0 for one in found if one.peer == peer] for peer in peers]
                cells = " | ".join(f"{sum(each)} of {len(each)}" for each in bad)
                out.append(f"| {policy} | {point} | {cells} |")
    return "\n".join(out) + "\n"


def _not_best(rows: Sequence[Result]) -> str:
    """List every cell in which another peer is better than wal-agent."""
    columns: dict[str, Callable[[Sequence[Result]], float]] = {
        "kills with an effect repeated": lambda own: sum(one.repeated > 0 for one in own) / len(own),
        "kills with an effect lost": lambda own: sum(one.lost > 0 for one in own) / len(own),
        "asked without need": lambda own: sum(one.needless for one in own) / len(own),
        "steps redone": lambda own: sum(one.redone for one in own) / len(own),
        "kills with files lost": lambda own: sum(one.lost_files > 0 for one in own) / len(own),
        "seconds to be back": lambda own: statistics.median([one.back for one in own if one.back is not None] or [0.0]),
        "model calls": lambda own: statistics.mean(one.calls for one in own),
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
                found.append(f"- `{policy}`, {name}: {mine:.2f}, {peer} {best:.2f}")
    listed = "\n".join(found) or "- none"
    return f"### Where wal-agent is not the best\n\nAs shares, means or medians over the kills:\n\n{listed}\n"


def _in_order(rows: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.peer for one in sorted(rows, key=lambda one: (one.peer == "wal-agent", one.peer))))


_HEAD = """\
# Crash benchmark

How often does a coding agent repeat or lose an effect when its machine dies? `{command}` plays the rounds and
writes this page; no cell is typed by hand. It holds {rounds} rounds of {agents}: the real program, a scripted model on
loopback, and real SIGKILLs. A peer plays the same scenarios with the same seeds, so the same kills.
[DRILL](DRILL.md) explains the scenarios, the kill points, and how a ledger in the world, and nothing else, decides what
was repeated or lost.

Read the tables with these limits in mind:

- The models are scripts, so that the peers differ and not the answers. Real models lie between them.
- In brackets are 95 % Wilson intervals over the kills.
- An effect that is missing because the agent asked a person and stopped is not lost, but counted as asked.
- After the loss of a machine each peer starts in a fresh copy of the project.
- `bare resume` and `resume loop` continue the newest session (`--resume latest`, `--continue`) with the words "Go on
  with the task."; `bare restart` and `retry loop` give the task again.
- Seconds are from the last start to the first request to the model, on a shared machine with two cores;
  several rounds at a time (`--jobs`) make them longer, and most so where more processes start.
"""
_TAIL = """
## Why it is not the best there

- **A model that ignores what it reads** (`naive`, `badly`) makes the call again that was in flight at the kill. The
  hook refuses it until a later call may have checked whether the effect happened. These scripts never check, so an
  effect that had not happened is lost, and a person is needed.
- **A call that had ended before the kill** was not in flight: `badly` makes it again, and it runs.
- **Up to a quarter of a second after a tool** (`after`) its outcome may not be in the log yet, while the agent's own
  file on the same disk may have it.
- **With only the first process killed** (`wrapper`) the agent's own end takes the tool with it; below wal-agent the
  tool lives until the next start ends it, and may have had its effect by then. The recovery prompt says so.
- **Seconds to be back** contain wal-agent's own start, the restore and the look at the evidence.
- **Model calls**: to verify is a call; a peer that does not look saves it.

## Add a peer

A peer is a class with a name and one method, `argv`, that returns the command of a start (`bench/crash/peers.py`; the
first start has number 0). Add it to `PEERS`, and run `python -m bench.crash --peer NAME`: only rounds that are not in
`bench/crash/results.json` are played. Rounds again:

```
wal-agent drill AGENT --model scripted --policy P --scenario S --seed N [--bare]
```

Its round n has the seed 1000 N + n in the results, counted from 0.
"""
