"""Build what is published, in dist/: `python -m scripts.dist` (make dist); `--measure` also installs it, prints sizes.

The source distribution, the wheel with the compiled hook client (its platform tags are proved in build_hooks.py), the
wheel without it for all other platforms, and SHA256SUMS.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
EXTRAS = ("", "[all]")


def build() -> list[Path]:
    """Replace dist/; return the files in it. CalledProcessError: hatchling failed."""
    shutil.rmtree(DIST, ignore_errors=True)
    code = f"import hatchling.build as b; b.build_sdist({str(DIST)!r})"
    DIST.mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    (sdist,) = DIST.glob("*.tar.gz")
    for compiler in (os.environ.get("CC", "cc"), "false"):  # "false": no client, so a wheel for all
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*words, "-w", str(DIST), str(sdist)], env={**os.environ, "CC": compiler}, check=True)
    made = sorted(DIST.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (DIST / "SHA256SUMS").write_text(sums)
    return made


def size(folder: Path) -> int:
    """Bytes on disk, as `du` counts them."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def measure(wheel: Path) -> None:
    """Print size, packages and seconds of an installation in an empty HOME, without extras and with all."""
    for extras in EXTRAS:
        with tempfile.TemporaryDirectory(prefix="wal-agent-") as folder:
            home = Path(folder)
            env = {**os.environ, "HOME": folder, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(home / "venv"), "install", "--quiet"]
            subprocess.run([*pip, f"{wheel}{extras}"], env=env, check=True)
            seconds = time.monotonic() - start
            packages = len(list((home / "venv").glob("lib/python*/site-packages/*.dist-info")))
            program = str(home / "venv" / "bin" / "wal-agent")
            subprocess.run([program, "--help"], env=env, check=True, stdout=subprocess.DEVNULL)
            megabytes = size(home / "venv") / 1e6
            print(f"wal-agent{extras}: {megabytes:.1f} MB, {packages} packages, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    made = build()
    for path in made:
        print(f"{path.stat().st_size:>9} {path.name}")
    if parser.parse_args().measure:
        measure(next(path for path in made if path.suffix == ".whl" and "-any" not in path.name))


if __name__ == "__main__":
    main()
