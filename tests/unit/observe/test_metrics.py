"""observe/metrics.py: the names that operators build on, parsed by Prometheus' own parser."""

from __future__ import annotations

from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faulty_bucket import Fault, FaultBucket
from tests.unit.observe.story import IDS, SECRET, STORY, TAKEN
from tests.unit.wal.world import FakeClock
from wal_agent import __version__
from wal_agent.bucket.base import MemoryBucket
from wal_agent.errors import Conflict, NotFound, Unavailable
from wal_agent.events import (
    CallStarted,
    Event,
    Halted,
    HookAnswered,
    LeaseRenewed,
    LeaseSettled,
    Logged,
    NoticeReceived,
    PhaseChanged,
    RenewalFailed,
    Saved,
)
from wal_agent.observe.metrics import MAX_LABEL_VALUES, Metrics
from wal_agent.observe.serve import exposition
from wal_agent.records import PhaseName

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

# Name, kind and labels. A change here is a change of what is promised.
PROMISED = {
    "wal_agent_checkpoints": ("counter", {"trigger", "result"}),
    "wal_agent_info": ("gauge", {"agent", "agent_version", "version"}),
    "wal_agent_lease_generation": ("gauge", set()),
    "wal_agent_lease_seconds_remaining": ("gauge", set()),
    "wal_agent_lease_renew_failures": ("counter", set()),
    "wal_agent_lease_lost": ("counter", set()),
    "wal_agent_hook_seconds": ("histogram", {"event", "decision"}),
    "wal_agent_hook_denied": ("counter", {"reason"}),
    "wal_agent_journal_records": ("counter", {"kind"}),
    "wal_agent_unsettled_calls": ("gauge", set()),
    "wal_agent_last_sync_timestamp_seconds": ("gauge", {"what"}),
    "wal_agent_sync_bytes": ("counter", {"what"}),
    "wal_agent_sync_seconds": ("histogram", {"what"}),
    "wal_agent_snapshot_bytes": ("gauge", set()),
    "wal_agent_recoveries": ("counter", {"cause", "result"}),
    "wal_agent_recovery_seconds": ("histogram", set()),
    "wal_agent_dangling_calls": ("counter", set()),
    "wal_agent_preemption_notices": ("counter", {"source"}),
    "wal_agent_agent_exits": ("counter", {"class"}),
    "wal_agent_phase": ("gauge", {"phase"}),
    "wal_agent_phase_seconds": ("gauge", set()),
    "wal_agent_store_requests": ("counter", {"op", "result"}),
    "wal_agent_store_retries": ("counter", set()),
}


def samples(text: bytes) -> Samples:
    families = list(text_string_to_metric_families(text.decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


class Board:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics(self.clock)

    def on_event(self, *events: Event) -> Board:
        for event in events:
            self.metrics.on_event(1_700_000_000.0, event)
        return self

    def get(self, name: str, **labels: str) -> float:
        return samples(exposition(self.metrics.registry)())[f"wal_agent_{name}", frozenset(labels.items())]


@pytest.fixture
def board() -> Board:
    return Board()


def test_names_kinds_and_labels_are_the_promised_ones(board: Board) -> None:
    board.metrics.metered(MemoryBucket()).time()
    board.on_event(*STORY)
    families = list(text_string_to_metric_families(exposition(board.metrics.registry)().decode()))
    assert all(f.documentation for f in families)
    found = {f.name: (f.type, {k for s in f.samples for k in s.labels} - {"le"}) for f in families}
    assert found == PROMISED


def test_what_happened_is_counted(board: Board) -> None:
    board.on_event(*STORY)
    get = board.get
    assert get("info", agent="gemini", agent_version="0.61.0", version=__version__) == 1
    assert (get("lease_generation"), get("lease_renew_failures_total"), get("lease_lost_total")) == (4, 1, 1)
    assert get("hook_seconds_count", event="BeforeTool", decision="allow") == 1
    assert get("hook_seconds_bucket", event="BeforeTool", decision="allow", le="0.01") == 0
    assert get("hook_seconds_bucket", event="BeforeTool", decision="allow", le="0.025") == 1
    assert get("hook_seconds_bucket", event="BeforeTool", decision="deny", le="30.0") == 1
    assert get("hook_seconds_count", event="SessionStart", decision="none") == 1
    assert get("hook_denied_total", reason="unsaved") == 1
    assert [get("journal_records_total", kind=kind) for kind in ("intent", "end", "file")] == [1, 1, 1]
    assert get("unsettled_calls") == 1
    found = [("phase_change", "created"), ("recovery", "restored"), ("", "failed")]
    assert [get("checkpoints_total", trigger=trigger, result=result) for trigger, result in found] == [1, 1, 1]
    assert get("last_sync_timestamp_seconds", what="session") == 1_700_000_000
    assert (get("sync_bytes_total", what="session"), get("sync_bytes_total", what="workspace")) == (3000, 500)
    assert get("sync_seconds_count", what="session") == 1, "a look that found nothing is no sync"
    assert get("snapshot_bytes") == 77_000
    assert get("recoveries_total", cause="dead", result="resumed") == 1
    assert (get("recovery_seconds_sum"), get("dangling_calls_total")) == (1.9, 2)
    assert (get("preemption_notices_total", source="gcp"), get("agent_exits_total", **{"class": "drained"})) == (1, 1)


def test_no_id_no_tool_and_no_secret_is_in_it(board: Board) -> None:
    board.on_event(*STORY)
    text = exposition(board.metrics.registry)().decode()
    assert [word for word in (*IDS, SECRET, "_created", "gs://", "/home/me") if word in text] == []


def test_the_job_is_on_every_sample_for_who_asks_for_it(board: Board) -> None:
    board.on_event(*STORY)
    plain = samples(exposition(board.metrics.registry)())
    named = samples(exposition(board.metrics.registry, 'odd "job"\n')())
    label = ("wal_job", 'odd "job"\n')
    assert set(named) == {(name, labels | {label}) for name, labels in plain}


def test_what_is_left_of_the_lease_is_told_as_of_the_asking(board: Board) -> None:
    assert board.get("lease_seconds_remaining") == 0
    board.on_event(TAKEN)
    board.clock.sleep(10)
    assert board.get("lease_seconds_remaining") == 20
    board.on_event(LeaseRenewed(4, 29.0))
    board.clock.sleep(4)
    assert board.get("lease_seconds_remaining") == 25
    board.on_event(RenewalFailed("away", 24.0))
    board.clock.sleep(100)
    assert board.get("lease_seconds_remaining") == 0
    board.on_event(LeaseRenewed(4, 29.0), LeaseSettled("closed", "completed"))
    assert board.get("lease_seconds_remaining") == 0


def test_exactly_one_phase_is_on(board: Board) -> None:
    def on() -> list[str]:
        return [p for p in get_args(PhaseName) if board.get("phase", phase=p)]

    assert on() == ["starting"]
    board.clock.sleep(5)
    assert board.get("phase_seconds") == 5
    board.on_event(PhaseChanged("starting", "awaiting_user", "", 5.0))
    assert (on(), board.get("phase_seconds")) == (["awaiting_user"], 0)


def test_a_recovery_that_needs_a_person_is_a_halted_one_and_a_refused_fresh_start_is_none(board: Board) -> None:
    board.on_event(TAKEN, Halted(79, "a person is needed", ""), Halted(79, "again", ""))
    assert board.get("recoveries_total", cause="dead", result="halted") == 1
    fresh = Board().on_event(Halted(78, "no hooks", ""))
    assert "recoveries_total{" not in exposition(fresh.metrics.registry)().decode()


def test_what_an_earlier_run_left_open_goes_with_the_log(board: Board) -> None:
    board.on_event(Logged(("end",), 3))
    assert board.get("unsettled_calls") == 3
    board.on_event(Logged(("end",), 0))
    assert board.get("unsettled_calls") == 0


def test_labels_take_few_values_whoever_sends_them(board: Board) -> None:
    for number in range(MAX_LABEL_VALUES + 20):
        board.on_event(
            HookAnswered(f"Event{number}", "deny", f"reason{number}", 0.1),
            NoticeReceived(f"source{number}"),
            Logged((f"kind{number}",)),
            CallStarted(number, f"tool{number}", "unknown"),
        )
    board.on_event(HookAnswered('x"}\n' + "y" * 999, "allow", "", 0.1))
    text = exposition(board.metrics.registry)().decode()
    found = {labels for (name, labels) in samples(text.encode()) if name == "wal_agent_hook_seconds_count"}
    assert len(found) == MAX_LABEL_VALUES + 2 and "tool1" not in text and "yyy" not in text
    assert board.get("hook_denied_total", reason="other") == 20
    assert board.get("preemption_notices_total", source="other") == board.get("journal_records_total", kind="other")


def test_requests_to_the_bucket_by_operation_and_result(board: Board) -> None:
    lost = iter([Fault(), Fault(), Fault(before=True), Fault(before=True), Fault(), Fault()])
    bucket = board.metrics.metered(FaultBucket(MemoryBucket(), lambda op, key: next(lost)))
    bucket.put("a", b"1")
    with pytest.raises(Conflict):
        bucket.put("a", b"2")
    for _ in range(2):
        with pytest.raises(Unavailable):
            bucket.get("b")
    with pytest.raises(NotFound):
        bucket.get("b")
    assert [entry.key for entry in bucket.list("a")] == ["a"]
    get = board.get
    assert get("store_requests_total", op="put", result="ok") == 1
    assert get("store_requests_total", op="put", result="conflict") == 1
    assert get("store_requests_total", op="get", result="unavailable") == 2
    assert get("store_requests_total", op="get", result="not_found") == 1
    assert get("store_requests_total", op="list", result="ok") == 1
    assert get("store_retries_total") == 2


def test_a_restarted_agent_is_a_further_run_of_the_same_counters(board: Board) -> None:
    for _ in range(2):
        board.metrics.metered(MemoryBucket()).time()
        board.on_event(*STORY)
    assert (board.get("store_requests_total", op="time", result="ok"), board.get("lease_lost_total")) == (2, 2)
    board.on_event(PhaseChanged("starting", "stopped", "", 0.0), TAKEN)
    assert board.get("phase", phase="starting") == 1


def test_a_save_that_found_nothing_new_says_that_all_is_there(board: Board) -> None:
    board.on_event(Saved("session", 0, 0.01))
    assert board.get("last_sync_timestamp_seconds", what="session") == 1_700_000_000
    assert ("wal_agent_sync_bytes_total", frozenset({("what", "session")})) not in samples(
        exposition(board.metrics.registry)()
    )
