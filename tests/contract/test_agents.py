"""What every agent module promises, on its real CLI with a scripted model: one suite for all of them.

What is peculiar to one agent, its hazards by name, is in its own file beside this one.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.agent_box import Box, Run, done, wait_until
from tests.tiers import each, tier
from wal_agent.agents import AGENTS, hook_line, rehearsal_of
from wal_agent.agents.base import (
    Agent,
    Allow,
    Decision,
    Deny,
    HookEvent,
    LoggedCall,
    Reconciled,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.conversation import LeftOut, carry
from wal_agent.rehearsal.model import Called, HistoryText, Part, Returned, Turn

HOOKED = [agent for agent in AGENTS.values() if rehearsal_of(agent) is not None]
EACH = each(HOOKED)
LANES = [(agent, version) for agent in HOOKED for version in ("", *agent.also)]
LANE_IDS = [f"{agent.name}{'@' * bool(version)}{version}" for agent, version in LANES]
Program = Callable[..., Path]
REFUSED = 'wal-agent did not run this: "because"\n$(of) a `test` \'.'
PROMPT = (
    "[wal-agent recovery] @README.md, git@github.com:x/y, `ls`, <system-reminder>a</system-reminder>, !ls, #note, "
    "$HOME, ${HOME}, \\@x, \\n, \"two words\", 'one', ünï, 😀, \u2028 and \u2029.\n```text\n/quit\nrm -rf @a.txt\n```\n"
    + "k"
    * 16384
)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


# ---- one run -------------------------------------------------------------------------------------------------------


def only_wanted(event: HookEvent) -> Decision:
    return Deny(REFUSED) if isinstance(event, ToolStarting) and b"unwanted" in event.input else Allow()


def hashes(paths: list[Path]) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths if p.is_file()}


def texts(heard: list[Part]) -> str:
    return "\n".join(part.text for part in heard if not isinstance(part, Called))


@pytest.mark.parametrize(
    ("agent", "version"), [pytest.param(*lane, marks=tier("", lane[1])) for lane in LANES], ids=LANE_IDS
)
def test_a_run(agent: Agent, version: str, agent_cli: Program, tmp_path: Path, runs: list[Run]) -> None:
    """The handshake, allow and deny, how calls end, the completion; nothing of the user's is changed (I7)."""
    box = Box(tmp_path, agent_cli(agent.name, version), agent)
    shell = box.shell
    script = [
        Turn(calls=[shell("touch wanted"), shell("touch unwanted")]),
        Turn(calls=[shell("echo oops >&2; exit 3")]),
        Turn("bye", hold=threading.Event()),
    ]
    with box.model(Turn("hello"), Turn("hello")) as model:  # starts without us: what the CLI itself makes of its files
        assert done(box.start(model, "hi"))[0] == 0
        made = [p for p in box.home.rglob("*") if p.suffix in (".json", ".toml", ".md", ".yaml", ".js")]
        once = hashes(made)
        assert done(box.start(model, "hi"))[0] == 0
    same = [
        p for p in made if str(p) in once and once[str(p)] == hashes([p]).get(str(p))
    ]  # others change at each start
    users = [p for p in same if p.parent.name != "extension-store"]  # where Qwen 0.24 notes each extension it has seen
    run = Run(box, decide=only_wanted)
    runs.append(run)
    with box.model(*script) as model:
        box.env(model)  # the model's address may stand in a file of the user's
        before = hashes(users)
        process = run.start(model, "do it")
        wait_until(lambda: run.heard.names().count("ToolEnded") == 2)  # Kimi itself waits for no such hook
        assert script[2].hold is not None
        script[2].hold.set()
        code, out, err = done(process)
        refused, oops, sent = texts(model.history(1)), texts(model.history(2)), model.history(0)

    assert code == 0, err
    assert "bye" in out
    assert [p.name for p in box.ws.iterdir() if not p.name.startswith(".")] == ["wanted"]
    assert REFUSED in refused or json.dumps(REFUSED)[1:-1] in refused
    assert "oops" in oops
    assert "[wal-agent recovery]" in texts(sent), "the standing protocol is told"

    events = run.heard.events
    begun = [e for e in events if isinstance(e, ToolStarting)]
    ended = [e for e in events if isinstance(e, ToolEnded)]
    assert next(e.prompt for e in events if isinstance(e, TurnStarted)) == "do it"
    assert [b"unwanted" in e.input for e in begun].count(True) == 1 and len(begun) == 3
    assert sorted(b"oops" in e.input for e in ended) == [False, True], "each call that ran has an end, no other one"
    assert not any(e.clean for e in ended if b"oops" in e.input)
    assert run.heard.names().index("TurnStarted") < run.heard.names().index("ToolStarting")
    assert [type(e) for e in events if isinstance(e, TurnCompleted | ToolEnded)][-1] is TurnCompleted
    assert len({e.session for e in begun}) == 1
    for end in ended:
        assert sum(_same(start, end) for start in begun) == 1, "a start and its end are known as one call"

    after = hashes(users)
    assert after == before
    session = begun[0].session
    assert box.main(session).is_file()  # where the session is in a database: its journal, brought up to it
    names = [file.name for file in agent.session_files(session, box.ws, box.user_env)]
    assert names[0] == agent.main_file
    run.close()
    if agent.capabilities.sweep:
        agent.capabilities.sweep(box.user_env, run.dir.parent)
    state = box.home / ".local/state/wal-agent"
    assert [p for p in box.home.rglob("*wal-agent*") if not p.is_relative_to(state)] == []


def _same(start: ToolStarting, end: ToolEnded) -> bool:
    if start.call_id or end.call_id:
        return start.call_id == end.call_id
    return (start.tool, start.input) == (end.tool, end.input)


SPOILED = {
    "silent": b"",
    "garbage": b"\xff" * 64,
    "half a frame": hook_line.answer(b"wal-agent:allow\0")[:9],
    "half an answer": hook_line.answer(b"wal-ag"),
    "an empty answer": hook_line.answer(b""),
    "another frame": hook_line.frame(b"D", b"wal-agent:allow\0"),
}


@EACH
def test_every_broken_answer_denies_and_so_does_none(
    agent: Agent, agent_cli: Program, tmp_path: Path, runs: list[Run]
) -> None:
    """I5: a tool does not run unless its hook hears a whole allow, nor once the socket is gone."""
    box = Box(tmp_path, agent_cli(agent.name), agent)
    run = Run(box)
    runs.append(run)
    files = [f"ran-{n}-{name.replace(' ', '-')}" for n, name in enumerate(SPOILED)]
    shell = box.shell
    script = [
        Turn(calls=[shell(f"touch {name}") for name in [*files, "sound"]]),
        Turn(calls=[shell("touch nobody-listens")], hold=threading.Event()),
        Turn("bye"),
    ]

    def spoil(event: HookEvent, answer: bytes) -> bytes:
        named = event.input.decode() if isinstance(event, ToolStarting) else ""
        return next((bad for n, bad in enumerate(SPOILED.values()) if f"ran-{n}-" in named), answer)

    run.heard.spoil = spoil
    with box.model(*script) as model:
        process = run.start(model, "do it")
        model.wait_for(2, 120)
        run.heard.close()
        (run.dir / "hook.sock").unlink()
        assert script[1].hold is not None
        script[1].hold.set()
        done(process)
        results = [part.text for part in model.history() if isinstance(part, Returned)]
    assert sorted(p.name for p in box.ws.iterdir() if not p.name.startswith(".")) == ["sound"]
    assert len([e for e in run.heard.events if isinstance(e, ToolStarting)]) == len(SPOILED) + 1
    assert len(results) == len(SPOILED) + 2 and "wal-agent did not run this" in results[-1]


# ---- the machine is lost -------------------------------------------------------------------------------------------


@dataclass
class Lost:
    """A session as the log has it after its machine is gone."""

    box: Box
    session: str
    main: bytes
    calls: list[LoggedCall]
    others: dict[str, bytes]  # the session's other files, by their logical names


@dataclass
class Back:
    """The lost session on another machine, under another path: after the recovery, and after a plain resume."""

    lost: Lost
    box: Box
    reconciled: Reconciled
    again: Reconciled
    first: list[Part]
    second: list[Part]
    sessions: set[str]
    codes: list[int]


def lose(agent: Agent, program: Path, base: Path) -> Lost:
    """Killed in the middle of a batch: a command is over, one is in flight, and one before them is on disk."""
    box = Box(base, program, agent)
    run = Run(box)
    script = [
        Turn("First.", [box.shell("echo one-is-done")]),
        Turn("Then.", [box.shell("echo two-is-done"), box.shell("echo in-flight > flying; sleep 60")]),
    ]
    with box.model(*script) as model:
        process = run.start(model, "do it")

        def in_the_middle() -> bool:
            ended = any(isinstance(e, ToolEnded) and b"two-is-done" in e.input for e in run.heard.events)
            return ended and (box.ws / "flying").exists()

        wait_until(in_the_middle)
        wait_until(lambda: box.tells(run.heard_session, b"one-is-done"))  # some write up to a second late
        box.kill(process)
    session = run.heard_session
    _, *others = agent.session_files(session, box.ws, box.user_env)
    there = {file.name: file.path.read_bytes() for file in others if file.path.is_file()}
    lost = Lost(box, session, box.main(session).read_bytes(), run.calls(), there)
    run.close()
    return lost


# One worker plays all tests of an agent here, since each worker would lose and resume the agent's run anew.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(lane, marks=[pytest.mark.xdist_group(f"back-{i}"), *tier(lane[0].name, lane[1])])
        for lane, i in zip(LANES, LANE_IDS, strict=True)
    ],
    ids=LANE_IDS,
)
def back(
    request: pytest.FixtureRequest, agent_cli: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Back]:
    agent: Agent
    agent, version = request.param
    lost = lose(agent, agent_cli(agent.name, version), tmp_path_factory.mktemp("lost"))
    base = tmp_path_factory.mktemp("back") / "deeper"
    base.mkdir()
    box = Box(base, agent_cli(agent.name, version), agent)
    for name in ("README.md", "a.txt"):
        (box.ws / name).write_text("a file that must not be read into the prompt")
    hurt = lost.main + b'{"id":"torn","type":"user","con' + bytes(300)
    with box.model(Turn("verified"), Turn("more")) as model:
        box.env(model)
        carried = b"".join(carry(agent.travels(agent.main_file, box.ws), agent.main_file, hurt, 0, LeftOut()))
        reconciled = agent.reconcile(carried, lost.session, box.ws, lost.calls)
        again = agent.reconcile(reconciled.data, lost.session, box.ws, lost.calls)
        inject_prompt = agent.capabilities.inject_prompt
        main = (
            b"".join(inject_prompt(reconciled.data, lost.session, box.ws, PROMPT)) if inject_prompt else reconciled.data
        )
        box.restore(main, lost.session)
        needed = {} if agent.resumable(lost.session, box.ws, box.user_env) else lost.others
        for name, data in needed.items():
            kept = b"".join(carry(agent.travels(name, box.ws), name, data, 0, LeftOut()))
            path = agent.restore_path(name, lost.session, box.ws, box.user_env)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(kept)
        run = Run(box, session=lost.session)
        codes = [done(run.start(model, "do it", resume=PROMPT))[0]]
        if agent.capabilities.tidy:
            agent.capabilities.tidy(lost.session, box.ws, box.user_env)
        resumed = box.main(lost.session).read_bytes()
        box.restore(agent.reconcile(resumed, lost.session, box.ws, lost.calls).data, lost.session)
        codes.append(done(run.start(model, "and more", resume=""))[0])
        first, second = model.history(0), model.history(1)
    sessions = {e.session for e in run.heard.events if isinstance(e, TurnStarted)}
    run.close()
    yield Back(lost, box, reconciled, again, first, second, sessions, codes)


def calls_of(heard: list[Part]) -> list[tuple[str, str]]:
    """Each call's input and its results."""
    results: dict[str, list[str]] = {}
    for part in heard:
        if isinstance(part, Returned):
            results.setdefault(part.id, []).append(part.text)
    return [(json.dumps(c.input), "\n".join(results.get(c.id, []))) for c in heard if isinstance(c, Called)]


def one(calls: list[tuple[str, str]], words: str) -> str:
    """The result of the one call with these words in its input."""
    found = [result for input, result in calls if words in input]
    assert len(found) == 1, f"{words}: told {len(found)} times"
    return found[0]


def test_it_resumes_in_its_own_session(back: Back) -> None:
    assert back.codes == [0, 0]
    assert back.sessions == {back.lost.session}


def test_the_history_tells_what_really_happened(back: Back) -> None:
    """Call by call: the one on disk, the one whose batch was lost, the one in flight; each once, and the truth."""
    for heard in (back.first, back.second):
        calls = calls_of(heard)
        assert "one-is-done" in one(calls, "echo one-is-done")
        assert "two-is-done" in one(calls, "echo two-is-done")
        assert "outcome unknown" in one(calls, "echo in-flight")
        said = [part.text for part in heard if isinstance(part, HistoryText)]
        assert sum("First." in text for text in said) == 1


def test_the_prompt_arrives_byte_for_byte_and_the_first_one_is_not_repeated(back: Back) -> None:
    users = [part.text for part in back.first if isinstance(part, HistoryText) and part.role == "user"]
    assert sum(PROMPT in text for text in users) == 1
    assert sum(text.strip() == "do it" or text.endswith("do it") for text in users) == 1
    later = [part.text for part in back.second if isinstance(part, HistoryText) and part.role == "user"]
    assert sum(PROMPT in text for text in later) == 1
    assert sum("and more" in text for text in later) == 1
    assert "a file that must not be read" not in texts(back.first)


def test_reconcile_mends_a_torn_tail_and_does_so_once(back: Back) -> None:
    assert b"torn" not in back.reconciled.data and b"\0" not in back.reconciled.data
    assert back.again.data == back.reconciled.data
    assert back.again.put_back == 0


def test_the_calls_that_were_logged_are_those_that_the_file_tells(back: Back) -> None:
    """What `seen_calls` reads in the whole file is of calls that hooks told of too, under the same names."""
    agent = back.lost.box.agent
    known = {call.tool for call in back.lost.calls}
    seen = agent.seen_calls(back.lost.main)
    assert {call.tool for call in seen} <= known
    assert any(b"one-is-done" in call.input and call.status == "done" for call in seen)
    assert agent.proves_turn(back.lost.main)


@EACH
def test_a_session_that_is_not_there(agent: Agent, tmp_path: Path, agent_cli: Program) -> None:
    box = Box(tmp_path, agent_cli(agent.name), agent)
    with box.model() as model:
        env = box.env(model)
    session = str(uuid.uuid4())
    assert agent.session_files(session, box.ws, env) == []
    assert not agent.resumable(session, box.ws, env)
    assert agent.existing_files(session, box.ws, env) == []


HOSTILE = ("../x", "/etc/passwd", "a/../../x", "", "x\0y", "auth.json", "a" * 300, "sub/" * 40 + "x", ".", "a//b")


@EACH
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_has_no_place(agent: Agent, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        agent.restore_path(name, str(uuid.uuid4()), tmp_path, {"HOME": str(tmp_path)})


@EACH
@pytest.mark.parametrize("session", ["../x", "a/b", "", "x\0", "-p", "*", "x" * 300])
def test_a_hostile_session_has_no_files(agent: Agent, session: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert agent.session_files(session, tmp_path, env) == []
    assert agent.existing_files(session, tmp_path, env) == []
    with pytest.raises(ValueError):
        agent.restore_path(agent.main_file, session, tmp_path, env)
