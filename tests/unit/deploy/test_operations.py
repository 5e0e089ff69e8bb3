"""docs/OPERATIONS.md as pasted: the systemd block in a scratch root, with stand-ins for what changes the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_systemd_block_makes_all_that_the_unit_needs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n([^`]*systemctl enable[^`]*)```", (ROOT / "docs" / "OPERATIONS.md").read_text())
    for folder in ("etc/systemd/system", "usr/local/bin", "srv", "opt/wal-agent/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    for stub in ("bin/python3", "bin/id", "bin/systemctl", "opt/wal-agent/bin/pip", "opt/wal-agent/bin/wal-agent"):
        (tmp_path / stub).write_text("#!/bin/sh\n")
        (tmp_path / stub).chmod(0o755)
    script = re.sub(r"(?<=\s)/(?=(etc|srv|opt|usr)/)", f"{tmp_path}/", "\n" + block).replace(" -o wal-agent", "")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    sh = shutil.which("bash") or "sh"
    subprocess.run([sh, "-euc", script], cwd=ROOT, env={"PATH": path}, check=True, capture_output=True, timeout=60)
    unit = (tmp_path / "etc/systemd/system/wal-agent@.service").read_text()
    (secrets,) = re.findall("^EnvironmentFile=/(.*)", unit, re.M)
    (program,) = re.findall(r"^ExecStart=/(\S+)", unit, re.M)
    (work,) = re.findall("^WorkingDirectory=/(.*)", unit, re.M)
    made = tmp_path / secrets.replace("%i", "shop")
    assert made.stat().st_mode & 0o777 == 0o600 and made.parent.stat().st_mode & 0o777 == 0o700
    bucket = re.findall(r"^WAL_AGENT_BUCKET=(\w+)://", made.read_text(), re.M)
    assert bucket == ["gs"] and "[gcs]" in block, "the extra of its bucket"
    assert os.access(tmp_path / program, os.X_OK) and (tmp_path / work.replace("%i", "shop")).is_dir()
