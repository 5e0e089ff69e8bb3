"""The lines of a recovery on the screen, and the small words in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.recovery.decided import Alert
from wal_agent.recovery.format import clock_time, describe_reach, duration, plural, size
from wal_agent.recovery.inflight import InFlight
from wal_agent.recovery.report import (
    Report,
    fenced_line,
    headline,
    in_flight_lines,
    put_back_line,
    restored_line,
    resuming_line,
    stopped_line,
)

REPORT = Report("gemini-shop", "crash", "vm-17", "vm-22", 3, 4, 413, stopped=50_533.0, now=50_773.0, fenced_in=0.113)
CALL = InFlight((412,), 1, "run_shell_command", b'{"command":"make"}', 1.0, "unknown", "runs", "unknown", "", "Verify.")


@pytest.mark.parametrize(
    ("alert", "how"),
    [
        ("crash", "was cut off"),
        ("cut_off", "was cut off"),
        ("preempted", "was given up in good order"),
        ("unsettled", "ended with calls in flight"),
    ],
)
def test_the_headline(alert: Alert, how: str) -> None:
    line = headline(replace(REPORT, alert=alert))
    assert line == f"job gemini-shop {how} on vm-17 at 14:02:13, 4 min ago (epoch 3). Recovering on vm-22."


def test_the_headline_after_a_pause() -> None:
    line = headline(replace(REPORT, alert="paused"))
    assert line == "job gemini-shop was paused on vm-17 at 14:02:13, 4 min ago (epoch 3). Carrying on on vm-22."


@pytest.mark.parametrize("alert", ["cut_off", "preempted"])
def test_the_headline_of_a_job_that_had_ended(alert: Alert) -> None:
    line = headline(replace(REPORT, alert=alert, over=True))
    how = "had ended on vm-17 at 14:02:13, 4 min ago (epoch 3). Going on with its session on vm-22."
    assert line == f"job gemini-shop {how}"


def test_the_rows() -> None:
    text = "  fenced     vm-17 can no longer run a tool for this job (epoch 4 begins at record 413)"
    assert fenced_line(REPORT) == f"{text:<96} 0.11 s"
    here = fenced_line(replace(REPORT, old_host="vm-22"))
    assert here.startswith("  fenced     the old run can no longer run a tool for this job (epoch 4 ")
    assert restored_line("3f2a91c0-1b2c", 214, 1_200_000, "", 0.62).startswith(
        "  restored   session 3f2a91c0: 214 messages, 1.2 MB  "
    )
    both = restored_line("3f2a91c0-1b2c", 214, 1_200_000, "working tree: 7 changed, 2 new files", 0.62)
    text = "  restored   session 3f2a91c0: 214 messages, 1.2 MB; working tree: 7 changed, 2 new files"
    assert both == f"{text:<96} 0.62 s"
    assert put_back_line(1, "gemini").startswith("  put back   1 finished call that gemini ")
    assert resuming_line("gemini", 1.9).endswith(" 1.90 s in all")
    assert stopped_line(["npm test"]) == "  stopped    1 leftover process of the old run (npm test)"
    assert stopped_line(["bash -c npm test", "npm test", "node x"]).endswith(
        "3 leftover processes of the old run (node x, npm test, ...)"
    )


def test_calls_in_flight() -> None:
    dark = replace(CALL, cls="read_only", because="Nothing of it runs any more; how it ended was not kept.")
    half = replace(CALL, finding="partial", because="Its file is longer than before.")
    done = replace(CALL, cls="idempotent", finding="not_started", because="The file `a` is as it was.", calls=(1, 2))
    assert in_flight_lines([CALL, dark, half, done]) == [
        "  in flight  make  unknown  cannot tell: the agent is asked to verify",
        "             make  read_only  cannot tell: Nothing of it runs any more; how it ended was not kept.",
        "             make  unknown  partly done: Its file is longer than before.",
        "             make (2 times)  idempotent  not started: The file `a` is as it was.",
    ]
    assert in_flight_lines([]) == []
    assert in_flight_lines([CALL] * 9)[-1] == "             and 4 more: see wal-agent log"


@given(st.text(max_size=200), st.binary(max_size=100))
def test_foreign_text_stays_on_its_line(name: str, data: bytes) -> None:
    report = replace(REPORT, old_host=name, new_host=name)
    lines = [headline(report), fenced_line(report), stopped_line([name] * 4)]
    lines += in_flight_lines([replace(CALL, tool=name, input=data, because=name)])
    assert all(line.isprintable() and len(line) < 400 for line in lines)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (describe_reach("gs://acme", "this machine"), "anywhere"),
        (describe_reach("file:///b", "this machine"), "on this machine, or wherever else its bucket's folder is"),
        (plural(1, "call"), "1 call"),
        (plural(0, "call"), "0 calls"),
        (clock_time(50_533.0), "14:02:13"),
        (clock_time(float("inf")), "an unknown time"),
        (clock_time(float("nan")), "an unknown time"),
        (clock_time(1e30), "an unknown time"),
        (duration(-5), "0 s"),
        (duration(119.4), "119 s"),
        (duration(240), "4 min"),
        (duration(8040), "2 h 14 min"),
        (duration(7200), "2 h"),
        (duration(300_000), "3 days"),
        (duration(float("nan")), "0 s"),
        (size(999), "999 B"),
        (size(1_200), "1.2 kB"),
        (size(3_400_000), "3.4 MB"),
        (size(5 * 10**12), "5000.0 GB"),
    ],
)
def test_words(said: str, wanted: str) -> None:
    assert said == wanted
