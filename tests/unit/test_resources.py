"""Shipped files are found in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_agent import paths
from wal_agent.errors import ConfigError
from wal_agent.paths import shipped, shipped_program


def test_a_checkout_has_them_beside_the_package() -> None:
    assert shipped("hooks/client.py").is_file()
    assert shipped("hooks").is_dir()


def test_an_installed_package_has_them_inside_and_looks_there_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "wal_agent"
    for folder in (package / "_shipped", tmp_path):
        (folder / "hooks").mkdir(parents=True)
        (folder / "hooks" / "client.py").touch()
    monkeypatch.setattr(paths, "PACKAGE", package)
    assert shipped("hooks/client.py") == package / "_shipped" / "hooks" / "client.py"


def test_an_incomplete_installation_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PACKAGE", tmp_path)
    with pytest.raises(ConfigError, match=r"hooks/client.py is missing .* Install wal-agent again"):
        shipped("hooks/client.py")


@pytest.mark.parametrize("name", ["pyproject.toml", "hooks/../pyproject.toml", "/etc/passwd", ""])
def test_nothing_else_is_given_out(name: str) -> None:
    with pytest.raises(ValueError):
        shipped(name)


def test_a_program_is_one_that_may_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "_shipped" / "hooks" / "client"
    program.parent.mkdir(parents=True)
    monkeypatch.setattr(paths, "PACKAGE", tmp_path)
    assert shipped_program("hooks/client") is None
    program.touch(0o644)
    assert shipped_program("hooks/client") is None
    program.chmod(0o755)
    assert shipped_program("hooks/client") == program
    assert shipped_program("hooks") is None
