"""Real operations killed half-way: a verdict of completed or not_started is never wrong (bench has the long run)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.evidence.halt import Halter
from tests.faults.evidence.registry import Registry
from tests.faults.evidence.tally import Tally
from tests.faults.evidence.trials import TRIALS, Stage, Trial, npm_trials

MOST = 2  # trials of each kind
UNKNOWN = {"output": 80, "replace": 20, "cp": 20}  # percent that may be unknown; none elsewhere


@pytest.fixture(scope="session")
def halter() -> Iterator[Halter]:
    made = Halter()
    yield made
    made.close()


@pytest.fixture
def stage(halter: Halter, tmp_path: Path) -> Stage:
    return Stage(halter, tmp_path)


def chosen() -> dict[str, list[Trial]]:
    kinds: dict[str, list[Trial]] = {}
    for trial in TRIALS:
        kinds.setdefault(trial.kind, []).append(trial)
    return {kind: trials[:MOST] for kind, trials in kinds.items()}


@pytest.mark.parametrize("kind", sorted(chosen()))
def test_killed_anywhere(kind: str, stage: Stage) -> None:
    tally = Tally()
    for trial in chosen()[kind]:
        tally.seen += stage.trial(trial).seen
    assert tally.wrong() == {}
    found = {finding for _, finding, _ in tally.seen}
    assert found >= ({"not_started"} if kind == "output" else {"completed", "not_started"})
    unknown = sum(n for (_, finding, _), n in tally.seen.items() if finding == "unknown")
    assert 100 * unknown <= UNKNOWN.get(kind, 0) * tally.seen.total()


def test_npm_killed(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "npm").mkdir()
    registry = Registry()
    try:
        trial = npm_trials(registry.url, tmp_path / "npm")[1]
        tally = stage.some(trial, (0.2, 0.8, 0.99))
    finally:
        registry.close()
    assert tally.wrong() == {}
    assert {finding for _, finding, _ in tally.seen} >= {"completed", "partial"}
