"""An agent's program on this machine and its version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_agent.agents.opencode import OPENCODE
from wal_agent.agents.program import Broken, Program
from wal_agent.errors import ConfigError


def test_a_version_that_ends_a_sentence(tmp_path: Path) -> None:
    program = tmp_path / "some"
    program.write_text("#!/bin/sh\necho 'Some CLI 1.0.102.'\n")
    program.chmod(0o755)
    env = {"PATH": os.defpath, "WAL_AGENT_SOME": str(program)}
    assert Program("some", "@some/some").locate(env).version == "1.0.102"


@pytest.mark.parametrize(
    ("broken", "version", "has"),
    [
        (Broken("x", below="1.2.0"), "1.1.9", True),
        (Broken("x", below="1.2.0"), "1.2.0", False),
        (Broken("x", since="2.0.0"), "1.99.9", False),
        (Broken("x", since="2.0.0"), "2.0.0-beta.1", True),
        (Broken("x", since="2.0.0"), "3.1.0", True),
    ],
)
def test_the_versions_that_cannot_be_used(broken: Broken, version: str, has: bool) -> None:
    assert broken.has(version) is has


def test_opencode_2_is_refused_and_not_started(tmp_path: Path) -> None:
    """Each start of it reaches for its own daemon, which changes the database of 1.x for good."""
    package = tmp_path / "lib/cli"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "@opencode-ai/cli", "version": "2.0.32"}')
    script = package / "bin/opencode"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=r"opencode-ai@<2\.0\.0"):
        OPENCODE.program.locate({"PATH": str(script.parent)})
    assert not (tmp_path / "started").exists()
