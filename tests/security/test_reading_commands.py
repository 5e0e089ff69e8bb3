"""A command that "only reads" and loads the clone's code first is no read-only call (I1)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wal_agent.calls.classify import classify_command
from wal_agent.calls.rules.table import load_rules, read_texts
from wal_agent.calls.rules_lint import lint_builtin

# Each is given code by files that a clone brings: modules, plugins, toolchains, interpreters, settings that name them.
LOAD = """
python3 -m json.tool f.json
python3 -m pip list
python3 -m pip --version
python3 -m site
python3 -m ast f.py
python3 -m platform
mypy .
pyright
flake8 src
pylint src
pytest --version
tox --version
bundle list
bundle --version
rubocop --version
yarn why left-pad
yarn --version
pnpm --version
npm ls
npm help install
jest --version
mocha --version
prettier --check .
deno lint
uv pip list
uv tree --frozen
poetry show
cargo --version
cargo tree --locked
rustc --version
rustfmt --check src/main.rs
terraform validate
terraform providers
pulumi stack ls
ansible-doc -l
mvn -v
gradle --version
go vet ./...
staticcheck ./...
golangci-lint run --no-config
dotnet --info
dotnet list package
composer show
phpstan analyse
jupyter kernelspec list
""".strip().splitlines()


@pytest.mark.parametrize("command", LOAD)
def test_what_loads_code_of_the_folder_is_not_read_only(command: str) -> None:
    assert classify_command(command, load_rules()).cls != "read_only"


@pytest.mark.parametrize("command", ["git status", "git -C sub status", "git -C sub log"])
def test_a_git_that_reads_is_read_only(command: str) -> None:
    """The limit that docs/SECURITY.md names: also in a repository whose settings name a program."""
    assert classify_command(command, load_rules()).cls == "read_only"


def test_python_finds_modules_in_the_folder(tmp_path: Path) -> None:
    """The exploit: why `python -m` is in the list above."""
    package = tmp_path / "json"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text("open('pwned', 'w')\n")
    subprocess.run([sys.executable, "-m", "json.tool"], cwd=tmp_path, check=True, stdin=subprocess.DEVNULL)
    assert (tmp_path / "pwned").exists()


def test_a_rule_of_such_a_program_has_an_answer() -> None:
    """Forgotten in a rule, or read-only in spite of it: the check of the rules says so."""
    texts = read_texts()
    assert lint_builtin(texts) == []
    name = "23-checks.toml"
    asked = '{ id = "mypy.read", class = "idempotent", loads = "cwd",'
    assert asked in texts[name]
    still = texts[name].replace(asked, '{ id = "mypy.read", class = "read_only", loads = "cwd",')
    assert any(p.startswith("mypy.read: read_only, and it loads") for p in lint_builtin({**texts, name: still}))
    versions = texts["02-versions.toml"].replace(
        'id = "version.v-or-h", class = "read_only", loads = "nothing"', ('id = "version.v-or-h", class = "read_only"')
    )
    found = lint_builtin({**texts, "02-versions.toml": versions})
    assert any(p.startswith("version.v-or-h: npm") for p in found)


def test_such_a_command_still_verifies_another(tmp_path: Path) -> None:
    """It is logged before it runs, and may then resolve what it shows."""
    known = classify_command("terraform state list", load_rules())
    assert known.looks and known.cls == "idempotent"
    assert not classify_command("terraform state list && touch x", load_rules()).looks
    assert not classify_command(f"npm ls > {shlex.quote(str(tmp_path / 'x'))}", load_rules()).looks
