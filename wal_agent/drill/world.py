"""The world of one round: a folder for the agent, and beside it what outlives its machine, with a ledger.

Scripts append to the ledger (lib.sh); so does the drill, for its kills and starts. The ledger's order is the order of
what happened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil

from wal_agent.drill.grade import Entry
from wal_agent.drill.scenario import Scenario, Step

_ASK = """\
#!/bin/sh
. '@WORLD@/lib.sh'
note ask "$*"
echo "asked: a person will answer later. Stop here."
"""
_PLAN = """\
#!/bin/sh
. '@WORLD@/lib.sh'
plan() { echo "1. as the task says" >PLAN.md; }
effect plan plan
"""
_THANKS = """\
#!/bin/sh
. '@WORLD@/lib.sh'
effect thanks
"""
_RECEIVE = """\
#!/bin/sh
. '@WORLD@/lib.sh'
note begin 'push main'
hold before 'push main'
"""
_RECEIVED = """\
#!/bin/sh
. '@WORLD@/lib.sh'
note effect 'push main'
hold between 'push main'
note end 'push main'
"""


class World:
    """`work` is the agent's folder, `place` the world's; both below `root`."""

    def __init__(self, root: Path, scenario: Scenario, rules: tuple[Path, ...] = ()) -> None:
        self.root, self.scenario, self.rules = root, scenario, rules
        self.place, self.work, self.remote = root / "world", root / "shop", root / "world" / "origin.git"
        self.place.mkdir()
        lib = Path(__file__).with_name("lib.sh").read_text("utf-8")
        (self.place / "lib.sh").write_text(self._placed(lib))
        (self.place / "ledger").touch()
        self.fill()
        if scenario.git:
            self._repository()

    def fill(self) -> None:
        """Make the agent's folder as a fresh clone has it."""
        self.work.mkdir()
        rules = f"# Rules of this project\n{self.scenario.rules}" if self.scenario.rules else ""
        own = {"ask.sh": _ASK, "plan.sh": _PLAN, "thanks.sh": _THANKS, "AGENTS.md": rules, "GEMINI.md": rules}
        files = {**own, **self.scenario.files}
        for name, content in files.items():
            if content:
                self._write(self.work / name, content)
        for path in self.rules:
            shutil.copy(path, self.work / path.name)

    def lose(self, home: Path) -> None:
        """Lose HOME and the agent's folder; the world stays."""
        for folder in (home, self.work):
            gone = folder.with_name(f"{folder.name}.lost")
            folder.rename(gone)  # at once: a process that dies meanwhile may still write
            shutil.rmtree(gone, ignore_errors=True)
        home.mkdir()

    def clone(self) -> None:
        """Put a fresh copy of the project where the folder was lost."""
        if self.scenario.git:
            _git(self.root, "clone", "-q", str(self.remote), str(self.work))
            self._identity()
        else:
            self.fill()

    # ---- the ledger

    def note(self, event: str, what: str) -> None:
        """Append an entry of the drill's own."""
        with (self.place / "ledger").open("ab") as file:
            file.write(f"{time.time():.3f}\t{event}\t{what}\n".encode())

    def ledger(self) -> list[Entry]:
        """Read what happened so far, in order. A line that is none is left out."""
        found = []
        for line in (self.place / "ledger").read_text("utf-8", errors="replace").splitlines():
            parts = line.split("\t", 2)
            if len(parts) == 3 and parts[0].replace(".", "", 1).isdigit():
                found.append(Entry(float(parts[0]), parts[1], parts[2]))
        return found

    def ended(self, step: Step) -> bool:
        return any(entry.event == "end" and entry.what == step.effect for entry in self.ledger())

    # ---- the kill

    def arm(self, point: str, step: Step) -> None:
        """Let the step's script wait at `point`."""
        (self.place / "kill").write_text(f"{point} {step.effect}\n")

    def disarm(self) -> None:
        (self.place / "kill").unlink(missing_ok=True)
        (self.place / "reached").unlink(missing_ok=True)

    @property
    def reached(self) -> bool:
        return (self.place / "reached").exists()

    @property
    def held(self) -> bool:
        """Whether the script that has reached its point still waits there."""
        try:
            return psutil.pid_exists(int((self.place / "reached").read_text()))
        except (OSError, ValueError):
            return self.reached

    # ---- the agent's folder

    def files(self) -> set[str]:
        """Return the files of the agent's folder, without git's own."""
        found = (p for p in self.work.rglob("*") if p.is_file())
        return {str(p.relative_to(self.work)) for p in found if ".git" not in p.relative_to(self.work).parts}

    def lines(self) -> Counter[str]:
        """Count the effects that are lines of a file of the agent's folder."""
        counts: Counter[str] = Counter()
        for step in self.scenario.steps:
            if step.lines_of and (path := self.work / step.lines_of).is_file():
                counts[step.effect] = path.read_text("utf-8", errors="replace").splitlines().count(step.effect)
        return counts

    # ---- parts

    def _placed(self, text: str) -> str:
        return text.lstrip("\n").replace("@WORLD@", str(self.place))

    def _write(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._placed(content))
        if content.lstrip("\n").startswith("#!"):
            path.chmod(0o755)

    def _repository(self) -> None:
        _git(self.root, "init", "-q", "--bare", str(self.remote))
        _git(self.root, "--git-dir", str(self.remote), "symbolic-ref", "HEAD", "refs/heads/main")
        _git(self.work, "init", "-q")
        self._identity()
        _git(self.work, "symbolic-ref", "HEAD", "refs/heads/main")
        _git(self.work, "add", "-A")
        _git(self.work, "commit", "-qm", "A small shop")
        _git(self.work, "remote", "add", "origin", str(self.remote))
        _git(self.work, "push", "-q", "-u", "origin", "main")
        for name, hook in (("pre-receive", _RECEIVE), ("post-receive", _RECEIVED)):
            self._write(self.remote / "hooks" / name, hook)

    def _identity(self) -> None:
        for name, value in (("user.name", "drill"), ("user.email", "drill@example.invalid")):
            _git(self.work, "config", name, value)


def _git(folder: Path, *words: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env = {**kept, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *words], cwd=folder, check=True, env=env, stdout=subprocess.DEVNULL)
