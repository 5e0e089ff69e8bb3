"""A live run does a rewind only where it ended its agent for that, with all saved; the person always gets an answer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from wal_agent.errors import PersonNeeded, UsageError
from wal_agent.operate.rewind import RewindRequest, find_place
from wal_agent.records import Rewrite
from wal_agent.supervise import live_rewind
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.rewrite import RewindPlace, Rewritten, check_at_rest, read_main
from wal_agent.wal.state import FileState, RewriteAt, State

QUESTION: dict[str, Any] = {"place": {"last": 1}}


class Desk(live_rewind.LiveRewind):
    """`done`: what was carried out."""

    def __init__(self) -> None:
        job: Any = SimpleNamespace(replay=SimpleNamespace(state=None))
        job.refreshed = lambda: job
        home: Any = SimpleNamespace(options="--job shop")
        clock: Any = SimpleNamespace(boot=lambda: 0.0, now=lambda: 0.0)
        super().__init__(job, home=home, clock=clock, drain=20.0)
        self.done: list[live_rewind.FoundRewind] = []

    def _check(self, asked: live_rewind.FoundRewind) -> None:
        pass


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()

    def carry_out(job: Any, home: Any, asked: live_rewind.FoundRewind) -> Rewritten:
        made.done.append(asked)
        return Rewritten(3, 1, 100, 50, Path("/session"), ("a line",))

    monkeypatch.setattr(live_rewind, "carry_out", carry_out)
    monkeypatch.setattr(live_rewind, "check_at_rest", lambda state, home: None)
    return made


def asked(desk: Desk, ends: Callable[[ShutdownPlan], ShutdownPlan | None], saved: bool = True) -> Any:
    """Ask; the run ends for `ends` of the plan."""
    plans: list[ShutdownPlan] = []
    began = threading.Event()

    def shut_down(down: ShutdownPlan) -> bool:
        plans.append(down)
        began.set()
        return True

    def go() -> None:
        assert began.wait(60)
        desk.go(ends(plans[0]), saved, lambda text: None)

    main = threading.Thread(target=go)
    main.start()
    answer = desk.answer(QUESTION, "", shut_down)
    main.join()
    return answer


def test_it_is_done_behind_the_end_of_the_agent(desk: Desk) -> None:
    assert asked(desk, lambda down: down) == {
        "n": 3,
        "turns": 1,
        "tokens": 100,
        "left": 50,
        "placed": "/session",
        "files": ["a line"],
    }
    assert [(a.place.last, a.undo) for a in desk.done] == [(1, False)]


@pytest.mark.parametrize("why", ["drain", "nothing", "unsaved"])
def test_what_ends_the_run_first_ends_the_request(desk: Desk, why: str) -> None:
    ends = {"drain": lambda down: replace(down, kind="drain"), "nothing": lambda down: None}
    answer = asked(desk, ends.get(why, lambda down: down), saved=why != "unsaved")
    assert answer["exit"] == 69 and "nothing was rewritten" in answer["error"]
    assert "wal-agent status --job shop`" in answer["hint"]
    assert desk.done == []


def test_a_call_that_runs_and_a_run_that_ends_refuse_it(desk: Desk) -> None:
    def never(down: ShutdownPlan) -> bool:
        raise AssertionError("the agent was ended")

    refused = desk.answer(QUESTION, "#4 shell", never)
    assert refused["exit"] == PersonNeeded.exit_code and "#4 shell" in refused["error"]
    assert refused["hint"].endswith("wal-agent stop --job shop")
    assert desk.answer(QUESTION, "", lambda down: False)["error"].endswith("wal-agent status --job shop")
    for damaged in ({}, {"place": {"last": "x"}}, {"place": {}, "other": 1}):
        assert "error" in desk.answer(damaged, "", never)
    assert desk.done == []


def test_an_undo_of_what_went_on_does_not_end_the_agent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the agent's file as it is now: the log may not have the newest lines yet."""
    main = tmp_path / "main"
    main.write_bytes(b"as rewritten\n")
    sha256 = hashlib.sha256(main.read_bytes()).hexdigest()
    record = Rewrite(time=0, n=1, kind="rewind", session="s", path="main", size=1, sha256="x", result=sha256)
    before = FileState(session="s", size=1, sha256="x")
    state = State(rewrites=(RewriteAt(3, 1, record, before),))
    desk._job = SimpleNamespace(writer=SimpleNamespace(acked=SimpleNamespace(state=state)))  # type: ignore[assignment]
    desk._home = SimpleNamespace(options="--job shop", agent=None)  # type: ignore[assignment]
    monkeypatch.setattr(live_rewind, "local_file", lambda state, home: main)
    monkeypatch.setattr(live_rewind, "rewriting_of", lambda agent: None)
    undo = live_rewind.FoundRewind(place=RewindPlace(), undo=True)
    live_rewind.LiveRewind._check(desk, undo)
    main.write_bytes(b"as rewritten\nand more\n")
    with pytest.raises(UsageError, match="went on behind rewrite 1"):
        live_rewind.LiveRewind._check(desk, undo)


def test_the_hints_of_a_refusal_name_the_job() -> None:
    """They are read in another folder too, where a bare command finds another job or none."""
    rewriting = SimpleNamespace(name="x", main_file="main", capabilities=SimpleNamespace(rewriting=object()))
    home: Any = SimpleNamespace(options="--job shop", agent=rewriting)
    empty, log = State(), SimpleNamespace(state=lambda at=None: State())
    for refused in (
        lambda: check_at_rest(empty, home),
        lambda: find_place(log, home, RewindRequest(to="5", files=True)),  # type: ignore[arg-type]
        lambda: find_place(log, home, RewindRequest(to="mark")),  # type: ignore[arg-type]
        lambda: find_place(log, home, RewindRequest(undo=True, files=True)),  # type: ignore[arg-type]
        lambda: read_main(empty, None, home.agent, home.options),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError) as error:
            refused()
        assert error.value.hint.endswith(" --job shop")


def test_a_refusal_of_the_rewrite_itself_reaches_the_person(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(job: Any, home: Any, asked: live_rewind.FoundRewind) -> Rewritten:
        raise UsageError("There is no such place.", "Look.")

    monkeypatch.setattr(live_rewind, "carry_out", refuses)
    assert asked(desk, lambda down: down) == {"error": "There is no such place.", "hint": "Look.", "exit": 64}
