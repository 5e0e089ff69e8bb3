"""What starts wal-agent for a person: the npm shim, the GitHub Action and the workflows run nothing of the clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "deploy/github-action/action.yml").read_text())
INSTALL, RUN = ACTION["runs"]["steps"]
MODULES = ("wal_agent", "venv", "shlex", "json", "pip", "runpy")
RECORD = '#!/bin/sh\necho "$@" >>"$RUNNER_TEMP/ran"\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder whose Python files note that they were imported."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\n")
    return folder


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def bash(script: str, cwd: Path, **env: str) -> None:
    argv = ["bash", "-e", "-o", "pipefail", "-c", script]
    subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=True)


def test_the_shim_imports_nothing_of_the_folder(clone: Path, tmp_path: Path) -> None:
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    program(tmp_path / "bin/python3", python)
    program(clone / "bin/wal-agent", f"#!/bin/sh\n: >'{tmp_path}/imported'\n")
    node = shutil.which("node") or "node"
    argv = [node, str(ROOT / "deploy/npm/wal-agent.js"), "--version"]
    env = {"PATH": f"bin::{tmp_path / 'bin'}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("below", ["", "packages/web"])
def test_what_npx_puts_on_path_of_the_folder_is_run_by_nobody(clone: Path, tmp_path: Path, below: str) -> None:
    """npx and `npm exec` put the node_modules/.bin of this folder and of each above in front: the shim runs none of
    them, and hands none on as a place of agents. Those that the person put there stay."""
    program(clone / "node_modules/.bin/uvx", f"#!/bin/sh\n: >'{tmp_path}/imported'\n")
    program(tmp_path / "bin/wal-agent", f"#!/bin/sh\necho \"$PATH\" >'{tmp_path}/path'\n")
    where = clone / below
    where.mkdir(parents=True, exist_ok=True)
    put = [f"{folder / 'node_modules/.bin'}" for folder in (where, *where.parents)]
    own = [str(tmp_path / "npx/node_modules/.bin"), str(tmp_path / "bin"), str(clone / "bin")]
    node = shutil.which("node") or "node"
    argv = [node, str(ROOT / "deploy/npm/wal-agent.js"), "run", "claude"]
    env = {"PATH": os.pathsep.join([*put, *own]), "HOME": str(tmp_path), "npm_command": "exec"}
    done = subprocess.run(argv, cwd=where, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "imported").exists()
    assert (tmp_path / "path").read_text().strip() == os.pathsep.join(own)


def test_the_action_reads_its_words_without_a_file_of_the_checkout(clone: Path, tmp_path: Path) -> None:
    program(tmp_path / "wal-agent/bin/wal-agent", RECORD)
    env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "out")}
    bash(RUN["run"], clone, AGENT="gemini", ARGS="-p 'fix it'", **env)
    assert (tmp_path / "ran").read_text() == "run gemini --once --restart -- -p fix it\n"
    assert not (tmp_path / "imported").exists()


def test_the_action_runs_nothing_where_its_words_cannot_be_read(tmp_path: Path) -> None:
    """Some of them may be what bounds the agent."""
    program(tmp_path / "wal-agent/bin/wal-agent", RECORD)
    env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "out")}
    with pytest.raises(subprocess.CalledProcessError):
        bash(RUN["run"], tmp_path, AGENT="claude", ARGS="--permission-mode plan -p 'fix", **env)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("version", ["", "0.1.0"])
def test_the_action_installs_away_from_the_checkout_what_is_pinned(tmp_path: Path, version: str) -> None:
    """Without a version: of the commit that the workflow names, with hashes; with one, exactly that one."""
    assert INSTALL["working-directory"] == "${{ runner.temp }}"
    program(
        tmp_path / "bin/python3",
        f'{RECORD}mkdir -p wal-agent/bin; [ -e wal-agent/bin/python ] || cp "$0" wal-agent/bin/python\n',
    )
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "WAL_AGENT_SOURCE": "/src"}
    bash(INSTALL["run"], tmp_path, WAL_AGENT_VERSION=version, WAL_AGENT_EXTRAS="s3", **env)
    made, *installed = (tmp_path / "ran").read_text().splitlines()
    assert made == "-I -m venv wal-agent"
    assert all(line.startswith("-I -m pip install --quiet ") for line in installed)
    words = [line.removeprefix("-I -m pip install --quiet ") for line in installed]
    own = ["--require-hashes -r /src/requirements/release.txt", "--no-deps --no-build-isolation /src"]
    assert words == ([f"wal-agent[s3]=={version}"] if version else own)


def test_each_action_that_a_workflow_uses_is_named_by_its_commit() -> None:
    uses = [
        (path.name, step["uses"])
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert len(uses) > 5
    assert not [(name, word) for name, word in uses if len(word.partition("@")[2]) != 40]


SLASH = sorted(
    [*(ROOT / "deploy").glob("claude-plugin/commands/*"), *(ROOT / "deploy").glob("gemini-extension/commands/*/*")]
)


@pytest.mark.parametrize("page", SLASH, ids=lambda page: f"{page.stem}{page.suffix}")
def test_what_a_slash_command_shows_the_model_is_data(page: Path, tmp_path: Path) -> None:
    """The log's words end no block, and name no file that Claude Code would read for an `@`."""
    (command,) = re.findall(r"^!(?:`(.+)`|\{(.+)\})$", page.read_text(), re.M)
    program(tmp_path / "bin/wal-agent", '#!/bin/sh\nprintf "%s\\n" "@/etc/passwd @@a (@b" "~~~~" "" >&2\n')
    argv = ["sh", "-c", "".join(command)]
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(shown) == 3 and all(line.startswith("| ") for line in shown)
    assert not re.search(r"@\S", "\n".join(shown))
