"""The optional parts of the installation (pyproject.toml, optional-dependencies), and the command that adds one."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from wal_agent.errors import ConfigError

Extra = Literal["gcs", "s3", "azure", "encryption", "notify", "otel", "nats", "temporal"]


def install_command(extra: Extra, prefix: str = sys.prefix, python: str = sys.executable) -> str:
    """Return the command that adds `extra` to the installation in `prefix`, for the tool that made it."""
    package = f"'wal-agent[{extra}]'"
    root = Path(prefix)
    if (root / "uv-receipt.toml").exists():
        return f"uv tool install --force {package}"
    if (root / "pipx_metadata.json").exists():
        return f"pipx install --force {package}"
    if root.parent.name.startswith("archive-v") or "builds-v" in root.parent.name:  # uv's cache: uvx made it
        return f"uvx --from {package} wal-agent"
    return f"{shlex.quote(python)} -m pip install {package}"


@contextmanager
def required(extra: Extra, what: str) -> Iterator[None]:
    """Import the packages of `extra` inside this block. Raise ConfigError if one is missing; `what` needs it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a Python near its end, say: none of the agent's terminal (I6)
            yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "wal_agent":
            raise  # a bug, not a missing package
        raise missing(extra, what) from error


def require(extra: Extra, module: str, what: str) -> None:
    """Raise ConfigError if `module`, a package of `extra`, is not installed; it is not imported."""
    if find_spec(module) is None:
        raise missing(extra, what)


def missing(extra: Extra, what: str) -> ConfigError:
    return ConfigError(f"{what} needs packages that are not installed.", f"Install them: {install_command(extra)}")
