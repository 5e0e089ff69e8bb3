from __future__ import annotations

from pathlib import Path

import pytest

from wal_agent.config import JOB
from wal_agent.errors import ConfigError
from wal_agent.supervise.provenance import NOBODY, SessionOwner


def test_a_note_is_of_one_session_in_one_workspace(tmp_path: Path) -> None:
    one, other = SessionOwner(tmp_path, "s1", Path("/w")), SessionOwner(tmp_path, "s1", Path("/v"))
    assert not one.known() and not one.foreign("job")
    one.give("job")
    one.give("fork")
    assert one.known() and one.foreign("job") and not one.foreign("fork")
    assert not other.known() and not other.foreign("job")
    assert len(list((tmp_path / "sessions").iterdir())) == 1


def test_nobody_is_no_job(tmp_path: Path) -> None:
    assert not JOB.fullmatch(NOBODY)
    whose = SessionOwner(tmp_path, "s1", Path("/w"))
    whose.give(NOBODY)
    assert whose.foreign("job")


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        SessionOwner(tmp_path, "s1", Path("/w")).give("job")
