"""Who is told what: a table over all that happens."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from wal_agent import events as h
from wal_agent.notify.message import LEVELS, MAX_LINE, MAX_LINES, MAX_TITLE, REPORTED, Facts, message_of, reaches

FACTS = Facts("shop", "gs://acme/jobs", "gemini", "vm-22", "/w/my shop")
AT = 1_700_000_000.0  # 22:13:20 UTC
SECRET = "ghp_" + "a1B2c3D4e5" * 4
EVIL = "\x1b[2J\x9b31m\u202e\r\n"

TABLE: list[tuple[h.Event, str | None, str, tuple[str, ...]]] = [
    (
        h.Recovered(3, "vm-17", AT - 240, "crash", ("completed", "unknown", "unknown"), 2, 1.94, states=("cut",) * 3),
        "recovery",
        "shop: recovered on vm-22",
        (
            "Job shop (gemini) on vm-22, since 22:09:20 UTC (4 min ago), in gs://acme/jobs.",
            "It was cut off on vm-17 and continues on vm-22; that took 1.9 s.",
            "Open: 3 calls (3 cut): 1 completed, 2 unknown.",
            "Put back: 2 finished calls",
            "wal-agent log --job shop --bucket gs://acme/jobs",
            "Look: wal-agent status --job shop --bucket gs://acme/jobs",
        ),
    ),
    (h.Recovered(1, "vm", AT, "cut_off", (), 0, 0.5), "recovery", "recovered", ("No call was open.",)),
    (h.Recovered(1, "vm", AT, "preempted", (), 0, 0.5), "recovery", "continues on vm-22", ("It was drained on vm",)),
    (h.Recovered(1, "vm", AT, "over", (), 0, 0.5), "recovery", "continues on vm-22", ("It was at its end on vm",)),
    (h.Recovered(1, "vm", AT, "paused", (), 0, 0.5), "recovery", "continues on vm-22", ("It was paused on vm",)),
    *[
        (
            h.Halted(code, "The log is damaged.", "See: wal-agent doctor"),
            "person_needed",
            f"shop: stopped with {code}, a person is needed",
            ("The log is damaged.\nSee: wal-agent doctor", "Start it: wal-agent run gemini", "(in /w/my shop)"),
        )
        for code in (70, 73, 77, 78, 79, 80)
    ],
    (h.Halted(69, "The bucket is away.", ""), "recovery", "shop: stopped with 69", ("The bucket is away.",)),
    *[(h.Halted(code, "x", ""), None, "", ()) for code in (64, 75, 76)],
    (h.Halted(75, "The disk is full.", "", limit=True), "recovery", "shop: stopped with 75", ("The disk is full.",)),
    (h.LeaseLost("epoch 5 has it"), "person_needed", "shop: stopped: the lease", ("epoch 5 has it. The agent",)),
    (
        h.TakesLong("approval", 300.0, "run_shell_command"),
        "person_needed",
        "shop: the agent waits for you, or runs what you allowed, since 5 min: run_shell_command",
        ("since 22:08:20 UTC (5 min ago)", "If it still asks, allow", "on its screen on vm-22, in /w/my shop"),
    ),
    (h.TakesLong("start", 300.0), "person_needed", "shop: the agent has not begun for 5 min", ("the job is held",)),
    (h.TakesLong("exit", 300.0), "person_needed", "shop: its turn is over and the agent has not ended", ("on vm-22",)),
    (h.HungUp(300.0, "exit"), "recovery", "shop: hangs: its turn is over", ("not started again: its turn was",)),
    (h.TakesLong("model", 90.0), "info", "shop: no answer of the model for 90 s", ("since 22:11:50 UTC",)),
    (h.TakesLong("tool", 1860.0, "bash"), "info", "shop: bash runs for 31 min", ("left alone",)),
    (h.HungUp(600.0), "recovery", "shop: hangs: no answer", ("not started again; the next", "Start it: wal-agent run")),
    (
        h.LeftOpen(((412, "deploy", "open"), (413, "push", "cut"))),
        "person_needed",
        "shop: 2 open calls",
        (
            "#412 deploy (open): wal-agent ack 412 --job shop --bucket gs://acme/jobs --done (or --not-done)",
            "#413 push",
        ),
    ),
    (h.LeftOpen(()), None, "", ()),
    (h.LeftOpen(((4, "sh", "cut"),), 1), "person_needed", "shop: 1 open call; 1 call answered, not proven", ("#4 sh",)),
    (h.Restarting(2, 8.0, "heap"), "info", "shop: the agent died (heap)", ("Attempt 2, in 8 s.",)),
    (h.Paused(AT + 1800, "rate limit"), "info", "shop: paused until 22:43 UTC", ("Why: rate limit. A start",)),
    (
        h.Paused(AT + 1800, "quota used up", 3 * 3600.0),
        "person_needed",
        "shop: paused until 22:43 UTC; nothing was done for 3 h",
        ("Why: quota used up.",),
    ),
    (
        h.DrainFinished(3.2, True),
        "info",
        "shop: drained",
        ("saved and the job is given up, in 3.2 s; it continues anywhere.",),
    ),
    (h.CheckpointFailed("no room"), "info", "shop: a checkpoint failed", ("no room. The run goes on",)),
    (h.SummaryLost(3, False), "recovery", "shop: compaction 3 left an empty summary", ("wal-agent recall WORDS",)),
    (h.SummaryLost(3, True), "recovery", "shop: compaction 3", ("starts again with a compact form",)),
    (h.DrainFinished(20.0, False), "recovery", "shop: not drained in time", ("takes it for a crash",)),
    (h.NoticeReceived("gcp"), None, "", ()),
    (h.RenewalFailed("bucket away", 20.0), None, "", ()),
    (h.LeaseRenewed(3), None, "", ()),
    (h.HookAnswered("BeforeTool", "allow", "", 0.01), None, "", ()),
    (h.PhaseChanged("starting", "awaiting_model", "", 1.0), None, "", ()),
    (h.Ready(), None, "", ()),
]


@pytest.mark.parametrize(("event", "level", "title", "parts"), TABLE)
def test_each_event_is_told_at_its_level_or_not_at_all(
    event: h.Event, level: str | None, title: str, parts: tuple[str, ...]
) -> None:
    message = message_of(FACTS, AT, event)
    if level is None:
        assert message is None
        return
    assert message is not None and message.level == level
    assert title in message.title
    assert "shop" in message.title and "vm-22" in message.body and "UTC" in message.body
    assert "wal-agent " in message.body, "the command to type"
    for part in parts:
        assert part in message.body
    assert isinstance(event, REPORTED), "what is told is heard"


def test_what_is_saved_in_a_folder_goes_on_where_that_is() -> None:
    message = message_of(replace(FACTS, bucket="file:///home/me/bucket"), AT, h.DrainFinished(3.2, True))
    assert message and "it continues on vm-22, or wherever else its bucket's folder is." in message.body
    assert "anywhere" not in message.body


def test_a_hang_says_whether_the_agent_is_started_again() -> None:
    message = message_of(replace(FACTS, restarts=True), AT, h.HungUp(600.0))
    assert message and "ended and started again" in message.body and "Start it" not in message.body


def test_only_a_halt_that_needs_a_person_insists() -> None:
    insisting = {type(x) for x, *_ in TABLE if (m := message_of(FACTS, AT, x)) and m.insists}
    assert insisting == {h.Halted}
    passing = message_of(FACTS, AT, h.Halted(69, "away", ""))
    assert passing and not passing.insists


@pytest.mark.parametrize(
    "event",
    [
        h.Recovered(3, f"vm{EVIL}{SECRET}", AT - 5, "x", ("unknown",), 0, 1.0),
        h.Halted(78, f"token={SECRET}{EVIL}" * 200, f"password={SECRET}{EVIL}"),
        h.TakesLong("approval", 300.0, f"mcp{EVIL}{SECRET}"),
        h.LeftOpen(tuple((n, f"tool{EVIL} {SECRET}", "open") for n in range(50))),
        h.Paused(1e300, f"{SECRET}{EVIL}"),
        h.LeaseLost(f"{SECRET}{EVIL}"),
    ],
)
def test_what_leaves_has_no_secret_no_escape_and_few_short_lines(event: h.Event) -> None:
    facts = Facts("shop", f"s3://key:{SECRET}@acme/jobs", f"gemini{EVIL}", f"vm{EVIL}{SECRET}", f"/w/{EVIL}")
    message = message_of(facts, AT, event)
    assert message is not None
    lines = message.body.split("\n")
    for text in (message.title, *lines):
        assert SECRET not in text and text.isprintable() and text
    assert len(message.title) <= MAX_TITLE and len(lines) <= MAX_LINES and max(map(len, lines)) <= MAX_LINE


def test_a_message_again_has_the_same_key_and_another_has_not() -> None:
    def key(event: h.Event, at: float = AT) -> str:
        message = message_of(FACTS, at, event)
        assert message is not None
        return message.key

    assert key(h.Halted(80, "loop", "a")) == key(h.Halted(80, "loop", "b"), AT + 60)
    assert key(h.Halted(80, "loop", "")) != key(h.Halted(79, "loop", ""))
    again = h.Recovered(3, "vm", AT, "x", (), 0, 1.0)
    assert key(again) != key(again, AT + 60), "every recovery is told"
    waits = h.TakesLong("approval", 300.0, "bash")
    assert key(waits) != key(waits, AT + 60), "another approval than before"


def test_the_levels_are_ordered() -> None:
    assert [[w for w in LEVELS if reaches(level, w)] for level in LEVELS] == [
        ["info"],
        ["info", "recovery"],
        ["info", "recovery", "person_needed"],
    ]


def test_nothing_that_happens_is_forgotten_here() -> None:
    """Whoever adds to the vocabulary says here whether people are told."""
    silent = {
        *(h.LeaseTaken, h.LeaseRenewed, h.RenewalFailed, h.LeaseSettled, h.Ready, h.AgentBegan, h.AgentEnded),
        *(h.HookAnswered, h.CallStarted, h.CallEnded, h.PhaseChanged, h.NoticeReceived, h.DrainStarted),
        *(h.Saved, h.Logged, h.CheckpointCreated, h.CheckpointRestored),
    }
    assert {*REPORTED, *silent} == set(get_args(h.Event)) and not {*REPORTED} & silent
