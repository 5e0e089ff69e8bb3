"""How evidence compares with the truth over all kinds: what `python -m bench evidence` prints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.evidence import git_trials
from tests.faults.evidence.git_stage import make
from tests.faults.evidence.halt import Halter
from tests.faults.evidence.registry import Registry
from tests.faults.evidence.tally import Tally
from tests.faults.evidence.trials import TRIALS, Stage, npm_trials


@dataclass(frozen=True, slots=True)
class Extent:
    """At how many system calls each operation is killed, 0 for all; only each `every`-th operation is tried."""

    files: int
    npm: int
    git: int
    every: int = 1


ALL, FEW = Extent(0, 10, 6), Extent(1, 1, 1, every=8)


def report(extent: Extent, progress: Callable[[str], None] = lambda text: None) -> Tally:
    """Runs every real operation of the trials, kills it at many places, and says how the verdicts compare."""
    tally, halter, registry = Tally(), Halter(), Registry()
    try:
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            stage = Stage(halter, top)
            for trial in TRIALS[:: extent.every]:
                progress(trial.name)
                tally.extend(stage.trial(trial, extent.files))
            (top / "npm").mkdir()
            for trial in npm_trials(registry.url, top / "npm")[:: extent.every]:
                progress(trial.name)
                tally.extend(stage.trial(trial, extent.npm))
            made = make(top / "git" / "made")
            for name in list(git_trials.COMMANDS)[:: extent.every]:
                progress(f"git {name}")
                tally.extend(git_trials.trial(name, halter, made, top / "git", extent.git))
    finally:
        halter.close()
        registry.close()
    return tally
