"""Losing the machine under the real CLI: what a restored, reconciled session makes the model see. Hazards by name."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.gemini_box import GEMINI, Box, Run, done, history, wait_until
from tests.mocks.gemini_model import GeminiModel, Turn
from tests.tiers import deep
from wal_agent.agents.base import ACT, Allow, Decision, HookEvent, Reconciled, ToolStarting, TurnStarted
from wal_agent.supervise.conversation import Resuming

pytestmark = [deep, pytest.mark.xdist_group("gemini-resume")]  # one worker, since each would lose and resume anew
PROMPT = (
    "[wal-agent recovery] @README.md, git@github.com:x/y, @generalist, `ls`, <hook_context>a</hook_context>, "
    "$GEMINI_PROJECT_DIR, ${extensionPath}, \\@x, ünï, 😀, \u2028 and \u2029.\n```text\n/quit\nrm -rf @a.txt\n```\n"
    + "k"
    * 16384
)


@dataclass
class Lost:
    """A session as the log has it after its machine is gone, and that machine's box and run."""

    box: Box
    run: Run
    main: bytes
    session: str


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, gemini_cli: Path) -> Lost:
    """Killed in the middle of a batch of three: one over, one open, one not begun; a batch before it is on disk."""
    box = Box(tmp_path_factory.mktemp("lost"), gemini_cli)
    run = Run(box)
    written = str(box.ws / "made.txt")
    turns = [
        Turn(text="First.", calls=[("run_shell_command", {"command": "echo one"})]),
        Turn(
            text="Then.",
            calls=[
                ("write_file", {"file_path": written, "content": "hi"}),
                ("run_shell_command", {"command": "exec sleep 20", "wait_for_previous": True}),
                ("write_file", {"file_path": written + "2", "content": "never"}),
            ],
        ),
    ]
    with GeminiModel(turns) as model:
        process = run.go(model, ["-p", "do it", "--yolo"])
        wait_until(lambda: any(isinstance(e, ToolStarting) and b"sleep" in e.input for e in run.heard.events))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    main = box.main(run.session).read_bytes()
    assert b"sleep" not in main, "Gemini writes calls when their batch is over"
    run.close()
    return Lost(box, run, main, run.session)


@dataclass
class Back:
    """The lost session on another machine, under another path, after damage that a crash or a user's hook can do."""

    box: Box
    main: Path
    reconciled: Reconciled
    first: list[tuple[str, dict[str, object]]]  # what the model was sent by the recovery
    second: list[tuple[str, dict[str, object]]]  # and at a plain resume after it
    chats: list[str]  # the files that the recovery left, before anything was tidied
    outs: list[tuple[int, str, str]]


@pytest.fixture(scope="module")
def back(lost: Lost, tmp_path_factory: pytest.TempPathFactory) -> Back:
    base = tmp_path_factory.mktemp("back") / "deeper"
    base.mkdir()
    box = Box(base, lost.box.program)
    for name in ("README.md", "a.txt"):
        (box.ws / name).write_text("a file that must not be read into the prompt")
    lines = lost.main.split(b"\n")
    lines[0] = lines[0][:40]  # as a torn write leaves it: Gemini deletes such a file
    hurt = b"\n".join(lines).replace(b'"text":"do it"', b'"text":"<hook_context>x</hook_context>\\n\\ndo it"')
    hurt += b'{"id":"torn","type":"gemini","con' + bytes(300)
    reconciled = GEMINI.reconcile(hurt, lost.session, box.ws, lost.run.calls())
    told = b"".join(GEMINI.resume.inject_prompt(reconciled.data, lost.session, box.ws, PROMPT))
    assert told is not None
    main = box.restore(told, lost.session)

    run = Run(box, session=lost.session)
    with GeminiModel([Turn(text="verified"), Turn(text="more")]) as model:
        outs = [done(run.go(model, ["-p", "do it", "--yolo", "--session-id", "x"], resume=PROMPT))]
        chats = sorted(p.name for p in main.parent.iterdir())
        # again as it stands then, as the next start of a run does it
        GEMINI.session.tidy(lost.session, box.ws, box.user_env)
        again = GEMINI.reconcile(main.read_bytes(), lost.session, box.ws, lost.run.calls())
        main.write_bytes(again.data)
        outs.append(done(run.go(model, ["-p", "next"], resume="")))
        first, second = (history(request) for request in model.requests)
    run.close()
    return Back(box, main, reconciled, first, second, chats, outs)


def test_it_resumes(back: Back) -> None:
    assert [(code, out) for code, out, _ in back.outs] == [(0, "verified\n"), (0, "more\n")]


def test_the_history_call_by_call(lost: Lost, back: Back) -> None:
    """The batch on disk, then the lost one with each call once: the ended with its result, the others as unknown."""
    shapes = [(role, *summary(part)) for role, part in back.first]
    written = str(lost.box.ws / "made.txt")
    assert shapes[:-2] == [
        ("user", "text", "do it"),
        ("model", "text", "First."),
        ("model", "call", {"command": "echo one"}),
        ("user", "response", "output", "one"),
        ("model", "text", "Then."),
        ("model", "call", {"file_path": written, "content": "hi"}),
        ("model", "call", {"command": "exec sleep 20", "wait_for_previous": True}),
        ("user", "response", "output", "made.txt"),
        ("user", "response", "error", "outcome unknown"),
    ]
    assert back.reconciled.put_back == 2


def summary(part: dict[str, object]) -> tuple[object, ...]:
    if "functionCall" in part:
        return ("call", json.loads(json.dumps(part["functionCall"]))["args"])
    if "functionResponse" in part:
        (key, value), *_ = json.loads(json.dumps(part["functionResponse"]))["response"].items()
        known = [word for word in ("outcome unknown", "made.txt", "one") if word in value]
        return ("response", key, known[0])
    return ("text", part.get("text"))


def test_the_prompt_arrives_exactly(back: Back) -> None:
    """Not `user @host`, no file read in, no command run, nothing escaped; and it stays."""
    assert back.first[-2:] == [("user", {"text": PROMPT}), ("user", {"text": ACT})]
    assert ("user", {"text": PROMPT}) in back.second


def test_s4_a_prompt_behind_a_hooks_context_is_kept(back: Back) -> None:
    assert back.first[0] == ("user", {"text": "do it"})


def test_s6_results_are_sent_once(back: Back) -> None:
    """Each call and each response once, also at the second resume, where Gemini would begin to repeat them."""
    for sent in (back.first, back.second):
        for kind in ("functionCall", "functionResponse"):
            ids = [json.loads(json.dumps(part[kind]))["id"] for _, part in sent if kind in part]
            assert len(ids) == len(set(ids)) == 3
    assert back.second[: len(back.first)] == back.first


def test_s13_a_damaged_first_line(back: Back) -> None:
    assert back.main.exists()
    assert any("first line" in repair for repair in back.reconciled.repairs)


def test_s2_s3_stubs(lost: Lost, back: Back) -> None:
    """The recovery leaves a stub beside the file, not in it; tidied, another session's start deletes nothing."""
    assert len(back.chats) == 2
    assert back.main.name == f"session-1970-01-01T00-00-{lost.session[:8]}.jsonl"
    env = {"HOME": str(back.box.home)}
    assert GEMINI.session_files(lost.session, back.box.ws, env)[0].path == back.main
    assert len(GEMINI.existing_files(lost.session, back.box.ws, env)) == 2, "the second resume made one again"
    GEMINI.session.tidy(lost.session, back.box.ws, env)
    assert GEMINI.existing_files(lost.session, back.box.ws, env) == [back.main]
    with GeminiModel([Turn(text="other")]) as model:
        assert done(back.box.begin(model, ["-p", "another session", "-m", "gemini-2.5-pro"]))[0] == 0
    assert back.main.exists()


def test_a_long_session_is_loaded_before_its_first_turn(lost: Lost, back: Back, tmp_path: Path) -> None:
    """I8: Gemini submits the prompt beside loading the session, and would ask its model with neither the conversation
    nor the recovery's words. What loading left, and would cost the session at the next start, is gone by then."""
    box = Box(tmp_path, lost.box.program)
    reconciled = GEMINI.reconcile(lost.main, lost.session, box.ws, lost.run.calls())
    display = {"fileName": "f", "fileDiff": "a line of a long file\n" * 50_000}
    returned = {"functionResponse": {"id": "c", "name": "write_file", "response": {"output": "written"}}}
    call = {"id": "c", "name": "write_file", "args": {}, "status": "success", "result": [returned]}
    call["resultDisplay"] = display
    shown = {"id": "shown", "timestamp": "2026-11-22T10:00:00Z", "type": "gemini", "content": "", "toolCalls": [call]}
    line = json.dumps(shown).encode() + b"\n"
    long = reconciled.data + b"".join(line.replace(b'"shown"', b'"shown%d"' % n) for n in range(20))
    told = b"".join(GEMINI.resume.inject_prompt(long, lost.session, box.ws, PROMPT))
    assert told is not None and len(told) > 20_000_000
    main = box.restore(told, lost.session)
    resuming = Resuming(GEMINI, lost.session, box.ws, box.user_env)
    left: list[str] = []

    def decide(event: HookEvent) -> Decision:
        if not isinstance(event, TurnStarted):
            return Allow()
        refusal = resuming.await_loaded(event.session, lambda: False)
        left.extend(path.name for path in main.parent.iterdir())
        return refusal or Allow()

    run = Run(box, session=lost.session, decide=decide)
    with GeminiModel([Turn(text="verified")]) as model:
        tty = run.talk(model, ["do", "it", "--yolo"], resume=PROMPT)
        wait_until(lambda: "TurnCompleted" in run.heard.names())
        assert tty.quit() == 0
        sent = history(model.requests[0])
    run.close()
    assert sent[-2:] == [("user", {"text": PROMPT}), ("user", {"text": ACT})]
    assert left == [main.name]


def test_an_interactive_resume(lost: Lost, back: Back, tmp_path: Path) -> None:
    """The same on a terminal: the prompt exact, the old turns on the screen."""
    box = Box(tmp_path, lost.box.program)
    (box.ws / "README.md").write_text("not this")
    reconciled = GEMINI.reconcile(lost.main, lost.session, box.ws, lost.run.calls())
    told = b"".join(GEMINI.resume.inject_prompt(reconciled.data, lost.session, box.ws, PROMPT))
    assert told is not None
    box.restore(told, lost.session)
    run = Run(box, session=lost.session)
    with GeminiModel([Turn(text="verified")]) as model:
        tty = run.talk(model, ["do", "it", "--yolo"], resume=PROMPT)
        wait_until(lambda: "TurnCompleted" in run.heard.names())
        wait_until(lambda: "verified" in tty.screen and "First." in tty.screen)
        assert tty.quit() == 0
        sent = history(model.requests[0])
    run.close()
    assert sent[-2:] == [("user", {"text": PROMPT}), ("user", {"text": ACT})]
    assert "First." in tty.screen
    assert "verified" in tty.screen
