"""recovery/settled.py: why a lease was settled."""

from __future__ import annotations

import signal

import pytest

from wal_agent.recovery.settled import StopKind, classify_stop, failure_text
from wal_agent.supervise.exits import ExitFacts, classify_exit


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("drained (SIGTERM)", "handed_over"),
        ("preempted (gcp)", "handed_over"),
        ("stopped: interrupted by SIGTERM before the agent was started.", "handed_over"),
        ("stopped: this machine is going away (gcp); the agent was not started.", "handed_over"),
        ("stopped (69): The bucket cannot be reached.", "handed_over"),
        ("stopped: interrupted by SIGINT before the agent was started.", ""),
        ("stopped: 5 crashes in 10 min", "halted"),
        ("stopped (80): twice the same death", "halted"),
        ("stopped: stopped (69): ", "halted"),
        ("interrupted", ""),
        ("completed", ""),
        ("paused", ""),
        ("the agent said: stopped: ", ""),
        ("the agent ended with 41 and more", ""),
        ("", ""),
    ],
)
def test_what_a_reason_says(reason: str, expected: StopKind) -> None:
    assert classify_stop(reason) == expected


@pytest.mark.parametrize(
    "facts",
    [
        ExitFacts(code=41, completed=True, interactive=False),
        ExitFacts(code=0, completed=False, interactive=False),
        ExitFacts(code=-signal.SIGSEGV, completed=False, interactive=False),
        ExitFacts(code=-9, completed=False, interactive=False, oom_kills=1),
        ExitFacts(code=134, completed=False, interactive=False, said=b"FATAL: JavaScript heap out of memory"),
    ],
)
def test_each_death_that_has_words_of_ours_is_known_by_them(facts: ExitFacts) -> None:
    """The fleet sees the lease alone."""
    assert classify_stop(classify_exit(facts).why) == "failed"


def test_the_agents_own_words_are_judged_by_its_class() -> None:
    assert [classify_stop("no quota", cls) for cls in ("quota", "context", "stopped", "interrupted", "")] == [
        *("failed", "halted", "stopped"),
        *("", ""),
    ]
    assert classify_stop("stopped: a person is needed", "failed") == "halted"


def test_a_failure_in_words() -> None:
    assert failure_text("the agent ended with 41") == "the agent failed with 41"
    assert (
        failure_text("the agent ended with 0, but not its turn") == "the agent failed: ended with 0, but not its turn"
    )
    assert failure_text("killed by SIGSEGV") == "the agent failed: killed by SIGSEGV"
