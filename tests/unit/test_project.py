"""The project's own promises: what a wheel holds, what a commit may not, what make says, what CI runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS

ROOT = Path(__file__).resolve().parents[2]

# In pieces, so that this file does not find itself.
ADDRESSES = re.compile(
    r"py" r"pi\.org|python" r"hosted\.org|registry\.(npm" r"js|yarn" r"pkg)|npm" r"mirror|deb\.deb" r"ian\.org"
    r"|(?<![\w.})-])/wo" r"rk/"
)  # fmt: skip


def committed() -> list[Path]:
    """Files that are in the index or will be (untracked, not ignored)."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def pins() -> dict[str, list[str]]:
    return {
        path.name: [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        for path in sorted((ROOT / "requirements").glob("*.txt"))
    }


# ---- what is committed --------------------------------------------------------------------------------------------


def test_no_file_holds_the_address_of_a_registry_or_a_path_of_the_machine_it_was_made_on() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in committed()
        if (match := ADDRESSES.search(path.read_bytes().decode(errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("https://py" "pi.org/simple", True),
        ("https://registry.npm" "js.org/x/-/x-1.tgz", True),
        ("see /wo" "rk/main/x", True),
        ("(/wo" "rk/x)", True),
        ("/home/me/wo" "rk/x", False),
        ("{tmp}/wo" "rk/x", False),
        ("of framewo" "rk/s", False),
    ],
)  # fmt: skip
def test_the_scan_sees_what_it_should(text: str, is_one: bool) -> None:
    assert bool(ADDRESSES.search(text)) is is_one


def test_no_lock_file_is_committed() -> None:
    names = {"package-lock.json", "npm-shrinkwrap.json", "uv.lock", "poetry.lock", "yarn.lock"}
    assert [path for path in committed() if path.name in names] == []


def test_what_make_makes_is_ignored() -> None:
    made = [".venv/x", ".tools/x", "dist/x", "wal_agent/__pycache__/x", ".hypothesis/x", ".mypy_cache/x"]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == made


# ---- versions -----------------------------------------------------------------------------------------------------


def test_every_requirement_is_pinned_and_holds_no_address() -> None:
    lines = [line for lines in pins().values() for line in lines if not line.startswith("-r ")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line)] == []
    ours = [line for name, lines in pins().items() if name != "servers.txt" for line in lines]  # an environment apart
    names = [line.partition("==")[0].lower() for line in ours if "==" in line]
    assert len(names) == len(set(names))


def test_every_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [re.split(r"[^A-Za-z0-9-]", text)[0] for text in project["project"]["dependencies"]]
    pinned = {line.partition("==")[0].lower() for line in pins()["runtime.txt"]}
    assert [name for name in wanted if name not in pinned] == []


def test_the_installed_clis_are_the_tested_ones() -> None:
    clis = json.loads((ROOT / "tests" / "agents.json").read_text())
    assert {name: cli["version"] for name, cli in clis.items()} == {a.name: a.tested for a in AGENTS.values()}


# ---- the wheel ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what is committed (a checkout's other files are not in the copy)."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in committed():
        to = source / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    (source / "hooks" / "__pycache__").mkdir()
    (source / "hooks" / "__pycache__" / "client.pyc").touch()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "-w", out, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_package_and_what_ships_beside_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path.relative_to(ROOT).as_posix() for path in committed()]
    wanted = {name for name in files if name.startswith("wal_agent/")}
    wanted |= {f"wal_agent/_shipped/{name}" for name in files if name.startswith(("hooks/", "prompts/"))}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert "wal_agent/recovery/rules.toml" in names and "wal_agent/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_wheel_works_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from wal_agent.resources import shipped; from wal_agent.recovery.rules import load_rules; load_rules();"
        "print(shipped('hooks/client.py'), shipped('prompts/recovery.md'))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        str(tmp_path / "wal_agent" / "_shipped" / name) for name in ("hooks/client.py", "prompts/recovery.md")
    ]


# ---- prerequisites ------------------------------------------------------------------------------------------------


def check(tools: Path, *words: str) -> tuple[int, str]:
    """check-prerequisites on a machine that has only what is in `tools`."""
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "check-prerequisites"), *words],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_machine_with_everything_hears_nothing(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    tool(tmp_path, "node", "echo 20.1.0")
    for name in ("npm", "git", "tmux"):
        tool(tmp_path, name, "echo 1")
    assert check(tmp_path, "python", "node", "npm", "git", "tmux") == (0, "")


@pytest.mark.parametrize("word", ["python", "node", "npm", "git", "tmux"])
def test_a_missing_tool_is_one_line(tmp_path: Path, word: str) -> None:
    code, said = check(tmp_path, word)
    assert code == 1
    assert re.fullmatch(rf"wal-agent: {word}3? is missing.*\n", said)


@pytest.mark.parametrize(
    ("name", "script", "says"),
    [
        ("node", "echo 18.20.1", "wal-agent: node is 18.20.1, but 20 or newer is needed to run Gemini CLI."),
        (
            "python3",
            "case $2 in *exit*) exit 1;; esac; echo 3.9",
            "wal-agent: python3 is Python 3.9, but 3.11 or",
        ),
        (
            "python3",
            "case $2 in *print*) echo 3.12;; *ensurepip*) exit 1;; esac",
            "wal-agent: python3 has no venv",
        ),
    ],
)
def test_an_unfit_tool_is_one_line(tmp_path: Path, name: str, script: str, says: str) -> None:
    tool(tmp_path, name, script)
    code, said = check(tmp_path, name.rstrip("3"))
    assert code == 1
    assert said.startswith(says) and said.count("\n") == 1


# ---- make and CI --------------------------------------------------------------------------------------------------


def test_every_target_is_in_the_help() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # a make may be above us
    done = subprocess.run(["make", "help"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    said = {line.split()[1] for line in done.stdout.splitlines()}
    assert said == {"help", "demo", "test", "lint", "unit", "contract", "faults", "e2e", "tools", "bench", "clean"}


def test_ci_runs_what_make_test_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.rstrip().endswith("exec make test")
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False).returncode == 0
