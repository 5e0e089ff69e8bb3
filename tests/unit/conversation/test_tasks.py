"""conversation/tasks.py: which job a task is, with which arguments, and what is left of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import end, intent, opening, payload, state_of
from wal_agent.agents import AGENTS
from wal_agent.conversation.tasks import (
    ASK,
    MAX_PROMPT,
    MAX_SUMMARY,
    ChildAnswer,
    Insight,
    child_args,
    child_job,
    compact_form,
    depth_of,
    fork_form,
    read_said,
    task_text,
)
from wal_agent.errors import UsageError
from wal_agent.records import AnyRecord, TaskOf
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


@pytest.mark.parametrize("prompt", ["", " \n", "x" * (MAX_PROMPT + 1)])
def test_what_is_no_task_is_refused(prompt: str) -> None:
    with pytest.raises(UsageError):
        child_job("shop", "claude", prompt)


def test_the_child_has_the_callers_model_and_permissions() -> None:
    caller = ("--model", "haiku", "-p", "move the shop", "--permission-mode", "plan")
    assert child_args(CLAUDE, caller, task_text("look")) == (
        "--model",
        "haiku",
        "-p",
        f"look{ASK}",
        "--permission-mode",
        "plan",
    )


@pytest.mark.parametrize("caller", [(), ("--model", "haiku"), ("--resume", "3f2a", "-p", "go")])
def test_without_a_prompt_or_in_a_named_session_it_is_a_plain_headless_run(caller: tuple[str, ...]) -> None:
    assert child_args(CLAUDE, caller, task_text("look")) == ("-p", f"look{ASK}")
    assert child_args(CODEX, (), task_text("look")) == ("exec", f"look{ASK}")


def test_what_is_left_is_bounded_and_names_the_whole() -> None:
    calls = [record for n in range(1, 60) for record in (intent(n, input=b'{"command":"make x%d"}' % n), end(n))]
    form = compact_form(
        "shop.task-1", "claude", state_of(opening(), *calls), ChildAnswer("It was the clock. ghp_" + "a1B2" * 9)
    )
    assert form.derivation_trail[-1] == "make x59: done" and len(form.derivation_trail) == 30
    text = form.render()
    assert text.startswith("It was the clock.") and "a1B2a1B2" not in text and "trace show shop.task-1" in text
    long = compact_form("j", "claude", state_of(opening()), ChildAnswer("x" * (2 * MAX_SUMMARY)))
    assert len(long.render()) < MAX_SUMMARY + 500
    assert "without a last message" in compact_form("j", "claude", state_of(opening()), ChildAnswer("")).render()


def test_an_insight_names_the_calls_and_files_that_the_log_has_behind_it() -> None:
    """By names and numbers in its words; words without any name nothing, and no secret is in a name."""
    calls: list[AnyRecord] = [
        intent(1, "Read", b'{"file_path":"src/clock.py"}', "read_only"),
        end(1),
        intent(2, "Bash", b'{"command":"pytest tests/test_login.py > out.txt"}'),
        replace(end(2), result=payload(b'"timeout after 4711 ms"')),
        intent(3, "Bash", b'{"command":"ls"}', "read_only"),
        end(3),
    ]
    said = ("The clock in src/clock.py is slow.", "It needs 4711 ms.", "Nothing else is wrong.", "x" * 3)
    form = compact_form("j", "claude", state_of(opening(), *calls), ChildAnswer("s", said))
    assert form.insights[0] == Insight(said[0], (1,), ("src/clock.py",))
    assert form.insights[1] == Insight(said[1], (2,), ("out.txt",))
    assert form.insights[2:] == (Insight(said[2]), Insight(said[3]))
    assert "[#1; src/clock.py]" in form.render() and f"- {said[2]}\n" in form.render()


FORKS = {
    "claude": ("--resume", "s1", "--fork-session", "-p", "look"),
    "gemini": ("--session-file", "/f", "-p", "look"),
    "codex": ("exec", "fork", "s1", "look"),
    "pi": ("--fork", "/f", "-p", "look"),
    "opencode": ("run", "--session", "s1", "--fork", "look"),
}


@pytest.mark.parametrize(("name", "args"), FORKS.items())
def test_a_fork_has_the_agents_own_form(name: str, args: tuple[str, ...]) -> None:
    agent = AGENTS[name]
    made = child_args(agent, (), "look", fork_form(agent, "s1", "/f"))
    assert made == args and agent.session_from_args(made) == "", "the agent gives the copy an id"
    assert agent.prompt_from_args(made) == "look"


def test_a_fork_keeps_the_callers_options() -> None:
    assert child_args(CODEX, ("exec", "--model", "o", "go"), "look", fork_form(CODEX, "s1", "")) == (
        *("exec", "fork", "s1"),
        *("--model", "o", "look"),
    )


@pytest.mark.parametrize("name", ["qwen", "copilot"])
def test_an_agent_without_a_form_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UsageError, match="no form to copy a session"):
        fork_form(AGENTS[name], "s1", "/f")


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("answer", "fault", "outputs"),
    [
        ('{"summary": "s", "outputs": {"n": 3}}', "", {"n": 3}),
        ('```json\n{"summary": "s", "outputs": {"n": 3}}\n```', "", {"n": 3}),
        ('{"summary": "s", "outputs": {"n": "3"}}', "outputs.n must be", None),
        ('{"summary": "s"}', "outputs must be", None),
        ('{"outputs": {"n": 3}}', "no summary", None),
        ("It is three.", "no JSON", None),
        ("[" * 100_000, "no JSON", None),
    ],
)
def test_the_outputs_are_those_of_the_schema_or_the_fault_is_named(answer: str, fault: str, outputs: object) -> None:
    said = read_said(answer, SCHEMA)
    assert said.outputs == outputs and (fault in said.fault if fault else not said.fault)
    if fault:
        form = compact_form("j", "claude", state_of(opening()), said)
        assert form.fault and "--schema" in form.render() and form.outputs == ()


def test_without_a_schema_words_are_the_summary_and_a_form_is_taken() -> None:
    assert read_said("It is three.") == ChildAnswer("It is three.")
    said = read_said('{"summary": "s", "insights": ["i"], "outputs": ["ghp_' + "a1B2" * 9 + '"]}')
    form = compact_form("j", "claude", state_of(opening()), said)
    assert form.insights == (Insight("i"),) and "a1B2a1B2" not in form.render()
