"""docs/OPERATIONS.md as pasted: the systemd block in a scratch root, with stand-ins for what changes the machine; the
other blocks as the program reads them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import typer.main

from wal_agent.cli.commands import app
from wal_agent.notify.message import load_targets, own_file

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "OPERATIONS.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_settings_that_it_shows_are_read_as_it_says(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    (text,) = [text for kind, text in BLOCKS if kind == "toml"]
    own_file(env).parent.mkdir()
    own_file(env).write_text(text)
    assert [(t.url, t.level) for t in load_targets(env)] == [("ntfys://ntfy.example.com/agents", "recovery")]


def test_each_command_that_it_shows_exists_with_its_options() -> None:
    """In a block or in a sentence, with whatever belongs to the agent behind `--`."""
    spans = [
        " ".join(span.split()) for span in re.findall(r"`(wal-agent [^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", PAGE))
    ]
    lines = [line for kind, text in BLOCKS if not kind for line in text.splitlines() if line.startswith("wal-agent ")]
    assert len(spans) > 20 and lines
    wrong = []
    for text in (*spans, *lines):
        words = shlex.split(text.split(" | ")[0])[1:]
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        own = words[: words.index("--")] if "--" in words else words
        wrong += [(text, word) for word in own if word.startswith("--") and word.partition("=")[0] not in known]
        if hasattr(command, "commands") and words and not words[0].startswith("-"):
            wrong.append((text, words[0]))
    assert wrong == []


def test_every_block_is_one_that_is_tried() -> None:
    assert [kind or text.split()[0] for kind, text in BLOCKS] == ["wal-agent", "toml", "python3", "helm", "python"]


def test_the_helm_block_renders() -> None:
    (block,) = [text for _, text in BLOCKS if text.startswith("helm")]
    program, verb, release, place, *options = shlex.split(block.replace("\\\n", " "))
    assert (program, verb, set(options[::2])) == ("helm", "install", {"--set"})
    values = helm_python.parse_set_string(",".join(options[1::2]))
    with helm_python.Chart.load(str(ROOT / place)) as chart:
        chart.validate_schema(values)
        assert "fix-tests" in chart.render(values, name=release)["wal-agent/templates/jobs.yaml"]


def test_the_systemd_block_makes_all_that_the_unit_needs(tmp_path: Path) -> None:
    (block,) = [text for _, text in BLOCKS if "systemctl enable" in text]
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
