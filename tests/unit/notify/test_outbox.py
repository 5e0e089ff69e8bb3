"""Check the queue of messages: private, bounded, whole."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from wal_agent.notify import outbox
from wal_agent.notify import outbox as letters
from wal_agent.notify.message import Level, Notification, Target
from wal_agent.notify.outbox import REPEAT_WINDOW, Letter, Outbox, outbox_for

TARGET = Target("json://127.0.0.1:9/s3cret")


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return outbox_for({"HOME": str(tmp_path)}, [TARGET])


def put(box: Outbox, key: str, now: float = 0.0, job: str = "a", level: Level = "recovery", halt: bool = False) -> bool:
    message = Notification("person_needed" if halt else level, key, "body", key, halt)
    return box.put(f"{job} {key}", lambda said, halt: letters.make_letter(message, job, now, said, halt), now)


def titles(box: Outbox) -> list[str]:
    return [waiting.title for waiting in box.letters().values()]


def test_letters_come_in_order_and_nobody_else_can_read_them(box: Outbox) -> None:
    assert put(box, "first") and put(box, "second")
    assert titles(box) == ["first", "second"]
    assert stat.S_IMODE(box.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in box.folder.iterdir())
    assert not any(b"s3cret" in path.read_bytes() for path in box.folder.iterdir()) and "s3cret" not in str(box.folder)


def test_an_equal_message_is_left_once_in_a_while(box: Outbox) -> None:
    assert put(box, "x") and not put(box, "x", REPEAT_WINDOW - 1)
    assert put(box, "x", REPEAT_WINDOW - 1, job="b"), "another job's"
    assert put(box, "x", REPEAT_WINDOW), "the first time counts, not the last"


def test_a_halt_that_insists_already_is_not_left_again_and_another_replaces_it(box: Outbox) -> None:
    assert put(box, "loop", halt=True)
    assert not put(box, "loop", REPEAT_WINDOW * 3, halt=True), "a manager that starts it over and over"
    assert put(box, "loop", job="b", halt=True)
    (name, *_) = box.letters()
    box.change(name, lambda known: letters.next_reminder(known, 0.0))
    assert put(box, "damaged", halt=True)
    assert sorted((w.about, w.title) for w in box.letters().values()) == [("a", "damaged"), ("b", "loop")]


def test_a_start_cancels_what_insists_but_what_nobody_was_told_is_told_once(box: Outbox) -> None:
    put(box, "told", halt=True)
    put(box, "untold", job="b", halt=True)
    put(box, "news", job="a")
    (name, *_) = box.letters()
    box.change(name, lambda known: letters.next_reminder(known, 0.0))
    assert box.cancel("nobody") == 0 and len(titles(box)) == 3
    assert box.cancel("a") == 1 and titles(box) == ["untold", "news"]
    assert box.cancel(None) == 1 and titles(box) == ["untold", "news"]
    assert not any(waiting.insists for waiting in box.letters().values())
    assert box.cancel(None) == 0


def test_after_a_start_the_same_halt_within_the_window_comes_later(box: Outbox) -> None:
    put(box, "loop", halt=True)
    box.cancel("a")
    assert put(box, "loop", 60.0, halt=True)
    (_, again) = box.letters().values()
    assert again.due == 60.0 + letters.REMINDERS[0]


def test_what_was_cancelled_meanwhile_does_not_come_back(box: Outbox) -> None:
    put(box, "x")
    (name,) = box.letters()
    box.change(name, lambda _: None)
    box.change(name, lambda known: letters.mark_delivered(known, TARGET))
    assert titles(box) == []


def test_it_is_bounded_and_the_least_goes_first(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_LETTERS", 3)
    put(box, "halt", halt=True)
    put(box, "dull", level="info")
    for n in range(4):
        put(box, f"n{n}")
    assert titles(box) == ["halt", "n2", "n3"]


def query(box: Outbox, sql: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(box.folder / outbox.QUEUE)) as db, db:
        return db.execute(sql, values).fetchall()


def test_what_cannot_be_decoded_is_removed(box: Outbox) -> None:
    put(box, "x")
    for kind, value in (("letter", b"\xff{"), ("letter", b'{"about": 1}'), ("said", b"[[["), ("failure", b"\xff")):
        query(box, "INSERT INTO item VALUES (?, ?, ?)", kind, f"junk {value!r}", value)
    assert titles(box) == ["x"] and box.failures() == {} and put(box, "y")
    assert query(box, "SELECT * FROM item WHERE key LIKE 'junk%'") == []


@pytest.mark.parametrize("data", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_damaged_database_is_replaced(box: Outbox, data: bytes) -> None:
    put(box, "x")
    (box.folder / outbox.QUEUE).write_bytes(data)
    assert titles(box) == [] and put(box, "y") and titles(box) == ["y"]


def test_a_disk_that_fails_is_an_oserror(box: Outbox) -> None:
    put(box, "x")
    query(box, "DROP TABLE item")
    query(box, "CREATE VIEW item AS SELECT 1")
    with pytest.raises(OSError, match=r"queue\.sqlite3"):
        box.letters()


def test_a_killed_writer_leaves_all_or_nothing(box: Outbox) -> None:
    put(box, "before")
    code = """
import os, sys, pathlib
from wal_agent.notify.outbox import Outbox
box = Outbox(pathlib.Path(sys.argv[1]))
(name,) = box.letters()
with box._transaction() as queue:
    queue.remove("letter", name)
    print("removed", flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(box.folder)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("removed\n", -9)
    assert titles(box) == ["before"] and put(box, "after") and titles(box) == ["before", "after"]


def test_a_box_that_another_process_writes_is_waited_for(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switching to WAL, SQLite itself answers "locked" at once, whatever its timeout is."""
    box.folder.mkdir(parents=True)
    with closing(sqlite3.connect(box.folder / "queue.sqlite3", isolation_level=None)) as other:
        other.execute("CREATE TABLE held (x)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO held VALUES (1)")
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if other.in_transaction:
                other.execute("COMMIT")

        monkeypatch.setattr("time.sleep", sleep)
        assert put(box, "mine") and len(waits) == 1


def test_threads_and_processes_share_a_box(box: Outbox) -> None:
    code = """
import sys, pathlib
from wal_agent.notify import outbox
box = outbox.Outbox(pathlib.Path(sys.argv[1]))
for n in range(15):
    box.put(f"{sys.argv[2]} {n}", lambda *_: outbox.Letter("a", "info", sys.argv[2], "", 0.0, 0.0), 0.0)
"""
    box.folder.mkdir(parents=True)
    writers = [subprocess.Popen([sys.executable, "-c", code, str(box.folder), word]) for word in "xy"]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda n: put(box, f"mine {n}"), range(20)))
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(titles(box)) == 50


def test_a_failure_keeps_its_beginning_until_the_url_takes_one(box: Outbox) -> None:
    box.fail(TARGET, "refused", 10.0)
    box.mark_reported()
    box.fail(TARGET, "refused again", 20.0)
    assert box.failures() == {TARGET.id: outbox.Failure(10.0, 20.0, "refused again", told=True)}
    box.clear(TARGET)
    assert box.failures() == {}


def test_boxes_of_urls_that_are_not_used_any_more_go(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    old, new = outbox_for(env, [TARGET]), outbox_for(env, [Target(TARGET.url, "info")])
    assert old.folder != new.folder
    put(old, "x", halt=True)
    put(new, "y", halt=True)
    assert outbox.acknowledge(env, "a") == 2, "whatever the URLs are"
    outbox.sweep(env, new, old.used() + outbox.MAX_IDLE - 60)
    assert old.folder.exists()
    outbox.sweep(env, new, old.used() + outbox.MAX_IDLE + 60)
    assert not old.folder.exists() and new.folder.exists()


def test_a_letter_survives_its_file(box: Outbox) -> None:
    put(box, "x", halt=True)
    (name,) = box.letters()
    two = Target("json://two")

    def change(known: Letter) -> Letter:
        return letters.mark_failed(letters.mark_delivered(known, TARGET), two, 5.0, 0.3)

    (before,) = box.letters().values()
    box.change(name, change)
    assert box.letters()[name] == change(before)
