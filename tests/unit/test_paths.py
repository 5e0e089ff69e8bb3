"""Where the user's folders are, whatever the environment says of HOME."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from wal_agent.errors import ConfigError
from wal_agent.limits import report_bug
from wal_agent.paths import state_dir, user_home

LISTED = pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(("env", "home"), [({"HOME": "/home/me"}, "/home/me"), ({"HOME": ""}, LISTED), ({}, LISTED)])
def test_an_empty_home_is_none(env: dict[str, str], home: str) -> None:
    assert user_home(env) == Path(home)
    assert state_dir(env) == Path(home) / ".local/state/wal-agent"


def test_a_user_without_any_home_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user that is only a number. A bug there is reported in one line all the same."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match="export HOME="):
        state_dir({})
    assert "ValueError" in report_bug(ValueError("x"), {})
