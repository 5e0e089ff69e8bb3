"""The folder in which messages wait: private, bounded, whole."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from wal_agent.notify import outbox
from wal_agent.notify import outbox as letters
from wal_agent.notify.message import Level, Message
from wal_agent.notify.outbox import WINDOW, Box, Letter, box_of
from wal_agent.notify.targets import Target

TARGET = Target("json://127.0.0.1:9/s3cret")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return box_of({"HOME": str(tmp_path)}, [TARGET])


def put(box: Box, key: str, now: float = 0.0, job: str = "a", level: Level = "recovery", halt: bool = False) -> bool:
    message = Message("person_needed" if halt else level, key, "body", key, halt)
    return box.put(f"{job} {key}", lambda said, halt: letters.letter(message, job, now, said, halt), now)


def titles(box: Box) -> list[str]:
    return [waiting.title for waiting in box.letters().values()]


def test_letters_come_in_order_and_nobody_else_can_read_them(box: Box) -> None:
    assert put(box, "first") and put(box, "second")
    assert titles(box) == ["first", "second"]
    assert stat.S_IMODE(box.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in box.folder.iterdir())
    assert not any(b"s3cret" in path.read_bytes() for path in box.folder.iterdir()) and "s3cret" not in str(box.folder)


def test_an_equal_message_is_left_once_in_a_while(box: Box) -> None:
    assert put(box, "x") and not put(box, "x", WINDOW - 1)
    assert put(box, "x", WINDOW - 1, job="b"), "another job's"
    assert put(box, "x", WINDOW), "the first time counts, not the last"


def test_a_halt_that_insists_already_is_not_left_again_and_another_replaces_it(box: Box) -> None:
    assert put(box, "loop", halt=True)
    assert not put(box, "loop", WINDOW * 3, halt=True), "a manager that starts it over and over"
    assert put(box, "loop", job="b", halt=True)
    (name, *_) = box.letters()
    box.change(name, lambda known: letters.next_round(known, 0.0))
    assert put(box, "damaged", halt=True)
    assert sorted((w.about, w.title) for w in box.letters().values()) == [("a", "damaged"), ("b", "loop")]


def test_a_start_cancels_what_insists_but_what_nobody_was_told_is_told_once(box: Box) -> None:
    put(box, "told", halt=True)
    put(box, "untold", job="b", halt=True)
    put(box, "news", job="a")
    (name, *_) = box.letters()
    box.change(name, lambda known: letters.next_round(known, 0.0))
    assert box.cancel("nobody") == 0 and len(titles(box)) == 3
    assert box.cancel("a") == 1 and titles(box) == ["untold", "news"]
    assert box.cancel(None) == 1 and titles(box) == ["untold", "news"]
    assert not any(waiting.insists for waiting in box.letters().values())
    assert box.cancel(None) == 0


def test_after_a_start_the_same_halt_within_the_window_comes_later(box: Box) -> None:
    put(box, "loop", halt=True)
    box.cancel("a")
    assert put(box, "loop", 60.0, halt=True)
    (_, again) = box.letters().values()
    assert again.due == 60.0 + letters.LATER[0]


def test_what_was_cancelled_meanwhile_does_not_come_back(box: Box) -> None:
    put(box, "x")
    (name,) = box.letters()
    (box.folder / name).unlink()
    box.change(name, lambda known: letters.taken(known, TARGET))
    assert titles(box) == []


def test_it_is_bounded_and_the_least_goes_first(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_LETTERS", 3)
    put(box, "halt", halt=True)
    put(box, "dull", level="info")
    for n in range(4):
        put(box, f"n{n}")
    assert titles(box) == ["halt", "n2", "n3"]


def test_what_is_no_letter_is_removed(box: Box) -> None:
    put(box, "x")
    (box.folder / "0.json").write_bytes(b"\xff{")
    (box.folder / "1.json").write_text('{"about": 1}')
    (box.folder / "2.json").write_text("x" * (outbox.MOST_BYTES + 1))
    (box.folder / "3.json").symlink_to(next(iter(box.letters())))
    (box.folder / "said").write_text("[[[")
    (box.folder / "failed").write_bytes(b"\xff")
    assert titles(box) == ["x"] and box.failures() == {} and put(box, "y")
    assert {path.name for path in box.folder.glob("*.json")} == set(box.letters())


def test_a_failure_keeps_its_beginning_until_the_url_takes_one(box: Box) -> None:
    box.fail(TARGET, "refused", 10.0)
    box.told()
    box.fail(TARGET, "refused again", 20.0)
    assert box.failures() == {TARGET.id: outbox.Failure(10.0, 20.0, "refused again", told=True)}
    box.clear(TARGET)
    assert box.failures() == {}


def test_boxes_of_urls_that_are_not_used_any_more_go(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    old, new = box_of(env, [TARGET]), box_of(env, [Target(TARGET.url, "info")])
    assert old.folder != new.folder
    put(old, "x", halt=True)
    put(new, "y", halt=True)
    assert outbox.acknowledge(env, "a") == 2, "whatever the URLs are"
    outbox.sweep(env, new, old.folder.stat().st_mtime + outbox.IDLE - 60)
    assert old.folder.exists()
    outbox.sweep(env, new, old.folder.stat().st_mtime + outbox.IDLE + 60)
    assert not old.folder.exists() and new.folder.exists()


def test_a_letter_survives_its_file(box: Box) -> None:
    put(box, "x", halt=True)
    (name,) = box.letters()
    two = Target("json://two")

    def change(known: Letter) -> Letter:
        return letters.failed(letters.taken(known, TARGET), two, 5.0, 0.3)

    (before,) = box.letters().values()
    box.change(name, change)
    assert box.letters()[name] == change(before)
