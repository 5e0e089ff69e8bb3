"""agents/claude: the session's files, and what is put back into one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.agents import claude as CLAUDE
from wal_agent.agents.base import LoggedCall, SeenCall, TurnFailed
from wal_agent.agents.claude.resume import IMAGE, result_text
from wal_agent.agents.claude.session import Entry, has_messages, project_slug, turn_failure
from wal_agent.agents.session_files import records

ID = "0b8a9f3e-1111-4222-8333-444455556666"
WS = Path("/w")


class Book:
    """A session file in the making, a chain of lines a second apart."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def add(self, kind: str, content: Any, **more: Any) -> str:
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, str(len(self.lines))))
        parent = next((line["uuid"] for line in reversed(self.lines) if "uuid" in line), None)
        message = {"role": kind, "content": content, **({"id": f"m{len(self.lines)}"} if kind == "assistant" else {})}
        at = f"2026-11-22T09:00:{len(self.lines):02d}.000Z"
        line = {"parentUuid": parent, "type": kind, "message": message, "uuid": name, "timestamp": at, **more}
        self.lines.append(line)
        return name

    def call(self, id: str, command: str = "ls", **more: Any) -> str:
        return self.add("assistant", [use(id, command)], **more)

    def result(self, id: str, text: str, error: bool = False) -> str:
        return self.add("user", [told(id, text, error)])

    @property
    def data(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)


def use(id: str, command: str = "ls") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}}


def told(id: str, text: str, error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": error}


def logged(n: int, id: str = "", result: bytes | None = b'{"stdout":"out","stderr":""}', **more: Any) -> LoggedCall:
    return LoggedCall(n, "Bash", b'{"command": "ls"}', result, False, call_id=id, **more)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def mend(data: bytes, *calls: LoggedCall) -> list[dict[str, Any]]:
    made = CLAUDE.reconcile(data, ID, WS, calls)
    assert CLAUDE.reconcile(made.data, ID, WS, calls).data == made.data
    return lines(made.data)


def last_of_chain(found: list[dict[str, Any]]) -> dict[str, Any]:
    """As Claude finds it: the latest of those that no line follows; all before it must hang together."""
    parents = {line.get("parentUuid") for line in found}
    ends = [line for line in found if "uuid" in line and line["uuid"] not in parents]
    return max(ends, key=lambda line: str(line["timestamp"]))


def test_a_call_in_flight_gets_a_result_behind_it() -> None:
    book = Book()
    book.add("user", "do it")
    call = book.call("t1")
    found = mend(book.data, logged(1, "t1", None, note="the machine was lost."))
    assert found[:2] == book.lines
    assert found[2]["parentUuid"] == call and found[2]["timestamp"] == "2026-11-22T09:00:01.001Z"
    assert found[2]["message"]["content"] == [told("t1", "outcome unknown: the machine was lost.", True)]
    assert last_of_chain(found) == found[2]


LOST = "[Tool call interrupted: the session ended before this call's result was recorded, so its outcome is unknown.]"


@pytest.mark.parametrize("kind", ["interrupted", ""])
def test_what_claude_writes_for_a_lost_call_settles_nothing(kind: str) -> None:
    """I8: 2.1.330's own result at a resume. The log's takes its place; lines of unknown types, and calls
    that the log does not know, keep their bytes (I4)."""
    book = Book()
    book.add("user", "do it")
    for id in ("t1", "t2"):
        book.call(id)
        book.result(id, LOST, error=True)
        book.lines[-1] |= {"toolDenialKind": kind, "toolUseResult": LOST} if kind else {}
    book.lines.append({"type": "api-request-blob", "sessionId": ID, "hash": "x", "message": {"content": LOST}})
    assert CLAUDE.seen_calls(book.data) == []
    for call, result in ((logged(1, "t1"), told("t1", "out")), (logged(1, "t1", None), None)):
        found = mend(book.data, call)
        assert [line for n, line in enumerate(found) if n != 2] == [line for n, line in enumerate(book.lines) if n != 2]
        (content,) = found[2]["message"]["content"]
        assert content == result if result else content["content"].startswith("outcome unknown: ")
        assert not {"toolDenialKind", "toolUseResult"} & found[2].keys()
    assert CLAUDE.reconcile(book.data, ID, WS, []).data == book.data


def test_a_no_at_the_dialog_and_esc_in_the_tool_differ_beside_the_words() -> None:
    """I8: 2.1.330 marks what it knows of the beginning; an older version marks nothing."""
    book = Book()
    book.call("t1")
    book.result("t1", "The user doesn't want to proceed with this tool use. The tool use was rejected", error=True)
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["cancelled"]
    book.lines[-1]["toolDenialKind"] = "user-rejected"
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["stopped"]
    book.lines[-1]["toolDenialBeforeRun"] = True
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["refused"]


def test_what_runs_on_or_was_cut() -> None:
    """I8."""
    book = Book()
    for id in ("t1", "t2", "t3"):
        book.call(id)
    book.result("t1", "Command running in background with ID: b1.")
    book.lines[-1]["toolUseResult"] = {"stdout": "", "backgroundTaskId": "b1"}
    book.result("t2", "Exit code 143\nCommand timed out after 2s", error=True)
    book.result("t3", "")
    book.lines[-1]["toolUseResult"] = {"stdout": "", "interrupted": True}
    found = [(s.call_id, s.status, s.task) for s in CLAUDE.seen_calls(book.data)]
    assert found == [("t1", "runs_on", "b1"), ("t2", "stopped", ""), ("t3", "cancelled", "")]


@pytest.mark.parametrize(
    ("status", "how"), [("completed", "done"), ("failed", "failed"), ("killed", "cancelled"), ("running", None)]
)
def test_the_end_of_a_background_task(status: str, how: str | None) -> None:
    """I8: at the beginning of a turn, or in the middle of one; a person's own words are none."""
    text = f"<task-notification>\n<task-id>b1</task-id>\n<status>{status}</status>\n</task-notification>"
    turn = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": text}}
    origin = {"origin": {"kind": "task-notification"}}
    beside = {"type": "queued_command", "prompt": text, "commandMode": "task-notification"}
    wanted = [] if how is None else [("b1", how)]
    for record in ({**turn, **origin}, {"type": "attachment", "uuid": "u2", "attachment": beside}):
        found = CLAUDE.seen_calls(json.dumps(record).encode() + b"\n")
        assert [(s.task, s.status) for s in found] == wanted
    assert CLAUDE.seen_calls(json.dumps({**turn, "origin": {"kind": "human"}}).encode() + b"\n") == []


def test_what_its_auto_mode_blocks_is_refused() -> None:
    """2.1.330 marks it beside the result, unless the tool had run by then."""
    book = Book()
    book.call("t1")
    book.result("t1", "blocked", error=True)
    book.lines[-1]["toolDenialKind"] = "automode-blocked"
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["refused"]
    book.lines[-1]["toolDenialAfterRun"] = True
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["failed"]


@pytest.mark.parametrize(
    ("decided", "status"),
    [({"decision": "reject", "source": "config"}, "refused"), ({"decision": "accept", "source": "config"}, "failed")],
)
def test_what_its_settings_do_not_allow_is_refused(decided: dict[str, str], status: str) -> None:
    """In as many words as there are rules; 2.1.330 marks who decided, beside the result."""
    book = Book()
    book.call("t1")
    book.result("t1", "Output redirection to '/w/side' needs approval.", error=True)
    book.lines[-1] |= {"toolDenialKind": "user-rejected", "permissionDecision": decided}
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == [status]
    book.lines[-1]["toolDenialAfterRun"] = True
    assert [seen.status for seen in CLAUDE.seen_calls(book.data)] == ["failed"]


def test_parallel_calls() -> None:
    """Each result hangs on its own call, as Claude writes them; the one that never began stays as it is."""
    book = Book()
    book.add("user", "do it")
    one, two, _ = book.call("t1"), book.call("t2"), book.call("t3")
    for line in book.lines[1:]:
        line["message"]["id"] = "m"
    book.result("t1", "out")
    book.lines[-1]["parentUuid"] = one
    found = mend(book.data, logged(1, "t1"), logged(2, "t2"))
    assert found[:5] == book.lines
    assert [line["parentUuid"] for line in found[5:]] == [two]
    assert found[5]["message"]["content"] == [told("t2", "out")]
    assert last_of_chain(found) == found[5]


def test_calls_that_were_not_written_yet() -> None:
    book = Book()
    book.add("user", "do it", version="2.1.197", cwd="/old")
    book.lines.append({"type": "mode", "mode": "normal"})
    found = mend(book.data, logged(1, "t1"), logged(2, "", None))
    made = found[2:]
    assert [line["type"] for line in made] == ["assistant", "user"] * 2
    assert [line["parentUuid"] for line in made] == [found[0]["uuid"], *(line["uuid"] for line in made[:-1])]
    assert made[0]["message"]["content"] == [use("t1")]
    assert made[2]["message"]["content"] == [use("toolu_wal_2")]
    assert {(line["version"], line["cwd"], line["sessionId"]) for line in made} == {("2.1.197", "/w", ID)}
    assert last_of_chain(found) == made[-1]


def test_a_call_without_an_id_in_the_log_is_known_by_what_it_was() -> None:
    book = Book()
    book.call("t1")
    book.result("t1", "out")
    now = 1795338000.0 + 86400
    assert len(mend(book.data, logged(1))) == 2
    assert len(mend(book.data, logged(1), logged(2))) == 4
    assert len(mend(book.data, logged(1, started=now))) == 4, "an equal call that was over before this one began"


def test_many_calls_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one message or in many, the lines are looked at so many times each, not once for each call."""
    looks = 0

    def counted(entry: Entry) -> Any:
        nonlocal looks
        looks += 1
        return entry.value.get("message") or {}

    monkeypatch.setattr(Entry, "message", property(counted))
    for message in ("m", None):
        book = Book()
        for i in range(300):
            book.call(f"t{i}")
            if message:
                book.lines[-1]["message"]["id"] = message
            book.lines[-1]["timestamp"] = "2026-11-22T09:00:00.000Z"
        looks = 0
        made = CLAUDE.reconcile(book.data, ID, WS, [logged(i, f"t{i}") for i in range(300)])
        assert made.put_back == 300 and looks < 6000


def test_a_call_in_the_middle_without_a_result() -> None:
    """Its result must not become the end that Claude goes on from."""
    book = Book()
    book.call("t1")
    book.add("user", "Continue from where you left off.", isMeta=True)
    end = book.add("assistant", [{"type": "text", "text": "No response requested."}])
    found = mend(book.data, logged(1, "t1", None))
    assert found[1]["message"]["content"][0]["tool_use_id"] == "t1"
    assert last_of_chain(found)["uuid"] == end


def test_a_rewound_conversation_goes_on_from_there() -> None:
    book = Book()
    first = book.add("user", "one")
    book.add("assistant", [{"type": "text", "text": "two"}])
    book.lines.append({"type": "last-prompt", "explicit": True, "leafUuid": first})
    assert mend(book.data, logged(1, "t1"))[3]["parentUuid"] == first


def test_damage_is_cut_and_what_followed_it_hangs_on() -> None:
    book = Book()
    for text in ("one", "two", "three"):
        book.add("user", text)
    one, two, three = book.data.splitlines(keepends=True)
    made = CLAUDE.reconcile(one + two[:40] + b"\n" + three + b'{"type":"us' + bytes(9), ID, WS, [])
    found = lines(made.data)
    assert [line["message"]["content"] for line in found] == ["one", "three"]
    assert found[1]["parentUuid"] == found[0]["uuid"]
    assert len(made.repairs) == 2 and made.messages == 2
    untouched = CLAUDE.reconcile(book.data, ID, WS, [])
    assert untouched.data == book.data and untouched.repairs == ()


def test_prompts_that_were_typed_and_not_read_are_taken_out_of_the_file() -> None:
    def note(word: str, **more: str) -> None:
        book.lines.append({"type": "queue-operation", "operation": word, "sessionId": ID, **more})

    book = Book()
    note("enqueue", content="the task")
    note("dequeue")
    book.add("user", "the task")
    for text in ("then this", "not that", "<task-notification>a task</task-notification>", "and that"):
        note("enqueue", content=text)
    note("remove", content="not that")
    made = CLAUDE.reconcile(book.data, ID, WS, [])
    assert made.queued == ("then this", "and that")
    assert [line["operation"] for line in lines(made.data) if "operation" in line] == [
        *("enqueue", "dequeue", "enqueue", "remove"),
    ]
    assert CLAUDE.reconcile(made.data, ID, WS, []).data == made.data
    assert made.prompts is not None and {"the task", "not that"} <= {*made.prompts}
    assert not {*made.queued} & {*made.prompts}, "the log's words are told where the file lacks them"
    note("popAll")
    assert CLAUDE.reconcile(book.data, ID, WS, []).queued == ()


def test_the_prompts_of_a_file_are_spelled_as_in_the_hooks() -> None:
    book = Book()
    book.add(
        "user",
        "<command-message>init</command-message>\n<command-name>/init</command-name>\n"
        "<command-args>all of it</command-args>",
    )
    book.add("user", [{"type": "text", "text": "look at @README.md"}])
    book.lines.append({"type": "attachment", "uuid": "u9", "attachment": {"type": "queued_command", "prompt": "next"}})
    assert CLAUDE.reconcile(book.data, ID, WS, []).prompts == ("/init all of it", "look at @README.md", "next")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["t1", "user", "assistant"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("type", "uuid", "parentUuid", "message", "timestamp", "isSidechain", "leafUuid", "explicit")


def chained(kind: str, name: str, parent: str | None, content: list[Any], at: str) -> bytes:
    message = {"id": "m", "content": content}
    return json.dumps({"type": kind, "uuid": name, "parentUuid": parent, "timestamp": at, "message": message}).encode()


LINE = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda v: json.dumps(v).encode()),
    st.builds(
        chained,
        st.sampled_from(["user", "assistant"]),
        st.sampled_from("abc"),
        st.none() | st.sampled_from("abcx"),
        st.lists(st.sampled_from([use("t1"), use("t2"), told("t1", "x"), {"type": "text", "text": "x"}]), max_size=2),
        st.sampled_from(["2026-11-22T09:00:00.000Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "nonsense"]),
    ),
    st.binary(max_size=20),
)
CALLS = st.lists(
    st.builds(
        logged, st.integers(1, 4), st.sampled_from(["", "t1", "t2", "t9"]), st.sampled_from([None, b"", b'"x"', b"[1]"])
    ),
    max_size=4,
    unique_by=lambda call: call.call,
)


@settings(max_examples=examples(300))
@given(st.lists(LINE, max_size=8), CALLS)
@example([b'{"type": "user", "uuid": "0", "parentUuid": []}'], [])
def test_whatever_stands_there_each_call_is_told_once(found: list[bytes], calls: list[LoggedCall]) -> None:
    made = CLAUDE.reconcile(b"\n".join(found), ID, WS, calls)
    again = CLAUDE.reconcile(made.data, ID, WS, calls)
    assert (again.data, again.put_back) == (made.data, 0)
    prompt = "/x \u2028"
    told_once = b"".join(CLAUDE.resume.inject_prompt(made.data, ID, WS, prompt))
    assert told_once is not None
    assert b"".join(CLAUDE.resume.inject_prompt(told_once, ID, WS, prompt)) == told_once
    assert lines(told_once)[-1]["message"]["content"] == prompt
    assert CLAUDE.proves_turn(told_once)
    CLAUDE.seen_calls(made.data)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (b'{"stdout":"out","stderr":"err","interrupted":false}', "out\nerr"),
        (b'{"error":"Exit code 3\\noops"}', "Exit code 3\noops"),
        (b'{"type":"text","file":{"filePath":"/a","content":"text"}}', "1\ttext"),
        (b'{"stdout":"","stderr":"","interrupted":false}', "(Bash completed with no output)"),
        (b'{"status":"completed","content":[{"type":"text","text":"done"}]}', "done"),
        (b'[{"type":"text","text":"from mcp"}]', "from mcp"),
        (b'{"filePath":"/a"}', '{"filePath": "/a"}'),
        (b'"it was refused"', "it was refused"),
        (b'{"type":"image","file":{"base64":"AAAA","type":"image/png"}}', IMAGE),
        (b'{"stdout":"data:image/png;base64,AAAA","stderr":"","isImage":true}', IMAGE),
        (b'[{"type":"text","text":"here"},{"type":"image","source":{"data":"AAAA"}}]', f"here\n{IMAGE}"),
        (b'{"stdout":"begin","persistedOutputPath":"/p"}', "[the whole output was stored in /p]\nbegin"),
        (b'{"stdout":"cut', '{"stdout":"cut'),
        (b"null", "null"),
    ],
)
def test_what_a_result_says(result: bytes, text: str) -> None:
    assert result_text(result) == text


def test_what_the_file_tells_of_calls() -> None:
    book = Book()
    book.call("t1")
    book.call("t2", isSidechain=True)
    book.result("t1", "out")
    book.result("t0", "x")
    book.result("t3", "Permission to use Bash has been denied.", True)
    book.result("t4", "The user doesn't want to proceed with this tool use. The tool use was rejected", True)
    book.result("t5", "Exit code 1", True)
    book.result("t6", "PreToolUse:Bash hook error: [/x/guard]: no", True)
    seen = CLAUDE.seen_calls(b"junk\n" + book.data)
    uuids = [line["uuid"] for line in lines(book.data) if line["type"] == "user"]
    assert seen[0] == SeenCall("Bash", b'{"command":"ls"}', "done", f"{uuids[0]}/t1", "t1")
    assert len({s.id for s in seen}) == len(seen)
    assert [(s.tool, s.call_id, s.status) for s in seen[1:]] == [
        ("", "t0", "done"),
        ("", "t3", "refused"),
        ("", "t4", "cancelled"),
        ("", "t5", "failed"),
        ("", "t6", "refused"),
    ]


def test_what_proves_that_a_turn_began() -> None:
    for more, proof in (({}, True), ({"isMeta": True}, False), ({"isSidechain": True}, False)):
        book = Book()
        book.add("user", "x", **more)
        assert CLAUDE.proves_turn(book.data) == proof
    assert not CLAUDE.proves_turn(b'{"type":"queue-operation"}\n{"type":"user"\n')


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_files_of_a_session(tmp_path: Path) -> None:
    env = {"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path)}
    project = tmp_path / "projects/-w"
    wanted = {
        "session.jsonl": project / f"{ID}.jsonl",
        "subagents/agent-1.jsonl": project / ID / "subagents/agent-1.jsonl",
        "tool-results/a.txt": project / ID / "tool-results/a.txt",
        "tasks/1.json": tmp_path / "tasks" / ID / "1.json",
        "file-history/h@v1": tmp_path / "file-history" / ID / "h@v1",
    }
    others = [
        tmp_path / ".credentials.json",
        project / ID / "other/x",
        project / "memory/x",
        tmp_path / "tasks" / ID / ".lock",
    ]
    for path in (*wanted.values(), *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    (project / ID / "tool-results/link").symlink_to(tmp_path / ".credentials.json")
    found = CLAUDE.session_files(ID, WS, env)
    assert {f.name: f.path for f in found} == wanted and found[0].name == "session.jsonl"
    for name, path in wanted.items():
        assert CLAUDE.restore_path(name, ID, WS, env) == path
    assert CLAUDE.existing_files(ID, WS, env) == [wanted["session.jsonl"]]
    assert not CLAUDE.resumable(ID, WS, env), "no message in it"
    wanted["session.jsonl"].write_text('{"type":"mode"}\n{"type":"user","message":{}}\n')
    assert CLAUDE.resumable(ID, WS, env)
    (project / ID).rename(tmp_path / "moved")
    (project / ID).symlink_to(tmp_path / "moved")
    assert [f.name for f in CLAUDE.session_files(ID, WS, env)] == ["session.jsonl", "tasks/1.json", "file-history/h@v1"]
    wanted["session.jsonl"].unlink()
    wanted["session.jsonl"].symlink_to(tmp_path / ".credentials.json")
    assert CLAUDE.session_files(ID, WS, env) == [] and CLAUDE.folder(env) == tmp_path


def test_a_session_that_entered_a_worktree_is_found_there(tmp_path: Path) -> None:
    """I3: Claude moves its files to the folder of the worktree. A resume looks in the workspace's only."""
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path)}
    other = "00000000-0000-4000-8000-000000000000"
    here, there = tmp_path / "projects/-w", tmp_path / "projects/-w--claude-worktrees-one"
    for path in (here / f"{other}.jsonl", there / f"{ID}.jsonl", there / ID / "subagents/agent-a.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"type":"user","message":{}}\n')
    found = {f.name: f.path for f in CLAUDE.session_files(ID, WS, env)}
    assert found == {
        "session.jsonl": there / f"{ID}.jsonl",
        "subagents/agent-a.jsonl": there / ID / "subagents/agent-a.jsonl",
    }
    assert CLAUDE.existing_files(ID, WS, env) == [] and not CLAUDE.resumable(ID, WS, env)
    (there / f"{ID}.jsonl").rename(tmp_path / "x")
    (there / f"{ID}.jsonl").symlink_to(tmp_path / "x")
    assert CLAUDE.session_files(ID, WS, env) == []


def test_a_look_at_the_beginning_of_a_file_reads_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x.jsonl"
    read = 0

    def counted(data: bytes) -> Any:
        nonlocal read
        read += len(data)
        return records(data)

    monkeypatch.setattr("wal_agent.agents.claude.session.records", counted)
    turn = b'{"type":"user","message":{}}'
    place.write_bytes(b'{"x":"user"}\n' * 50_000)
    assert not has_messages(place) and read <= place.stat().st_size
    place.write_bytes(b'{"x":"' + b"y" * 200_000 + b'"}\n' + turn)
    assert has_messages(place)
    place.write_bytes(turn[:-2] + b" " * 200_000 + b"}}\n{}\n")
    assert has_messages(place)


def test_the_folder_of_a_workspace() -> None:
    assert project_slug("/tmp/x/proj.a_b") == "-tmp-x-proj-a-b"
    assert project_slug("/q_é😀") == "-q----"
    long = project_slug("/tmp/cl/e6/" + "p" * 60 + "/" + "q_é😀" * 12 + "/" + "r" * 60 + "/" + "s" * 60)
    assert len(long) == 207 and long.endswith("-ssssss-pj1ksw")


def test_a_failure_is_the_last_thing_that_was_said() -> None:
    """As the real program writes it before its StopFailure hook; nothing of an earlier turn, nor of a subagent."""
    book = Book()
    book.add("user", "go on")
    failed = {"isApiErrorMessage": True, "error": "rate_limit", "sessionId": ID}
    book.add("assistant", [{"type": "text", "text": "API Error: 429, try again in 2 hours"}], **failed)

    def end() -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in book.lines)

    found = turn_failure(end()[7:])  # the tail of a file begins anywhere
    assert isinstance(found, TurnFailed) and (found.session, found.cls) == (ID, "quota")
    book.add("system", "", subtype="turn_duration")
    assert turn_failure(end()) == found
    book.add("user", "again")
    assert turn_failure(end()) is None
    book.add("assistant", [{"type": "text", "text": "429"}], isSidechain=True, **failed)
    assert turn_failure(end()) is None and turn_failure(b"") is None and turn_failure(b"junk\n[1]\n") is None
