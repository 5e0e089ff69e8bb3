"""check: what a description says of three calls, and does not hold, is a failed proof; nothing is proven of nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from wal_agent.agents import family
from wal_agent.records import End, EndSource, Intent, Payload, Record
from wal_agent.rehearsal import check
from wal_agent.rehearsal.demo import CHARGE
from wal_agent.rehearsal.selftest import NotShown

PAGE = (Path(__file__).parents[3] / "docs/how-to/add-an-agent.md").read_text()
TOY = PAGE.partition("```toml\n")[2].partition("```")[0]
INPUTS = [{"file_path": "note.txt"}, {"command": check.FAIL}, {"command": CHARGE}]


def payload(value: Any) -> Payload:
    data = json.dumps(value).encode()
    return Payload(size=len(data), data=data)


def logged(how: str = "failed", printed: str = f"{check.PRINTED}\nexit code 3", by: EndSource = "hook") -> check.Calls:
    asked: list[Record] = []
    for n, input in enumerate(INPUTS, 1):
        about: Any = {"call": n, "tool": "Bash", "input": payload(input), "session": "s", "agent_call": f"c{n}"}
        asked.append(Intent(cls="mutation", rule="r", time=1.0, **about))
    ended: list[dict[str, Any]] = [{"call": 1, "how": "done"}, {"call": 2, "how": how, "result": payload(printed)}]
    return check.Calls([*asked, *(End(by=by, time=1.0, **each) for each in ended)])


def session(at: float, **more: Any) -> bytes:
    lines: list[dict[str, Any]] = [
        {"type": "call", "id": f"c{n}", "name": "Bash", "input": each} for n, each in enumerate(INPUTS, 1)
    ]
    lines += [{"type": "result", "id": f"c{n}", "output": "x", "error": n == 2} | more for n in (1, 2)]
    return b"".join(json.dumps({**line, "timestamp": at}).encode() + b"\n" for line in lines)


def proofs(*changes: tuple[str, str], main: bytes | None = None, log: check.Calls | None = None) -> dict[str, str]:
    """What of a description with these changes does not hold, or is not shown, and why."""
    text, now = TOY, time.time()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    agent, main = family.read(text, "the page"), session(now) if main is None else main
    found = [*check.tell_of_calls(agent, main, log or logged(), now)]
    return {p.what: p.detail for p in found if not p.ok or isinstance(p, NotShown)}


def test_a_true_description_holds() -> None:
    assert proofs() == {} and proofs(main=session(time.time() * 1000)) == {}


NOW = time.time()
LIES: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "failure-of-a-record": ((('failed = "error"', 'failed = "bad"'),), "failed from the session"),
    "input-of-a-record": ((('input = "input"', 'input = "args"'),), "with ids and inputs"),
    "times": ((('time = "timestamp"', 'time = "id"'),), "of the clock"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named(lie: str) -> None:
    changes, what = LIES[lie]
    assert [name for name in proofs(*changes) if what in name]


def test_a_time_that_is_not_now_is_shown_as_it_is_read() -> None:
    (why,) = proofs(main=session(NOW - 3600)).values()
    assert why.endswith(" UTC") and str(int(NOW - 3600)) in why
    assert proofs(main=session(NOW / 1000)), "in another unit"


def test_what_hooks_tell_is_compared_with_what_was_done() -> None:
    assert list(proofs(log=logged(how="done"))) == [check.FAILED_HOOK]
    (why,) = proofs(log=logged(printed="exit code 3")).values()
    assert check.PRINTED in why and "exit code 3" in why
    assert [*proofs(log=logged(printed="", by="session")).values()] == [f"not shown: {check.FIRST}"] * 2


def test_what_a_description_does_not_name_is_not_shown() -> None:
    silent = (', failed = "error"', ""), (", failed = true }", " }")
    found = proofs(*silent, log=logged(how="done"))
    assert list(found) == [check.FAILED_RECORD, check.FAILED_HOOK]
    assert all(why.startswith("not shown: ") for why in found.values())


def test_nothing_is_proven_of_an_empty_session() -> None:
    found = proofs(main=b"", log=check.Calls([]))
    assert len(found) == 6 and all(found.values())
