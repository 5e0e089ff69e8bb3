"""Results, and what is made of them: docs/BENCHMARK.md with its chart, and the page behind it. Pure, but for the file of
results."""

# ruff: noqa: E501 - rows of Markdown

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
DOCS: Final = Path(__file__).parents[2] / "docs"


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


def pages(results: Sequence[Result]) -> dict[str, str]:
    """Return the texts of the files in docs/, by name."""
    head = _HEAD.format(agents=", ".join(sorted({one.agent for one in results})), plan=_plan(results))
    front = (head, _short(results), _losses(results), _REPLAY, _not_best_summary(results))
    behind = (_BEHIND, _price(results), _LIMITS, _PEERS, _DURABLE)
    return {
        "BENCHMARK.md": "\n".join(part for part in front if part),
        "BENCHMARK-PEERS.md": "\n".join(behind),
        "benchmark.svg": _chart(results),
    }


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
    played = len(wanted & {one.key for one in results})
    return f"{'all ' if played == len(wanted) else ''}{played} of the {len(wanted)} rounds of the plan"


def _short(results: Sequence[Result]) -> str:
    """Count over all agents; of each peer only the kills that wal-agent has played too."""
    killed = _compared(results)
    policies = [policy for policy in POLICIES if any(one.policy == policy for one in killed)]
    heads = " | ".join(f"model: `{policy}`" for policy in policies)
    out = [f"| started again by | {heads} |", "|---|" + "---|" * len(policies)]
    for peer in _in_order(killed):
        rows = [one for one in killed if one.peer == peer]
        found = [[one for one in rows if one.policy == policy] for policy in policies]
        cells = " | ".join(f"{_bad(each)} of {len(each)}" if each else "-" for each in found)
        out.append(f"| {f'**{peer}**' if peer == OURS else peer} | {cells} |")
    ours = [[one for one in killed if (one.peer, one.policy) == (OURS, policy)] for policy in policies]
    asked = " | ".join(f"{sum(one.asked for one in each)} of {len(each)}" if each else "-" for each in ours)
    out.append(f"| under wal-agent a person is asked | {asked} |")
    return "\n".join(out) + "\n"


def _losses(results: Sequence[Result]) -> str:
    """List wal-agent's own bad kills, with why."""
    own: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        if one.killed and one.peer == OURS and _bad([one]):
            own.setdefault((one.point, "repeated" if one.repeated else "lost"), []).append(one)
    found = [
        f"- {what} at `{point}`: {', '.join(sorted(f'{one.agent} (`{one.policy}`)' for one in bad))}. "
        f"{_LOST.get(point, _DEFECT)}"
        for (point, what), bad in sorted(own.items())
    ]
    return "Those of wal-agent:\n\n" + "\n".join(found) + "\n" if found else ""


def _chart(results: Sequence[Result]) -> str:
    """Draw the share of bad kills by peer, all models together, of the kills of `_short`."""
    killed = _compared(results)
    found = {peer: [one for one in killed if one.peer == peer] for peer in _in_order(killed)}
    shares = {peer: (_bad(rows) / len(rows), len(rows)) for peer, rows in found.items()}
    height = 30 * len(shares) + 44
    bars = [
        f'<text x="120" y="{y + 15}" text-anchor="end">{peer}</text>'
        f'<rect x="130" y="{y}" width="{max(1, round(400 * part))}" height="20" rx="2" class="{_bar(peer)}"/>'
        f'<text x="{max(1, round(400 * part)) + 138}" y="{y + 15}">{100 * part:.0f} % of {count}</text>'
        for y, (peer, (part, count)) in zip(range(40, height, 30), shares.items(), strict=False)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 {height}" width="660" height="{height}" role="img">'
    )
    return "\n".join([head, *_CHART, *bars, "</svg>", ""])


def _bar(peer: str) -> str:
    return "ours" if peer == OURS else "peer"


def _compared(results: Sequence[Result]) -> list[Result]:
    """Return the killed rounds; of each peer only the kills that wal-agent has played too."""
    killed = [one for one in results if one.killed]
    own = {_kill(one) for one in killed if one.peer == OURS}
    return [one for one in killed if _kill(one) in own]


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
            found.append(f"| `{policy}` | {asked} of {len(own)} | {stopped} | {needless} |")
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
    rows = _compared(rows)
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
    rows = [f"| {column} | {counts[column, why]} of {of} | {why} |" for column, why in sorted(counts)]
    table = (
        "\n".join(["| a peer is better in | agents and models | why |", "|---|---|---|", *rows]) if rows else "Nowhere."
    )
    return f"## Where wal-agent is not the best\n\nCounted over the kills that both have played.\n\n{table}\n"


def _in_order(rows: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.peer for one in sorted(rows, key=lambda one: (one.peer == OURS, one.peer))))


_STOPS = "The model only repeats the call in flight: the hook refuses it, and the run ends with 79."
_LOST: Final = {"queued": "The agent keeps a prompt that is typed while a tool runs in its memory alone."}
_DEFECT: Final = "A defect, unless chance: play the round again (see above)."
_WHY: Final = {
    "naive: asked without need": _STOPS,
    "badly: asked without need": _STOPS,
    "naive: extra model calls": _STOPS,
    "badly: extra model calls": _STOPS,
    "badly: kills with an effect repeated": "The call had ended before the kill: made again, it runs.",
    "kills with an effect repeated": _DEFECT,
    "kills with an effect lost": _DEFECT,
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
_CHART: Final = (
    "<title>Kills with an effect repeated or lost, all models together</title>",
    "<style>text{font:14px system-ui,sans-serif;fill:#24292f}.ours{fill:#2da44e}.peer{fill:#cf222e}</style>",
    '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
    '<text x="16" y="24" font-weight="bold">Kills with an effect repeated or lost, all models together</text>',
)
_HEAD = """\
# Crash benchmark

<!-- Generated by: make bench-crash -->

How often does a coding agent repeat or lose an effect when its machine dies? Each round is the real program, a scripted
model on loopback, and a real SIGKILL. All ways to start again get the same kills. A ledger in the world, and nothing
else, decides what was repeated or lost. Measured: {plan}, of {agents}.

![A bar for each way to start again: the share of its kills with an effect repeated or lost](benchmark.svg)

Three models stand for what real ones do after a crash: `well`, `naive` and `badly`. Three do what a small real model
did: `respells`, `talks` and `deaf`. [Drill](DRILL.md#see-it-without-an-account) says what each does. [Behind this
page](BENCHMARK-PEERS.md): what each peer is, how to read the counts, and what others that are called durable promise.

## Kills with an effect repeated or lost
"""
_REPLAY = """\
```
make bench-crash                      # play the rounds that are not kept, and write this page
python -m bench.crash --tables        # each agent, model and kill point, with intervals: all that is counted
python -m bench.crash --again --agent A --peer wal-agent --policy P --scenario S --point POINT   # one kill again
```
"""
_BEHIND = """\
# Behind the crash benchmark

<!-- Generated by: make bench-crash -->

[The counts](BENCHMARK.md) are a page of their own.
"""
_PRICE = """\
## The price: a person is asked

Either the model asks, or it only repeats the call in flight and the run ends with exit code 79.

| model | asked in kills | by exit code 79 | a look would have shown the outcome |
|---|---|---|---|
"""
_LIMITS = """\
## How to read it

- The models are scripts, so that the peers differ and not the answers. Real models lie between them.
- No single cell proves a difference: `--tables` has the 95 % Wilson intervals, which are wide.
- The row of a peer has only kills that wal-agent has played too.
- The share of each kind of kill decides the totals. After a kill before the effect a blind repetition is right, after
  one between effect and outcome it is wrong.
- An effect that is missing because a person was asked counts as asked, not as lost.
- Times are of a shared machine with two cores; a few hundred milliseconds are noise.
- A round that does not end within ten minutes is not kept. Codex has no rounds in the background.
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
| pi durable | An agent on Pi Durable, by its Python port and with the port's own tools; its storage outside of the machine. |
| ferrofaction | That wrapper, written again from its description: a lock, transcript copies, a prompt to verify. |
| wal-agent | `wal-agent run`, with the same command each time. |

Not played: claude-squad and overdeck (at a restart they are the `tmux loop`), Entire CLI (restarts no agent),
reinstate, vibe-kanban, ccmanager and s-universal-agent-recovery (could not be run on this machine). `generic` has no
hooks, and so no calls to grade. `bench/README.md` says how to add a peer.
"""
_DURABLE: Final = """\
## Others that are called durable

Not played, so that they have no figures here. What each one's documentation says of a call that a crash cut off:

| what | a call in flight | why it was not played |
|---|---|---|
| cua, `cua agent run --durable` | at most once where the agent asks for permission, else at least once, with a warning ([source](https://cua.ai/docs/spaces/guides/durable-agents)) | the program (0.9.0) refuses it without Cua Spaces, which could not be had |
| `@trycua/pi-durable` | a shell command is not begun twice by the recovery: its outcome is adopted, or it ends as interrupted and leaves nothing in the workspace ([source](https://cua.ai/docs/cua-sdk/guides/durable-agent-guarantees)) | needs a sandbox of Cua |
| Vercel, `@ai-sdk/workflow-harness` | the sandbox runs on, and the next step of the workflow attaches to the turn ([source](https://github.com/vercel/ai/pull/16315)) | needs a sandbox with a network |
| Temporal, `temporalio-claude-agent-sdk` | approvals, hooks and tools of one's own are durable; Claude Code runs whole ([source](https://docs.temporal.io/develop/python/integrations/claude-agent-sdk)) | the package could not be had; an activity that starts the agent is the `retry loop` |
| DBOS | a step runs at least once: again where its effect came before its checkpoint ([source](https://docs.dbos.dev/rust/tutorials/step-tutorial)) | an agent as a step is the `retry loop` |
| Restate | a step is tried again until it succeeds, unless a limit is set ([source](https://docs.restate.dev/develop/python/durable-steps)) | an agent as a step is the `retry loop` |
| durabl | effect and record are one transaction of its database ([source](https://github.com/Aad-im/durabl)) | a library for agents of one's own; effects elsewhere are in no transaction of it |
"""
