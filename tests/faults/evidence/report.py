"""How evidence compares with the truth over all kinds: what `python -m bench evidence` prints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults.evidence import git_trials
from tests.faults.evidence.git_stage import make
from tests.faults.evidence.halt import Halter
from tests.faults.evidence.registry import Registry
from tests.faults.evidence.tally import Tally
from tests.faults.evidence.trials import TRIALS, Stage, npm_trials

FILE_PLACES, NPM_PLACES, GIT_PLACES = 0, 10, 6  # of each operation; 0 for all


def report(progress: Callable[[str], None] = lambda text: None) -> Tally:
    """Runs every real operation of the trials, kills it at many places, and says how the verdicts compare."""
    tally, halter, registry = Tally(), Halter(), Registry()
    try:
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            stage = Stage(halter, top)
            for trial in TRIALS:
                progress(trial.name)
                tally.extend(stage.trial(trial, FILE_PLACES))
            (top / "npm").mkdir()
            for trial in npm_trials(registry.url, top / "npm"):
                progress(trial.name)
                tally.extend(stage.trial(trial, NPM_PLACES))
            made = make(top / "git" / "made")
            for name in git_trials.COMMANDS:
                progress(f"git {name}")
                tally.extend(git_trials.trial(name, halter, made, top / "git", GIT_PLACES))
    finally:
        halter.close()
        registry.close()
    return tally
