"""recovery/tasks.py: which job a task is, with which arguments, and what is left of it."""

from __future__ import annotations

import pytest

from tests.unit.recovery.cases import end, intent, opening, state_of
from wal_agent.agents import AGENTS
from wal_agent.errors import UsageError
from wal_agent.records import TaskOf
from wal_agent.recovery.tasks import ASK, MOST_PROMPT, MOST_SUMMARY, child_args, child_job, compact_form, depth_of
from wal_agent.wal.keys import check_job

CLAUDE, CODEX = AGENTS["claude"], AGENTS["codex"]


def test_the_same_task_is_the_same_job_and_another_one_is_not() -> None:
    name = child_job("shop", "claude", "look")
    assert name == child_job("shop", "claude", "look") and name.startswith("shop.task-")
    others = [("shop", "codex", "look"), ("shop", "claude", "look!"), ("shop2", "claude", "look")]
    assert len({name, *(child_job(*other) for other in others)}) == 4
    assert check_job(child_job("x" * 100, "claude", "look"))


def test_tasks_are_nested_three_deep() -> None:
    """Also where a long name was cut, so that it does not say how deep the job is."""
    for name in ("shop", "s" * 100):
        of = None
        for depth in (1, 2, 3):
            assert depth_of(name, of) == depth
            name, of = child_job(name, "claude", "look", depth), TaskOf(job=name, depth=depth)
        with pytest.raises(UsageError, match="nested 3 deep"):
            child_job(name, "claude", "look", depth_of(name, of))
    with pytest.raises(UsageError, match="nested 1 deep"):
        child_job("shop.task-1", "claude", "look", depth_of("shop.task-1", None), 1)


@pytest.mark.parametrize("prompt", ["", " \n", "x" * (MOST_PROMPT + 1)])
def test_what_is_no_task_is_refused(prompt: str) -> None:
    with pytest.raises(UsageError):
        child_job("shop", "claude", prompt)


def test_the_child_has_the_callers_model_and_permissions() -> None:
    caller = ("--model", "haiku", "-p", "move the shop", "--permission-mode", "plan")
    assert child_args(CLAUDE, caller, "look") == ("--model", "haiku", "-p", f"look{ASK}", "--permission-mode", "plan")


@pytest.mark.parametrize("caller", [(), ("--model", "haiku"), ("--resume", "3f2a", "-p", "go")])
def test_without_a_prompt_or_in_a_named_session_it_is_a_plain_headless_run(caller: tuple[str, ...]) -> None:
    assert child_args(CLAUDE, caller, "look") == ("-p", f"look{ASK}")
    assert child_args(CODEX, (), "look") == ("exec", f"look{ASK}")


def test_what_is_left_is_bounded_and_names_the_whole() -> None:
    calls = [record for n in range(1, 60) for record in (intent(n, input=b'{"command":"make x%d"}' % n), end(n))]
    form = compact_form("shop.task-1", "claude", state_of(opening(), *calls), "It was the clock. ghp_" + "a1B2" * 9)
    assert form.derivation_trail[-1] == "make x59: done" and len(form.derivation_trail) == 30
    text = form.render()
    assert text.startswith("It was the clock.") and "a1B2a1B2" not in text and "--job shop.task-1" in text
    long = compact_form("j", "claude", state_of(opening()), "x" * (2 * MOST_SUMMARY))
    assert len(long.render()) < MOST_SUMMARY + 500
    assert "without a last message" in compact_form("j", "claude", state_of(opening()), "").render()
