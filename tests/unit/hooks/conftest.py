"""Both hook clients; the native one is compiled from the source as it is now, so that none is tested that is older."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.build_hooks import compile_client
from wal_agent.agents import hook_line

Argv = tuple[str, ...]


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Argv]:
    native = tmp_path_factory.mktemp("native") / "client"
    why = compile_client(Path(__file__).parents[3] / "hooks" / "client.c", native)
    assert why is None, f"the tests need a C compiler: {why}"
    return {"native": (str(native),), "python": hook_line.python_client()}


@pytest.fixture(params=["native", "python"])
def client(request: pytest.FixtureRequest, clients: dict[str, Argv]) -> Argv:
    return clients[request.param]
