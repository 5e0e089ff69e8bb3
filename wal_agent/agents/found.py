"""An agent's program on this machine: WAL_AGENT_<NAME>, else PATH; its version without starting it, where possible."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents.base import Cli, Env
from wal_agent.errors import ConfigError
from wal_agent.limits import exhausted

ASKING = 30.0  # seconds for `--version`
_VERSION = re.compile(r"\d+\.\d+\.\d+[\w.+-]*")


@dataclass(frozen=True, slots=True)
class Program:
    """`package`: on npm. `broken`: why versions below this one cannot be used, as (version, one sentence)."""

    name: str
    package: str
    broken: tuple[str, str] | None = None

    def locate(self, env: Env) -> Cli:
        """ConfigError when it is missing, does not start, or is a version that cannot be used."""
        variable = f"WAL_AGENT_{self.name.upper()}"
        wanted = env.get(variable) or self.name
        found = shutil.which(wanted, path=env.get("PATH", os.defpath))
        if found is None:
            raise ConfigError(f"{wanted} was not found on PATH.", f"Install it: npm install -g {self.package}")
        path = Path(found)
        cli = Cli(path.absolute(), self._package_version(path) or _asked_version(path, env))
        if self.broken is not None and cli.version and _version_number(cli.version) < _version_number(self.broken[0]):
            below, why = self.broken
            raise ConfigError(
                f"{self.name} {cli.version} cannot be used: {why}",
                f"Install {below} or later: npm install -g {self.package}",
            )
        return cli

    def _package_version(self, path: Path) -> str:
        for folder in path.resolve().parents[:4]:
            try:
                package = json.loads((folder / "package.json").read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(package, dict) and package.get("name") == self.package:
                return str(package.get("version", ""))
        return ""


def _asked_version(path: Path, env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], env=dict(env), capture_output=True, text=True, timeout=ASKING, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise exhausted(e) or ConfigError(f"{path} does not start: {e}.") from e
    found = _VERSION.search(done.stdout) or _VERSION.search(done.stderr)  # pi tells it there without a terminal
    return found[0].rstrip(".") if found else ""  # some end a sentence with it


def _version_number(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("-")[0])[:3])
