"""Optional packages: where one is missing, one line names the command that adds it, and nothing is run."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from wal_agent.errors import ConfigError
from wal_agent.extras import install_command, require, required

# A process in which none of the optional packages can be imported.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"google", "google_crc32c", "boto3", "botocore", "cryptography", "requests"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from wal_agent.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["status", "--job", "j", "--bucket", "gs://b/c"], "gcs"),
        (["status", "--job", "j", "--bucket", "s3://b/c"], "s3"),
        (["status", "--job", "j", "--bucket", "az://abc.blob.core.windows.net/con"], "azure"),
        (["status", "--job", "j", "--encryption-key-file", "KEY"], "encryption"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command(tmp_path: Path, words: list[str], extra: str) -> None:
    key = tmp_path / "key"
    key.write_text("0f1e2d3c4b5a69788796a5b4c3d2e1f00123456789abcdeffedcba9876543210")
    key.chmod(0o600)
    argv = [str(key) if word == "KEY" else word for word in words]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *argv], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == ConfigError.exit_code, done.stderr
    *_, last = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and "needs packages that are not installed. Install them: " in last
    assert last.endswith(f"-m pip install 'wal-agent[{extra}]'")


def test_a_package_that_warns_when_it_is_imported_writes_nothing_into_the_terminal() -> None:
    """I6: google-api-core does so once its Python is out of support."""
    with warnings.catch_warnings(record=True) as heard, required("gcs", "A gs:// bucket"):
        warnings.warn("a Python near its end", FutureWarning, stacklevel=1)
    assert heard == []


def test_the_command_is_of_the_tool_that_made_the_installation(tmp_path: Path) -> None:
    (uv := tmp_path / "uv").mkdir()
    (uv / "uv-receipt.toml").touch()
    (pipx := tmp_path / "pipx").mkdir()
    (pipx / "pipx_metadata.json").touch()
    uvx = tmp_path / "archive-v0" / "x"
    assert install_command("gcs", str(uv)) == "uv tool install --force 'wal-agent[gcs]'"
    assert install_command("gcs", str(pipx)) == "pipx install --force 'wal-agent[gcs]'"
    assert install_command("gcs", str(uvx)) == "uvx --from 'wal-agent[gcs]' wal-agent"
    plain = install_command("gcs", str(tmp_path), "/a b/python")
    assert plain == "'/a b/python' -m pip install 'wal-agent[gcs]'"


def test_a_bug_of_our_own_is_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError), required("gcs", "It"):
        raise ModuleNotFoundError("x", name="wal_agent.nowhere")
    with pytest.raises(ConfigError):
        require("notify", "no_such_package_of_all", "It")
