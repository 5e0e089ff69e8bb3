"""What a recovery decides and tells where no call of the agent is in the log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import opening as opened_by
from tests.unit.recovery.test_plan import LOCAL, RAN, decide
from wal_agent.recovery.plan import Alert, Policy, Refuse, Resume
from wal_agent.recovery.prompt import PromptInput, render_prompt

UNLOGGED = replace(LOCAL, unlogged=True)
UNKNOWN = "What was in flight is not known: no tool call of this agent is logged before it runs."


@pytest.mark.parametrize("alert", ["cut_off", "preempted"])
def test_the_notice_does_not_say_that_nothing_was_in_flight(alert: Alert) -> None:
    told = PromptInput(alert, "vm-1", "vm-2", False, 0.0, 0.0, 60.0, unlogged=True)
    text = render_prompt(told)
    assert UNKNOWN in text and "tool call was in flight" not in text and "that was refused" not in text
    plain = render_prompt(replace(told, unlogged=False))
    assert UNKNOWN not in plain and "tool call was in flight" in plain


def test_nor_does_the_plan() -> None:
    got = decide(*RAN, local=UNLOGGED)
    assert isinstance(got, Resume) and got.why.endswith("; which calls were open is not known")


def test_a_job_of_another_program_is_another_agents() -> None:
    """The words that make one program go on are not said to another."""
    records = (opened_by(args=("/usr/bin/aider", "--yes")), *RAN[1:])

    def start(*args: str, policy: Policy = Policy()) -> object:  # noqa: B008 - it is frozen
        return decide(*records, local=UNLOGGED, ours=opened_by(2, "dead", args=args), policy=policy)

    got = start("goose", "--yes")
    assert isinstance(got, Refuse) and "last run with /usr/bin/aider, not with goose" in got.what
    assert got.error().exit_code == 78 and "--job" in got.hint
    assert isinstance(start("goose", policy=Policy(fresh=True)), Refuse)
    assert isinstance(start("aider"), Resume) and isinstance(start(), Resume)
    hooked = decide(*records, ours=opened_by(2, "dead", args=("goose",)))
    assert isinstance(hooked, Resume)
