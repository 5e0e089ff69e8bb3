"""A run that has everything happen to it, and what it may say of it to nobody."""

from __future__ import annotations

from wal_agent.events import (
    AgentBegan,
    AgentEnded,
    CallEnded,
    CallStarted,
    CheckpointCreated,
    CheckpointFailed,
    CheckpointRestored,
    DrainFinished,
    DrainStarted,
    Event,
    Halted,
    HookAnswered,
    HungUp,
    LeaseLost,
    LeaseRenewed,
    LeaseSettled,
    LeaseTaken,
    LeftOpen,
    Logged,
    NoticeReceived,
    Paused,
    PhaseChanged,
    Ready,
    Recovered,
    RenewalFailed,
    Restarting,
    Saved,
    SummaryLost,
    TakesLong,
)

SECRET = "ghp_" + "a1B2" * 9
IDS = ("run-7f3a", "session-3f2a", "call-9c1d", "host-vm-22", "shop-job", "mcp__internal__deploy")
CRASHED = "0af7651916cd43dd8448eb211c80319c"

TAKEN = LeaseTaken(
    "shop-job", "gs://acme", "run-7f3a", 4, "dead", "host-vm-22", "gemini", "0.61.0", "/home/me/shop", 30.0
)
STORY: tuple[Event, ...] = (
    TAKEN,
    Recovered(3, "vm-17", 1000.0, "crash", ("completed", "unknown"), 2, 1.9, CRASHED),
    AgentBegan(812, "session-3f2a", True),
    LeaseRenewed(4, 29.0),
    HookAnswered("SessionStart", "", "", 0.002),
    Ready(),
    PhaseChanged("starting", "awaiting_model", "", 1.5),
    HookAnswered("BeforeTool", "allow", "", 0.011),
    CallStarted(412, "mcp__internal__deploy", "unknown", "call-9c1d"),
    PhaseChanged("awaiting_model", "executing_tools", "mcp__internal__deploy", 3.0),
    TakesLong("tool", 200.0, "mcp__internal__deploy"),
    CallEnded(412, "mcp__internal__deploy", "failed", 201.0),
    HookAnswered("BeforeTool", "deny", "unsaved", 20.5),
    Logged(("intent", "end", "file"), 1),
    Saved("session", 3000, 0.2),
    Saved("session", 0, 0.001),
    Saved("workspace", 500, 1.2),
    Saved("snapshot", 77_000, 0.4),
    CheckpointRestored(7, 40.0, False),
    CheckpointCreated(8, "phase_change", 9000),
    CheckpointFailed(f"no room for {SECRET}"),
    SummaryLost(3, False),
    RenewalFailed(f"the store said Authorization: Bearer {SECRET}\x1b[31m\nsecond line", 12.5),
    NoticeReceived("gcp", 30.0),
    DrainStarted("gcp", 20.0),
    AgentEnded(-15, "drained", "terminated"),
    DrainFinished(4.0, True),
    HungUp(900.0),
    Restarting(1, 2.0, "killed"),
    Paused(99_999.0, "rate limit"),
    LeaseLost("job shop-job was taken over"),
    Halted(79, f"a person is needed: token={SECRET}", "wal-agent ack 412"),
    LeftOpen(((412, "mcp__internal__deploy", "cut"),)),
    LeaseSettled("released", "drained"),
)
