"""The how-tos, followed to the letter in a copy of the project: each command that a page shows does what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.tiers import deep

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


class Copy:
    """The tracked files of the project in a folder of their own, and what a page says to do to them."""

    def __init__(self, folder: Path, page: str) -> None:
        self.root = root = folder / "project"
        self.page = (ROOT / "docs" / "how-to" / page).read_text()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        (root / ".venv" / "bin").mkdir(parents=True)
        for program, words in (("wal-agent", "-m wal_agent"), ("python", "")):
            self.program(root / ".venv" / "bin" / program, f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        home = folder / "home"
        home.mkdir()
        self.env = {
            "PATH": f"{root / '.venv' / 'bin'}:{home}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": str(root),
            "WAL_AGENT_RUNTIME_DIR": str(folder / "run"),
            "CI": "1",
        }

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def blocks(self, language: str) -> list[str]:
        return [text for kind, text in BLOCK.findall(self.page) if kind == language]

    def create(self, name: str, text: str) -> None:
        """A new file that the page says to create by this name."""
        assert f"reate `{name}`" in self.page or f"reate\n`{name}`" in self.page
        assert not (self.root / name).exists()
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def insert(self, name: str, before: str, text: str) -> None:
        """Text in front of the one place of a file that holds `before`."""
        path = self.root / name
        assert path.read_text().count(before) == 1, (name, before)
        path.write_text(path.read_text().replace(before, text + before))

    def run(self, command: str, folder: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """What a command prints; it has to end with 0."""
        done = subprocess.run(
            shlex.split(command),
            cwd=folder or self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def shown(self, text: str) -> None:
        """Run each line of a block that begins with `$`; what follows it is what the command prints."""
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
            assert self.run(shlex.join(("sh", "-c", command))) == printed, command


def test_add_a_rule(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add-a-rule.md")
    before, after = copy.blocks("")
    copy.shown(before)
    examples = copy.root / "tests/unit/calls/commands.jsonl"
    examples.write_text(examples.read_text() + copy.blocks("json")[0])
    rules = copy.root / "wal_agent/calls/rules/rules.d/50-files.toml"
    rules.write_text(rules.read_text().replace("command = [\n", "command = [\n" + copy.blocks("toml")[0]))
    copy.shown(after.partition("$ .venv/bin/python -m pytest")[0])


@deep
def test_add_a_bucket_decorator(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add-a-bucket.md")
    decorator, line, tests = copy.blocks("python")
    copy.create("wal_agent/bucket/throttle.py", decorator)
    copy.create("tests/unit/bucket/test_throttle.py", tests)
    suite = "tests/contract/test_bucket.py"
    copy.insert(suite, '    "memory-metered":', line)
    copy.insert(suite, "from wal_agent.bucket.s3", "from wal_agent.bucket.throttle import ThrottleBucket\n")
    copy.run(copy.blocks("")[0].strip() + " -p no:cacheprovider -x")
    copy.run(".venv/bin/python -m pytest -p no:cacheprovider tests/unit/bucket/test_throttle.py")


def test_change_the_prompt(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "change-the-prompt.md")
    folder = copy.root / "wal_agent" / "wording"
    for names in re.findall(r"^\| (`.*?) \|", copy.page, re.M):
        assert all((folder / name.strip("`")).is_file() for name in names.split(", "))
    before, after, tests = copy.blocks("")
    copy.shown(before)
    copy.shown(after)
    for command in tests.splitlines():
        copy.run(command)


def test_add_an_agent(tmp_path: Path) -> None:
    """Each block as it stands; what the page says of a description holds of the one on it."""
    copy = Copy(tmp_path, "add-an-agent.md")
    home = Path(copy.env["HOME"])
    file = home / ".config/wal-agent/agents/toy.toml"
    file.parent.mkdir(parents=True)
    file.write_text(copy.blocks("toml")[0])
    install, check, run = copy.blocks("sh")
    said = copy.run(shlex.join(("bash", "-ec", f"umask 022; {install}{check}echo checked; {run}")))
    checked, _, ran = said.partition("checked\n")
    late = checked.count("told of its end before the hook did")  # the session is read as soon as it is written
    assert checked.count("\nok ") == 22 - late and checked.count("\n-- ") == late and "FAIL" not in checked, checked
    assert "Recovering" in ran
    assert (home / "try/shop/ledger").read_text() == "paid\n"


@deep
def test_add_evidence(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "add-evidence.md")
    kind, trial = copy.blocks("python")
    registered, works, refused = copy.blocks("text")
    copy.create("wal_agent/evidence/modes.py", kind)
    collector = "wal_agent/evidence/collector.py"
    copy.insert(collector, '    "mv": Moves(),', registered)
    copy.insert(collector, "from wal_agent.evidence.packages", "from wal_agent.evidence.modes import Modes\n")
    copy.insert("tests/faults/evidence/trials.py", '    "rm": ["rm -rf d"', trial)
    kinds = "tests/unit/evidence/test_kinds.py"
    copy.insert(kinds, '        *("cd d && rm x"', works)
    copy.insert(kinds, '        *("mv d new; touch d/x"', refused)
    copy.run(copy.blocks("")[0].strip() + " -p no:cacheprovider")
