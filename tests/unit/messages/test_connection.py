"""A NATS server that is away, comes back, or refuses, stops nobody."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from tests.servers.nats import NatsServer
from wal_agent.errors import ConfigError, Denied, Unavailable
from wal_agent.inbox import Message
from wal_agent.messages import connection
from wal_agent.messages.connection import Connection, login_options, shown_server
from wal_agent.messages.nats_driver import NatsDriver


async def _round_trip(client: Client) -> str:
    inbox = client.new_inbox()
    waiting = await client.subscribe(inbox)
    await client.publish(inbox, b"here")
    return (await waiting.next_msg(5)).data.decode()


def wait_for(found: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_cannot_be_sent_is_sent_by_the_next_connection_and_a_person_reads_of_it_once(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY", (0.02,))
    said: list[str] = []
    link = Connection(server.url, {}, said.append, "test")
    assert link.call(_round_trip, 10) == "here"
    first = link.number
    server.kill()
    wait_for(lambda: not link.connected)
    with pytest.raises(Unavailable):
        link.call(_round_trip, 10)
    link.publish("x.kept", b"1", keep=True)
    link.publish("x.dropped", b"2")
    assert list(link._pending) == [("x.kept", b"1")]
    server.start()
    got: list[str] = []

    async def listen() -> None:
        client = await nats.connect(server.url)
        every = await client.subscribe("x.*")
        ready.set()
        got.append((await every.next_msg(60)).subject)
        await client.close()

    # The listener may come too late for what the new connection sends at once: a second one is sent until it came.
    ready = threading.Event()
    listening = threading.Thread(target=lambda: asyncio.run(listen()))
    listening.start()
    assert ready.wait(30)
    wait_for(lambda: link.number > first)
    while listening.is_alive():
        link.publish("x.kept", b"3", keep=True)
        listening.join(0.05)
    assert got == ["x.kept"]
    server.kill()
    wait_for(lambda: not link.connected)
    with pytest.raises(Unavailable):
        link.call(_round_trip, 10)
    link.close()
    assert ["reached again" in line for line in said] == [False, True, False] and "cannot be reached" in said[0]


def test_a_server_that_was_never_there_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    tries: list[int] = []

    class Counted(Client):
        def __init__(self) -> None:
            super().__init__()
            tries.append(1)

    monkeypatch.setattr(connection, "Client", Counted)
    monkeypatch.setattr(connection, "RETRY", (0.01,))
    link = Connection(NatsServer(tmp_path).url, {}, said.append, "test")
    for n in range(connection.MAX_PENDING + 10):
        link.publish("x", b"%d" % n, keep=True)
    with pytest.raises(Unavailable, match="cannot be reached"):
        link.call(_round_trip, 5)
    wait_for(lambda: len(tries) > 3)
    assert len(link._pending) == connection.MAX_PENDING and link._pending[-1][1] == b"73"
    link.close()
    assert not link._thread.is_alive()
    assert len(said) == 1


def test_a_server_that_hangs_holds_up_neither_a_call_nor_the_end(server: NatsServer) -> None:
    link = Connection(server.url, {}, lambda _: None, "test")
    assert link.call(_round_trip, 10) == "here"
    server.freeze()
    with pytest.raises(Unavailable, match="did not answer"):
        link.call(_round_trip, 0.2)
    link.publish("x", b"1")
    link.close(0)
    assert link._thread.is_alive()  # it was not waited for
    late = Connection(server.url, {}, lambda _: None, "test")
    with pytest.raises(Unavailable):
        late.call(_round_trip, 0.2)
    late.close(30)  # a try that is under way is given up
    assert not late._thread.is_alive()


def test_a_wrong_password_is_reported_without_it(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, 'authorization { user: me, password: "right" }').start()
    said: list[str] = []
    try:
        good = Connection(server.url, {"NATS_USER": "me", "NATS_PASSWORD": "right"}, said.append, "test")
        assert good.call(_round_trip, 10) == "here"
        good.close()
        assert said == []
        bad = Connection(server.url.replace("//", "//me:wr0ng@"), {}, said.append, "test")
        with pytest.raises(Unavailable):
            bad.call(_round_trip, 10)
        bad.close()
    finally:
        server.kill()
    assert len(said) == 1 and "uthorization" in said[0] and "wr0ng" not in said[0]


def test_a_key_and_what_it_may_not_do(tmp_path: Path) -> None:

    pair: Any = nkeys.from_seed(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))  # type: ignore[no-untyped-call]
    seed = tmp_path / "seed"
    seed.write_bytes(pair.seed)
    user = pair.public_key.decode()
    more = f'authorization {{ users = [{{ nkey: {user}, permissions: {{ publish: ["ok.>"], subscribe: [">"] }} }}] }}'
    server = NatsServer(tmp_path / "nats", more).start()
    try:
        link = Connection(server.url, {"NATS_NKEY": str(seed)}, lambda _: None, "test")

        async def forbidden(client: Client) -> None:
            await client.request("not.mine", b"", timeout=1)

        with pytest.raises((Unavailable, Denied)):
            link.call(forbidden, 3)
        assert link.connected
        link.close()
    finally:
        server.kill()


def test_tls_by_the_persons_own_authority(tmp_path: Path) -> None:
    files = certificates(tmp_path)
    more = f'tls {{ cert_file: "{files["cert"]}", key_file: "{files["key"]}" }}'
    server = NatsServer(tmp_path / "nats", more, scheme="tls").start()
    try:
        link = Connection(server.url, {"NATS_CA": str(files["cert"])}, lambda _: None, "test")
        assert link.call(_round_trip, 10) == "here"
        link.close()
        said: list[str] = []
        stranger = Connection(server.url, {}, said.append, "test")
        with pytest.raises(Unavailable):
            stranger.call(_round_trip, 10)
        stranger.close()
        assert len(said) == 1 and "certificate" in said[0].lower()
    finally:
        server.kill()


def test_a_credentials_file_over_tls_carries_messages_and_no_more_than_it_allows(tmp_path: Path) -> None:
    """A server in operator mode: its accounts and users are JWTs. The user may send messages, and control nothing."""
    files, operator, system, account, user = certificates(tmp_path), *map(key_pair, "OAAU")
    rights = {"pub": {"deny": ["agent.*.control.>"]}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    limits = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1) | {"wildcards": True}
    made = {
        each: signed(operator, each, {"type": "account", "limits": limits | (storage if each is account else {})})
        for each in (system, account)
    }
    preload = "\n".join(f"{public(each)}: {jwt}" for each, jwt in made.items())
    more = (
        f'tls {{ cert_file: "{files["cert"]}", key_file: "{files["key"]}" }}\n'
        f"operator: {signed(operator, operator, {'type': 'operator'})}\n"
        f"system_account: {public(system)}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}"
    )
    creds = tmp_path / "user.creds"
    lines = ("-----BEGIN NATS USER JWT-----", signed(account, user, {"type": "user", **rights}))
    seed = ("-----BEGIN USER NKEY SEED-----", user.seed.decode(), "------END USER NKEY SEED------")
    creds.write_text("\n".join((*lines, "------END NATS USER JWT------", "", *seed, "")))
    server = NatsServer(tmp_path / "nats", more, scheme="tls").start()
    env = {"NATS_CREDS": str(creds), "NATS_CA": str(files["cert"])}
    sent = Message(id="1", sender="ann", text="stop", sent=1.0)
    try:
        driver = NatsDriver(Connection(server.url, env, lambda _: None, "test", NatsDriver.STREAMS), "web")
        assert driver.send(sent) and list(driver.fetch(lambda _: False)) == [sent]
        with pytest.raises((Denied, Unavailable)):
            driver.send(replace(sent, id="2", verb="drain"))
        assert list(driver.fetch(lambda _: False)) == [sent]
        driver.close()
        stranger = Connection(server.url, {"NATS_CA": str(files["cert"])}, lambda _: None, "test")
        with pytest.raises(Unavailable, match="uthorization"):
            stranger.call(_round_trip, 10)
        stranger.close()
    finally:
        server.kill()


def key_pair(kind: str) -> Any:
    """A key of an operator, an account or a user."""
    prefix = {"O": nkeys.PREFIX_BYTE_OPERATOR, "A": nkeys.PREFIX_BYTE_ACCOUNT, "U": nkeys.PREFIX_BYTE_USER}[kind]
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))  # type: ignore[no-untyped-call]


def public(pair: Any) -> str:
    return str(pair.public_key.decode())


def signed(by: Any, about: Any, what: dict[str, Any]) -> str:
    """A JWT (version 2) of NATS about a key, as `nsc` makes it."""
    claims = {
        "jti": "1",
        "iat": 1,
        "iss": public(by),
        "name": "test",
        "sub": public(about),
        "nats": {**what, "version": 2},
    }
    parts = [json.dumps(each).encode() for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    text = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    return f"{text}.{base64.urlsafe_b64encode(by.sign(text.encode())).rstrip(b'=').decode()}"


@pytest.mark.parametrize("variable", ["NATS_CREDS", "NATS_NKEY", "NATS_CA", "NATS_CERT"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        login_options(["nats://x"], {variable: str(tmp_path / "missing")})


def test_a_plain_server_needs_no_options_and_a_tls_one_checks_certificates() -> None:
    assert login_options(["nats://x"], {}) == {}
    context = login_options(["tls://x"], {})["tls"]
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert shown_server("nats://me:secret@host:4222") == "nats://host:4222"


def certificates(folder: Path) -> dict[str, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    import ipaddress

    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    files = {"cert": folder / "cert.pem", "key": folder / "key.pem"}
    files["cert"].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files["key"].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
