"""supervise/exits.py: each class by what proves it, and that nobody's words beat what we did or the kernel saw."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from wal_agent.agents.base import ExitCause, TurnFailed
from wal_agent.records import ExitClass, RunEnded
from wal_agent.supervise.exits import (
    LONG_IN_VAIN,
    MAX_TOLD,
    MAX_UNTOLD,
    ExitFacts,
    ExitReason,
    ShutdownPlan,
    classify_exit,
    lease_state_after,
    quota_pause,
    waits_in_vain,
)

HEADLESS = ExitFacts(code=0, completed=False, interactive=False)
QUOTA = ExitCause("quota", "You hit your\nlimit", 90.0)
V8 = b"\nFATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n"


def down(kind: str) -> ShutdownPlan:
    return ShutdownPlan(kind, "sigterm", 0.0, 1.0, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "cls"),
    [
        (ExitFacts(0, True, False), "completed"),
        (ExitFacts(0, True, True), "completed"),
        (HEADLESS, "incomplete"),
        (replace(HEADLESS, interactive=True), "interrupted"),
        (ExitFacts(1, False, False), "failed"),
        (ExitFacts(1, True, False), "failed"),
        (ExitFacts(53, False, True), "failed"),
        # signals, as a parent sees them and as a shell in between tells them
        (ExitFacts(-9, False, False), "killed"),
        (ExitFacts(137, False, False), "killed"),
        (ExitFacts(-15, True, False), "killed"),
        (ExitFacts(139, False, False), "killed"),
        (ExitFacts(-2, False, False), "interrupted"),
        (ExitFacts(130, False, False), "interrupted"),
        (ExitFacts(129, False, True), "interrupted"),
        (ExitFacts(199, False, False), "failed"),  # Gemini's own: no signal has this number
        (ExitFacts(255, False, False), "failed"),
        # a person, where the agent takes the signal and ends with a code of its own
        (ExitFacts(0, False, False, signals=frozenset({signal.SIGINT})), "interrupted"),
        (ExitFacts(1, False, False, signals=frozenset({signal.SIGHUP})), "interrupted"),
        (ExitFacts(1, False, False, signals=frozenset({signal.SIGUSR1})), "failed"),
        (ExitFacts(0, True, False, signals=frozenset({signal.SIGINT})), "completed"),
        # the kernel: only both together
        (ExitFacts(-9, False, False, oom_kills=1), "out_of_memory"),
        (ExitFacts(137, False, False, oom_kills=2), "out_of_memory"),
        (ExitFacts(1, False, False, oom_kills=1), "failed"),
        (ExitFacts(-11, False, False, oom_kills=1), "killed"),
        (ExitFacts(0, True, False, oom_kills=1), "completed"),
        # V8
        (ExitFacts(-6, False, False, said=V8), "heap"),
        (ExitFacts(134, False, False, said=b"x" * 9 + V8 + b"----- Native stack trace -----"), "heap"),
        (ExitFacts(0, False, False, said=V8), "incomplete"),
        (ExitFacts(0, True, False, said=V8), "completed"),  # a tool's, and the agent lived
        (ExitFacts(-9, False, False, said=V8, oom_kills=1), "out_of_memory"),
        # the model
        (ExitFacts(1, False, False, death=QUOTA), "quota"),
        (ExitFacts(1, False, False, death=ExitCause("context", "too long")), "context"),
        (ExitFacts(1, False, False, failed=TurnFailed("s", "quota", "limit", 9.0)), "quota"),
        (ExitFacts(0, False, False, failed=TurnFailed("s", "context", "too long")), "context"),
        (ExitFacts(1, False, False, failed=TurnFailed("s", "other", "no credit")), "failed"),
        (ExitFacts(-9, False, False, death=QUOTA), "killed"),
        (
            ExitFacts(0, False, True, failed=TurnFailed("s", "quota", "limit")),
            "interrupted",
        ),  # a person read it and left
        # what we did stands above all
        (ExitFacts(-9, False, False, down=down("drain"), oom_kills=1), "drained"),
        (ExitFacts(0, True, False, down=down("pause")), "paused"),
        (ExitFacts(-9, False, False, down=down("hang")), "hung"),
        (ExitFacts(-9, False, False, down=down("drain"), stopped="Job x was taken over."), "stopped"),
    ],
)
def test_class(facts: ExitFacts, cls: str) -> None:
    word = classify_exit(facts)
    assert word.cls == cls and word.why and "\n" not in word.why


def test_the_sentence_is_one_line_and_keeps_the_retry_time() -> None:
    assert classify_exit(ExitFacts(1, False, False, death=QUOTA)) == ExitReason("quota", "You hit your limit", 90.0)
    long = classify_exit(ExitFacts(1, False, False, death=ExitCause("quota", "x" * 9999)))
    assert len(long.why) == 300
    assert classify_exit(ExitFacts(-11, False, False)).why == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("cls", "interactive", "wanted"),
    [
        ("completed", False, "closed"),
        ("completed", True, "closed"),
        ("failed", False, "closed"),
        ("interrupted", True, "closed"),
        *[(cls, who, "released") for cls in ("killed", "out_of_memory", "heap", "context") for who in (False, True)],
    ],
)
def test_only_an_end_of_its_own_closes_the_job(cls: ExitClass, interactive: bool, wanted: str) -> None:
    """The next start of a closed job begins anew, and does everything again."""

    def settled(clean: bool = True, untold: bool = False, until: float = 0.0) -> str:
        return lease_state_after(cls, clean=clean, untold=untold, interactive=interactive, until=until)

    assert settled() == wanted
    assert settled(clean=False) == settled(until=9.0) == "released"
    assert settled(untold=True) == ("released" if cls == "failed" else wanted)


def test_a_persons_signal_before_the_recovery_was_told_keeps_it() -> None:
    assert lease_state_after("interrupted", clean=True, untold=True, interactive=False, until=0.0) == "released"
    assert lease_state_after("interrupted", clean=True, untold=True, interactive=True, until=0.0) == "closed"


def ended(cls: str, place: str = "s after 3", time: float = 1.0) -> RunEnded:
    return RunEnded(time=time, code=1, completed=False, cls=cls, place=place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "before", "seconds"),
    [
        (0.5, (), 0.5),
        (0.5, ("quota",), 60.0),
        (34.0, ("quota", "quota"), 120.0),
        (500.0, ("quota", "quota"), 500.0),
        (34.0, ("quota", "killed"), 34.0),
        (1e12, (), MAX_TOLD),
        (0.0, (), 60.0),
        (0.0, ("quota",), 120.0),
        (0.0, ("quota", "paused", "quota"), 240.0),
        (0.0, ("quota", "quota", "completed"), 60.0),
        (0.0, ("quota", "killed", "quota"), 120.0),
        (0.0, ("quota",) * 16, MAX_UNTOLD),
        (0.5, ("quota",) * 16, MAX_UNTOLD),
    ],
)
def test_a_quota_is_asked_again_as_told_but_later_where_nothing_was_done(
    told: float, before: tuple[str, ...], seconds: float
) -> None:
    assert quota_pause(ExitReason("quota", "", told), "other after 3", [ended(cls) for cls in before]) == seconds


def test_a_quota_behind_new_calls_is_asked_as_told_within_reason() -> None:
    ends = [ended("quota", f"s after {n}") for n in range(3)]
    assert quota_pause(ExitReason("quota", "", 45.0), "s after 3", ends) == 45.0
    assert quota_pause(ExitReason("quota", "", 0.5), "s after 3", ends) == 30.0
    assert quota_pause(ExitReason("quota", ""), "s after 3", ends) == 60.0


def test_that_it_waits_in_vain_is_told_once() -> None:
    ends: list[RunEnded] = []
    told = []
    for n in range(40):
        now = n * LONG_IN_VAIN / 5
        told.append(waits_in_vain("s after 3", ends[-16:], now))
        ends.append(ended("quota", time=now))
    assert [n for n, seconds in enumerate(told) if seconds] == [5] and told[5] == LONG_IN_VAIN
    assert waits_in_vain("s after 4", ends[:3], 1e6) == 0.0, "there was a call in between"
