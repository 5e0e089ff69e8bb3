"""`wal-agent run` on a real CLI whose version was not tested: it proves itself first, or nothing is run (I5)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TESTS, installed
from tests.unit.supervise.crew import short_folder
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Model, Turn

AGENT = AGENTS["gemini"]
DROPS = 'sed -i s/BeforeTool/BeforeNothing/ "${WAL_AGENT_SOCKET%/*}"/extensions/*/hooks/hooks.json 2>/dev/null'


class Desk:
    """A HOME, a workspace, a model, and a program that says that it is another version."""

    def __init__(self, base: Path, runtime: Path) -> None:
        self.runtime = runtime
        self.home, self.work = base / "home", base / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.program = base / "gemini"
        self.install("")

    def install(self, behind_our_back: str) -> None:
        real = installed("gemini")
        self.program.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo 99.0.0; exit; fi\n{behind_our_back}\nexec "{real}" "$@"\n'
        )
        self.program.chmod(0o755)

    def run(self) -> tuple[int, list[str], int]:
        """Exit code, what wal-agent said, and how often the model was asked."""
        rehearsal = rehearsal_of(AGENT)
        assert rehearsal is not None
        with Model(rehearsal.dialect, [Turn(calls=[rehearsal.shell("touch ran")]), Turn("bye")]) as model:
            env = {
                **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
                **rehearsal.home(self.home, self.work, model.url),
                "PYTHONPATH": str(TESTS.parent),
                "HOME": str(self.home),
                "WAL_AGENT_GEMINI": str(self.program),
                "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
            }
            done = subprocess.run(
                [sys.executable, "-m", "wal_agent", "run", "gemini", "--", *rehearsal.args("go")],
                cwd=self.work,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            said = [line for line in done.stderr.splitlines() if line.startswith("wal-agent: ")]
            return done.returncode, said, len(model.requests)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with short_folder() as runtime:
        yield Desk(tmp_path, runtime)


def test_it_proves_itself_before_its_first_tool_and_only_once(desk: Desk) -> None:
    code, said, asked = desk.run()
    assert (code, asked) == (0, 2), said
    assert said[0] == f"wal-agent: gemini 99.0.0 was not tested, {AGENT.tested} was."
    assert said[1].startswith("wal-agent: waiting for the proof that the hooks of gemini 99.0.0 allow and deny;")
    assert (desk.work / "ran").exists()
    code, said, asked = desk.run()
    assert (code, asked) == (0, 2) and not any("the proof" in line for line in said)


def test_where_deny_does_not_hold_nothing_is_run(desk: Desk) -> None:
    desk.install(DROPS)
    code, said, asked = desk.run()
    assert (code, asked) == (78, 0), said
    assert "a denied tool call does not run, and the agent reads why: no (" in said[-1]
    assert said[-1].endswith(f"Nothing was run. Use {AGENT.tested}, or look at it: wal-agent doctor gemini")
    assert not (desk.work / "ran").exists() and not (desk.home / ".local/state/wal-agent/proven/gemini.json").exists()


def test_the_version_of_a_package_is_read_without_starting_it(tmp_path: Path) -> None:
    """And below what is known to be broken it is refused: Program.broken."""
    from msgspec.structs import replace

    from wal_agent.agents.program import Broken, Program
    from wal_agent.errors import ConfigError

    package = tmp_path / "lib/tool"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "tool", "version": "0.9.3"}')
    script = package / "bin/tool.js"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to(script)
    program = Program("tool", "tool")
    env = {"PATH": str(tmp_path / "bin")}
    assert program.locate(env).version == "0.9.3"
    with pytest.raises(ConfigError, match=r"tool 0\.9\.3 cannot be used: it has no hooks\. Install 0\.10\.0 or later"):
        replace(program, broken=(Broken("it has no hooks.", below="0.10.0"),)).locate(env)
