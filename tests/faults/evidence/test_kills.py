"""Real operations killed half-way, everywhere: no verdict is wrong, and few are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.evidence.halt import Halter, points
from tests.faults.evidence.registry import Registry
from tests.faults.evidence.tally import Tally
from tests.faults.evidence.trials import TRIALS, Stage, npm_trials

UNKNOWN = {
    "output": 70,
    "sed -i": 80,
    "replace": 40,
    "write": 33,
    "mv": 8,
    "cp": 4,
}  # percent that may be unknown


@pytest.mark.parametrize("kind", sorted({trial.kind for trial in TRIALS}))
def test_killed_anywhere(kind: str, halter: Halter, tmp_path: Path) -> None:
    stage, tally = Stage(halter, tmp_path), Tally()
    for trial in TRIALS:
        if trial.kind == kind:
            tally.extend(stage.trial(trial, points(0)))
    assert tally.wrong == []
    found = tally.findings()
    assert found.keys() >= ({"not_started"} if kind in ("output", "sed -i") else {"completed", "not_started"})
    assert 100 * found["unknown"] <= UNKNOWN.get(kind, 0) * found.total()


def test_npm_killed(halter: Halter, tmp_path: Path) -> None:
    (tmp_path / "npm").mkdir()
    registry = Registry()
    try:
        tally = Stage(halter, tmp_path).trial(npm_trials(registry.url, tmp_path / "npm")[1], points(3))
    finally:
        registry.close()
    assert tally.wrong == []
    assert tally.findings().keys() >= {"completed", "partial"}
