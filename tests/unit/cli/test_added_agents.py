"""Agents that a person adds: a description in their own settings, or in an installed package. A project brings none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run
from wal_agent.agents import AGENTS, added, family, rehearsal_of, tools_of
from wal_agent.agents.base import Agent

KIMI = (family.FOLDER / "kimi.toml").read_text()
Add = Callable[..., Path]


def described(name: str, old: str = "", new: str = "") -> str:
    text = KIMI.replace('name = "kimi"', f'name = "{name}"\ntools_of = "kimi"', 1)
    assert old in text
    return text.replace(old, new, 1)


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Put a description into the person's own settings."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "home/.config/wal-agent/agents"
    folder.mkdir(parents=True, mode=0o755)

    def put(name: str, text: str = "", folder: Path = folder) -> Path:
        path = folder / f"{name}.toml"
        path.write_text(text or described(name))
        path.chmod(0o644)
        return path

    yield put
    added._packages.cache_clear()
    added._of_package.cache_clear()


def test_a_file_in_the_persons_settings_is_an_agent(add: Add, run: Run, tmp_path: Path) -> None:
    add("mine")
    agent: Agent = AGENTS["mine"]
    assert agent.name == "mine" and list(AGENTS)[-1] == "mine" and tools_of("mine") == "kimi"
    code, out, err = run("agents", "--json")
    assert (code, err, json.loads(out)["agents"][-1]["name"]) == (0, "", "mine")
    code, out, err = run("run", "mine")
    assert code == 78 and "WAL_AGENT_MINE" not in out and err.count("\n") == 1, "there is no such program"
    rehearsal, home = rehearsal_of(agent), tmp_path / "scratch"
    assert rehearsal is not None
    rehearsal.home(home, tmp_path, "http://127.0.0.1:1")
    assert (home / ".config/wal-agent/agents/mine.toml").read_text() == described("mine"), "what runs there finds it"


def test_a_project_brings_none(add: Add, run: Run) -> None:
    for folder in ("agents", ".wal-agent/agents", ".config/wal-agent/agents"):
        Path(folder).mkdir(parents=True)
        add("mine", folder=Path(folder))
    code, _, err = run("run", "mine")
    assert code == 64 and "mine" not in AGENTS and err.count("\n") == 1


BROKEN = {
    "no-toml": ("mine", "name = "),
    "deep": ("mine", "x = " + "[" * 5000),
    "binary": ("mine", "\udcff"),
    "large": ("mine", KIMI + "#" * (64 << 10)),
    "another-name": ("mine", KIMI),
    "a-path": ("mine", described("mine", '"config.toml"', '"../config.toml"')),
    "a-folder-of-no-session": ("mine", described("mine", "/{session}", "/one")),
    "the-home-folder": ("mine", described("mine", 'state = ".kimi-code"', 'state = "."')),
    "credentials": ("mine", described("mine", 'state = ".kimi-code"', 'state = ".ssh"')),
    "shell-in-an-event": ("mine", described("mine", "PreCompact =", '"$(id)" =')),
    "a-file-of-ours": ("mine", described("mine", "PreCompact =", "told =")),
    "no-start-of-a-tool": ("mine", described("mine", 'means = "tool_starting"', 'means = "compacting"')),
    "path-variable": ("mine", described("mine", "KIMI_CODE_NO_AUTO_UPDATE", "PATH")),
    "a-pattern": ("mine", described("mine", "A(?:wal", "A((?:wal")),
    "a-bad-name": ("My-agent", described("mine")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_and_breaks_nothing_else(case: str, add: Add, run: Run) -> None:
    name, text = BROKEN[case]
    path = add(name, "x")
    path.write_bytes(text.encode(errors="surrogateescape"))
    add("other")
    code, _, err = run("run", name)
    assert code == 78 and err.count("\n") == 1 and str(path) in err
    code, out, err = run("agents")
    assert code == 0 and err.count("\n") == 1 and str(path) in err and "other" in out and "claude" in out
    assert run("status", "--agent", "claude")[0] == 1 and name not in AGENTS and "other" in AGENTS


def test_a_shipped_agent_is_not_shadowed(add: Add, run: Run) -> None:
    path = add("claude")
    code, out, err = run("agents")
    assert code == 0 and str(path) in err and out.count("claude  (") == 1
    assert not isinstance(AGENTS["claude"], family.Declared)


@pytest.mark.parametrize("of", ["file", "folder"])
def test_a_file_that_others_may_write_is_not_used(of: str, add: Add, run: Run) -> None:
    path = add("mine")
    (path if of == "file" else path.parent).chmod(0o777)
    code, _, err = run("run", "mine")
    assert code == 78 and "chmod go-w" in err


def test_an_installed_package_brings_one(add: Add, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "mine-1.dist-info").mkdir(parents=True)
    (site / "mine-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    points = "[wal_agent.agents]\nmine = bringer:TEXT\nfile = bringer:FILE\nbad = bringer:MISSING\n"
    (site / "mine-1.dist-info/entry_points.txt").write_text(points)
    (site / "file.toml").write_text(described("file"))
    (site / "bringer.py").write_text(
        f"from pathlib import Path\nTEXT = {described('mine')!r}\nFILE = Path({str(site / 'file.toml')!r})\n"
    )
    monkeypatch.syspath_prepend(site)
    added._packages.cache_clear()
    assert [AGENTS[name].name for name in ("mine", "file")] == ["mine", "file"]
    code, out, err = run("agents")
    assert code == 0 and "file  (tested" in out and err.count("\n") == 1 and "bad" in err
