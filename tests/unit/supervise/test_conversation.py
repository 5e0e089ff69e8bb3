"""supervise/conversation.py: what each hook event does. One place knows them all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.supervise.crew import Post, Watcher, ended, quiet_guard, starting
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Command,
    Compacted,
    Compacting,
    ContextRequested,
    Decision,
    Deny,
    HookEvent,
    ModelRequest,
    OtherEvent,
    SessionEnded,
    SessionStarted,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    TurnStopped,
)
from wal_agent.calls.rules.table import load_rules
from wal_agent.errors import PersonNeeded
from wal_agent.records import MAX_PROMPT, AgentStarted, AnyRecord, End, Payload, PhaseChange, Turn
from wal_agent.recovery.inflight import AskedCall
from wal_agent.supervise.context import Launch
from wal_agent.supervise.conversation import Conversation
from wal_agent.supervise.gate import STUBBORN, Gate, RecoveredCalls


class Talk:
    """A conversation of session "s" on a job in memory, and what it asked others for, in order."""

    def __init__(self, folder: Path, notice: str = "", turn_open: bool = False) -> None:
        self.post = Post(folder)
        self.watcher = Watcher()
        self.did = self.watcher.did
        self.on = self.make(notice, turn_open)

    def make(self, notice: str, turn_open: bool) -> Conversation:
        launch = Launch(Command((), {}), "s", notice=notice, turn_open=turn_open)
        self.guard = quiet_guard(self.post.context, self.post.gate, self.did)
        return Conversation(self.post.context, self.post.gate, launch, self.watcher, self.guard)

    def log(self) -> list[AnyRecord]:
        """What it wrote, without the opening and the phases."""
        self.post.commit()
        return [record for record in self.post.log()[1:] if not isinstance(record, PhaseChange)]

    def phases(self) -> list[str]:
        return [record.phase for record in self.post.log() if isinstance(record, PhaseChange)]


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


def test_any_event_is_the_handshake(talk: Talk) -> None:
    """I5: hooks live from the first word on; before it they are not known to."""
    assert not talk.on.hooks_live.is_set() and talk.on.phase == "starting"
    assert talk.on.handle(OtherEvent("PreCompress")) == Allow()
    assert talk.on.hooks_live.is_set() and talk.on.phase == "starting"
    assert talk.did == [] and talk.log() == []


def test_the_expected_session_is_no_news(talk: Talk) -> None:
    talk.on.handle(SessionStarted("s", "startup"))
    assert talk.did == [] and talk.log() == [] and talk.on.phase == "awaiting_user"


def test_another_session_is_written_down_before_its_files_are(talk: Talk) -> None:
    """I3: a recovery must resume the session that the user is in, so /clear is in the log before what follows."""
    talk.on.handle(SessionStarted("t", "clear"))
    talk.on.handle(SessionStarted("t", "clear"))
    assert talk.on.session == "t" and talk.did == ["switch t"]
    (record,) = talk.log()
    assert isinstance(record, AgentStarted) and (record.session, record.resumed) == ("t", False)


def test_an_agent_whose_first_word_is_a_turn_names_its_session_by_it(talk: Talk) -> None:
    """Only the first: a later one may be of another process of the agent, started by a tool."""
    talk.on.handle(TurnStarted("t", "go"))
    talk.on.handle(TurnStarted("u", "of a tool"))
    assert talk.on.session == "t" and [did for did in talk.did if did.startswith("switch")] == ["switch t"]
    assert isinstance(talk.log()[0], AgentStarted)


def test_a_turn_begins_with_its_prompt(talk: Talk) -> None:
    talk.on.handle(TurnStarted("s", "fix ünïcode"))
    (record,) = talk.log()
    assert isinstance(record, Turn) and (record.state, record.session) == ("started", "s")
    text = "fix ünïcode".encode()
    assert record.prompt == Payload(size=len(text), data=text)
    assert talk.on.turn_open and talk.did == ["turn of s", "save"] and talk.on.phase == "awaiting_model"


def test_a_prompt_is_bounded(talk: Talk) -> None:
    """I9."""
    talk.on.handle(TurnStarted("s", "x" * (MAX_PROMPT + 5)))
    (record,) = talk.log()
    assert isinstance(record, Turn) and record.prompt is not None
    assert record.prompt.size == MAX_PROMPT == len(record.prompt.data or b"")


def test_the_words_of_a_recovery_are_not_the_users_task(tmp_path: Path) -> None:
    """A second recovery repeats what the user asked for, not what the first recovery said."""
    talk = Talk(tmp_path, notice="look first")
    talk.on.handle(TurnStarted("s", "[wal-agent recovery] ..."))
    talk.on.handle(TurnStarted("s", "now this"))
    prompts = [r.prompt for r in talk.log() if isinstance(r, Turn)]
    assert prompts == [None, Payload(size=8, data=b"now this")]


def test_a_turn_that_no_person_began_has_no_words(talk: Talk) -> None:
    talk.on.handle(TurnStarted("s", ""))
    (record,) = talk.log()
    assert isinstance(record, Turn) and record.prompt is None


def test_a_tool_goes_through_the_gate(talk: Talk) -> None:
    """I1, I5: the gate's word is the answer, whichever it is."""
    with talk.post.committing():
        assert talk.on.handle(starting("write_file", file_path="a")) == Allow()
    assert talk.on.phase == "executing_tools"
    talk.post.gate.close("over")
    assert talk.on.handle(starting("write_file", file_path="a")) == Deny("over", stop=True)
    assert len(talk.post.intents()) == 1


def test_an_end_is_logged_and_saved_soon(talk: Talk) -> None:
    talk.post.begin(file_path="a")
    talk.post.begin("read_file", file_path="a")
    talk.on.handle(ended("write_file", file_path="a"))
    phases = [talk.on.phase]
    talk.on.handle(ended("read_file", file_path="a"))
    assert [*phases, talk.on.phase] == ["executing_tools", "awaiting_model"] and talk.did == ["save"] * 2
    talk.post.commit()
    assert [e.call for e in talk.post.ends()] == [1, 2]


def test_an_end_that_no_beginning_was_told_of_is_reported(talk: Talk) -> None:
    """I5: it is in the log as a call that ran before it was logged."""
    talk.on.handle(ended("write_file", file_path="a"))
    assert talk.did == ["unseen write_file", "save"]
    talk.post.commit()
    assert [(i.tool, i.unlogged) for i in talk.post.intents()] == [("write_file", True)]
    assert [(e.how, e.by) for e in talk.post.ends()] == [("done", "session")]


def test_an_agent_that_only_repeats_a_call_in_flight_is_ended_and_a_person_is_asked(talk: Talk) -> None:
    """Decision 052: not every agent ends its turn for a hook. A prompt begins the count anew."""
    charge, post = starting("run_shell_command", command="./charge 1"), talk.post
    post.begin("run_shell_command", command="./charge 1")
    asked = AskedCall(1, charge.tool, charge.input)
    post.gate = Gate(post.context, load_rules, lambda: True, RecoveredCalls(post.context, asked=[asked]))
    talk.on = talk.make("", turn_open=False)

    def repeat(times: int) -> None:
        for _ in range(times):
            assert isinstance(talk.on.handle(charge), Deny)

    talk.on.handle(TurnStarted("s", "p"))
    repeat(STUBBORN - 1)
    talk.on.handle(TurnStarted("s", "try again"))
    repeat(STUBBORN - 1)
    assert not talk.watcher.stopped
    repeat(1)
    [error] = talk.watcher.stopped
    assert isinstance(error, PersonNeeded) and error.exit_code == 79
    assert "`./charge 1`" in error.what and "wal-agent ack 1 --job job" in error.hint and "--not-done" in error.hint
    assert [i.call for i in post.intents()] == [1], "a refused call is none"


@pytest.mark.parametrize(("person", "speaks"), [(False, True), (True, True), (False, False)])
def test_a_turn_goes_on_where_an_open_call_was_not_looked_at_and_nobody_is_there(
    talk: Talk, person: bool, speaks: bool
) -> None:
    """I8: where its hook can speak, the agent is asked once, at the end of its turn, to look."""
    post = talk.post
    post.begin("run_shell_command", command="./charge 1")
    asked = AskedCall(1, "run_shell_command", b'{"command": "./charge 1"}', look="`./status 1`")
    post.gate = Gate(post.context, load_rules, lambda: True, RecoveredCalls(post.context, asked=[asked]))
    talk.on = talk.make("", turn_open=False)
    talk.on._asks_to_look, talk.on._speaks = not person, frozenset(("turn_completed",) if speaks else ())
    talk.on.handle(TurnStarted("s", "p"))
    goes_on = speaks and not person
    got = talk.on.handle(TurnCompleted("s"))
    assert isinstance(got, Allow) and ("`./status 1`" in got.words) is goes_on is talk.on.turn_open
    assert talk.on.handle(TurnCompleted("s")) == Allow() and not talk.on.turn_open


@pytest.mark.parametrize(("follows", "open"), [(None, False), (ModelRequest("s"), True), (TurnStarted("s", ""), True)])
def test_an_agent_that_ends_behind_those_words_has_completed_its_turn(
    talk: Talk, follows: HookEvent | None, open: bool
) -> None:
    """Unless it was seen to go on: then the turn was cut off."""
    talk.on.handle(TurnStarted("s", "p"))
    talk.on._asks_to_look, talk.on._speaks = True, frozenset(("turn_completed",))
    talk.post.gate.nudge = lambda: "look first"  # type: ignore[method-assign]
    assert talk.on.handle(TurnCompleted("s")) == Allow("look first") and talk.on.turn_open
    if follows is not None:
        talk.on.handle(follows)
    talk.on.end()
    assert talk.on.turn_open is open


def test_the_next_model_request_is_a_boundary_for_every_call_before_it(talk: Talk) -> None:
    """ARCHITECTURE.md: by then the session file tells the whole batch."""
    talk.on.handle(ModelRequest("s"))
    talk.post.begin(file_path="a")
    talk.post.begin(file_path="b")
    talk.on.handle(ModelRequest("s"))
    assert talk.did == ["save", "boundary 2", "save"] and talk.on.phase == "awaiting_model"
    assert talk.on.turn_open is False


def test_a_turn_completes_behind_what_it_settles(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: what was told to the agent is settled by its completion, in one segment with it and before it."""
    talk.on.handle(TurnStarted("s", "p"))
    settled = End(time=1.0, call=77, how="verified", by="recovery", finding="unknown")
    monkeypatch.setattr(talk.post.gate.recovered, "after_turn", lambda running: [settled])
    talk.post.begin(file_path="a")
    talk.did.clear()
    talk.on.handle(TurnCompleted("s"))
    assert talk.did == ["boundary 1", "save"] and not talk.on.turn_open and talk.on.phase == "awaiting_user"
    end, turn = talk.log()[-2:]
    assert end == settled and isinstance(turn, Turn) and turn.state == "completed"
    assert talk.post.state.turn == "completed"


@pytest.mark.parametrize("pending", [False, True])
def test_a_turn_that_a_lost_log_ended_is_not_complete(talk: Talk, pending: bool) -> None:
    """I8: the agent was told to stop. The next start goes on with it, unless a call could begin after all."""
    talk.on.handle(TurnStarted("s", "p"))
    talk.post.fresh = False
    with talk.post.committing():
        assert isinstance(talk.on.handle(starting("write_file", file_path="a")), Deny)
    talk.on.handle(TurnCompleted("s", pending=pending))
    talk.on.end()
    assert talk.on.turn_open
    talk.post.fresh = True
    with talk.post.committing():
        assert talk.on.handle(starting("write_file", file_path="a")) == Allow()
    talk.on.handle(TurnCompleted("s", pending=pending))
    talk.on.end()
    assert not talk.on.turn_open


@pytest.mark.parametrize(
    ("event", "phase"), [(AwaitingApproval("s", "t"), "awaiting_approval"), (SessionEnded("s", "x"), "awaiting_user")]
)
def test_other_events_move_the_phase_and_write_nothing(
    talk: Talk, event: AwaitingApproval | SessionEnded, phase: str
) -> None:
    assert talk.on.handle(event) == Allow()
    assert talk.on.phase == phase and talk.log() == [] and talk.did == []


def test_a_resumed_turn_is_open_until_it_completes(tmp_path: Path) -> None:
    """Clean means the agent's completion event (RECOVERY.md)."""
    talk = Talk(tmp_path, turn_open=True)
    talk.on.handle(SessionEnded("s", "exit"))
    assert talk.on.turn_open


def test_a_phase_knows_the_tool_that_it_is_about(talk: Talk) -> None:
    """Also where the agent asks for one approval after another."""
    talk.on.handle(TurnStarted("s", "do it"))
    assert talk.on.about == ""
    talk.on.handle(starting("read_file"))
    assert talk.on.about == "read_file"
    talk.on.handle(AwaitingApproval("s", "read_file"))
    talk.on.handle(AwaitingApproval("s", "x" * 1000))
    assert talk.on.about == "x" * 200
    talk.on.handle(TurnCompleted("s"))
    assert talk.on.about == ""


def test_a_turn_that_left_work_running_is_complete_when_the_agent_ends(talk: Talk) -> None:
    """Unless something begins after it. The model owes nothing meanwhile."""
    talk.on.handle(TurnStarted("s", "do it"))
    talk.on.handle(TurnCompleted("s", pending=True))
    assert talk.on.turn_open and talk.on.phase == "executing_tools"
    talk.on.handle(TurnStarted("s", "its end"))
    talk.on.end()
    assert talk.on.turn_open
    talk.on.handle(TurnCompleted("s", pending=True))
    assert not any(isinstance(r, Turn) and r.state == "completed" for r in talk.log())
    talk.on.end()
    assert not talk.on.turn_open
    assert isinstance(last := talk.log()[-1], Turn) and (last.state, last.session) == ("completed", "s")


def test_a_turn_that_goes_on_behind_its_end_is_open_again(talk: Talk) -> None:
    """I8: another hook on the agent's own end may make it work on; what is cut off then is not a finished job."""
    talk.on.handle(TurnStarted("s", "do it"))
    talk.on.handle(TurnCompleted("s"))
    talk.on.handle(msgspec.structs.replace(starting("read_file"), inner="memory"))
    assert not talk.on.turn_open
    talk.on.handle(starting("read_file"))
    assert talk.on.turn_open
    turns = [(r.state, r.prompt is None) for r in talk.log() if isinstance(r, Turn)]
    assert turns == [("started", False), ("completed", True), ("started", True)]


# ---- ends that no hook tells


def test_a_denied_call_leaves_the_model_to_answer(talk: Talk) -> None:
    """Claude and Copilot tell nothing of it afterwards; the watchdog must see that the model owes an answer."""
    talk.on.handle(TurnStarted("s", "do it"))
    talk.post.gate.drain()
    assert isinstance(talk.on.handle(starting("write_file", file_path="a")), Deny)
    assert talk.on.refresh_phase() == ("awaiting_model", "")
    talk.post.begin("read_file", file_path="a")
    talk.on.handle(starting("write_file", file_path="b"))
    assert talk.on.refresh_phase()[0] == "executing_tools", "another one runs"


def test_an_end_that_the_sessions_file_tells_leaves_the_model_to_answer(talk: Talk) -> None:
    """Two calls at once, one refused by a person: it has no after-hook."""
    with talk.post.committing():
        for name in ("a", "b"):
            talk.on.handle(starting("write_file", file_path=name))
    talk.on.handle(ended("write_file", file_path="a"))
    assert talk.on.refresh_phase()[0] == "executing_tools"
    talk.post.gate.end_call(2, "refused", "it was refused", by="session")
    assert talk.on.refresh_phase()[0] == "awaiting_model"


def test_a_call_whose_hook_still_waits_is_no_lost_end(talk: Talk) -> None:
    """Else the hard timeout would count while a tool runs."""
    seen: list[str] = []
    began = talk.post.gate.begin_call

    def before(event: ToolStarting, nested: str = "") -> Decision:
        talk.on.handle(ended("read_file", file_path="a"))
        seen.extend([talk.on.phase, talk.on.refresh_phase()[0]])
        return began(event)

    talk.post.begin("read_file", file_path="a")
    talk.post.gate.begin_call = before  # type: ignore[method-assign]
    with talk.post.committing():
        talk.on.handle(starting("write_file", file_path="b"))
    assert [*seen, talk.on.refresh_phase()[0]] == ["executing_tools"] * 3


def test_work_in_the_background_is_no_lost_end(talk: Talk) -> None:
    talk.on.handle(TurnStarted("s", "do it"))
    talk.on.handle(TurnCompleted("s", pending=True))
    assert talk.on.refresh_phase()[0] == "executing_tools"


@pytest.mark.parametrize(
    "event", [TurnStarted("s", "do it"), Compacting("s", done=False), TurnCompleted("s"), SessionStarted("s", "x")]
)
def test_a_look_leaves_every_other_phase_alone(talk: Talk, event: HookEvent) -> None:
    talk.on.handle(event)
    phase = talk.on.phase
    assert talk.on.refresh_phase()[0] == phase != "starting"


def test_a_question_is_over_when_its_call_is_gone(talk: Talk) -> None:
    """A "no" has no hook either, and a "yes" none until the tool ends: others that run then are no question."""
    with talk.post.committing():
        for tool in ("write_file", "run_shell_command"):
            talk.on.handle(starting(tool, file_path="a"))
    talk.on.handle(AwaitingApproval("s", "run_shell_command"))
    assert talk.on.refresh_phase() == ("awaiting_approval", "run_shell_command")
    talk.post.gate.end_call(2, "refused", "it was refused", by="session")
    assert talk.on.refresh_phase()[0] == "executing_tools"
    talk.on.handle(AwaitingApproval("s", "Allow it?"))
    assert talk.on.refresh_phase()[0] == "awaiting_approval"
    talk.post.gate.end_call(1, "refused", "it was refused", by="session")
    assert talk.on.refresh_phase()[0] == "awaiting_model"
    talk.on.handle(AwaitingApproval("s", "a question of its own"))
    assert talk.on.refresh_phase()[0] == "awaiting_approval", "no call is known to be asked about"


def test_a_second_question_does_not_hide_the_first(talk: Talk) -> None:
    with talk.post.committing():
        for tool in ("write_file", "run_shell_command"):
            talk.on.handle(starting(tool, file_path="a"))
    talk.on.handle(AwaitingApproval("s", "write_file"))
    talk.on.handle(AwaitingApproval("s", "run_shell_command"))
    talk.post.gate.end_call(2, "refused", "it was refused", by="session")
    assert talk.on.refresh_phase()[0] == "awaiting_approval"


def test_a_question_is_over_once_the_shell_of_its_call_runs(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls that are asked about, the other one may still wait for its answer."""
    begun: set[int] = set()
    monkeypatch.setattr(talk.post.gate, "has_begun", begun.__contains__)
    with talk.post.committing():
        for command in ("make", "make test"):
            talk.on.handle(starting("run_shell_command", command=command))
    talk.on.handle(AwaitingApproval("s", "run_shell_command"))
    begun.add(1)
    assert talk.on.refresh_phase()[0] == "awaiting_approval"
    begun.add(2)
    assert talk.on.refresh_phase()[0] == "executing_tools"


def test_a_turn_that_a_person_stopped_waits_for_the_person_once_nothing_runs(talk: Talk) -> None:
    """It is not complete; a call that the stop cut off may be found in the session only later."""
    talk.on.handle(TurnStarted("s", "do it"))
    with talk.post.committing():
        talk.on.handle(starting("write_file", file_path="a"))
    talk.on.handle(TurnStopped("s"))
    assert talk.on.refresh_phase()[0] == "executing_tools"
    talk.on.handle(ended("write_file", file_path="a"))
    assert talk.on.refresh_phase()[0] == "awaiting_user" and talk.on.turn_open
    talk.on.handle(ModelRequest("s"))
    assert talk.on.refresh_phase()[0] == "awaiting_model"
    talk.on.handle(TurnStopped("s"))
    assert talk.on.phase == "awaiting_user" and talk.on.turn_open


@pytest.mark.parametrize("event", [TurnStarted("s", "p"), ModelRequest("s"), TurnCompleted("s")])
def test_what_a_turn_failed_of_is_over_when_the_model_is_asked_again(talk: Talk, event: HookEvent) -> None:
    """Else a run that went on would be told as ended for want of the model."""
    talk.on.handle(TurnFailed("s", "quota", "429"))
    assert talk.on.failed is not None
    talk.on.handle(event)
    assert talk.on.failed is None


def test_draining_stays(talk: Talk) -> None:
    talk.on.enter("drain_asked")
    talk.on.handle(ModelRequest("s"))
    talk.on.handle(TurnCompleted("s"))
    assert talk.on.phase == "draining"


def test_phases_are_in_the_log_in_order_with_no_put_of_their_own(talk: Talk) -> None:
    """They ride with what is worth a put: one round trip for each changing call stays one."""
    before = talk.post.world.clock.boot()
    talk.on.handle(SessionStarted("s", "startup"))
    talk.post.commit()
    assert talk.phases() == [] and talk.post.world.clock.boot() == before
    talk.on.handle(TurnStarted("s", "do it"))
    talk.on.handle(starting("read_file"))
    talk.post.commit()
    assert talk.phases() == ["awaiting_user", "awaiting_model", "executing_tools"]


def test_a_turn_that_may_not_begin_has_not_begun(talk: Talk) -> None:
    """A session that is not loaded yet: its model is not asked, and the phase waits for the next try."""
    talk.on.handle(SessionStarted("s", "resume"))
    talk.watcher.refusal = Deny("not yet")
    assert talk.on.handle(TurnStarted("s", "go on")) == Deny("not yet")
    assert not talk.on.turned and talk.on.phase == "awaiting_user" and talk.log() == []
    talk.watcher.refusal = None
    assert talk.on.handle(TurnStarted("s", "go on")) == Allow()
    assert talk.on.turned and talk.on.phase == "awaiting_model"


def test_a_sessions_start_that_is_told_late_does_not_end_its_turn(talk: Talk) -> None:
    """On a terminal Gemini and Qwen do not wait for that hook: else a hung model would not be seen, and a pause would
    end the agent in the middle of its turn. Another session's start is one."""
    talk.on.handle(TurnStarted("s", "go on"))
    talk.on.handle(SessionStarted("s", "startup"))
    late = talk.on.phase
    talk.on.handle(SessionStarted("other", "clear"))
    assert (late, talk.on.phase) == ("awaiting_model", "awaiting_user")


def test_a_shortened_conversation_has_the_recoverys_words_until_its_turn_is_over(tmp_path: Path) -> None:
    """I8: an agent near its model's limit shortens what it resumed before it asks, the words in it too."""
    talk = Talk(tmp_path, notice="look first")
    talk.on.handle(TurnStarted("s", "go on"))
    assert [words(talk).split("\n")[0] for _ in range(2)] == ["look first"] * 2
    talk.on.handle(TurnCompleted("s"))
    assert "look first" not in words(talk)


def test_what_a_file_shows_as_compacted_is_said_with_the_recoverys_words(tmp_path: Path) -> None:
    """I8, where no hook of the agent asks for words: behind its next tool, and a call that has ended runs no more."""
    talk = Talk(tmp_path, notice="look first")
    talk.on.handle(TurnStarted("s", "go on"))
    with talk.post.committing():
        talk.on.handle(starting("write_file", file_path="a"))
        talk.guard.found(Compacted("k", "a summary of what there was", "a summary of what there was"), "s")
        found = talk.on.handle(ended("write_file", file_path="a"))
    assert isinstance(found, Allow) and found.words.startswith("look first\n\n[wal-agent] Your conversation")
    assert "write_file" not in found.words
    assert talk.on.handle(TurnStarted("s", "more")) == Allow()


def words(talk: Talk) -> str:
    found = talk.on.handle(ContextRequested("s"))
    assert isinstance(found, Allow)
    return found.words


def test_behind_a_compaction_the_agent_reads_its_task_and_what_runs(talk: Talk) -> None:
    """A summary may lack both; what was asked is a person's text, so it is quoted as data."""
    talk.on.handle(TurnStarted("s", "move the shop\n\x1b[2Jto v2"))
    with talk.post.committing():
        talk.on.handle(Compacting("s", done=False, trigger="auto"))
        assert talk.did[-2:] == ["saved", "pre_compaction"]
        call = talk.post.begin("run_shell_command", command="make deploy")
    found = words(talk)
    assert "move the shop" in found and "\x1b" not in found
    assert f"#{call} run_shell_command" in found and "wal-agent recall" in found
