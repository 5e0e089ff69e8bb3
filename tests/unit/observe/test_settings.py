"""config.py: where metrics and the log go is a person's choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_agent.errors import ConfigError, UsageError
from wal_agent.supervise.run import OURS
from wal_agent.supervise.settings import load

ENV = {"HOME": "/home/me"}
OWN = ("metrics_addr", "metrics_file", "metrics_job_label", "log_format", "log_file", "log_level")


@pytest.mark.parametrize(
    ("given", "is_"),
    [
        ("9464", "127.0.0.1:9464"),
        (":9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("localhost:0", "localhost:0"),
        ("[::1]:9464", "[::1]:9464"),
    ],
)
def test_a_port_alone_is_of_this_machine(tmp_path: Path, given: str, is_: str) -> None:
    assert load("gemini", tmp_path, ENV, {"metrics_addr": given}).metrics_addr == is_
    assert load("gemini", tmp_path, {**ENV, "WAL_AGENT_METRICS_ADDR": given}, {}).metrics_addr == is_


@pytest.mark.parametrize("given", ["", "x", "1.2.3.4", "h:", "h:65536", "h:-1", "::1:9464", "[::1:1", "a b:1", "h:٣"])
def test_what_is_no_address_is_a_usage_error(tmp_path: Path, given: str) -> None:
    with pytest.raises(UsageError, match=r"--metrics-addr must be PORT, HOST:PORT"):
        load("gemini", tmp_path, ENV, {"metrics_addr": given})


@pytest.mark.parametrize("key", OWN)
def test_a_projects_file_cannot_choose_them(tmp_path: Path, key: str) -> None:
    (tmp_path / "wal-agent.toml").write_text(f'{key} = "json"\n')
    with pytest.raises(ConfigError, match="is not a project's to choose"):
        load("gemini", tmp_path, ENV, {})


def test_they_are_off_unless_asked_for_and_not_handed_on_to_the_agent(tmp_path: Path) -> None:
    """A wal-agent that a tool starts would find the port taken, and write into the same files."""
    found = load("gemini", tmp_path, ENV, {})
    assert (found.metrics_addr, found.metrics_file, found.log_format, found.log_file) == ("", "", "off", "")
    assert {f"WAL_AGENT_{key.upper()}" for key in OWN} <= set(OURS)
