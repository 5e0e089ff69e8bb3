"""An agent's program on this machine and its version."""

from __future__ import annotations

import os
from pathlib import Path

from wal_agent.agents.program import Program


def test_a_version_that_ends_a_sentence(tmp_path: Path) -> None:
    program = tmp_path / "some"
    program.write_text("#!/bin/sh\necho 'Some CLI 1.0.102.'\n")
    program.chmod(0o755)
    env = {"PATH": os.defpath, "WAL_AGENT_SOME": str(program)}
    assert Program("some", "@some/some").locate(env).version == "1.0.102"
