"""supervise/preemption: whose machine this is, what its metadata server says, and what a notice does to the run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.metadata import ACTION, EVENTS, NAME, PREEMPTED, REBALANCE, TOKEN, Metadata, metadata
from wal_agent.clock import SystemClock
from wal_agent.config import Settings
from wal_agent.events import Event, NoticeReceived
from wal_agent.supervise import preemption as watch
from wal_agent.supervise.exits import ShutdownPlan
from wal_agent.supervise.preemption import (
    AZURE_TAG,
    LINK_LOCAL,
    Aws,
    Azure,
    Gcp,
    MetadataError,
    Notice,
    Preempted,
    Preemption,
    Server,
    Watcher,
    detect_cloud,
    drain_budget,
    metadata_server,
    notice_source,
    wait_after,
)

PATIENCE = 60.0


def never(what: object) -> None:
    pytest.fail(f"told of {what!r}")


@pytest.fixture
def cloud() -> Iterator[Metadata]:
    with metadata() as made:
        yield made


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is threads of this process, which may have to wait for their turn."""
    hurried = watch.MetadataClient.ask

    def patient(
        self: watch.MetadataClient,
        method: str,
        path: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        timeout: float = 0.0,
    ) -> watch.Reply:
        return hurried(self, method, path, headers, max(timeout, PATIENCE))

    monkeypatch.setattr(watch.MetadataClient, "ask", patient)


def gcp(at: Metadata) -> Gcp:
    return Gcp(Server("127.0.0.1", at.port))


def aws(at: Metadata) -> Aws:
    return Aws(Server("127.0.0.1", at.port), SystemClock())


# ---- whose machine, and how long it has


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"product_name": "Google Compute Engine\n"}, "gcp"),
        ({"sys_vendor": "Amazon EC2\n", "product_name": "m7g.large\n"}, "aws"),
        ({"board_asset_tag": "i-0abcdef1234567890\n"}, "aws"),
        ({"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": f"{AZURE_TAG}\n"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation\n", "chassis_asset_tag": "1234\n"}, None),  # Hyper-V
        ({"sys_vendor": "QEMU\n", "product_name": "Standard PC\n", "board_asset_tag": "\n"}, None),
        ({"product_name": "x" * 100_000}, None),
        ({}, None),
    ],
)
def test_whose_machine_it_is(tmp_path: Path, files: dict[str, str], found: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert detect_cloud(tmp_path) == found


def test_where_the_server_is() -> None:
    """Only a person's environment names another one, by the clouds' own variables; a name is looked up nowhere."""
    assert metadata_server("gcp", {}) == metadata_server("aws", {}) == Server(LINK_LOCAL, 80)
    assert metadata_server("azure", {"GCE_METADATA_HOST": "127.0.0.1:81"}) == Server(LINK_LOCAL, 80)
    assert metadata_server("gcp", {"GCE_METADATA_HOST": "127.0.0.1:81"}) == Server("127.0.0.1", 81)
    endpoint = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    assert metadata_server("aws", {endpoint: "http://[fd00:ec2::254]/"}) == Server("fd00:ec2::254", 80)
    assert metadata_server("aws", {endpoint: "https://x"}) is metadata_server("aws", {endpoint: "http://x:y"}) is None
    assert metadata_server("aws", {"AWS_EC2_METADATA_DISABLED": "TRUE"}) is None


def settings(preemption: str, drain: float = 20.0) -> Settings:
    return Settings("file:///b", "job", preemption=preemption, drain=drain)  # type: ignore[arg-type]


def test_who_is_asked() -> None:
    """auto: nobody, unless the firmware names a cloud; off: nobody."""
    clock = SystemClock()
    assert notice_source(settings("auto"), {}, clock, lambda: None) is None
    assert notice_source(settings("off"), {}, clock, lambda: "gcp") is None
    assert isinstance(notice_source(settings("auto"), {}, clock, lambda: "gcp"), Gcp)
    assert isinstance(notice_source(settings("aws"), {}, clock, lambda: "gcp"), Aws)
    assert isinstance(notice_source(settings("azure"), {}, clock, lambda: None), Azure)
    assert notice_source(settings("aws"), {"AWS_EC2_METADATA_DISABLED": "true"}, clock, lambda: None) is None


@given(st.floats(0, 1e4), st.floats(0, 600))
def test_a_drain_fits_into_the_notice(left: float, drain: float) -> None:
    assert drain_budget(left, drain) <= max(2.0, min(drain, left))
    assert drain_budget(30.0, 20.0) == 20.0 and drain_budget(30.0, 600.0) == 25.0


# ---- Google


def test_google_is_asked_once_and_then_waited_for(cloud: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy is asked, whatever the environment says: it would tell of its own machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    source = gcp(cloud)
    assert source.poll() is None
    waiting = threading.Thread(target=lambda: found.append(source.poll()))
    found: list[Notice | None] = []
    waiting.start()
    cloud.asked(PREEMPTED, 2)
    cloud.preempt()
    waiting.join(PATIENCE)
    assert found == [Notice("gcp", 30.0, drain=True)]
    assert [path for _, path, _ in cloud.seen] == [
        PREEMPTED,
        f"{PREEMPTED}?wait_for_change=true&timeout_sec=60&last_etag=a1",
    ]
    assert all(headers["metadata-flavor"] == "Google" for *_, headers in cloud.seen)


def test_a_machine_that_was_going_before_the_watch_began(cloud: Metadata) -> None:
    cloud.preempt()
    assert gcp(cloud).poll() == Notice("gcp", 30.0, drain=True)


def test_a_look_that_waits_ends_when_it_is_closed(cloud: Metadata) -> None:
    source, ended = gcp(cloud), threading.Event()
    source.poll()

    def wait() -> None:
        with pytest.raises(MetadataError):
            source.poll()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    cloud.asked(PREEMPTED, 2)
    source.close()
    assert ended.wait(PATIENCE)
    with pytest.raises(MetadataError, match="closed"):
        source.poll()


# ---- Amazon


def test_amazon_is_asked_with_a_token_until_it_acts(cloud: Metadata) -> None:
    source = aws(cloud)
    assert source.poll() is source.poll() is None
    assert cloud.paths == [TOKEN, ACTION, REBALANCE, ACTION, REBALANCE]
    cloud.act({"action": "terminate", "time": "2017-09-18T08:22:00Z"})
    found = source.poll()
    assert found == Notice("aws", 0.0, drain=True)  # long past, by its own clock


def test_the_time_left_is_by_the_servers_clock(cloud: Metadata) -> None:
    then = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1e9 + 90))
    body = b'{"action":"stop","time":"%s"}' % then.encode()
    source = aws(cloud)
    source.poll()
    head = f"HTTP/1.1 200 OK\r\nDate: {formatdate(1e9, usegmt=True)}\r\nContent-Length: {len(body)}\r\n\r\n"
    cloud.raw = head.encode() + body
    assert source.poll() == Notice("aws", 90.0, drain=True)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 9000, b"7", b'{"time":1}', b'{"time":"soon"}', b'{"time":"99999-01-01"}', b"\xff"]
)
def test_a_notice_whose_time_cannot_be_read_is_one(cloud: Metadata, body: bytes) -> None:
    source = aws(cloud)
    source.poll()
    cloud.raw = b"HTTP/1.1 200 OK\r\nDate: never\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert source.poll() == Notice("aws", 120.0, drain=True)


# ---- Azure


def azure(at: Metadata) -> Azure:
    return Azure(Server("127.0.0.1", at.port), SystemClock())


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_azure_is_asked_until_an_event_ends_this_machine(cloud: Metadata, kind: str) -> None:
    """Its name is asked for once. Moved or frozen it goes on; so it does where another machine of its set ends."""
    source = azure(cloud)
    cloud.schedule(EventType="Freeze")
    cloud.schedule(EventType=kind, Resources=["other", "spot-10"])
    cloud.schedule(EventType=kind, EventStatus="Completed")
    assert source.poll() is source.poll() is None
    assert cloud.paths == [NAME, EVENTS, EVENTS]
    cloud.schedule(EventType=kind, NotBefore=formatdate(1e9, usegmt=True))
    assert source.poll() == Notice("azure", 0.0, drain=True)  # long past, by its own clock


@pytest.mark.parametrize(("status", "left"), [("Scheduled", 30.0), ("Started", 0.0)])
@pytest.mark.parametrize("when", ["", "soon", None, 7, {}])
def test_an_event_whose_time_cannot_be_read_is_a_notice(
    cloud: Metadata, when: object, status: str, left: float
) -> None:
    cloud.schedule(EventType="Preempt", EventStatus=status, NotBefore=when)
    assert azure(cloud).poll() == Notice("azure", left, drain=True)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 9000, b"7", b"{}", b'{"Events":7}', b'{"Events":[7]}', b'{"Events":[{"Resources":7}]}']
)
def test_events_that_cannot_be_read_are_no_notice(cloud: Metadata, body: bytes) -> None:
    source = azure(cloud)
    source.poll()
    cloud.raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with pytest.raises(MetadataError):
        source.poll()


def test_a_recommendation_is_told_once_and_drains_nothing(cloud: Metadata) -> None:
    source = aws(cloud)
    cloud.recommend()
    assert source.poll() == Notice("aws-rebalance", 0.0, drain=False)
    assert source.poll() is None


def test_a_token_that_has_run_out_is_renewed(cloud: Metadata) -> None:
    source = aws(cloud)
    source.poll()
    cloud.token = "token-2"
    with pytest.raises(MetadataError, match="401"):
        source.poll()
    assert source.poll() is None


# ---- servers that lie


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 999999\r\n\r\nTRUE" + b" " * 999_995,
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE",
        b"HTTP/1.1 302 Found\r\nMetadata-Flavor: Google\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_is_trouble(cloud: Metadata, raw: bytes) -> None:
    cloud.raw = raw
    for source in (gcp(cloud), aws(cloud)):
        if not (isinstance(source, Aws) and b"Length: 4" in raw):
            with pytest.raises(MetadataError):
                source.poll()


def test_an_etag_goes_into_no_request_as_it_comes(cloud: Metadata) -> None:
    source = gcp(cloud)
    cloud.raw = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: a b&x=y\r\nContent-Length: 5\r\n\r\nFALSE"
    assert source.poll() is source.poll() is None
    assert cloud.seen[-1][1].endswith("&last_etag=0")


def test_nobody_there() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(MetadataError):
            Gcp(Server("127.0.0.1", deaf.getsockname()[1])).poll()


def test_a_reply_is_read_so_far_and_no_further(cloud: Metadata) -> None:
    cloud.raw = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (watch.MAX_REPLY + 1)
    with pytest.raises(MetadataError, match="more than"):
        watch.MetadataClient(Server("127.0.0.1", cloud.port)).ask("GET", "/")


# ---- the watch


class Scripted:
    """Gives or raises one thing after another, then nothing more until it is closed."""

    period = 0.0

    def __init__(self, *script: Notice | Exception | None) -> None:
        self.script = list(script)
        self.closed = threading.Event()

    def poll(self) -> Notice | None:
        if not self.script:
            self.closed.wait(PATIENCE)
            raise MetadataError("closed")
        now = self.script.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    def close(self) -> None:
        self.closed.set()


DRAIN = Notice("gcp", 30.0, drain=True)
REBALANCED = Notice("aws-rebalance", 0.0, drain=False)


def test_trouble_ends_no_watch_and_a_notice_that_drains_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST", 0.0)
    heard: list[Notice] = []
    done = threading.Event()
    source = Scripted(MetadataError("away"), None, REBALANCED, MetadataError("away"), DRAIN, None)

    def hear(notice: Notice) -> None:
        heard.append(notice)
        if notice.drain:
            done.set()

    watcher = Watcher(source, SystemClock(), hear, never)
    watcher.start()
    assert done.wait(PATIENCE)
    watcher._thread.join(PATIENCE)
    assert heard == [REBALANCED, DRAIN] and source.script == [None]


def test_a_bug_is_told_and_ends_only_the_watch() -> None:
    told: list[BaseException] = []
    watcher = Watcher(Scripted(KeyError("x")), SystemClock(), never, told.append)
    watcher.start()
    watcher._thread.join(PATIENCE)
    assert [type(error) for error in told] == [KeyError]


def test_a_watch_that_waits_can_be_stopped() -> None:
    watcher = Watcher(Scripted(), SystemClock(), never, never)
    watcher.start()
    watcher.stop()
    watcher._thread.join(PATIENCE)
    assert not watcher._thread.is_alive()


def test_failures_are_not_repeated_at_once_nor_too_late() -> None:
    assert [wait_after(n) for n in (1, 2, 3, 4, 5, 999)] == [1, 2, 4, 8, 10, 10]


# ---- what a notice does


class Agent:
    def __init__(self) -> None:
        self.downs: list[ShutdownPlan] = []
        self.saves = 0
        self.word = threading.Event()

    def shut_down(self, down: ShutdownPlan) -> None:
        self.downs.append(down)
        self.word.set()

    def save_soon(self) -> None:
        self.saves += 1
        self.word.set()


def preemption(cloud: Metadata, heard: list[Event], wanted: str = "gcp", drain: float = 20.0) -> Preemption:
    env = {"GCE_METADATA_HOST": cloud.host, "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{cloud.host}/"}
    return Preemption(settings(wanted, drain), env, SystemClock(), heard.append, never)


def test_a_notice_ends_the_agent_that_runs(cloud: Metadata) -> None:
    heard: list[Event] = []
    watching, agent = preemption(cloud, heard, drain=600), Agent()
    watching.start()
    watching.check()
    watching.attach(agent)
    cloud.asked(PREEMPTED, 2)
    cloud.preempt()
    assert agent.word.wait(PATIENCE)
    watching.stop()
    (down,) = agent.downs
    assert (down.kind, down.source) == ("drain", "gcp") and down.until - down.began == pytest.approx(25.0)
    assert heard == [NoticeReceived("gcp", 30.0)]


def test_a_notice_before_the_agent_starts_none(cloud: Metadata) -> None:
    heard: list[Event] = []
    cloud.act({"action": "terminate"})
    watching, agent = preemption(cloud, heard, "aws"), Agent()
    watching.start()
    while not heard:
        time.sleep(0.005)
    watching._watcher._thread.join(PATIENCE)  # type: ignore[union-attr]
    with pytest.raises(Preempted, match=r"going away \(aws\)") as raised:
        watching.check()
    assert raised.value.exit_code == 143
    watching.attach(agent)
    assert [down.source for down in agent.downs] == ["aws"]


def test_a_recommendation_saves_and_goes_on(cloud: Metadata) -> None:
    heard: list[Event] = []
    cloud.recommend()
    watching, agent = preemption(cloud, heard, "aws"), Agent()
    watching.attach(agent)
    watching.start()
    assert agent.word.wait(PATIENCE)
    watching.stop()
    watching.check()
    assert (agent.saves, agent.downs) == (1, []) and heard == [NoticeReceived("aws-rebalance")]


def test_what_a_person_asked_for_and_cannot_have_is_told(cloud: Metadata) -> None:
    off = Preemption(settings("aws"), {"AWS_EC2_METADATA_DISABLED": "true"}, SystemClock(), never, never)
    off.start()
    off.stop()
    assert "switched off in the environment" in off.problem
    cloud.raw = b"nonsense"
    asked = preemption(cloud, [])
    asked.start()
    while not asked.problem:
        time.sleep(0.005)
    asked.stop()
    assert "metadata server cannot be asked" in asked.problem
    silent = Preemption(settings("auto"), {}, SystemClock(), never, never, lambda: None)
    assert silent.problem == ""
