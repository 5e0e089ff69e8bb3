"""What a command imports before it answers: counted, not timed. An import at the top of a module that `status` needs
costs every start of it; a new one belongs into the function that uses it, or the number here goes up with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.cli.shelf import full
from wal_agent.__main__ import main
from wal_agent.cli.commands import COMMANDS, _Loaded, first_sentence

# Modules of wal_agent and of the packages that it installs, at the end of the command.
LIMITS = {
    "--version": (4, 0),
    "--help": (6, 36),
    "status --help": (18, 50),
    "run --help": (17, 50),
    "status": (64, 55),
    "log": (60, 55),
    "list": (56, 55),
}
HEAVY = (
    *(
        "boto3",
        "botocore",
        "google",
        "azure",
        "requests",
        "jinja2",
        "tree_sitter",
        "rich",
        "watchdog",
        "tomlkit",
        "psutil",
    ),
    *("apprise", "cryptography", "opentelemetry", "http.client", "ssl", "sqlite3", "ctypes"),
    *(
        "wal_agent.evidence",
        "wal_agent.calls.classify",
        "wal_agent.capture.git",
        "wal_agent.events",
        "wal_agent.observe",
    ),
    *("wal_agent.agents.base", "wal_agent.supervise.gate", "wal_agent.supervise.run", "wal_agent.wal.writer"),
)
# Runs the command in sys.argv, then prints the names of all modules.
LOADED = """
import json, sys
from wal_agent.cli.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
print("\\n" + json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
# As LOADED, but the names as they are when the agent's process is started. No other process is begun before it.
AT_THE_AGENT = """
import json, os, sys
def note(event, args):
    if event == "subprocess.Popen" and "true" in map(str, args[1]):
        seen[:] = seen or sorted(sys.modules)
seen = []
sys.addaudithook(note)
from wal_agent.cli.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
print("\\n" + json.dumps(seen), file=sys.stderr)
"""


def loaded(folder: Path, *words: str, script: str = LOADED) -> list[str]:
    """Return the names of the modules that the command has loaded, as the script notes them."""
    (folder / "shop").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])},
        cwd=folder / "shop",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return list(json.loads(done.stderr.rstrip().splitlines()[-1]))


def is_installed(name: str) -> bool:
    """Whether a module is neither Python's own nor wal-agent's."""
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and not top.startswith(("wal_agent", "_", "sitecustomize"))


@pytest.mark.parametrize("words", LIMITS)
def test_a_command_imports_only_what_it_needs(tmp_path: Path, words: str) -> None:
    where: list[str] = []
    if words in ("status", "log", "list"):
        shelf = full(tmp_path / "b")
        where = ["--bucket", shelf.url, *([] if words == "list" else ["--job", "shop"])]
    names = loaded(tmp_path, *words.split(), *where)
    ours = [name for name in names if name.partition(".")[0] == "wal_agent"]
    others = [name for name in names if is_installed(name)]
    assert [name for name in names if name.startswith(HEAVY)] == []
    most_ours, most_others = LIMITS[words]
    assert len(ours) <= most_ours, ours
    assert len(others) <= most_others, others


def test_a_run_imports_what_hooks_need_beside_the_agents_start(tmp_path: Path) -> None:
    names = loaded(tmp_path, "run", "generic", "--", "true", script=AT_THE_AGENT)
    late = ("wal_agent.evidence", "wal_agent.calls.classify", "wal_agent.recovery.inflight", "wal_agent.notify.")
    heavy = (
        "boto3",
        "google",
        "azure",
        "requests",
        "jinja2",
        "tree_sitter",
        "rich",
        "tomlkit",
        "http.client",
        "ssl",
        "sqlite3",
    )
    assert [name for name in names if name.startswith((*late, *heavy))] == []
    assert len([name for name in names if name.partition(".")[0] == "wal_agent"]) <= 108, names
    assert len([name for name in names if is_installed(name)]) <= 75, names


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    commands = _Loaded()
    assert {name: entry.summary for name, entry in COMMANDS.items()} == {
        name: first_sentence(command.help) for name, command in commands.items()
    }
    assert not any(command.hidden for command in commands.values())


def test_an_interrupt_while_the_command_is_loaded_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first 0.1 s: no traceback."""

    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "wal_agent.cli.main", Interrupted("wal_agent.cli.main"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_the_entry_point_catches_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["wal-agent"] == f"{main.__module__}:{main.__name__}"
