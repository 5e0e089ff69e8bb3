"""Evidence for git against the truth: real commands, ended at any place of theirs, never get a wrong verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.evidence.git_stage import make
from tests.faults.evidence.git_trials import COMMANDS, trial
from tests.faults.evidence.halt import Halter, points


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("git") / "made")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_verdict_is_wrong_wherever_git_is_ended(halter: Halter, made: Path, tmp_path: Path, name: str) -> None:
    assert trial(name, halter, made, tmp_path, points(2)).wrong == []
