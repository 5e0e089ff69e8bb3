"""deploy/systemd: the unit as systemd's own checker reads it."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wal_agent.errors import (
    ConfigError,
    CrashLoop,
    Damaged,
    Denied,
    Fenced,
    LeaseHeld,
    PersonNeeded,
    Unavailable,
    UsageError,
    WalAgentError,
)

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "wal-agent@.service"


def verified(folder: Path, text: str) -> str:
    """What `systemd-analyze verify` says of the unit as an instance; empty: nothing to say."""
    program = shutil.which("wal-agent", path=str(Path(sys.executable).parent))
    assert program, "the command is not installed beside this Python"
    path = folder / "wal-agent@shop.service"
    path.write_text(text.replace("/usr/local/bin/wal-agent", program))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    assert verified(tmp_path, UNIT.read_text()) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("WatchdogSec=30", "WatchdogSeconds=30", "WatchdogSeconds"),
        ("KillMode=mixed", "KillMode=gentle", "gentle"),
        ("Type=notify", "Type=notified", "notified"),
    ],
)
def test_it_would_say_what_is_wrong(tmp_path: Path, right: str, wrong: str, named: str) -> None:
    assert right in UNIT.read_text()
    assert named in verified(tmp_path, UNIT.read_text().replace(right, wrong))


def test_what_needs_a_person_is_not_tried_again_and_a_drain_is_no_failure() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    kept_down = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert kept_down == {
        error.exit_code for error in (UsageError, Damaged, Fenced, Denied, ConfigError, PersonNeeded, CrashLoop)
    }
    assert not kept_down & {error.exit_code for error in (Unavailable, LeaseHeld, WalAgentError)}
    assert service["SuccessExitStatus"] == "143"
