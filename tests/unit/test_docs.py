"""The docs: links resolve, named files exist, generated pages are current; and GitHub's files run what make runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from scripts import reference, scripted_model
from wal_agent.cli.help import EXAMPLES
from wal_agent.config import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(`{3,}).*?^\1`*$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:(?:wal_agent|tests|scripts|bench|hooks|deploy)/)?[\w./*<>@-]*[\w*>](?:/|\.\w+)")


def pages() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    texts = ("tests/", "wal_agent/")  # of the program
    found = [ROOT / name for name in done.stdout.split("\0") if name and not name.startswith(texts)]
    return [page for page in found if page.is_file()]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in FENCE.sub("", page.read_text()).splitlines() if line.startswith("#")}


def dead_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or not path.is_relative_to(ROOT):
            yield f"{page.relative_to(ROOT)}: {target}: no such file"
        elif anchor and (path.suffix != ".md" or anchor not in anchors(path)):
            yield f"{page.relative_to(ROOT)}: {target}: no such heading"


def test_every_relative_link_and_anchor_leads_somewhere() -> None:
    assert len(pages()) > 40
    assert [dead for page in pages() for dead in dead_links(page)] == []


def test_dead_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text(
        "# One `two`: three\n[a](#one-two-three) [b](b.md) [c](a.md#four)\n```\n[d](d.md)\n```\n[e](../e.md)"
    )
    assert list(dead_links(page)) == [
        "a.md: b.md: no such file",
        "a.md: a.md#four: no such heading",
        "a.md: ../e.md: no such file",
    ]


def missing_paths(page: Path) -> Iterator[str]:
    """Code spans that name a file of this repository which is not there. Modules may be named below wal_agent, tests
    below tests; `<agent>` stands for anything."""
    text = FENCE.sub("", page.read_text())
    new = set(re.findall(r"Create\s+`([^`]+)`", text))  # a how-to's example
    for span in CODE.findall(text):
        if (
            span in new
            or not PATH.fullmatch(span)
            or not (span.endswith(".py") or re.match(r"(wal_agent|tests|bench|deploy)/", span))
        ):
            continue
        pattern = re.sub(r"<\w+>", "*", span).rstrip("/")
        roots = (ROOT, ROOT / "wal_agent", ROOT / "tests") if "/" in span else (ROOT,)
        pattern = pattern if "/" in span else f"[!.]*/**/{pattern}"
        if not any(next(root.glob(pattern), None) for root in roots):
            yield f"{page.relative_to(ROOT)}: {span}"


def test_files_that_the_docs_name_exist() -> None:
    changelog = ROOT / "CHANGELOG.md"  # names deleted files too
    assert [name for page in pages() if page != changelog for name in missing_paths(page)] == []


@cache
def generated() -> dict[str, str]:
    return reference.pages()


def test_each_row_of_the_coverage_names_a_test_that_exists() -> None:
    text = (ROOT / "tests/COVERAGE.md").read_text()
    rows = re.findall(r"^- .+$", text, re.M)
    named = [match for row in rows if (match := re.fullmatch(r"- .+: `(tests/[\w/]+\.py)::(test_\w+)`", row))]
    words = [row for row in rows if re.fullmatch(r"- .+: not .+", row) and "tests/" not in row]
    assert len(named) + len(words) == len(rows) > 30
    assert [match[0] for match in named if f"\ndef {match[2]}(" not in (ROOT / match[1]).read_text()] == []


def test_the_stores_that_tests_use_are_named_with_their_versions() -> None:
    table = (ROOT / "docs/BUCKETS.md").read_text()
    pins = (ROOT / "requirements/servers.txt").read_text()
    used = dict(re.findall(r"(?m)^(ministack|moto|gcp-storage-emulator)==(.+)$", pins))
    used |= {
        name: row["version"] for name, row in json.loads((ROOT / "tests/servers/packages.json").read_text()).items()
    }
    used["Ceph RGW"] = re.findall(r"(?m)^version=(\S+)", (ROOT / "scripts/ceph-gateway").read_text())[0]
    assert len(used) == 6
    assert [f"{name} {at}" for name, at in used.items() if f"{name} {at}".lower() not in table.lower()] == []


def test_generated_pages_are_current() -> None:
    """Make them with: python -m scripts.reference"""
    assert [name for name, text in generated().items() if (ROOT / "docs" / name).read_text() != text] == []
    assert {f"man/{path.name}" for path in (ROOT / "docs/man").iterdir()} <= generated().keys()


def test_a_manual_page_has_the_whole_help_of_its_command() -> None:
    """Examples, each option, and, of a group, each command in it; no text is taken for a macro."""
    manual = {Path(name).stem: text for name, text in generated().items() if name.startswith("man/")}
    assert {f"wal-agent-{words.replace(' ', '-')}" for words in EXAMPLES} | {"wal-agent", "wal-agent-fleet"} <= set(
        manual
    )
    for name, text in manual.items():
        lines = text.splitlines()
        macros = {line.split()[0] for line in lines if line[:1] in (".", "'")}
        assert macros <= {'.\\"', ".TH", ".SH", ".PP", ".TP", ".nf", ".fi", ".ad", ".nh"}, name
        plain = text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace("\\(ti", "~")
        words = name.removeprefix("wal-agent-").replace("-", " ")
        for example in EXAMPLES.get(words, ()):
            assert f"\n{example}\n" in plain, (name, example)
    run = manual["wal-agent-run"].replace("\\-", "-")
    options = [f"--{name.replace('_', '-')}" for name, setting in SETTINGS.items() if setting.option]
    assert [option for option in options if f"\n\\fB{option}" not in run] == []
    assert "wal-agent-fleet-ls(1)" in manual["wal-agent-fleet"].replace("\\-", "-")


def test_no_page_of_the_site_links_out_of_it() -> None:
    """The site holds docs/ alone; mkdocs --strict would refuse such a link too, but only in `make docs`."""
    for page in (ROOT / "docs").rglob("*.md"):
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            if not re.match(r"[a-z]+:", target) and target.partition("#")[0]:
                assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(ROOT / "docs"), (page, target)


def test_the_index_of_decisions_lists_each_once_in_order() -> None:
    folder = ROOT / "docs/decisions"
    names = sorted(page.name for page in folder.glob("[0-9]*.md"))
    assert LINK.findall((folder / "README.md").read_text().partition("| | decision |")[2]) == names
    assert len({name[:3] for name in names}) == len(names)
    for name in names:
        text = (folder / name).read_text()
        assert re.match(rf"# {name[:3]}\. .+\n\n## Context\n", text) and "\n## Decision\n" in text, name
        assert "\n## Consequences\n" in text, name


# ---- GitHub's files


def test_the_workflow_runs_what_make_test_all_runs() -> None:
    """actionlint checks the rest (`make lint`)."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len([run for run in runs if run.endswith("make test-all")]) == 1
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_an_issue_form_has_what_github_asks_of_it(form: Path) -> None:
    found = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(found)
    ids = [item["id"] for item in found["body"] if item["type"] != "markdown"]
    assert ids and len(ids) == len(set(ids))
    for item in found["body"]:
        assert item["type"] in {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert ("value" if item["type"] == "markdown" else "label") in item["attributes"]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entries = [hook["entry"] for hook in repos[0]["hooks"]]
    assert [entry.split()[0] for entry in entries] == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/mypy"]


# ---- the tutorial's model


def test_the_tutorials_model_serves_until_it_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.scripted_model", "gemini", str(tmp_path / "home"), "true"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as model:
        assert model.stdout is not None
        line = model.stdout.readline()
        model.terminate()
    url = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert model.returncode == 0 and url is not None
    assert url.group() in (tmp_path / "home/env").read_text()


@pytest.mark.parametrize("args", [[], ["gemini", "home"], ["nobody", "home", "true"], ["generic", "home", "true"]])
def test_the_tutorials_model_needs_an_agent_with_a_model_and_commands(args: list[str]) -> None:
    assert scripted_model.main(args) == 64
