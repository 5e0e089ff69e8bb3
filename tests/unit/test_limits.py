"""What is a limit of the machine, what a place that this user may not use, and what a bug."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from wal_agent.errors import ConfigError, Denied, Exhausted
from wal_agent.limits import describe_failure, explain, failed


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE])
def test_a_limit_is_75_whatever_it_stopped(number: int) -> None:
    error = OSError(number, "", "/disk/file")
    assert isinstance(explain(error), Exhausted)
    assert isinstance(failed("The session could not be restored", error), Exhausted)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_the_user_may_not_use_is_named_and_no_bug(number: int) -> None:
    found = explain(OSError(number, "refused", "/read/only"))
    assert isinstance(found, ConfigError) and "/read/only" in str(found)


def test_an_error_of_ours_is_itself_and_any_other_is_a_bug(tmp_path: Path) -> None:
    ours = Denied("no", "yes")
    assert explain(ours) is ours
    for error in (ValueError("x"), PermissionError(errno.EPERM, "of a signal, which names no file")):
        assert explain(error) is None
        assert str(tmp_path) in describe_failure(error, {"XDG_STATE_HOME": str(tmp_path)})
