"""deploy/: npm shim on the real node, plugin and extension by the real CLIs, alerts and dashboard against metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml

from tests.conftest import installed
from wal_agent import __version__
from wal_agent.clock import SystemClock
from wal_agent.observe.metrics import Metrics

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
NODE = shutil.which("node") or "node"


def test_every_package_has_the_version_of_the_program() -> None:
    found = {
        name: json.loads((DEPLOY / name).read_text())["version"]
        for name in (
            "npm/package.json",
            "claude-plugin/.claude-plugin/plugin.json",
            "claude-plugin/plugin.json",
            "gemini-extension/gemini-extension.json",
        )
    }
    assert found == dict.fromkeys(found, __version__)


# ---- npm


def shim(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the shim where only what is in `folder` is on PATH."""
    argv = [NODE, str(DEPLOY / "npm" / "wal-agent.js"), *words]
    return subprocess.run(argv, env={"PATH": str(folder), **env}, capture_output=True, text=True, check=False)


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_shim_prefers_what_is_installed_then_uvx_pipx_and_python(tmp_path: Path) -> None:
    echo = 'printf "%s\\n" "$(/usr/bin/basename "$0")" "$@"; exit 75'
    pinned = f"wal-agent=={__version__}"
    expected = {
        "python3": ["python3", "-P", "-m", "wal_agent"],
        "pipx": ["pipx", "run", "--spec", pinned, "wal-agent"],
        "uvx": ["uvx", "--from", pinned, "wal-agent"],
        "wal-agent": ["wal-agent"],
    }
    for name, words in expected.items():  # each is preferred to those before it
        program(tmp_path, name, 'case "$2" in -c) exit 0;; esac\n' + echo)
        done = shim(tmp_path, "status", "a b")
        assert (done.returncode, done.stdout.splitlines()) == (75, [*words, "status", "a b"])
    program(tmp_path / "own", "other", echo)
    done = shim(tmp_path, "status", WAL_AGENT_BIN=str(tmp_path / "own" / "other"))
    assert done.stdout.splitlines() == ["other", "status"]


def test_the_shim_does_not_start_itself_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "wal-agent").symlink_to(DEPLOY / "npm" / "wal-agent.js")  # as npx puts it on PATH
    program(tmp_path, "python3", "exit 1")  # without wal-agent
    done = shim(tmp_path)
    assert done.returncode == 78 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "python3 -m pip install --user wal-agent" in done.stderr


def test_the_shim_passes_a_signal_on_and_ends_as_the_program_does(tmp_path: Path) -> None:
    program(tmp_path, "wal-agent", "trap 'exit 143' TERM\necho ready\nwhile :; do /bin/sleep 0.05; done")
    argv = [NODE, str(DEPLOY / "npm" / "wal-agent.js")]
    with subprocess.Popen(argv, env={"PATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


# ---- plugin and extension


def test_the_real_claude_accepts_the_plugin(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path)}
    argv = [str(installed("claude")), "plugin", "validate", str(DEPLOY / "claude-plugin")]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Validation passed" in done.stdout, done.stdout + done.stderr
    assert all(f"wal-agent:{name}" in done.stdout for name in ("status", "log", "recover"))


def test_the_plugin_is_an_agent_plugin_of_any_client(tmp_path: Path) -> None:
    """Agent Plugins 1.0.0: a closed manifest, and skills at their place. Copilot loads it without Claude's files."""
    manifest = json.loads((DEPLOY / "claude-plugin" / "plugin.json").read_text())
    assert manifest.pop("$schema") == "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
    assert set(manifest) <= {"name", "version", "description", "license", "keywords"}
    shutil.copytree(DEPLOY / "claude-plugin" / "skills", tmp_path / "plugin" / "skills")
    shutil.copy(DEPLOY / "claude-plugin" / "plugin.json", tmp_path / "plugin")
    env = {**os.environ, "HOME": str(tmp_path)}
    argv = [str(installed("copilot")), "--plugin-dir", str(tmp_path / "plugin"), "skill", "list"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and re.search(r"Plugin skills:\n +wal-agent - ", done.stdout), done.stdout + done.stderr


def test_the_real_gemini_accepts_the_extension(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    argv = [str(installed("gemini")), "extensions", "validate", str(DEPLOY / "gemini-extension")]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "successfully validated" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["claude-plugin", "gemini-extension"])
def test_the_hint_is_shown_only_without_wal_agent(name: str) -> None:
    hooks = json.loads((DEPLOY / name / "hooks" / "hooks.json").read_text())["hooks"]["SessionStart"]
    command = hooks[0]["hooks"][0]["command"]
    bare = subprocess.run(["sh", "-c", command], env={}, capture_output=True, text=True, check=True)
    assert f"wal-agent run {name.partition('-')[0]}" in json.loads(bare.stdout)["systemMessage"]
    inside = subprocess.run(["sh", "-c", command], env={"WAL_AGENT_RUN": "x"}, capture_output=True, check=True)
    assert inside.stdout == b""


def test_both_have_the_standing_protocol() -> None:
    rules = re.findall(r"^- .*(?:\n  .*)*", (ROOT / "wal_agent" / "wording" / "protocol.md").read_text(), re.M)
    texts = [
        (DEPLOY / name).read_text()
        for name in ("claude-plugin/skills/wal-agent/SKILL.md", "gemini-extension/GEMINI.md")
    ]
    assert len(rules) == 6 and all(rule in text for rule in rules for text in texts)


# ---- metrics


def metrics(expression: str) -> set[str]:
    """Names of the metrics in a PromQL expression. ValueError: it is none."""
    promql_parser.parse(re.sub(r"\$__\w+", "5m", expression))
    return set(re.findall(r"\bwal_agent_\w+", re.sub(r'"[^"]*"', "", expression)))


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads((DEPLOY / "grafana" / "wal-agent.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_each_metric_that_is_queried_exists() -> None:
    known: set[str] = set()
    for family in Metrics(SystemClock()).registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
        known |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    found = list(expressions())
    assert len(found) > 20
    assert {name for each in found for name in metrics(each)} - known == set()
    with pytest.raises(ValueError):
        metrics("rate(wal_agent_x[5m]")


# ---- image and paths


def test_the_image_runs_wal_agent_itself_and_not_as_root() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["wal-agent"]' in lines, "PID 1 in exec form: signals reach it"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1].split(":")[0] not in ("0", "root")


def test_each_path_below_deploy_that_the_docs_name_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bdeploy/[\w@./-]*[\w/]", page.read_text())}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
