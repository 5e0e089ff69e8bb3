"""What the docs show of `rules check` and `effects` is what the program prints; install lines that work stand first."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import Run, Shelf, commit, intent
from wal_agent.records import End, Recovery, Verdict

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
    assert SAMPLES


@pytest.mark.parametrize("name", ["README.md", "docs/README.md"])
def test_the_first_install_line_needs_no_index_with_wal_agent(name: str) -> None:
    text = (ROOT / name).read_text()
    block = text[text.index("## Install") :].partition("```\n")[2]
    assert block.startswith(CLONE + "\n")
    for line in ("uvx wal-agent", "uv tool install wal-agent", "npx wal-agent"):
        assert line not in text or text.index("Not published yet") < text.index(line)


def test_the_sample_of_effects_is_what_the_program_prints(run: Run, tmp_path: Path) -> None:
    """But for the numbers of records, times and hosts."""
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    for number, line in ((27, "npm publish"), (30, "helm upgrade shop ./chart -n prod")):
        job.writer.append(replace(intent(number, command=line), cls="mutation"))
        job.writer.append(End(time=6.0, call=number, how="done", by="hook"))
    job.writer.append(intent(31, command="./deploy.sh staging"))
    verdict = Verdict(call=31, finding="unknown", why="", verify="./deploy.sh --status staging")
    job.writer.append(Recovery(time=2.0, from_epoch=1, told="", verdicts=(verdict,)))
    commit(job)
    shelf.open(run="b", host="vm-2")
    code, out, err = run("effects", "--bucket", shelf.url, "--job", "shop")
    assert code == 0, err
    text = (ROOT / "docs/REPORT.md").read_text()
    (sample,) = re.findall(r"^\$ wal-agent effects\n((?:(?!```).*\n)+)", text, re.M)
    where = re.compile(r"^ +\d+  [\d: -]+ \w+ on \S+", re.M)
    assert where.sub("", out).replace(f" --bucket {shelf.url}", "") == where.sub("", sample)
