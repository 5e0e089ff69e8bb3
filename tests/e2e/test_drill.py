"""`wal-agent drill` on a real CLI: the same kills under wal-agent and bare, and the grades that they get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import deep


def drill(tmp_path: Path, program: Path, *words: str, agent: str = "codex") -> tuple[int, dict[str, Any]]:
    place = {f"WAL_AGENT_{agent.upper()}": str(program)}
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **place}
    argv = [sys.executable, "-m", "wal_agent", "drill", agent, "--model", "scripted", "--json", *words]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not list(tmp_path.glob("drill-*")), "it leaves nothing behind"
    return done.returncode, found


@deep
def test_under_wal_agent_nothing_is_repeated_or_lost_at_any_point(
    tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """I8: also across a crash of the recovery, of the wrapper alone, and the loss of HOME and folder."""
    report = tmp_path / "report.html"
    code, found = drill(tmp_path, agent_cli("codex"), "--rounds", "7", "--html", str(report))
    assert code == 0 and found["passed"], found["totals"]
    assert found["totals"]["killed"] == 7
    assert "nothing was repeated" in report.read_text()


@deep
def test_what_was_stopped_or_runs_on_is_neither_repeated_nor_lost(
    tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """I8: SIGTERM, Esc and a typed prompt at a terminal, a command in the background; on the agent that keeps all of
    them."""
    points = ("sigterm", "background", "esc", "queued")
    words = [word for point in points for word in ("--point", point)]
    code, found = drill(tmp_path, agent_cli("claude"), "--rounds", "11", *words, agent="claude")
    assert code == 0 and found["totals"]["killed"] == len(points), found["totals"]


@deep
def test_bare_and_a_model_that_repeats_get_other_grades(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    code, bare = drill(tmp_path, agent_cli("codex"), "--bare", "--rounds", "3")
    assert code == 1 and bare["totals"]["repeated"] > 0
    code, badly = drill(tmp_path, agent_cli("codex"), "--policy", "badly", "--rounds", "3")
    # What was in flight is refused until it looks, which it never does, so that a person is asked: decision 052. A kill
    # of the wrapper alone may leave nothing in flight.
    assert code == 0 and badly["totals"]["killed"] == 3 and badly["totals"]["repeated"] == 0
    asked = {one["point"]: (one["stopped"], one["exit_code"]) for one in badly["rounds"] if one["asked"]}
    assert asked.keys() >= {"before", "between"} and set(asked.values()) == {(True, 79)}


@deep
@pytest.mark.parametrize(("policy", "exit_code"), [("respells", 79), ("talks", 79), ("deaf", 0)])
def test_what_a_real_model_did_repeats_nothing(
    tmp_path: Path, agent_cli: Callable[[str], Path], policy: str, exit_code: int
) -> None:
    """I8: it is refused, or asked to look, and a person is asked; where it has looked, it is refused with
    what that showed, and goes on."""
    where = ("--scenario", "charge", "--point", "between", "--rounds", "11")
    code, found = drill(tmp_path, agent_cli("codex"), "--policy", policy, *where)
    (one,) = found["rounds"]
    assert code == 0 and (one["repeated"], one["lost"], one["exit_code"]) == ([], [], exit_code), one


@deep
def test_a_fast_agent_is_not_killed_behind_the_end_of_its_recovery(
    tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """Codex finishes the rest within half a second. With seed 2 the only round kills its recovery."""
    code, found = drill(tmp_path, agent_cli("codex"), "--seed", "2", "--rounds", "1")
    assert code == 0, found["totals"]
    kills = [entry for entry in found["rounds"][0]["ledger"] if entry[1] == "kill"]
    assert found["rounds"][0]["point"] == "recovery" and len(kills) == 2
