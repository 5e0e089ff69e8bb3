"""selftest: what goes wrong in a proof is a failed proof (the proofs themselves are made in tests/e2e)."""

from __future__ import annotations

import os

import pytest

from wal_agent import selftest
from wal_agent.agents import AGENTS


def test_a_run_that_does_not_end_is_a_failed_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SECONDS", 0.01)
    proofs = selftest.prove(AGENTS["gemini"], {"PATH": os.environ["PATH"]})
    assert [(p.what, p.ok, p.detail) for p in proofs] == [
        (what, False, "did not end within 0.01 s") for what in (selftest.ALLOW, selftest.DENY)
    ]
