"""What the docs show of `rules check` is what the program prints; install lines that work stand first."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run

ROOT = Path(__file__).parents[3]
SAMPLE = re.compile(r"^\$ wal-agent (rules check .*)\n((?:(?!```|\$ ).*\n)+)", re.M)
SAMPLES = [
    (path.relative_to(ROOT), *found)
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for found in SAMPLE.findall(path.read_text())
]
RULES = re.compile(r"```toml\n(\[\[rules\]\]\n.*?)```", re.S)
CLONE = 'python3 -m venv ~/.wal-agent && ~/.wal-agent/bin/pip install . && export PATH="$HOME/.wal-agent/bin:$PATH"'


@pytest.mark.parametrize(("page", "words", "said"), SAMPLES, ids=[f"{page.name}-{words}" for page, words, _ in SAMPLES])
def test_a_sample_is_what_the_program_prints(run: Run, page: Path, words: str, said: str) -> None:
    """With the rules of the page as the project's."""
    if rules := RULES.findall((ROOT / page).read_text()):
        Path("wal-agent.toml").write_text("\n".join(rules))
    code, out, err = run(*shlex.split(words))
    assert code == 0, err
    assert out == said


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 3


@pytest.mark.parametrize("name", ["README.md", "docs/README.md"])
def test_the_first_install_line_needs_no_index_with_wal_agent(name: str) -> None:
    text = (ROOT / name).read_text()
    block = text[text.index("## Install") :].partition("```\n")[2]
    assert block.startswith(CLONE + "\n")
    for line in ("uvx wal-agent", "uv tool install wal-agent", "npx wal-agent"):
        assert line not in text or text.index("Not published yet") < text.index(line)
