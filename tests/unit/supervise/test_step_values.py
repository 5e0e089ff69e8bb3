"""supervise/steps.py, messages/values.py: one contract for values in the log and on a real nats-server (docs/STEPS.md).

The second half holds what only a server does: it goes away, other clients write there, and jobs share it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import nats
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from tests.servers.nats import NatsServer
from tests.unit.supervise.crew import PATIENCE, Desk, Post, until
from tests.unit.wal.world import TTL, World
from wal_agent.config import Settings
from wal_agent.errors import Conflict, UsageError
from wal_agent.messages import check_needs, open_values
from wal_agent.messages import values as values_module
from wal_agent.messages.values import META, Known, KvValues, key_of, name_of
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.remove_job import remove_job
from wal_agent.steps import SavedState
from wal_agent.supervise import steps as module
from wal_agent.supervise.steps import MAX_VALUE

ROOM = "max_payload: 2MB"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    found = NatsServer(tmp_path / "nats", ROOM).start()
    yield found
    found.kill()


@pytest.fixture(params=["log", "nats"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    url = request.getfixturevalue("server").url if request.param == "nats" else ""
    found = Desk(tmp_path, url)
    yield found
    found.close()


@pytest.fixture
def remote(tmp_path: Path, server: NatsServer) -> Iterator[Desk]:
    found = Desk(tmp_path, server.url)
    yield found
    found.close()


def saved(desk: Desk) -> SavedState:
    """What is read from outside of any run."""
    bucket, keys = desk.post.world.bucket, desk.post.job.keys
    found = SavedState(bucket, keys, "", lambda: open_values(desk.settings, {}, bucket, keys))
    found._now = desk.clock.now()
    return found


def zombie_of(desk: Desk) -> Callable[..., dict[str, Any]]:
    """The desk's run as of now, which goes on to ask after another one has the job."""
    post, keeper = Post.__new__(Post), desk.keeper
    post.__dict__.update(desk.post.__dict__)

    def ask(do: str, step: str = "a", **more: Any) -> dict[str, Any]:
        with post.committing():
            return keeper.answer({"do": do, "step": step, **more}, True)

    return ask


# ---- the contract


def test_a_value_comes_back_byte_for_byte(desk: Desk) -> None:
    for number, size in enumerate([0, 1, 2048, 2049, 600_000, MAX_VALUE]):
        data, name = bytes(n * 7 % 251 for n in range(size)), f"a/b.c:{number}@+-_"
        answer = desk.put(data, name)
        assert (answer["job"], answer["attempt"]) == ("shop", 1)
        entry = desk.entry(name)
        assert entry is not None
        assert (entry["size"], entry["version"], entry["expires"]) == (size, answer["version"], 0.0)
        assert desk.value(name) == data == saved(desk).get(name)


def test_one_byte_too_many_is_refused(desk: Desk) -> None:
    answer = desk.put(b"x" * (MAX_VALUE + 1))
    assert answer["code"] == 64 and str(MAX_VALUE) in answer["hint"]
    assert desk.entry() is None and desk.kinds() == []


def test_the_last_write_wins_and_no_version_is_given_twice(desk: Desk) -> None:
    versions = [desk.put(b"1")["version"], desk.put(b"2")["version"], desk.put(b"3", "b")["version"]]
    assert desk.value() == b"2"
    assert desk.ask("delete") == {"job": "shop", "deleted": True}
    assert desk.ask("delete") == {"job": "shop", "deleted": False}
    assert desk.entry() is None and saved(desk).get("a") is None
    versions.append(desk.put(b"4")["version"])
    desk.next_run()
    versions.append(desk.put(b"5")["version"])
    assert versions == sorted(set(versions)) and versions[0] > 0
    listed = {e["step"]: e["version"] for e in desk.ask("list")["entries"]}
    assert listed == {"a": versions[4], "b": versions[2]} == {e.step: e.version for e in saved(desk).list()}


def test_a_version_that_is_not_there_changes_nothing(desk: Desk) -> None:
    assert desk.put(b"1", if_version=1)["code"] == 1
    first = desk.put(b"1", if_version=0)["version"]
    assert desk.put(b"2", if_version=0)["code"] == 1
    second = desk.put(b"2", if_version=first)["version"]
    for version in (0, first):
        assert desk.ask("delete", if_version=version)["code"] == 1
    assert desk.value() == b"2"
    assert desk.ask("delete", if_version=second)["deleted"] and desk.entry() is None


def test_a_value_expires(desk: Desk) -> None:
    desk.put(b"1", ttl=60)
    desk.clock.at += 59
    assert desk.value() == b"1"
    desk.clock.at += 1
    assert desk.entry() is None and desk.ask("list")["entries"] == []
    assert desk.ask("read")["code"] == 69 and saved(desk).get("a") is None
    assert desk.put(b"2", if_version=0)["version"] > 0
    desk.put(b"1", "b", ttl=1)
    desk.clock.at += 1
    desk.put(b"1", "c")
    assert "b" not in desk.post.state.steps, "what has expired makes room"
    assert all("b" not in values.known().values for values in desk.values)
    assert desk.put(b"1", ttl=-1.0)["code"] == 64


def test_the_attempt_counts_openings_since_the_step_was_first_seen(desk: Desk) -> None:
    desk.put(b"1")
    desk.next_run()
    entry = desk.entry()
    assert entry is not None and (entry["attempt"], entry["put_in_attempt"]) == (2, 1)
    assert desk.put(b"2")["attempt"] == 2
    assert desk.put(b"1", "late")["attempt"] == 1
    outside = saved(desk).entry("a")
    assert outside is not None and (outside.attempt, outside.put_in_attempt) == (2, 2)


def test_a_pause_is_marked_until_the_next_value(desk: Desk) -> None:
    desk.put(b"1")
    desk.next_run()
    with desk.post.committing():
        desk.keeper.mark_paused("a", 99.0, "quota")
        until(lambda: desk.post.state.steps["a"].paused if "a" in desk.post.state.steps else None, "it is logged")
    entry = desk.entry()
    assert entry is not None and entry["paused"]["reason"] == "quota" and entry["version"]
    assert entry["attempt"] == 2, "counted since the value was put"
    desk.clock.at += 1
    desk.put(b"2")
    entry = desk.entry()
    assert entry is not None and entry["paused"] is None


def test_only_a_tool_of_the_run_writes(desk: Desk) -> None:
    desk.put(b"1")
    for do in ("put", "delete"):
        assert desk.ask(do, by_agent=False)["code"] == 64
    assert len(desk.ask("get", by_agent=False)["entries"]) == 1
    assert desk.value() == b"1"


def test_number_and_size_are_limited(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 2)
    monkeypatch.setattr(module, "MAX_KEPT", 100)
    desk.put(b"x" * 60)
    assert desk.put(b"x" * 50, "b")["code"] == 75
    assert "error" not in desk.put(b"x" * 100), "what a value replaces makes room"
    desk.put(b"", "b")
    answer = desk.put(b"", "c")
    assert answer["code"] == 75 and "state delete" in answer["hint"]
    desk.ask("delete", "b")
    assert "error" not in desk.put(b"", "c")


def test_a_zombie_keeps_and_deletes_nothing(desk: Desk) -> None:
    """I2: another machine has opened the job; the first run is still alive and does not know."""
    desk.put(b"1")
    zombie = zombie_of(desk)
    desk.next_run()
    assert desk.value() == b"1"
    for answer in (zombie("put", data=base64.b64encode(b"zombie").decode()), zombie("delete")):
        assert answer["code"] == 76, answer
    assert desk.value() == b"1" == saved(desk).get("a")
    assert "error" not in desk.put(b"2")


# ---- what only a server does


def require(values: KvValues | None) -> KvValues:
    assert values is not None
    return values


def talk(url: str, act: Callable[[Client, JetStreamContext], Awaitable[Any]]) -> Any:
    """Do as another client of the server does."""

    async def go() -> Any:
        client = await nats.connect(url)
        try:
            return await act(client, client.jetstream())
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(go(), PATIENCE))


def stream_of(desk: Desk) -> str:
    return desk.values[0]._stream


def publish(url: str, desk: Desk, key: str, data: bytes, headers: dict[str, str] | None = None) -> None:
    subject = f"$KV.{stream_of(desk).removeprefix('KV_')}.{key}"
    talk(url, lambda _, api: api.publish(subject, data, headers=headers))


def test_nothing_of_a_value_is_in_the_log(remote: Desk) -> None:
    remote.put(b"1")
    assert remote.kinds() == []


def test_a_server_that_is_away_loses_nothing_and_stops_no_step(remote: Desk, server: NatsServer) -> None:
    version = remote.put(b"1")["version"]
    server.kill()
    until(lambda: not remote.values[0]._link.connected, "the loss of the server is noticed")
    for answer in (remote.put(b"2"), remote.ask("delete"), remote.ask("list"), remote.ask("get"), remote.ask("read")):
        assert answer["code"] == 69 and "\n" not in answer["error"] and "NATS" in answer["error"]
    assert remote.begin(step="s")["move"] == "run"
    assert remote.ask("end", "s", stdout=base64.b64encode(b"out").decode())["how"] == "done"
    assert base64.b64decode(remote.ask("read", "s", what="stdout")["data"]) == b"out"
    server.start()
    until(lambda: remote.values[0]._link.connected, "it is reached again")
    assert remote.value() == b"1"
    assert remote.put(b"2", if_version=version)["version"] > version


def test_a_server_that_hangs_stops_no_step(remote: Desk, server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes what is sent and does not answer, so what became of the value is not known."""
    remote.put(b"1")
    monkeypatch.setattr(values_module, "DEADLINE", 2.0)
    server.freeze()
    answers: list[dict[str, Any]] = []
    put = threading.Thread(target=lambda: answers.append(remote.put(b"2")))
    put.start()
    until(lambda: remote.keeper._server_lock.locked(), "the put waits for the server")
    assert remote.begin(step="s")["move"] == "run"
    assert not answers, "the step did not wait for it"
    put.join(PATIENCE)
    assert answers[0]["code"] == 69
    link, before = remote.values[0]._link, remote.values[0]._link.number
    server.kill()
    server.start()
    until(lambda: link.connected and link.number > before, "it is reached again")
    assert remote.value() in (b"1", b"2")


def test_a_run_whose_lease_is_too_old_puts_nothing(remote: Desk) -> None:
    """R7: until the next owner has marked the bucket, the clock alone holds the fence."""
    remote.put(b"1")
    remote.fresh = False
    assert remote.put(b"2")["code"] == 69 and remote.ask("delete")["code"] == 69
    remote.fresh = True
    assert remote.value() == b"1"


def test_the_next_run_fences_with_its_connection(remote: Desk) -> None:
    """Before it is asked for anything."""
    remote.put(b"1")
    zombie = zombie_of(remote)
    remote.next_run()
    until(lambda: remote.values[1]._now, "the bucket is marked")
    assert zombie("put", data="")["code"] == 76


def test_a_zombie_that_connects_anew_reads_the_mark(remote: Desk, server: NatsServer) -> None:
    remote.put(b"1")
    zombie = zombie_of(remote)
    remote.next_run()
    remote.put(b"2")
    server.kill()
    server.start()
    until(lambda: all(values._link.number > 1 and values._link.connected for values in remote.values), "reached again")
    assert zombie("put", data="")["code"] == 76 and zombie("get")["code"] == 76
    assert remote.value() == b"2"


def test_a_message_that_the_server_does_not_take_is_refused_with_its_limit(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "small").start()  # max_payload: 1 MiB
    desk = Desk(tmp_path, server.url)
    try:
        answer = desk.put(b"x" * MAX_VALUE)
        assert answer["code"] == 64 and "max_payload" in answer["hint"]
        data = b"x" * (MAX_VALUE - 2048)
        desk.put(data)
        assert desk.value() == data
    finally:
        desk.close()
        server.kill()


def test_other_clients_may_write_there(remote: Desk, server: NatsServer) -> None:
    """Their values are read, and a write of theirs in between changes no decision unseen."""
    version = remote.put(b"1")["version"]
    publish(server.url, remote, "a", b"other")
    assert remote.value() == b"other"
    known = remote.values[0].known()
    publish(server.url, remote, "a", b"again")
    with pytest.raises(Conflict):
        remote.values[0].put("a", b"2", known, time=1.0, expires=0.0, attempt=1, first=1)
    assert remote.put(b"2", if_version=version)["code"] == 1
    talk(server.url, lambda _, api: api.purge_stream(stream_of(remote), subject=f"{remote.values[0]._prefix}a"))
    assert remote.ask("read")["code"] == 69 and remote.entry() is None, "read anew once it was found to be gone"
    assert "error" not in remote.put(b"3") and remote.value() == b"3"


def test_a_write_is_decided_anew_where_another_client_wrote_in_between(remote: Desk, server: NatsServer) -> None:
    remote.put(b"1")
    values = remote.values[0]
    known, asked = values.known, []

    def known_late() -> Known:
        found = known()
        asked.append(found)
        if len(asked) < 3:
            publish(server.url, remote, "b", b"other")
        return found

    values.known = known_late  # type: ignore[method-assign]
    assert "error" not in remote.put(b"2") and len(asked) == 3
    assert (remote.value(), remote.value("b")) == (b"2", b"other")


def test_more_names_than_are_read_hide_no_value(remote: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "MAX_NAMES", 2)
    for name in "abcd":
        remote.put(b"1", name)
    remote.next_run()
    assert remote.ask("get", "d")["code"] == 75


def test_what_is_read_is_hostile(remote: Desk, server: NatsServer) -> None:
    remote.put(b"1")
    wild = json.dumps({"time": 1e300, "expires": -1, "attempt": 2**70, "first": "x"})
    for key, headers in (
        ("=2E=2E=2Fetc", None),
        ("x" * 200, None),
        ("b", {META: wild}),
        ("c", {META: "{"}),
        ("d", {"Nats-Msg-Size": "9" * 40}),
        ("e", {"KV-Operation": "PURGE"}),
    ):
        publish(server.url, remote, key, b"hostile", headers)
    remote.next_run()
    entries = {e["step"]: e for e in remote.ask("list")["entries"]}
    assert set(entries) == {"a", "b", "c", "d"}
    assert all(e["attempt"] <= 2 and e["expires"] == 0 for e in entries.values())
    assert remote.value("b") == b"hostile"
    publish(server.url, remote, "=epoch", b"junk")
    remote.next_run()
    answer = remote.put(b"2")
    assert answer["code"] == 73 and "nats kv get" in answer["hint"]


def test_values_of_the_log_are_read_until_they_are_replaced(tmp_path: Path, server: NatsServer) -> None:
    desk = Desk(tmp_path)
    old = [desk.put(b"1", name)["version"] for name in ("a", "b", "c")]
    desk.settings = replace(desk.settings, messages=server.url, state="nats")
    desk.next_run()
    try:
        assert (desk.value("a"), saved(desk).get("b")) == (b"1", b"1")
        assert desk.put(b"2", "a", if_version=old[0])["version"] > max(old)
        assert desk.ask("delete", "b")["deleted"] and desk.entry("b") is None
        desk.put(b"3", "c", ttl=1)
        desk.clock.at += 1
        desk.put(b"4", "d")
        assert desk.entry("c") is None, "a value that has expired uncovers no older one"
        assert desk.value("a") == b"2"
        assert desk.post.state.steps == {}
    finally:
        desk.close()


def test_jobs_of_one_name_in_two_buckets_do_not_meet(server: NatsServer) -> None:
    on = Settings("memory://", "shop", messages=server.url, state="nats")
    names = set()
    for run in ("a", "z", "a"):
        world = World()
        with closing(require(open_values(on, {}, world.bucket, world.open(run).keys))) as values:
            names.add(values._stream)
    assert len(names) == 2, "the same log by another URL is the same job, another log is another one"


def test_a_job_that_begins_anew_after_it_was_deleted_has_no_values(remote: Desk) -> None:
    remote.put(b"1")
    zombie = zombie_of(remote)
    post, world = remote.post, remote.post.world
    world.clock.at += TTL + 1
    remove_job(JobAccess(world.bucket, post.job.keys, TTL, {}), world.clock)
    remote.next_run()
    assert remote.entry() is None and remote.ask("list")["entries"] == []
    assert remote.put(b"2", if_version=0)["attempt"] == 1
    assert zombie("put", data="")["code"] == 76 and remote.value() == b"2"


def test_a_name_of_a_key_and_back() -> None:
    for name in ("a", "a/b.c:d@e+f-g_", "a.3Ab"):
        assert name_of(key_of(name)) == name
    assert key_of("a.b:c") == "a=2Eb=3Ac"


def test_an_encrypted_job_and_one_without_a_server_are_refused() -> None:
    on = Settings("file:///b", "web", state="nats", messages="nats://h:4222")
    check_needs(on)
    for refused in (replace(on, messages=""), replace(on, messages="redis://h"), replace(on, encryption_key_file="/k")):
        with pytest.raises(UsageError, match="--state nats"):
            check_needs(refused)
