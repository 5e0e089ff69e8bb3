"""A real run over a real store that answers some requests with an error of its own, or refuses all from a moment on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.contract.wire import own_credentials
from tests.e2e.scene import TASK, Machine, Scene, check_log, shell, until
from tests.servers import fresh_bucket, shared
from tests.servers.proxy import Fault, Proxy, proxied, refusal
from tests.tiers import deep
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import Model, Turn

STARTS = 6


@pytest.fixture
def s3(tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[tuple[Scene, Machine, Proxy]]:
    rehearsal = rehearsal_of(AGENTS["codex"])
    assert rehearsal is not None
    with ExitStack() as stack:
        stack.enter_context(own_credentials())
        store = shared("ministack")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in store.env.items():
            patch.setenv(name, value)
        proxy = stack.enter_context(proxied(store))
        model = stack.enter_context(Model(rehearsal.dialect))
        scene = Scene(tmp_path, agent_cli("codex"), model, url=fresh_bucket(store))
        stack.callback(scene.close)
        yield scene, scene.machine("vm-1", reach=proxy.server.env), proxy


@deep
@pytest.mark.parametrize(("status", "share"), [(503, 0.1), (409, 0.4)])
def test_a_store_that_fails_now_and_then_ends_no_start(
    s3: tuple[Scene, Machine, Proxy], status: int, share: float
) -> None:
    """I1, I3: neither the first one of the job nor those that go on with it, and `doctor` tells the rate."""
    scene, machine, proxy = s3
    random = Random(status)

    def plan(method: str, path: str, number: int) -> Fault | None:
        hit = random.random() < share and (status == 503 or method == "PUT")
        return refusal("s3", status) if hit else None

    proxy.plan = plan
    for n in range(STARTS):
        scene.script(Turn(calls=[shell(f"echo {n} >> side")]), Turn("finished"))
        run = machine.ask(f"{TASK} {n}", options=[] if n == 0 else ["--fresh"] if n % 2 else ["--continue"], wait=True)
        assert run.process.returncode == 0, run.stderr()
    assert scene.side() == [str(n) for n in range(STARTS)]
    assert sum(seen.fault is not None for seen in proxy.seen) > STARTS
    examined = machine.cli("doctor")
    assert examined.returncode == 0 and "requests unanswered" in examined.stdout + examined.stderr, examined.stdout
    proxy.plan = lambda *_: None
    assert len([r for r in check_log(scene, []) if r["type"] == "intent"]) == STARTS


@deep
def test_credentials_that_are_refused_at_the_end_have_their_own_code(s3: tuple[Scene, Machine, Proxy]) -> None:
    """I3: 77, not the 69 of a bucket that is away; the same command goes on where they are accepted again."""
    scene, machine, proxy = s3
    scene.script(Turn(calls=[shell("echo one >> side")]), Turn("finished"))
    hold = scene.hold_turn(1)
    run = machine.ask(TASK)
    scene.asked(2)
    scene.saved(1)
    proxy.plan = lambda *_: refusal("s3", 403)
    hold.set()
    assert run.wait() == 77, run.stderr()
    assert "injected on purpose" in run.stderr()
    proxy.plan = lambda *_: None
    scene.script(Turn("I looked."))
    until(lambda: machine.ask(TASK, options=["--wait"], wait=True).process.returncode == 0, "it goes on")
    assert scene.side() == ["one"]
