"""cli/report.py: a page that loads nothing, and in which what the log says is text. Where Chromium is installed, the
page is opened in it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.unit.cli.shelf import EVIL, KEYS, SECRET, Run, Shelf, commit, full, intent, payload
from tests.unit.cli.test_restore import Story
from wal_agent.cli import report
from wal_agent.cli.log import entries_of
from wal_agent.cli.report import MARK, MAX_FILE, embed_json, files_json, how_starts_ended, render_page
from wal_agent.records import (
    AgentStarted,
    AnyRecord,
    End,
    ExitClass,
    Host,
    Opening,
    Recovery,
    RunEnded,
    Verdict,
    Workspace,
)
from wal_agent.recovery.compare_trees import first_capture, tree_steps
from wal_agent.recovery.restore_target import RestoreTarget
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.reader import iter_segments
from wal_agent.wal.store import JobStore

BREAKS_OUT = "</script><script>document.title='owned'</script><img src=http://127.0.0.1:9/ onerror=alert(1)>"


class Page(HTMLParser):
    """Tags with their fields, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.held: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.held.append((self.tags[-1][0], data))

    @property
    def data(self) -> Any:
        return json.loads(next(text for kind, text in self.held if kind == "script"))


def hostile(folder: Path) -> Shelf:
    """A job whose every text tries to become part of the page."""
    shelf = full(folder)
    job = shelf.open(run="b", host=BREAKS_OUT)
    job.writer.append(intent(3, tool=BREAKS_OUT, command=BREAKS_OUT))
    job.writer.append(End(time=6.0, call=3, how="done", by="hook", result=payload({"out": BREAKS_OUT})))
    job.writer.append(intent(4, command="git tag v1"))
    told = f"{BREAKS_OUT} {'long ' * 2000} the end"
    verdicts = (Verdict(call=4, finding="unknown", why=BREAKS_OUT),)
    job.writer.append(Recovery(time=7.0, from_epoch=1, verdicts=verdicts, told=told))
    commit(job)
    return shelf


def written(run: Run, shelf: Shelf, tmp_path: Path) -> str:
    code, out, err = run("report", "--bucket", shelf.url, "--job", "shop", "--html", str(tmp_path / "r.html"))
    assert (code, out) == (0, "") and "r.html" in err
    return (tmp_path / "r.html").read_text("utf-8")


def test_the_page_loads_nothing_and_runs_only_its_own_script(tmp_path: Path, run: Run) -> None:
    text = written(run, hostile(tmp_path / "b"), tmp_path)
    page = Page(text)
    policy = next(f["content"] or "" for tag, f in page.tags if f.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    scripts = [held for kind, held in page.held if kind == "script"]
    assert len(scripts) == 2  # the data and the code: nothing broke out
    for kind, held in (("script", scripts[1]), next(one for one in page.held if one[0] == "style")):
        hash = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{hash}'" in policy
    for _, fields in page.tags:
        assert not {"src", "href", "action", "style"} & set(fields)
        assert not any(name.startswith("on") for name in fields)
    assert "innerHTML" not in scripts[1] and "insertAdjacent" not in scripts[1] and "eval(" not in scripts[1]
    assert "url(" not in text.split("</style>")[0] and "@import" not in text.split("</style>")[0]


def test_the_data_is_the_log_without_secrets(tmp_path: Path, run: Run) -> None:
    text = written(run, hostile(tmp_path / "b"), tmp_path)
    assert SECRET not in text and EVIL not in text and text.startswith(MARK)
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)
    data = Page(text).data
    types = {one["type"] for one in data["entries"]}
    assert {"opening", "intent", "end", "recovery", "checkpoint", "compaction", "step_begun", "workspace"} <= types
    call = next(one for one in data["entries"] if one["type"] == "intent" and one["call"] == 3)
    assert call["tool"] == BREAKS_OUT
    assert data["entries"][-1]["told"].endswith("the end")  # the whole prompt
    effects = {one.get("call"): one for one in data["effects"]}
    assert effects[4]["undo"]["commands"] == ["git tag -d v1"] and effects[3]["result"] == "done"


def test_embedded_json_ends_no_element() -> None:
    text = embed_json({"a": "</script><!--&\u2028\u202e]]>"})
    assert not set("<>&") & set(text) and text.isascii()
    assert json.loads(text) == {"a": "</script><!--&\u2028\u202e]]>"}
    assert embed_json([float("nan"), float("inf")]) == "[null, null]"  # a hostile record; a browser reads no NaN
    page = render_page("Job <b>@DATA@", "@SCRIPT@", [{"type": "x", "text": "@STYLE@ @"}], [])
    assert "Job &lt;b&gt;@DATA@" in page and Page(page).data["entries"][0]["text"] == "@STYLE@ @"


def test_only_a_report_is_replaced(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    at = ("report", "--bucket", shelf.url, "--job", "shop", "--html")
    mine, link, target = tmp_path / "mine.html", tmp_path / "link.html", tmp_path / "target"
    mine.write_text("my own page")
    target.write_text(MARK)
    link.symlink_to(target)
    for path in (mine, link, tmp_path / "none" / "r.html", tmp_path):
        assert run(*at, str(path))[0] == 64
    assert mine.read_text() == "my own page" and target.read_text() == MARK
    assert run(*at, str(tmp_path / "r.html"))[0] == 0 and run(*at, str(tmp_path / "r.html"))[0] == 0
    assert (tmp_path / "r.html").stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".r.html")]
    code, out, err = run(*at, "-")
    assert (code, err) == (0, "") and out.startswith(MARK)
    assert run(*at, "-", "--open")[0] == 64


def test_no_job_is_64_and_damage_is_73_with_the_rest(tmp_path: Path, run: Run) -> None:
    shelf = full(tmp_path / "b")
    assert run("report", "--bucket", shelf.url, "--job", "none", "--html", "-")[0] == 64
    seqs = sorted(entry.key for entry in shelf.bucket.list(KEYS.log))
    shelf.bucket.delete(seqs[9])
    shelf.bucket.put(seqs[9], b"junk")
    code, out, err = run("report", "--bucket", shelf.url, "--job", "shop", "--html", "-")
    assert code == 73 and "damaged" in err and Page(out).data["entries"]


def test_each_capture_has_what_it_changed_and_the_calls_that_did_it(tmp_path: Path, run: Run) -> None:
    story = Story(tmp_path)
    records = [story.step("one"), story.step(f"{SECRET}")]
    (story.work / "one.sh").unlink()
    records.append(story.step(BREAKS_OUT.replace("/", "")))
    where = ["report", *story.where, "--html", str(tmp_path / "r.html")]
    assert run(*where)[0] == 0 and Page((tmp_path / "r.html").read_text("utf-8")).data["trees"] == []
    code, _, err = run(*where, "--diffs")
    text = (tmp_path / "r.html").read_text("utf-8")
    second, third = Page(text).data["trees"]
    assert code == 0 and SECRET not in text, err
    assert [(each["record"], each["after"], each["to"]) for each in (second, third)] == [
        (records[1], 0, 1),
        (records[2], 1, 2),
    ]
    assert {"path": "a.txt", "change": "changed"} in second["files"] and "-one" in second["patch"]
    assert {"path": "one.sh", "change": "removed"} in third["files"] and BREAKS_OUT.replace("/", "") in third["patch"]


def test_a_capture_that_is_damaged_leaves_the_others(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for text in ("one", "two", "three"):
        story.step(text)
    bucket = story.shelf.bucket
    records = [
        (e.seq, e.record) for e in entries_of(list(iter_segments(bucket, KEYS))) if isinstance(e.record, Workspace)
    ]
    records[1] = (records[1][0], msgspec.structs.replace(records[1][1], commit="0" * 40))
    first = first_capture(bucket, KEYS)
    assert first is not None
    target = RestoreTarget(story.work, tmp_path / "state", {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    blobs = Blobs(JobStore(bucket, KEYS, rng=random.Random(1)))
    bad, good = tree_steps(first, records, target, blobs, 9)
    assert bad.why and not bad.files and (bad.after, bad.to) == (0, 1)
    assert not good.why and (good.after, good.to) == (0, 2)
    assert [each.path for each in good.files] == ["a.txt", "three.sh", "two.sh"]
    assert [step.record for step in tree_steps(first, records, target, blobs, 1)] == [good.record]


def test_session_and_tree_are_those_of_the_place_asked_for(tmp_path: Path, run: Run) -> None:
    story = Story(tmp_path)
    first = story.step(f"one {SECRET}".replace(" ", "-"))
    story.step("two")
    code, _, err = run("report", *story.where, "--html", str(tmp_path / "r.html"), "--at", str(first))
    text = (tmp_path / "r.html").read_text("utf-8")
    found = Page(text).data
    assert code == 0 and SECRET not in text, err
    assert found["then"]["record"] == first == max(entry["record"] for entry in found["entries"])
    assert found["then"]["open"] == [{"call": 1, "state": "open"}] and not found["then"]["short"]
    assert found["then"]["files"][0]["path"] == "a.txt" and len(found["then"]["files"]) == 2
    assert found["then"]["files"][0]["text"] == "one-[redacted]"
    assert found["then"]["session"][0]["text"].startswith("one-") and "two" not in found["then"]["session"][0]["text"]
    assert run("report", *story.where, "--html", str(tmp_path / "r.html"), "--at", "99")[0] == 64


def test_the_files_of_a_place_that_the_job_changed_come_first(tmp_path: Path, run: Run) -> None:
    story = Story(tmp_path)
    for text in ("one", "two"):
        last = story.step(text)
    assert run("report", *story.where, "--html", str(tmp_path / "r.html"), "--at", str(last))[0] == 0
    files = Page((tmp_path / "r.html").read_text("utf-8")).data["then"]["files"]
    assert [(f["path"], f.get("change"), f["text"]) for f in files] == [
        ("a.txt", "changed", "two"),
        ("two.sh", "added", "#!/bin/sh\n"),
        ("one.sh", None, "#!/bin/sh\n"),
    ]


def test_texts_of_files_are_cut_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not of this tree")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "binary").write_bytes(b"\0" + b"x" * 10)
    (tree / "key").write_text(f"token = {SECRET}\n")
    (tree / "link").symlink_to(outside)
    (tree / "long").write_text("y" * (2 * MAX_FILE))
    found = {each["path"]: each for each in files_json({path.name: path for path in tree.iterdir()}, {"long": "added"})}
    assert [*found] == ["long", "binary", "key", "link"]
    assert found["long"]["cut"] and len(found["long"]["text"]) == MAX_FILE and found["long"]["size"] == 2 * MAX_FILE
    assert "text" not in found["binary"] and found["binary"]["size"] == 11
    assert SECRET not in json.dumps(found) and not found["key"]["cut"]
    assert "text" not in found["link"] and found["link"]["link"] == str(outside)


def test_texts_of_files_end_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_TREE", 12)
    monkeypatch.setattr(report, "MAX_FILES", 3)
    for name in "abcd":
        (tmp_path / name).write_text("0123456789")
    found = files_json({name: tmp_path / name for name in "abcd"}, {})
    assert [(each["path"], each.get("text"), each.get("cut")) for each in found] == [
        ("a", "0123456789", False),
        ("b", "01", True),
        ("c", None, None),
    ]


def test_each_start_says_how_it_ended() -> None:
    """A crash is one as `status` counts it: a lost machine, and an agent that died."""

    started = AgentStarted(time=1.0, pid=1, session="s", resumed=False)
    host = Host(name="vm", boot="", pidns="", pid=1, lock="")

    def opened(epoch: int, cause: Literal["first", "closed", "released", "dead"]) -> Opening:
        fields: dict[str, Any] = {"agent": "a", "agent_version": "1", "version": "1", "workspace": "/"}
        return Opening(time=1.0, run="r", epoch=epoch, cause=cause, host=host, **fields)

    def ended(code: int, cls: ExitClass, completed: bool = False) -> RunEnded:
        return RunEnded(time=1.0, code=code, completed=completed, cls=cls)

    log: list[AnyRecord] = [opened(1, "first"), opened(2, "dead"), ended(-9, "killed"), opened(3, "released")]
    log += [ended(0, "completed", True), opened(4, "closed")]
    ends = how_starts_ended(log, over=True)
    assert [ends[n][0] for n in (1, 2, 3, 4)] == ["lost", "killed", "completed", "no agent"]
    assert [n for n, (_, crash) in ends.items() if crash] == [1, 2]
    assert how_starts_ended([*log, started], over=False)[4] == ("running, or cut off", False)
