"""cli/listeners.py: what stops a start before the run itself begins is told to people as well."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.unit.notify.sink import nobody
from wal_agent.agents import AGENTS
from wal_agent.cli import listeners
from wal_agent.cli.listeners import attach_listeners, report_refusals
from wal_agent.errors import ConfigError, UsageError
from wal_agent.events import EventBus
from wal_agent.notify import send
from wal_agent.notify.message import VARIABLE
from wal_agent.notify.outbox import list_boxes
from wal_agent.supervise.identity import default_job_here
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.settings import load


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """With a URL that nobody sends to."""
    monkeypatch.setattr(send, "start_sender", lambda *_: 0)
    monkeypatch.setattr("wal_agent.notify.post.HAND_OVER", 60.0)
    monkeypatch.setattr(listeners, "EventBus", partial(EventBus, last=60.0))
    return {"HOME": str(tmp_path), VARIABLE: nobody(), "WAL_AGENT_BUCKET": f"file://{tmp_path}/b"}


def titles(env: dict[str, str]) -> list[str]:
    return [letter.title for box in list_boxes(env) for letter in box.letters().values()]


def test_who_looks_on_and_cannot_is_told_of_and_everybody_is_let_go(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    flags = {"metrics_file": str(tmp_path / "gone" / "x.prom"), "job": "shop"}
    wish = RunOptions(AGENTS["generic"], ("true",), load("generic", tmp_path / "w", env, flags), tmp_path / "w", env)
    with pytest.raises(ConfigError), attach_listeners(wish, Screen(print, print)):
        pytest.fail("nothing is begun")
    assert titles(env) == ["shop: stopped with 78, a person is needed"]


def test_settings_that_cannot_be_read_are_told(env: dict[str, str], tmp_path: Path) -> None:
    """Of the job by its name in the flags, or as it would be named."""
    mine = default_job_here("generic", tmp_path / "w", env["WAL_AGENT_BUCKET"], env)
    for flags, job in (({"job": "shop"}, "shop"), ({}, mine)):
        with pytest.raises(ConfigError), report_refusals(env, flags, "generic", tmp_path / "w", False):
            raise ConfigError("no TOML", "")
        assert f"{job}: stopped with 78, a person is needed" in titles(env)


def test_a_wrong_command_line_is_told_to_nobody(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError), report_refusals(env, {}, "generic", tmp_path, False):
        raise UsageError("no such flag")
    with pytest.raises(ConfigError), report_refusals({**env, VARIABLE: "nonsense"}, {}, "generic", tmp_path, False):
        raise ConfigError("this one, not the one of the URLs")
    assert titles(env) == []
