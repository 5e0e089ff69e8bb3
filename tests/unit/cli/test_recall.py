"""conversation/recall.py and cli/recall.py: what a job ever said is found, also without the index, and redacted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.shelf import EVIL, KEYS, SECRET, Run, Shelf, commit, intent, payload
from wal_agent.conversation.recall import Query, index_path, matches, recall
from wal_agent.records import Compaction, Edit, End, FileDelta, FileGone, Handoff, StepBegun, StepEnded, Turn
from wal_agent.wal.job import OpenedJob


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "b")


def saved(*texts: str, session: str = "s", before: bytes = b"") -> tuple[FileDelta, bytes]:
    """A capture that appends a line for each text to the session's file; all of the file."""
    added = b"".join(
        json.dumps({"type": "user", "message": {"role": "user", "content": t}}).encode() + b"\n" for t in texts
    )
    whole = before + added
    digest = hashlib.sha256(whole).hexdigest()
    edits = (Edit(offset=len(before), data=payload(added)),)
    return FileDelta(time=7.0, path="main.jsonl", size=len(whole), sha256=digest, edits=edits, session=session), whole


def begun(shelf: Shelf) -> tuple[OpenedJob, bytes]:
    job = shelf.open()
    delta, whole = saved("the heron sleeps", "in building seven")
    job.writer.append(
        Turn(time=2.0, state="started", session="s", prompt=payload(b"move the shop")),
        intent(1, command=f"deploy --token {SECRET} {EVIL} to production"),
        End(time=6.0, call=1, how="failed", by="hook", why="no quota", result=payload({"out": f"lapwing {SECRET}"})),
        delta,
    )
    commit(job)
    return job, whole


def hits(run: Run, shelf: Shelf, *args: str) -> list[dict[str, object]]:
    code, out, _ = run("recall", *args, "--bucket", shelf.url, "--job", "shop", "--json")
    found: list[dict[str, object]] = json.loads(out)["hits"]
    assert code == (0 if found else 1)
    return found


def test_log_and_conversation_are_searched(shelf: Shelf, run: Run) -> None:
    begun(shelf)
    assert [(h["kind"], h["role"]) for h in hits(run, shelf, "heron")] == [("message", "user")]
    assert [(h["kind"], h["call"]) for h in hits(run, shelf, "production")] == [("call", 1)]
    assert [h["kind"] for h in hits(run, shelf, "lapwing")] == ["result"]
    assert [h["kind"] for h in hits(run, shelf, "move", "shop")] == ["prompt"]
    assert [h["kind"] for h in hits(run, shelf, "--call", "1")] == ["call", "result"]
    assert hits(run, shelf, "heron", "--role", "assistant") == []
    assert hits(run, shelf, "nowhere") == []
    assert len(hits(run, shelf, "heron", "building")) == 2, "nothing has both, so each counts"


def test_steps_are_searched(shelf: Shelf, run: Run) -> None:
    job, _ = begun(shelf)
    command = ("mail", "--token", SECRET, "the-report")
    job.writer.append(
        StepBegun(time=8.0, name="send", command=command),
        StepEnded(time=9.0, name="send", how="done", stdout=payload(b"a wagtail left"), stdout_size=14),
    )
    commit(job)
    assert [(h["kind"], h["tool"]) for h in hits(run, shelf, "the-report")] == [("call", "step send")]
    assert [h["kind"] for h in hits(run, shelf, "wagtail")] == ["result"]
    assert SECRET not in json.dumps(hits(run, shelf, "mail"))


def test_no_secret_and_no_control_character_is_shown(shelf: Shelf, run: Run) -> None:
    begun(shelf)
    code, out, err = run("recall", "deploy", "--bucket", shelf.url, "--job", "shop")
    assert code == 0 and "production" in out
    assert SECRET not in out + err and "\x1b" not in out + err
    assert all(
        SECRET not in json.dumps(hits(run, shelf, *words)) for words in (["deploy"], ["lapwing"], ["--call", "1"])
    )


def test_it_goes_on_from_what_it_knows(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    """A second search reads only what is new, and nothing is found twice."""
    job, whole = begun(shelf)
    assert hits(run, shelf, "heron")
    delta, _ = saved("a crane came", before=whole)
    job.writer.append(intent(2, command="echo crane"), delta)
    commit(job)
    assert sorted(str(h["kind"]) for h in hits(run, shelf, "crane")) == ["call", "message"]
    assert len(hits(run, shelf, "heron")) == 1
    with closing(sqlite3.connect(index_of(tmp_path))) as index:
        lines = index.execute("SELECT at FROM entry WHERE name = 'main.jsonl'").fetchall()
    assert len(lines) == len(set(lines)) == 3


def index_of(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "home" / ".local" / "state" / "wal-agent" / "recall").glob("*.sqlite")
    return path


def test_what_log_and_conversation_both_say_is_shown_once(shelf: Shelf, run: Run) -> None:
    job, whole = begun(shelf)
    delta, _ = saved("move the shop", before=whole)
    job.writer.append(delta)
    commit(job)
    assert len(hits(run, shelf, "move", "shop")) == 1


def test_call_and_result_stand_once_with_their_number(shelf: Shelf, run: Run) -> None:
    """The log has them, and the conversation does, in the agent's own spelling and up to three times."""
    job, whole = begun(shelf)
    lines: list[dict[str, object]] = [
        {
            "type": "assistant",
            "content": [{"type": "tool_use", "name": "Bash", "input": {"command": "echo crane flies"}}],
        },
        {"type": "user", "content": [{"type": "tool_result", "content": "the crane\nis out"}]},
        {"type": "gemini", "toolCalls": [{"args": {"command": "echo crane flies"}, "result": "Output: the crane"}]},
        {"type": "assistant", "content": "I saw the crane."},
    ]
    added = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    digest = hashlib.sha256(whole + added).hexdigest()
    edit = Edit(offset=len(whole), data=payload(added))
    result = payload({"stdout": "the crane\nis out"})
    job.writer.append(
        intent(2, command="echo crane flies"),
        End(time=8.0, call=2, how="done", by="hook", result=result),
        FileDelta(time=9.0, path="main.jsonl", size=len(whole + added), sha256=digest, edits=(edit,), session="s"),
    )
    commit(job)
    found = [(h["kind"], h["call"]) for h in hits(run, shelf, "crane")]
    assert sorted(map(str, found)) == ["('call', 2)", "('message', 0)", "('result', 2)"]


def test_what_a_session_said_before_it_was_written_anew_is_found_once(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    """A recovery writes Gemini's session without what a compaction took out of it; no search has been before."""
    job, _ = begun(shelf)
    compacted, _ = saved("a crane came", "the heron sleeps")
    job.writer.append(compacted)
    commit(job)
    for _ in range(2):
        assert [h["text"] for h in hits(run, shelf, "seven")] == ["in building seven"]
        assert [h["text"] for h in hits(run, shelf, "heron")] == ["the heron sleeps"]
        assert len(hits(run, shelf, "crane")) == 1
    index_of(tmp_path).unlink()
    assert [h["text"] for h in hits(run, shelf, "seven")] == ["in building seven"]


@pytest.mark.parametrize("word", ["数据库", "升级", "データ", "移行", "데이터", "ข้อมูล"])
def test_a_word_is_found_inside_a_sentence_without_blanks(word: str, shelf: Shelf, run: Run) -> None:
    job, whole = begun(shelf)
    delta, _ = saved("我们把数据库升级到v2了。", "データを移行しました", "그데이터베이스는", "ย้ายข้อมูลแล้ว", before=whole)
    job.writer.append(delta)
    commit(job)
    assert len(hits(run, shelf, word)) == 1 and word in str(hits(run, shelf, word)[0]["text"])
    assert hits(run, shelf, word[::-1] + "火") == []


def test_a_regular_expression_is_searched(shelf: Shelf, run: Run) -> None:
    begun(shelf)
    assert [h["text"] for h in hits(run, shelf, "--regex", r"HERON\s+sl[e]{2}ps$")] == ["the heron sleeps"]
    assert hits(run, shelf, "--regex", "heron$") == []
    assert run("recall", "--regex", "(", "--bucket", shelf.url, "--job", "shop")[0] == 64
    assert run("recall", "--regex", "x", "word", "--bucket", shelf.url, "--job", "shop")[0] == 64


def test_the_id_of_a_session_is_no_secret(shelf: Shelf, run: Run) -> None:
    job = shelf.open()
    for id in ("ses_5a1bXyZk9ffe3QmT0pLr8sVwNu", "5f85750a-c8c2-4277-a25c-c671b0a1d0cc", SECRET):
        job.writer.append(FileGone(time=8.0, path="main.jsonl"), saved(f"heron of {id[:3]}", session=id)[0])
        commit(job)
        shown = id if id != SECRET else "[redacted]"
        assert hits(run, shelf, "heron", id[:3])[0]["session"] == shown


def test_a_second_search_waits_for_the_first_ones_index(shelf: Shelf, tmp_path: Path) -> None:
    """It neither reads the log at the same time, nor takes the index for broken and deletes it."""
    job, _ = begun(shelf)
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    lock = index_path(shelf.bucket, KEYS, env).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with lock.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        told: list[int] = []

        def progress(done: int) -> None:
            told.append(done)
            fcntl.flock(first, fcntl.LOCK_UN)

        found = recall(shelf.bucket, KEYS, job.blobs, Query(("heron",)), env, progress=progress)
    assert told == [-1] and [hit.text for hit in found] == ["the heron sleeps"]


def test_an_earlier_search_goes_behind_what_it_found(shelf: Shelf, run: Run) -> None:
    """It holds the same words, shorter, so that its rank is better: the third search would find only searches."""
    job, whole = begun(shelf)
    printed = "user · session 01a2b3c4 · 14:02:13 UTC\n heron"
    delta, _ = saved("wal-agent recall heron", printed, f"the heron {'and so on ' * 30}", before=whole)
    job.writer.append(delta)
    commit(job)
    texts = [str(h["text"]) for h in hits(run, shelf, "heron")]
    assert [text.startswith("the heron") for text in texts] == [True, True, False]


def test_another_log_in_the_same_place_is_another_log(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    begun(shelf)
    assert hits(run, shelf, "heron")
    shutil.rmtree(tmp_path / "b")
    job = shelf.open()
    job.writer.append(intent(1, command="echo crane"))
    commit(job)
    job.writer.append(intent(2, command="echo stork"))
    commit(job)
    assert hits(run, shelf, "heron") == []
    assert len(hits(run, shelf, "crane")) == len(hits(run, shelf, "stork")) == 1


@pytest.mark.parametrize("harm", ["gone", "junk"])
def test_the_index_is_built_again(shelf: Shelf, run: Run, tmp_path: Path, harm: str) -> None:
    begun(shelf)
    assert hits(run, shelf, "heron")
    path = index_of(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(b"SQLite format 3\0" + b"x" * 9000)
    assert [h["kind"] for h in hits(run, shelf, "heron")] == ["message"]


def test_an_index_of_another_version_is_built_again(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    begun(shelf)
    assert hits(run, shelf, "heron")
    with closing(sqlite3.connect(index_of(tmp_path))) as index, index:
        index.execute("UPDATE meta SET value = '0' WHERE key = 'version'")
        index.execute("DELETE FROM entry")
    assert [h["kind"] for h in hits(run, shelf, "heron")] == ["message"]


def test_what_was_there_before_a_compaction(shelf: Shelf, run: Run) -> None:
    job, whole = begun(shelf)
    job.writer.append(Compaction(time=8.0, n=1, session="s"))
    delta, _ = saved("the heron woke", before=whole)
    job.writer.append(delta, intent(2, command="echo heron"))
    commit(job)
    assert len(hits(run, shelf, "heron")) == 3
    assert [h["text"] for h in hits(run, shelf, "heron", "--before", "1")] == ["the heron sleeps"]
    assert len(hits(run, shelf, "heron", "--before", "1", "--role", "user")) == 1
    assert hits(run, shelf, "heron", "--before", "1", "--role", "tool") == []
    every = hits(run, shelf, "--before", "1")
    assert [h["time"] for h in every] == [6.0, 5.0, 2.0, 0, 0]  # lines of this session have no time
    assert "the heron woke" not in [h["text"] for h in every]
    assert run("recall", "heron", "--before", "9", "--bucket", shelf.url, "--job", "shop")[0] == 64


def test_a_session_that_was_left_is_still_found(shelf: Shelf, run: Run) -> None:
    job, _ = begun(shelf)
    assert hits(run, shelf, "heron")
    delta, _ = saved("a new one", session="t")
    job.writer.append(delta)
    commit(job)
    assert [h["session"] for h in hits(run, shelf, "heron")] == ["s"]
    assert [h["session"] for h in hits(run, shelf, "new", "one")] == ["t"]


def test_a_session_that_no_search_has_seen_is_found_when_it_was_left(shelf: Shelf, run: Run) -> None:
    job, _ = begun(shelf)
    delta, _ = saved("a new one", session="t")
    job.writer.append(FileGone(time=8.0, path=delta.path), delta)
    commit(job)
    assert [h["session"] for h in hits(run, shelf, "heron")] == ["s"]
    assert [h["session"] for h in hits(run, shelf, "new", "one")] == ["t"]


def test_the_conversation_with_the_agent_before_is_found(shelf: Shelf, run: Run) -> None:
    job, _ = begun(shelf)
    job.writer.append(Handoff(time=8.0, before="gemini", agent="claude"))
    commit(job)
    assert [h["session"] for h in hits(run, shelf, "heron")] == ["s"]


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5))
def test_words_are_never_syntax(words: list[str]) -> None:
    index = sqlite3.connect(":memory:")
    index.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
    index.execute("INSERT INTO words VALUES ('a NEAR b OR c AND \"d\" *')")
    for match in matches([word.replace("\ud800", "") for word in words]):
        index.execute(
            "SELECT text FROM words WHERE words MATCH ?", (match.encode("utf-8", "replace").decode(),)
        ).fetchall()
    index.close()


def test_a_question_without_words_is_refused(run: Run) -> None:
    assert run("recall")[0] == 64 and run("recall", "x", "--role", "nobody")[0] == 64


def test_two_buckets_have_two_indexes(tmp_path: Path) -> None:
    a, b = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    assert index_path(a.bucket, KEYS, {"HOME": "/h"}) != index_path(b.bucket, KEYS, {"HOME": "/h"})
