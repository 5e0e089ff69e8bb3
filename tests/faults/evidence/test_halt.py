"""The tracer: each change of a file is a place, what comes after it does not happen, and where it may not trace it says
so."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.faults.evidence import halt
from tests.faults.evidence.halt import Halter

SCRIPT = "echo 1 > a; (echo 2 > b; mv b c) & wait; ln c d; rm a; touch -d @1 c"


def left(top: Path) -> list[str]:
    return sorted(f"{p.name} {int(p.stat().st_mtime) == 1} {p.read_text().strip()}" for p in top.iterdir())


def test_each_change_is_a_place(halter: Halter, tmp_path: Path) -> None:
    def run(stop: int | None) -> tuple[int, list[str]]:
        top = tmp_path / str(stop)
        top.mkdir()
        return halter.run(["sh", "-c", SCRIPT], top, stop), left(top)

    stops, whole = run(None)
    states = [run(n)[1] for n in range(1, stops + 1)]
    assert states[0] == []
    assert whole == ["c True 2", "d True 2"]
    assert [s for n, s in enumerate([*states, whole]) if not n or s != states[n - 1]] == [
        [],
        ["a False "],
        ["a False 1"],
        ["a False 1", "b False "],
        ["a False 1", "b False 2"],
        ["a False 1", "c False 2"],
        ["a False 1", "c False 2", "d False 2"],
        ["c False 2", "d False 2"],
        whole,
    ]


def test_a_program_may_answer_another_signal(halter: Halter, tmp_path: Path) -> None:
    halter.run(["sh", "-c", "trap 'echo told > b; exit' TERM; echo 1 > a"], tmp_path, 2, sig=signal.SIGTERM)
    assert (tmp_path / "b").read_text() == "told\n"


def test_a_machine_that_refuses_is_told(halter: Halter, tmp_path: Path) -> None:
    """What is traced already cannot be traced once more."""
    asked = json.dumps({"argv": ["touch", "a"], "cwd": str(tmp_path), "stop": None, "env": {}, "sig": 9})
    script = f"echo '{asked}' | '{sys.executable}' -S '{halt.__file__}' > said"
    halter.run(["sh", "-c", script], tmp_path)
    assert "Programs cannot be traced on this machine (ptrace: " in (tmp_path / "said").read_text()
    assert not (tmp_path / "a").exists()
