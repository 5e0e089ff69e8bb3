"""Every screen names the state of a call with the same word, as text and as JSON (GLOSSARY, I8)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tests.unit.cli.shelf import KEYS, Run, Shelf, commit, intent
from tests.unit.cli.test_report import Page
from wal_agent import events
from wal_agent.cli.log import describe, read_entries
from wal_agent.notify.message import Facts, message_of
from wal_agent.records import (
    AgentStarted,
    AnyRecord,
    CallState,
    Cut,
    End,
    Ending,
    EndSource,
    Recovery,
    RunsOn,
    Verdict,
    call_state,
    state_text,
)
from wal_agent.supervise.run_end import left_open, open_calls_line
from wal_agent.wal.reader import replay
from wal_agent.wal.state import OpenCall

CUT = Cut(time=6.0, call=1, by="hook", why="a limit")
RUNS_ON = RunsOn(time=6.0, call=1, by="hook", why="its child lives")


def end(how: Ending, by: EndSource) -> End:
    return End(time=8.0, call=1, how=how, by=by, finding="completed" if by in ("recovery", "person") else None)


LIVES: dict[CallState, tuple[str, tuple[AnyRecord, ...]]] = {
    "open": ("open", ()),
    "cut": ("cut", (CUT,)),
    "runs_on": ("runs on", (CUT, RUNS_ON)),
    "refused": ("refused", (end("refused", "supervisor"),)),
    "done": ("done", (RUNS_ON, end("done", "session"))),
    "failed": ("failed", (end("failed", "hook"),)),
    "verified": ("verified", (CUT, end("verified", "recovery"))),
    "resolved": ("resolved by a person", (CUT, end("resolved", "person"))),
}
OPEN: tuple[CallState, ...] = ("open", "cut", "runs_on")


class Told(msgspec.Struct):
    """What the screens say of one call: `texts`: its word stands there; `data`: the state as scripts read it."""

    texts: dict[str, str] = {}
    data: dict[str, object] = {}


def job_of(folder: Path, records: tuple[AnyRecord, ...]) -> tuple[Shelf, list[str]]:
    """A job whose first run is lost, with one call; what ended or held it came in the second run, which gave it up."""
    shelf = Shelf(folder)
    first = shelf.open()
    call = msgspec.structs.replace(intent(1, command="./deploy.sh"), cls="mutation")
    first.writer.append(AgentStarted(time=1.0, pid=7, session="s", resumed=False), call)
    commit(first)
    second = shelf.open(run="b", host="vm-2")
    verdict = Verdict(call=1, finding="unknown", why="why", verify="look")
    second.writer.append(Recovery(time=5.0, from_epoch=1, verdicts=(verdict,), told=""), *records)
    commit(second)
    second.lease.settle("released", "stopped")
    return shelf, ["--bucket", shelf.url, "--job", "shop"]


def told_of(state: CallState, shelf: Shelf, where: list[str], run: Run, tmp_path: Path) -> Told:
    told = Told()

    def text(*args: str) -> str:
        code, out, err = run(*args, *where)
        assert code == 0, err
        return out

    def data(*args: str) -> Any:
        return json.loads(text(*args, "--json"))

    entry = next(e for e in read_entries(shelf.bucket, KEYS) if e.kind == "intent")
    told.texts["log"] = describe(entry)[2].split(None, 1)[1]
    every = [json.loads(line) for line in text("log", "--json", "-n", "0").splitlines()]
    last = [one for one in every if one.get("call") == 1][-1]
    told.data["log"] = last.get("how", "open" if last["type"] == "intent" else last["type"])
    assert run("report", *where, "--html", str(tmp_path / "r.html"))[0] == 0
    page = Page((tmp_path / "r.html").read_text("utf-8")).data
    told.data["report"] = next(one["state"] for one in page["entries"] if one["type"] == "intent")
    told.texts["report"] = page["words"][told.data["report"]]
    told.data["stats"] = next(iter(data("stats")["total"]["settled"]))
    told.texts["stats"] = next(re.split(r" \d", r.strip()[13:])[0] for r in text("stats").splitlines() if "  now " in r)
    if state != "refused":  # it had no effect
        told.data["effects"] = data("effects")["effects"][0]["result"]
        told.texts["effects"] = text("effects").splitlines()[0].rsplit("  ", 1)[1].split(",")[0]
    if state not in OPEN:
        assert not data("status")["unsettled"] and not replay(shelf.bucket, KEYS).state.open
        return told
    told.data["status"] = data("status")["unsettled"][0]["state"]
    told.texts["status"] = next(row for row in text("status").splitlines() if "#1 " in row)[:11].strip()
    told.texts["rm"] = run("rm", "shop", "--dry-run", *where[:2])[1].split("(")[-1].split(")")[0]
    told.data["dry run"] = data("recover", "--dry-run", "--agent", "gemini")["recovery"]["calls"][0]["state"]
    foreseen = text("recover", "--dry-run", "--agent", "gemini").splitlines()
    told.texts["dry run"] = next(row for row in foreseen if "./deploy.sh  mutation" in row)[:12].strip()
    (call,) = replay(shelf.bucket, KEYS).state.open
    told.texts["end of a run"] = word_of(open_calls_line([call], left_open([call]), False, "--job shop"), state)
    left = left_open([call])
    assert left is not None
    told.data["a listener"] = left.calls[0][2]
    recovered = events.Recovered(1, "vm-1", 1.0, "cut_off", ("unknown",), 0, 1.0, states=(call.state,))
    for name, event in (("left open", left), ("recovered", recovered)):
        message = message_of(Facts("shop", "file:///b", "gemini", "vm-2", "/w"), 1.0, event)
        assert message is not None
        told.texts[name] = word_of(str(message), state)
    return told


def word_of(sentence: str, state: CallState) -> str:
    """The state in brackets behind the call, where it is another word than what the sentence begins with."""
    words = [w for w in ("cut", "runs on", "open") if re.search(rf"\((\d+ )?{w}\)", sentence)]
    return words[0] if words else "open" if "open: " in sentence else ""


@pytest.mark.parametrize("state", LIVES)
def test_every_screen_has_the_same_word_for_a_call(tmp_path: Path, run: Run, state: CallState) -> None:
    word, records = LIVES[state]
    shelf, where = job_of(tmp_path / "b", records)
    told = told_of(state, shelf, where, run, tmp_path)
    assert told.texts == dict.fromkeys(told.texts, word)
    assert told.data == dict.fromkeys(told.data, state)


def test_each_word_is_one_of_the_glossary() -> None:
    assert {*LIVES} == {*get_args(CallState)}
    glossary = (Path(__file__).parents[3] / "docs" / "GLOSSARY.md").read_text("utf-8")
    for state in LIVES:
        assert re.search(rf"(?m)^- \*\*.*\b{state_text(state)}\b", glossary), state


def test_an_older_logs_words_are_those_of_today() -> None:
    assert call_state(how="interrupted") == OpenCall(1, 1, intent(1), CUT).state == "cut"
    older = {"denied": "refused", "acknowledged": "resolved"}
    assert {how: call_state(how=how) for how in ("denied", "acknowledged")} == older
