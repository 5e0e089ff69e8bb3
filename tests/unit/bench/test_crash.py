"""The crash benchmark's page: counted from the results alone, with intervals, and with what speaks against us."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.crash.peers import PEERS, RESUME, BareResume, RetryLoop, applies
from bench.crash.plan import FIRST, LEARNED, PERSON, SPREAD, STOPPED, cases
from bench.crash.table import DOCS, Result, pages, read, save, share, tables, wilson, worse_cells
from wal_agent.agents import AGENTS
from wal_agent.drill.play import Subject
from wal_agent.drill.scenario import POINTS, names

GOOD = Result(
    agent="gemini",
    peer="wal-agent",
    policy="well",
    scenario="charge",
    point="between",
    target="charge 49.90",
    seed=1000,
    killed=True,
    repeated=0,
    lost=0,
    asked=0,
    needless=0,
    redone=0,
    lost_files=0,
    back=2.0,
    calls=6,
    extra=1,
    per_call=0.5,
    stored=6000,
    tools=6,
    wrong=0,
    untold=0,
)
BAD = replace(
    GOOD, peer="bare restart", repeated=1, redone=1, back=1.0, calls=7, extra=2, per_call=0.25, stored=0, untold=1
)


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (1, 100, 0.0018, 0.0545)],
)
def test_wilson_intervals(hits: int, of: int, low: float, high: float) -> None:
    """The figures are of statsmodels' proportion_confint(method="wilson")."""
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-4)


def test_a_share_has_its_interval() -> None:
    assert share(5, 10) == "50 % (24-76)" and share(0, 0) == "-"


def test_results_are_kept_as_they_are_and_in_one_order(tmp_path: Path) -> None:
    place = tmp_path / "results.json"
    assert read(place) == []
    save([BAD, GOOD], place)
    first = place.read_bytes()
    save(reversed(read(place)), place)
    assert place.read_bytes() == first and set(read(place)) == {GOOD, BAD}


def test_the_page_counts_kills_and_not_rounds_that_were_not_killed() -> None:
    unkilled = replace(BAD, seed=1001, killed=False, repeated=0)
    assert "| bare restart | 1 of 1 |" in pages([GOOD, BAD, unkilled])["BENCHMARK.md"]
    text = tables([GOOD, BAD, unkilled])
    assert "| bare restart | 1 | 100 % (21-100) | 0 % (0-79) |" in text
    assert "| wal-agent | 1 | 0 % (0-79) | 0 % (0-79) |" in text
    assert "| well | between | 1 of 1 | 0 of 1 |" in text
    assert "| charge | 2 |" in text


def test_a_peer_is_compared_only_by_kills_that_wal_agent_has_played() -> None:
    alone = replace(BAD, seed=1002, point="before")
    made = pages([GOOD, BAD, alone])
    assert "| bare restart | 1 of 1 |" in made["BENCHMARK.md"] and ">100 % of 1<" in made["benchmark.svg"]
    assert worse_cells([GOOD, BAD, alone]) == worse_cells([GOOD, BAD])


def test_a_run_that_asks_for_a_person_is_counted_as_asked_and_as_no_loss() -> None:
    stopped = replace(GOOD, policy="naive", asked=1, needless=1, stopped=1, exit_code=79, extra=8)
    made = pages([stopped, replace(stopped, peer="bare resume", asked=0, needless=0, stopped=0, extra=1)])
    assert "| `naive` | 1 of 1 | 1 | 1 |" in made["BENCHMARK-PEERS.md"]
    assert "| **wal-agent** | 0 of 1 |\n| under wal-agent a person is asked | 1 of 1 |" in made["BENCHMARK.md"]
    assert worse_cells([stopped, replace(BAD, policy="naive")])[0].column == "asked without need"


def test_the_page_lists_where_another_peer_is_better() -> None:
    text = pages([GOOD, BAD])["BENCHMARK.md"]
    assert "| seconds to be back | 1 of 1 |" in text and "| steps redone |" not in text
    text = tables([GOOD, BAD])
    listed = text[text.index("gemini: where wal-agent is not the best") :]
    assert "| well | seconds to be back | 2.00 | 1.00 (bare restart) |" in listed
    assert "| well | bytes per call | 1000.00 | 0.00 (bare restart) |" in listed
    assert "| steps redone |" not in listed and "effect repeated |" not in listed and "| not told |" not in listed


def test_the_page_has_the_cost_of_a_call_against_the_bare_agent() -> None:
    text = tables([GOOD, BAD])
    assert "| 1.0 | +250 | 1000 |" in text and "| 2.0 | - | 0 |" in text
    assert "| gemini | well | 1 of 1 | 0 of 1 |" in text


def test_the_committed_pages_are_made_of_the_committed_results() -> None:
    """No cell is typed by hand."""
    for name, text in pages(read()).items():
        assert (DOCS / name).read_text("utf-8") == text


def test_the_plan_holds_each_round_once_and_only_kills_that_are_there() -> None:
    found = list(cases())
    keys = [(each.scenario.name, each.point, agent, policy, peer) for each, agent, policy, peer in found]
    assert len(keys) == len({*keys})
    assert {peer for *_, peer in keys} == {peer.name for peer in PEERS} and {key[2] for key in keys} == {*RESUME}
    assert len({(scenario, point) for scenario, point, *_ in keys}) == len({*FIRST, *SPREAD, *STOPPED, *PERSON})
    assert {point for _, point, *_ in keys} == {*POINTS} and {scenario for scenario, *_ in keys} == {*names()}
    ours = {(point, policy) for _, point, _, policy, peer in keys if peer == "wal-agent"}
    assert ours >= {(point, policy) for point in POINTS for policy in ("well", "naive", "badly", *LEARNED)}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("agent", RESUME)
def test_each_peer_starts_each_agent(tmp_path: Path, peer: Subject, agent: str) -> None:
    for start in (0, 1) if applies(peer, agent) else ():
        argv = peer.argv(start, AGENTS[agent], ["/bin/agent"], ["--prompt", "the task"], tmp_path)
        assert argv and "the task" in " ".join(argv)


@pytest.mark.parametrize("peer", [RetryLoop(), BareResume()])
def test_a_shell_peer_gives_the_arguments_unchanged(tmp_path: Path, peer: Subject) -> None:

    program = tmp_path / "agent"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    argv = peer.argv(1, AGENTS["gemini"], [str(program)], ["it's a `task`; $HOME"], tmp_path)
    done = subprocess.run(
        argv, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "it's a `task`; $HOME|"
