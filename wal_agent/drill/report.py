"""Show graded rounds: as lines, as JSON, and as one HTML file that loads nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from wal_agent.answers import JsonAnswer
from wal_agent.drill.play import Played
from wal_agent.drill.scenario import POINTS
from wal_agent.text import plural

_HEADS = ("scenario", "killed", "repeated", "lost", "looked first", "asked", "redone", "files lost", "back", "calls")

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886 }
.bad { color: #c22; font-weight: 600 } .good { color: #284; font-weight: 600 }
@media (prefers-color-scheme: dark) { .bad { color: #f88 } .good { color: #8d9 } }
pre { overflow-x: auto; background: #8882; padding: .6rem } details { margin: .4rem 0 }
"""


class ShownRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round and its grade (drill/grade.py). `target`: the effect of the step that the kill was aimed at; `ledger`:
    time, event and what of each line."""

    scenario: str
    point: str
    target: str
    seed: int
    killed: bool
    repeated: tuple[str, ...]
    lost: tuple[str, ...]
    attempts_after_kill: int
    verified: str
    asked: bool
    asked_well: bool
    stopped: bool
    redone: int
    lost_files: tuple[str, ...]
    exit_code: int | None
    seconds_back: float | None
    model_calls: int | None
    ledger: tuple[tuple[float, str, str], ...]


class Drill(JsonAnswer, frozen=True):
    """`wal-agent drill`."""

    agent: str
    subject: str
    model: str
    seed: int
    passed: bool
    totals: dict[str, int]
    rounds: tuple[ShownRound, ...]


def cells(played: Played) -> tuple[str, ...]:
    """Return what a row of the table holds."""
    g = played.grade
    asked = "no" if not g.asked else "yes" if g.asked_well else "without need"
    asked += " (exit 79)" if g.stopped else ""
    return (
        played.round.scenario.name,
        played.round.point if g.killed else "not killed",
        ", ".join(g.repeated) or "-",
        ", ".join(g.lost) or "-",
        g.verified,
        asked,
        str(g.redone),
        str(len(g.lost_files)),
        "-" if g.back is None else f"{g.back:.1f} s",
        "-" if g.calls is None else str(g.calls),
    )


def totals(rounds: Sequence[Played]) -> dict[str, int]:
    """Count over all rounds."""
    grades = [played.grade for played in rounds]
    return {
        "rounds": len(grades),
        "killed": sum(g.killed for g in grades),
        "passed": sum(g.passed for g in grades),
        "repeated": sum(len(g.repeated) for g in grades),
        "lost": sum(len(g.lost) for g in grades),
        "asked": sum(g.asked for g in grades),
        "asked_without_need": sum(g.asked and not g.asked_well for g in grades),
        "redone": sum(g.redone for g in grades),
        "lost_files": sum(len(g.lost_files) for g in grades),
        "not_ended": sum(g.exit_code is None for g in grades),
    }


def passed(rounds: Sequence[Played]) -> bool:
    """Whether something was killed, and nothing was repeated or lost."""
    count = totals(rounds)
    return count["killed"] > 0 and count["passed"] == count["rounds"]


def verdict(rounds: Sequence[Played]) -> str:
    """Return the result in a sentence or two."""
    count = totals(rounds)
    if not count["killed"]:
        return "Nothing was killed: the agent ended before each kill point. See what it printed (--html FILE)."
    said = f"{plural(count['killed'], 'kill')} in {plural(count['rounds'], 'round')}: "
    if passed(rounds):
        said += "nothing was repeated, nothing was lost."
    else:
        said += f"{plural(count['repeated'], 'effect')} repeated, {plural(count['lost'], 'effect')} lost."
    if count["not_ended"]:
        said += f" In {plural(count['not_ended'], 'round')} the agent did not end in time."
    return said


def table(rounds: Sequence[Played]) -> list[str]:
    """Return the rounds as lines of a table."""
    rows = [_HEADS, *(cells(played) for played in rounds)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEADS))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def facts(rounds: Sequence[Played], agent: str, subject: str, model: str, seed: int) -> Drill:
    """Return all of it for programs."""
    return Drill(agent, subject, model, seed, passed(rounds), totals(rounds), tuple(map(_round, rounds)))


def _round(played: Played) -> ShownRound:
    g = played.grade
    return ShownRound(
        scenario=played.round.scenario.name,
        point=played.round.point,
        target=played.round.target.effect,
        seed=played.round.seed,
        killed=g.killed,
        repeated=tuple(g.repeated),
        lost=tuple(g.lost),
        attempts_after_kill=g.attempts,
        verified=g.verified,
        asked=g.asked,
        asked_well=g.asked_well,
        stopped=g.stopped,
        redone=g.redone,
        lost_files=tuple(g.lost_files),
        exit_code=g.exit_code,
        seconds_back=None if g.back is None else round(g.back, 3),
        model_calls=g.calls,
        ledger=tuple((entry.time, entry.event, entry.what) for entry in played.ledger),
    )


def page(rounds: Sequence[Played], agent: str, subject: str, model: str, seed: int) -> str:
    """Return a whole HTML page. What agents and scripts printed is escaped, and no script can run in it."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    kind = "good" if passed(rounds) else "bad"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in _HEADS)
    body = "".join(
        f'<tr><td><a href="#r{n}">{escape(row[0])}</a></td>'
        + "".join(_cell(name, text) for name, text in zip(_HEADS[1:], row[1:], strict=True))
        + "</tr>"
        for n, row in enumerate(cells(played) for played in rounds)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width"><title>Crash drill of {escape(agent)}</title>
<style>{_STYLE}</style></head><body>
<h1>Crash drill of {escape(agent)}</h1>
<p>{escape(subject)}, model: {escape(model)}, seed {seed}. <span class="{kind}">{escape(verdict(rounds))}</span></p>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<h2>The rounds</h2>
{"".join(_story(n, played) for n, played in enumerate(rounds))}
</body></html>
"""


def _cell(name: str, text: str) -> str:
    bad = name in ("repeated", "lost") and text != "-"
    return f'<td class="bad">{escape(text)}</td>' if bad else f"<td>{escape(text)}</td>"


def _story(n: int, played: Played) -> str:
    chosen = played.round
    first = played.ledger[0].time if played.ledger else 0.0
    story = "\n".join(f"{entry.time - first:8.1f} s  {entry.event:<8} {entry.what}" for entry in played.ledger)
    said = "".join(
        f"<details><summary>What start {k + 1} printed</summary><pre>{escape(text)}</pre></details>"
        for k, text in enumerate(played.said)
    )
    return (
        f'<h3 id="r{n}">{escape(chosen.scenario.title)}: killed at {escape(chosen.point)}</h3>'
        f"<p>{escape(POINTS[chosen.point])}, at <code>{escape(chosen.target.run)}</code>; seed {chosen.seed}.</p>"
        f"<pre>{escape(story)}</pre>{said}"
    )
