"""Two hosts that share nothing but a bucket of a real server: crash here, go on there; cut off, taken over, healed.

In namespaces they share no network and no working folder either (each has its own under the same path).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import network
from tests.e2e.scene import Machine, Scene, check_exact, check_log, notices, shell, told, until
from tests.servers import Server, fresh_bucket, shared, started
from tests.servers.proxy import proxied
from tests.tiers import deep, once
from wal_agent.agents.codex.rehearsal import rehearsal
from wal_agent.rehearsal.model import Model, Turn

STORES = ("azurite", "fake-gcs", "ministack")
LINKS = ("namespace",) if network.allowed() else ("proxy",)  # the second shows the same with less around it


OWN_FOLDER = 'mount --bind "$0" "$1" && cd "$1" && shift && exec "$@"'


@dataclass
class Host:
    """A machine, where its working folder really is, and the two ends of its link to the store."""

    machine: Machine
    folder: Path
    cut: Callable[[], None]
    mend: Callable[[], None]

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def side(self) -> list[str]:
        """What tools appended to `side` in this host's folder, or in one that was put back into it."""
        path = self.folder / "side"
        return path.read_text().splitlines() if path.exists() else []


@dataclass
class World:
    scene: Scene
    make: Callable[[str], Host]
    hosts: list[Host] = field(default_factory=list)

    def host(self, name: str) -> Host:
        self.hosts.append(self.make(name))
        return self.hosts[-1]

    def effects(self) -> list[str]:
        """What tools appended to `side`, on all hosts."""
        sides = [folder / "side" for folder in sorted({host.folder for host in self.hosts})]
        return [line for side in sides if side.exists() for line in side.read_text().splitlines()]


def at(server: Server, host: str) -> Server:
    return Server(server.name, server.scheme, host, server.port, server.pid)


@pytest.fixture(params=once(STORES, "fake-gcs"))
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LINKS)
def world(
    request: pytest.FixtureRequest,
    store: str,
    tmp_path: Path,
    agent_cli: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    with ExitStack() as stack:
        apart = request.param == "namespace"
        server = stack.enter_context(started(store, "0.0.0.0")) if apart else shared(store)
        for name, value in at(server, "127.0.0.1").env.items():
            monkeypatch.setenv(name, value)
        model = stack.enter_context(Model(rehearsal.dialect, host="0.0.0.0" if apart else "127.0.0.1"))
        scene = Scene(tmp_path, agent_cli("codex"), model, url=fresh_bucket(at(server, "127.0.0.1")))
        stack.callback(scene.close)

        def behind_proxy(name: str) -> Host:
            proxy = stack.enter_context(proxied(server))
            machine = scene.machine(name, reach=proxy.server.env)
            return Host(machine, scene.workspace, proxy.partition, proxy.heal)

        def in_namespace(name: str) -> Host:
            space = stack.enter_context(network.namespace())
            to_store, to_model = (stack.enter_context(network.cable(space)) for _ in range(2))
            (folder := scene.root / f"{name}-work").mkdir()
            enter = (*space.enter, "sh", "-c", OWN_FOLDER, str(folder), str(scene.workspace))
            machine = scene.machine(name, reach=at(server, to_store.near).env, enter=enter)
            rehearsal.home(machine.home, scene.workspace, f"http://{to_model.near}:{model.port}")
            return Host(machine, folder, to_store.cut, to_store.mend)

        yield World(scene, in_namespace if apart else behind_proxy)


def intents(log: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(r["input"]) for r in log if r["type"] == "intent"]


def test_killed_here_and_resumed_there(world: World) -> None:
    """I1, I3, I4, I8: over a real server, the other host has the conversation, and the call in flight is told."""
    scene = world.scene
    scene.script(
        Turn(text="One.", calls=[shell("echo one >> side")]),
        Turn(text="Two.", calls=[shell("echo two >> side; touch started; sleep 600")]),
    )
    hold = scene.hold_turn(1)
    first, second = world.host("vm-1"), world.host("vm-2")
    run = first.machine.ask("do the work")
    scene.asked(2)
    scene.saved(1)
    hold.set()
    until(lambda: first.has("started"), "the second call runs")
    run.kill()
    run.died()
    before = scene.records()
    scene.script(Turn(text="I looked."))
    again = second.machine.ask("do the work", options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    [notice] = notices(scene.model.requests[-1])
    assert "echo two" in notice
    check_log(scene, before)
    check_exact(scene, second.machine)
    assert first.side() == ["one", "two"]
    assert second.side() in ([], ["one"], ["one", "two"]), "what was saved of it, and nothing twice"


@deep
def test_cut_off_taken_over_and_healed(world: World) -> None:
    """I1, I2, I5: a host that loses the store runs nothing without an acknowledged intent; when it is back it finds
    that it was taken over, ends its agent and exits 76."""
    scene = world.scene
    scene.script(
        Turn(text="Starting.", calls=[shell("touch started")]),
        Turn(text="Once more.", calls=[shell("echo cut-off >> side")]),
        Turn(text="And again.", calls=[shell("echo healed >> side")]),
    )
    second_answer, third_answer = scene.hold_turn(1), scene.hold_turn(2)
    first, second = world.host("vm-1"), world.host("vm-2")
    old = first.machine.ask("work", WAL_AGENT_APPEND_DEADLINE="5")
    until(lambda: first.has("started"), "the first tool ran")
    scene.asked(2)
    first.cut()
    second_answer.set()
    scene.asked(3)
    assert "did not run this" in told(scene.model.requests[2])
    scene.model.turns.append(Turn(text="Taken over.", when="[wal-agent recovery]"))
    new = second.machine.ask("work", options=["--wait"], wait=True)
    assert new.process.returncode == 0, new.stderr()
    first.mend()
    third_answer.set()
    assert old.wait() == 76, old.stderr()
    assert "taken over" in old.stderr()
    assert world.effects() == []
    log = second.machine.log()
    assert not any("healed" in text for text in intents(log))
    assert [r["epoch"] for r in log] == sorted(r["epoch"] for r in log)


@deep
def test_frozen_taken_over_and_thawed(world: World) -> None:
    """I2, I5: a paused machine whose wrapper wakes behind a newer epoch can put nothing into the log."""
    scene = world.scene
    scene.script(Turn(text="Starting.", calls=[shell("touch started")]), Turn(calls=[shell("echo zombie >> side")]))
    hold = scene.hold_turn(1)
    first, second = world.host("vm-1"), world.host("vm-2")
    old = first.machine.ask("work")
    until(lambda: first.has("started"), "the first tool ran")
    scene.asked(2)
    old.kill(signal.SIGSTOP)
    scene.model.turns.append(Turn(text="Taken over.", when="[wal-agent recovery]"))
    new = second.machine.ask("work", options=["--wait"], wait=True)
    assert new.process.returncode == 0, new.stderr()
    hold.set()
    old.kill(signal.SIGCONT)
    assert old.wait() == 76, old.stderr()
    assert world.effects() == []
