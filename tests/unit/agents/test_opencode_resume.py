"""What a restored journal of OpenCode becomes: each open call its real outcome, nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.agents.base import LoggedCall
from wal_agent.agents.opencode.database import Rows, load_rows
from wal_agent.agents.opencode.resume import reconcile
from wal_agent.agents.opencode.session import last_answer, proves_turn, seen_calls
from wal_agent.agents.session_files import encode_json

S = "ses_1"
WS = Path("/new/ws")


def session(id: str = S, **row: Any) -> dict[str, Any]:
    base = {"slug": "a", "title": "t", "version": "1", "directory": "/old", "time_created": 1, "time_updated": 2}
    return {"type": "session", "id": id, "row": {**base, **row}}


def message(id: str, role: str = "user", created: int = 1000, session: str = S, **data: Any) -> dict[str, Any]:
    model = {"model": {"providerID": "p", "modelID": "m"}} if role == "user" else {"modelID": "m", "providerID": "p"}
    return {
        "type": "message",
        "id": id,
        "session": session,
        "created": created,
        "data": {"role": role, **model, **data},
    }


def tool(id: str, message: str, call: str, status: str, session: str = S, **state: Any) -> dict[str, Any]:
    data = {"type": "tool", "tool": "bash", "callID": call, "state": {"status": status, "input": {}, **state}}
    return {"type": "part", "id": id, "session": session, "created": 1000, "message": message, "data": data}


def journal(*records: dict[str, Any]) -> bytes:
    return b"".join(encode_json(r) + b"\n" for r in records)


def call(
    n: int, id: str, result: bytes | None = None, failed: bool = False, note: str = "", at: float = 1.0
) -> LoggedCall:
    return LoggedCall(n, "bash", b'{"command":"x"}', result, failed, note, at, id)


def result(output: str) -> bytes:
    return json.dumps({"output": output, "title": "x", "metadata": {"exit": 0}}).encode()


BASE = (
    session(),
    message("msg_000000000001a"),
    message("msg_000000000002a", "assistant", 1001, finish="tool-calls"),
)


def states(rows: Rows) -> dict[str, dict[str, Any]]:
    return {r.data["callID"]: r.data["state"] for r in rows.calls()}


def test_each_open_call_gets_its_outcome() -> None:
    data = journal(
        *BASE,
        tool("prt_1", BASE[2]["id"], "over", "running", input={"command": "x"}, time={"start": 5}),
        tool("prt_2", BASE[2]["id"], "broke", "running"),
        tool("prt_3", BASE[2]["id"], "lost", "running"),
        tool("prt_4", BASE[2]["id"], "waits", "pending"),
        tool("prt_5", BASE[2]["id"], "told", "completed", output="as it was", time={"start": 1, "end": 2}),
    )
    calls = [
        call(1, "over", result("it is over")),
        call(2, "broke", json.dumps("no such file").encode(), failed=True),
        call(3, "lost", note="look at x"),
    ]
    made = reconcile(data, S, WS, calls)
    found = states(load_rows(made.data))
    assert (found["over"]["status"], found["over"]["output"]) == ("completed", "it is over")
    assert found["over"]["metadata"] == {"output": "it is over", "exit": 0}
    assert found["over"]["time"] == {"start": 5, "end": 1000}
    assert (found["broke"]["status"], found["broke"]["error"]) == ("error", "no such file")
    assert (found["lost"]["status"], found["lost"]["error"]) == ("error", "outcome unknown: look at x")
    assert found["lost"]["input"] == {"command": "x"}, "a call that waits has no input in the database"
    assert found["waits"]["status"] == "error" and found["waits"]["error"].startswith("outcome unknown")
    assert found["told"]["output"] == "as it was"
    assert made.put_back == 3
    assert made.messages == 2


def test_calls_that_the_journal_lacks_go_into_the_last_batch() -> None:
    made = reconcile(journal(*BASE), S, WS, [call(1, "a", result("A")), call(2, "b")])
    rows = load_rows(made.data)
    parts = [part for part in rows.calls() if part.message == BASE[2]["id"]]
    assert [part.call for part in parts] == ["a", "b"]
    assert parts[0].id > BASE[2]["id"].replace("msg", "prt"), "behind what was there"


def test_calls_get_a_message_of_their_own_behind_a_prompt() -> None:
    rows = load_rows(reconcile(journal(*BASE[:2]), S, WS, [call(1, "a")]).data)
    last = rows.messages(S)[-1]
    assert last.role == "assistant" and last.data["parentID"] == BASE[1]["id"]
    assert last.id > BASE[1]["id"]
    assert [(part.call, part.message) for part in rows.calls()] == [("a", last.id)]


def test_calls_do_not_go_into_a_message_that_ended_with_an_error() -> None:
    """OpenCode leaves it out of what the model is sent."""
    broken = message("msg_000000000002a", "assistant", 1001, error={"name": "APIError"})
    rows = load_rows(reconcile(journal(*BASE[:2], broken), S, WS, [call(1, "a", result("A"))]).data)
    [part] = rows.calls()
    assert part.message == rows.messages(S)[-1].id != broken["id"]


def test_words_of_a_tool_are_no_refusal() -> None:
    for words in ("The user rejected permission to do X half way", "Tool execution aborted: no"):
        [seen] = seen_calls(journal(tool("prt_1", "m", "c", "error", error=words)))
        assert seen.status == "failed"


def test_a_row_that_is_only_compacted_tells_of_no_call() -> None:
    old = tool("prt_1", "m", "c", "completed", output="x", time={"start": 1, "end": 2, "compacted": 3})
    assert seen_calls(journal(old)) == []


def test_an_id_that_a_provider_uses_again_is_another_call() -> None:
    earlier = tool(
        "prt_000000000003a", BASE[2]["id"], "call_0", "completed", output="earlier", time={"start": 1, "end": 2}
    )
    rows = load_rows(reconcile(journal(*BASE, earlier), S, WS, [call(1, "call_0", result("later"), at=1000.0)]).data)
    outputs = [part.data["state"]["output"] for part in rows.calls()]
    assert outputs == ["earlier", "later"]


def test_the_session_belongs_to_the_new_folder_with_its_subagents() -> None:
    data = journal(*BASE, session("ses_2", parent_id=S))
    rows = load_rows(reconcile(data, S, WS, []).data)
    assert {r.row["directory"] for r in rows.sessions(S)} == {"/new/ws"}
    assert [r.id for r in rows.sessions(S)] == [S, "ses_2"]


def test_a_torn_tail_and_junk_are_left_out_and_rows_that_were_deleted() -> None:
    gone = {"type": "part", "id": "prt_1", "gone": True}
    data = journal(*BASE, tool("prt_1", BASE[2]["id"], "a", "running"), gone) + b'{"type":"part"}\n{"type":"me'
    made = reconcile(data, S, WS, [])
    assert states(load_rows(made.data)) == {}
    assert made.repairs == ("2 damaged line(s) of the session's journal were left out.",)


def test_a_journal_without_its_session_is_still_one() -> None:
    made = reconcile(journal(*BASE[1:]), S, WS, [])
    assert load_rows(made.data).sessions(S)[0].row["directory"] == "/new/ws"
    assert len(made.repairs) == 1


RECORDS = st.sampled_from(
    [
        *BASE,
        tool("prt_1", "msg_000000000002a", "a", "running"),
        tool("prt_1", "msg_000000000002a", "a", "completed", output="x"),
        tool("prt_2", "msg_000000000002a", "b", "pending"),
        tool("prt_3", "msg_none", "c", "running"),
        {"type": "part", "id": "prt_2", "gone": True},
        {"type": "turn", "id": "ses_9"},
        {"type": "todo", "id": f"{S}/0", "session": S, "row": {"content": "x"}},
        message("msg_000000000003a", "assistant", 1002, finish="stop"),
    ]
)
CALLS = st.lists(
    st.builds(
        call,
        st.integers(1, 9),
        st.sampled_from(["a", "b", "c", ""]),
        st.sampled_from([None, b'"said"', b"\xffcut", result("ok"), b"[1]"]),
        st.booleans(),
        at=st.sampled_from([0.0, 1.0, 1795338966.5]),
    ),
    max_size=4,
    unique_by=lambda c: (c.call, c.call_id),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(RECORDS, max_size=12), CALLS, st.binary(max_size=20))
def test_once_is_enough(records: list[dict[str, Any]], calls: list[LoggedCall], tail: bytes) -> None:
    once = reconcile(journal(*records) + tail, S, WS, calls)
    again = reconcile(once.data, S, WS, calls)
    assert again.data == once.data
    assert again.put_back == 0
    assert not any(s["status"] in ("pending", "running") for s in states(load_rows(once.data)).values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "id",
                    "session",
                    "row",
                    "data",
                    "state",
                    "status",
                    "created",
                    "message",
                    "time",
                    "end",
                    "input",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        JSON
        | st.builds(
            lambda d: {"type": "part", "id": "p", "session": S, "created": 1, "message": "m", "data": d},
            st.dictionaries(
                st.sampled_from(["type", "state", "callID", "tool", "metadata"]), JSON | st.just("tool"), max_size=5
            ),
        ),
        max_size=5,
    )
)
def test_no_line_is_too_strange(values: list[Any]) -> None:
    data = b"".join(json.dumps(v).encode() + b"\n" for v in values)
    once = reconcile(data, S, WS, [call(1, "a")])
    assert reconcile(once.data, S, WS, [call(1, "a")]).data == once.data
    seen_calls(data)
    proves_turn(data)


def test_what_the_journal_tells_of_calls() -> None:
    data = journal(
        tool("prt_1", "m", "a", "running"),
        tool("prt_1", "m", "a", "completed", input={"command": "ls"}),
        tool("prt_2", "m", "b", "error", error="Tool execution aborted"),
        tool("prt_3", "m", "c", "error", error="The user rejected permission to use this specific tool call."),
        tool("prt_4", "m", "d", "error", error="ENOENT"),
        {**tool("prt_5", "m", "e", "completed"), "by": "user"},
    )
    told = {c.call_id: (c.status, c.id, c.input) for c in seen_calls(data)}
    assert told == {
        "a": ("done", "prt_1", b'{"command":"ls"}'),
        "b": ("cancelled", "prt_2", b"{}"),
        "c": ("refused", "prt_3", b"{}"),
        "d": ("failed", "prt_4", b"{}"),
    }


def test_a_turn_shows_as_a_users_message_or_as_a_session_that_nobody_told() -> None:
    assert proves_turn(journal(message("msg_1")))
    assert proves_turn(journal({"type": "turn", "id": "ses_9"}))
    assert not proves_turn(journal(session(), message("msg_1", "assistant")) + b"junk\n")


def test_the_last_answer_is_the_text_of_the_newest_message_that_has_one() -> None:
    def text(id: str, of: str, words: str) -> dict[str, Any]:
        return {**tool(id, of, "", ""), "data": {"type": "text", "text": words}}

    last = message("msg_000000000003a", "assistant", 1002)
    rows = (*BASE, text("prt_1", BASE[2]["id"], "First."), text("prt_0", BASE[0]["id"], "The prompt."), last)
    assert last_answer(journal(*rows, tool("prt_2", last["id"], "c", "completed"))) == "First."
    assert last_answer(journal(*rows, text("prt_3", last["id"], "A."), text("prt_4", last["id"], "B."))) == "A.\n\nB."
    assert last_answer(b"") == "" and last_answer(b"{}\nno\n") == ""
