"""End to end: a machine is lost, the fleet says so, and a free host carries on in the same folder."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.errors import NoRespondersError

from tests.e2e.scene import Scene, until
from tests.e2e.test_generic import RESUME, TOY, Yard
from tests.servers.nats import NatsServer
from wal_agent.rehearsal.model import Turn

# The project's own file is not there yet when the free host begins.
OWN = '[generic]\nsession = ["~/.toy", "state/*.json"]\n' + RESUME


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path.resolve())
    (made.root / "toy.py").write_text(TOY)
    yield made
    for machine in made.machines:
        for process in machine.running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def test_a_free_host_takes_the_job_of_a_lost_one(lost: Yard) -> None:
    first = lost.machine()
    session = lost.lost(first)
    second = lost.machine(OWN)
    listed: dict[str, object] = {}

    def crashed() -> bool:
        out, _ = second.start("fleet", "ls", "--json").communicate(timeout=60)
        listed.update(json.loads(out)["jobs"][0])
        return listed["state"] == "crashed"

    until(crashed, "its lease runs out")
    assert (listed["job"], listed["host"], listed["needs_host"]) == ("job", lost.lease().host.name, True)
    assert listed["workspace"] == str(first.work) and not first.work.exists()

    claim = ("fleet", "claim", "--root", str(lost.root))
    toy = ("--generic", "--", sys.executable, str(lost.root / "toy.py"), "wait")
    _, said = (refused := second.start(*claim)).communicate(timeout=60)
    assert refused.returncode == 0 and "--generic" in said and "none may run here" in said
    _, said = (outside := second.start("fleet", "claim", *toy)).communicate(timeout=60)
    assert outside.returncode == 0 and f"is not below {second.work}" in said

    out, said = (taken := second.start(*claim, *toy, WAL_AGENT_TTL="1")).communicate(timeout=120)
    assert taken.returncode == 0, said
    seen = json.loads(out)
    assert seen["args"][:3] == ["wait", "--go-on", f"--session={session}"] and seen["history"] == "step wait\n"
    assert (first.work / "made.txt").read_text() == "made\n" and lost.lease().state == "closed"
    assert "taking job job (crashed for" in said and said.count("\x1b") == 0
    listing, _ = second.start("fleet", "ls").communicate(timeout=60)
    _, row, count = listing.splitlines()
    assert row.split()[:3] == ["closed", "job", "generic"] and count.startswith("1 job in file://")


def test_a_run_that_is_killed_is_named_by_its_heartbeats_alone(scene: Scene, tmp_path: Path) -> None:
    """Its lease is good for ten minutes, and no look at the leases is due before."""
    server = NatsServer(tmp_path / "nats").start()
    machine = scene.machine("vm-1")
    said = tmp_path / "said"
    with said.open("wb") as err:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "wal_agent", "fleet", "watch", "--on-crash", "true", "--every", "600"],
            cwd=scene.workspace,
            env=machine.env(WAL_AGENT_MESSAGES=server.url, WAL_AGENT_HOST_ID="elsewhere"),
            stdin=subprocess.DEVNULL,
            stderr=err,
        )

    async def somebody_listens() -> None:
        client = await nats.connect(server.url)
        with suppress(TimeoutError):  # none answers; that none listens is another error
            while True:
                with suppress(NoRespondersError):
                    await client.request("agent.job.heartbeat", timeout=1)
        await client.close()

    async def beats(wanted: int) -> None:
        client = await nats.connect(server.url)
        heard = await client.subscribe("agent.job.heartbeat")
        for _ in range(wanted):
            await heard.next_msg(60)
        await client.close()

    try:
        asyncio.run(somebody_listens())
        scene.script(Turn("never"))
        scene.hold_turn(0)
        run = machine.ask("do the work", options=("--messages", server.url, "--ttl", "600"))
        scene.asked(1)
        asyncio.run(beats(2))
        run.kill()
        run.died()
        until(lambda: "suspect: job (epoch 1)" in said.read_text(), "it is named")
        assert watcher.poll() is None and scene.lease().state == "held"
    finally:
        watcher.kill()
        watcher.wait()
        server.kill()
