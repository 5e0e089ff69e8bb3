"""The child of a restored session file: what is mended, what is put back, what is never lost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wal_agent.agents import gemini as GEMINI
from wal_agent.agents.base import LoggedCall, Reconciled, SeenCall
from wal_agent.agents.gemini.session import dump_session, load_session
from wal_agent.agents.session_files import EPOCH, MAX_RESULT

WS = Path("/w/shop")
META = {"sessionId": "S", "projectHash": "h", "startTime": "t0", "lastUpdated": "t1", "kind": "main"}
T = "2026-11-21T10:00:00.000Z"
AT = 1795255200.0  # T in seconds


def lines(*records: Any) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def user(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "timestamp": T, "type": "user", "content": [{"text": text}]}


def gemini(id: str, text: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    record: dict[str, Any] = {"id": id, "timestamp": T, "type": "gemini", "content": text, "thoughts": []}
    return record | ({"toolCalls": calls} if calls is not None else {})


def response(id: str, text: str = "out") -> dict[str, Any]:
    return {"functionResponse": {"id": id, "name": "shell", "response": {"output": text}}}


def call(id: str, command: str = "ls", time: str = T, **more: Any) -> dict[str, Any]:
    base = {"id": id, "name": "shell", "args": {"command": command}, "result": [response(id)], "status": "success"}
    return {**base, "timestamp": time, **more}


def logged(n: int, command: str = "ls", result: Any = "out", started: float = 0.0, **more: Any) -> LoggedCall:
    told = None if result is None else json.dumps({"llmContent": result}).encode()
    return LoggedCall(n, "shell", json.dumps({"command": command}).encode(), told, False, started=started, **more)


def child(main: bytes, *calls: LoggedCall) -> Reconciled:
    made = GEMINI.reconcile(main, "S", WS, calls)
    assert GEMINI.reconcile(made.data, "S", WS, calls).data == made.data
    return made


def records(made: Reconciled) -> list[dict[str, Any]]:
    return [json.loads(line) for line in made.data.decode().split("\n")[:-1]]


# ---- what stays ----------------------------------------------------------------------------------------------------


def test_a_sound_file_stays_but_for_its_bookkeeping() -> None:
    said = [
        user("u1", "hi"),
        gemini("g1", "yes", [call("c1")]),
        {"id": "i", "type": "info", "content": "x"},
        gemini("g2"),
    ]
    made = child(lines(META, *said, {"$set": {"lastUpdated": "t2", "summary": "s"}}))
    assert records(made)[1:] == said
    hashed = hashlib.sha256(b"/w/shop").hexdigest()
    assert records(made)[0] == {**META, "projectHash": hashed, "lastUpdated": "t2", "summary": "s"}
    assert (made.put_back, made.messages, made.repairs) == (0, 3, ())


def test_it_is_read_as_gemini_reads_it() -> None:
    """Last record of an id wins in its first place; a checkpoint replaces all; a rewind cuts; junk is passed over."""
    main = lines(
        META,
        user("a", "gone"),
        {"$set": {"messages": [user("b", "1"), "junk", {"id": 5}, user("c", "2"), user("d", "3")]}},
        user("b", "1 again"),
        {"$rewindTo": "c"},
        user("e", "4"),
        b"junk",
        b"[1]",
        {"what": "is this"},
    )
    made = child(main)
    assert records(made)[1:] == [user("b", "1 again"), user("e", "4")]
    assert made.repairs == ("2 damaged line(s) of the session file were left out.",)
    left = child(lines(META, user("a", "x"), {"$rewindTo": "unknown"}))
    assert records(left)[1:] == [user("a", "x")], "Gemini resumes no session without a prompt"
    assert child(lines(META, user("a", "<session_context>x"), {"$rewindTo": "unknown"})).messages == 0


def test_lines_that_are_not_touched_keep_their_bytes() -> None:
    odd = b'{"id":"x" , "type":"user","content":"\\ud800 \\u00e9","n":1.0e3,"big":123456789012345678901234567890}'
    assert odd in child(lines(META, odd)).data


def test_a_memory_scratchpad_is_kept_where_it_is_fresh() -> None:
    pad = {"$set": {"memoryScratchpad": {"a": 1}}}
    assert records(child(lines(META, user("u", "x"), pad)))[-1] == pad
    assert records(child(lines(META, pad, user("u", "x"))))[-1] == user("u", "x")


# ---- damage --------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_to_whole_lines() -> None:
    whole = lines(META, user("u", "x"))
    made = child(whole + json.dumps(gemini("g", "y")).encode()[:-5])
    assert records(made)[1:] == [user("u", "x")]
    assert child(whole + bytes(500)).repairs == made.repairs
    assert records(child(whole + json.dumps(gemini("g", "y")).encode()))[2] == gemini("g", "y"), (
        "only its newline lacked"
    )


@pytest.mark.parametrize("around", [b"%b\r", b"%b\0\0", b"\0%b", b" \t%b"])
def test_what_is_around_a_sound_line_is_dropped(around: bytes) -> None:
    """Zeros are what a file system leaves of a write that was cut off."""
    said = json.dumps(user("u", "x")).encode()
    assert child(lines(META, around % said, gemini("g"))).data == child(lines(META, said, gemini("g"))).data


@pytest.mark.parametrize("first", [b"", b'{"sessionId":"S","proj', b"\0" * 50, b'{"sessionId":5,"projectHash":"x"}'])
def test_s13_the_first_line_is_made_anew(first: bytes) -> None:
    made = child(first + b"\n" + lines(user("u", "x"), {"$set": {"summary": "s"}}))
    head = records(made)[0]
    assert (head["sessionId"], head["kind"], head["startTime"], head["summary"]) == ("S", "main", T, "s")
    assert "The session file's first line was damaged and was written anew." in made.repairs


def test_another_id_in_the_head_is_corrected() -> None:
    assert records(child(lines({**META, "sessionId": "other"})))[0]["sessionId"] == "S"


def test_a_raw_line_separator_is_written_as_an_escape() -> None:
    raw = '{"id":"u","type":"user","content":"a\u2028b\u2029c"}'.encode()
    made = child(lines(META, raw))
    assert "\u2028" not in made.data.decode()
    assert records(made)[1]["content"] == "a\u2028b\u2029c"


CONTEXT = "<session_context>\nx</session_context>"


def test_s8_a_prompt_merged_into_the_context_stands_by_itself() -> None:
    merged = {**user("u", CONTEXT), "content": [{"text": CONTEXT}, {"text": "do it"}, {"text": " now"}]}
    made = child(lines(META, {"$set": {"messages": [merged]}}))
    context, prompt = records(made)[1:]
    assert context == {**merged, "content": [{"text": CONTEXT}]}
    assert prompt["content"] == [{"text": "do it"}, {"text": " now"}]
    assert prompt["id"] not in ("u", "")
    assert any("merged" in repair for repair in made.repairs)


def test_s4_a_prompt_behind_a_hooks_context_stands_by_itself() -> None:
    made = child(lines(META, user("u", "<hook_context>ctx</hook_context>\n\ndo it\n\nnow")))
    assert [r["content"] for r in records(made)[1:]] == [
        [{"text": "<hook_context>ctx</hook_context>"}],
        [{"text": "do it\n\nnow"}],
    ]


@pytest.mark.parametrize("text", [CONTEXT, "<hook_context>only</hook_context>", "  ", "/help", "plain"])
def test_contexts_without_a_prompt_stay(text: str) -> None:
    assert records(child(lines(META, user("u", text))))[1:] == [user("u", text)]


def test_s6_results_once() -> None:
    """A repeated record of results goes, and one whose call was lost: both are refused by the API. A checkpoint's sum
    of all results in each call is taken apart again."""
    both = [response("c1"), response("c2"), response("c1")]
    batch = gemini("g", "", [call("c1", result=both), call("c2", result=both)])
    mixed = {**user("u2", ""), "content": [response("c1"), {"text": "and this"}]}
    unknown = {**user("u3", ""), "content": [response("c9")]}
    made = child(lines(META, user("u", "x"), batch, {**user("u1", ""), "content": both}, mixed, unknown))
    assert records(made)[1:] == [
        user("u", "x"),
        gemini("g", "", [call("c1"), call("c2")]),
        {**user("u2", ""), "content": [{"text": "and this"}]},
    ]
    assert any("1 result(s)" in repair for repair in made.repairs)


# ---- calls that are put back ---------------------------------------------------------------------------------------


def test_a_lost_batch_is_put_back_once_in_the_logs_order() -> None:
    main = lines(META, user("u", "x"), gemini("g", "I will"), {"$set": {"lastUpdated": "t2"}})
    made = child(main, logged(7, "make"), logged(8, "push", None, note="the machine was lost."))
    assert made.put_back == 2
    (last,) = [r for r in records(made)[1:] if r["type"] == "gemini"]
    assert (last["id"], last["content"]) == ("g", "I will")
    first, second = last["toolCalls"]
    assert (first["args"], first["status"]) == ({"command": "make"}, "success")
    assert first["result"][0]["functionResponse"]["response"] == {"output": "out"}
    assert (second["args"], second["status"]) == ({"command": "push"}, "error")
    answer = second["result"][0]["functionResponse"]
    assert answer["response"] == {"error": "outcome unknown: the machine was lost."}
    assert answer["id"] == second["id"]


def test_a_lost_message_gets_one_of_its_own() -> None:
    """The last word is the user's, or the last message's batch is over: these calls were of a message that is lost."""
    for before in ([user("u", "x")], [user("u", "x"), gemini("g", "", [call("c")])], []):
        made = child(lines(META, *before), logged(3, "make"))
        *rest, new = records(made)[1:]
        assert rest == before
        assert (new["type"], [c["args"]["command"] for c in new["toolCalls"]]) == ("gemini", ["make"])


def test_content_that_tells_calls_itself_is_not_added_to() -> None:
    told = {**gemini("g"), "content": [{"functionCall": {"name": "shell", "args": {}}}]}
    assert len(records(child(lines(META, told), logged(1)))) == 3


def test_what_the_file_tells_is_not_put_back() -> None:
    main = lines(META, gemini("g", "", [call("c1", "a"), call("c2", "b", status="cancelled")]))
    assert child(main, logged(1, "a"), logged(2, "b", None)).put_back == 0


def test_equal_calls_are_counted_not_guessed() -> None:
    main = lines(META, gemini("g", "", [call("c1"), call("c2")]))
    assert child(main, logged(1), logged(2), logged(3, result=None)).put_back == 1


def test_an_equal_call_of_long_ago_is_another_one() -> None:
    """It had ended before the lost one began."""
    main = lines(META, gemini("g", "", [call("c1")]), gemini("g2", "again"))
    assert child(main, logged(5, started=AT + 60)).put_back == 1
    assert child(main, logged(5, started=AT - 60)).put_back == 0
    assert child(main, logged(5)).put_back == 0
    assert child(lines(META, gemini("g", "", [call("c1", time="?")])), logged(5, started=AT)).put_back == 0


def test_the_spelling_of_the_input_does_not_matter() -> None:
    main = lines(META, gemini("g", "", [call("c1", args={"dir": "/", "command": "ls"})]))
    other = LoggedCall(1, "shell", b'{ "wait_for_previous": true, "command":"\\u006cs", "dir":"/"}', None, False)
    assert child(main, other).put_back == 0


def test_a_lone_surrogate_of_the_file_is_the_hooks_replacement() -> None:
    main = lines(META, gemini("g", "", [call("c1", "x\ud83d")]))
    assert child(main, logged(1, "x\ufffd")).put_back == 0


@pytest.mark.parametrize(
    ("result", "failed", "told"),
    [
        ({"llmContent": "out"}, False, {"output": "out"}),
        (
            {"llmContent": [{"text": "a"}, "b", {"inlineData": {}}]},
            False,
            {"output": "a\nb\n[content that is not text"},
        ),
        ({"llmContent": None}, False, {"output": ""}),
        ({"llmContent": "x", "error": {"message": "no such file"}}, True, {"error": "no such file"}),
        ({"llmContent": "x", "error": {}}, True, {"error": "x"}),
        ({"llmContent": "x"}, True, {"error": "x"}),
        ("plain", False, {"output": "plain"}),
    ],
)
def test_a_result_is_told_as_gemini_tells_it(result: Any, failed: bool, told: dict[str, str]) -> None:
    made = child(lines(META, gemini("g")), LoggedCall(1, "t", b"{}", json.dumps(result).encode(), failed))
    (put,) = records(made)[1]["toolCalls"]
    got = put["result"][0]["functionResponse"]["response"]
    ((key, value),) = told.items()
    assert list(got) == [key]
    assert got[key].startswith(value)
    assert put["status"] == ("error" if key == "error" else "success")


@pytest.mark.parametrize("levels", [21, 180])
def test_a_result_that_is_nested_too_deep_is_not_told(levels: int) -> None:
    raw = b'{"llmContent":' + b'["x",' * levels + b'"deep"' + b"]" * levels + b"}"
    made = child(lines(META, gemini("g")), LoggedCall(1, "t", b"{}", raw, False))
    text = records(made)[1]["toolCalls"][0]["result"][0]["functionResponse"]["response"]["output"]
    assert text == "x\n" * 20 + "[content that is not text: not put back]"


def test_a_result_that_is_nested_deeper_than_is_read_is_told_as_it_stands() -> None:
    raw = b'{"llmContent":' + b"[" * 900 + b"]" * 900 + b"}"
    made = child(lines(META, gemini("g")), LoggedCall(1, "t", b"{}", raw, False))
    text = records(made)[1]["toolCalls"][0]["result"][0]["functionResponse"]["response"]["output"]
    assert text == raw.decode()


def test_a_note_goes_with_a_finished_call() -> None:
    """Completed on the lost host after the last capture of the workspace."""
    made = child(lines(META, gemini("g")), logged(1, note="its file changes are not in this workspace"))
    text = records(made)[1]["toolCalls"][0]["result"][0]["functionResponse"]["response"]["output"]
    assert text == "out\n\n[wal-agent: its file changes are not in this workspace]"


def test_a_huge_result_is_cut_with_a_pointer() -> None:
    made = child(lines(META, gemini("g")), logged(12, result="a" * 10**6 + "z"))
    text = records(made)[1]["toolCalls"][0]["result"][0]["functionResponse"]["response"]["output"]
    assert len(text) < MAX_RESULT + 200
    assert "has call 12" in text
    assert text.endswith("z")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_record_of_the_log_does_not_stop_it(raw: bytes) -> None:
    made = child(lines(META, gemini("g")), LoggedCall(1, "t", raw, raw, False))
    assert records(made)[1]["toolCalls"][0]["args"] == {}


# ---- the prompt ----------------------------------------------------------------------------------------------------


@given(st.text())
def test_a_prompt_is_told_exactly_and_once(prompt: str) -> None:
    main = child(lines(META, user("u", "x"), gemini("g", "y"))).data
    told = b"".join(GEMINI.resume.inject_prompt(main, "S", WS, prompt))
    assert told is not None
    assert b"".join(GEMINI.resume.inject_prompt(told, "S", WS, prompt)) == told
    last = [json.loads(line) for line in told.decode().split("\n")[:-1]][-1]
    assert last["type"] == "user"
    assert last["content"][-1] == {"text": prompt}
    text = "".join(part["text"] for part in last["content"]).strip()
    assert text
    assert not text.startswith(("/", "?", "<session_context>", "<hook_context>")), "Gemini drops such from a history"


def test_a_prompt_can_be_told_again_later() -> None:
    told = b"".join(GEMINI.resume.inject_prompt(child(lines(META, user("u", "x"))).data, "S", WS, "P"))
    assert told is not None
    again = b"".join(GEMINI.resume.inject_prompt(child(told + lines(gemini("g", "did"))).data, "S", WS, "P"))
    assert again is not None
    assert again.count(b'"text":"P"') == 2


def test_a_head_that_looks_like_a_message_says_nothing() -> None:
    told = b"".join(
        GEMINI.resume.inject_prompt(
            child(lines({**META, "type": "user", "content": [{"text": "P"}]})).data, "S", WS, "P"
        )
    )
    assert told is not None
    assert [m.parts() for m in load_session(told).said()] == [[{"text": "P"}]]


def test_a_prompt_alone_makes_a_session() -> None:
    told = b"".join(GEMINI.resume.inject_prompt(b"", "S", WS, "P"))
    assert told is not None
    head, said = (json.loads(line) for line in told.splitlines())
    assert (head["sessionId"], head["kind"], said["content"]) == ("S", "main", [{"text": "P"}])


def test_seen_calls_of_odd_text() -> None:
    """A lone surrogate, as JavaScript writes it."""
    (seen,) = GEMINI.seen_calls(b'{"id":"g","toolCalls":[{"name":"t","args":{"a":"\\ud800"},"status":"success"}]}')
    assert seen.input == b'{"a":"\\ud800"}'


# ---- what appended bytes tell --------------------------------------------------------------------------------------


def test_seen_calls() -> None:
    batch = gemini("g", "", [call("c1"), call("c2", "x", status="cancelled"), call("c3", "y", status="executing")])
    appended = lines(batch, b"junk", gemini("g", "", [*batch["toolCalls"], call("c4", "z", status="error")]))
    checkpoint = lines({"$set": {"messages": [batch]}})
    assert GEMINI.seen_calls(appended + checkpoint + b'{"torn') == [
        SeenCall("shell", b'{"command":"ls"}', "done", "c1"),
        SeenCall("shell", b'{"command":"x"}', "cancelled", "c2"),
        SeenCall("shell", b'{"command":"z"}', "failed", "c4"),
    ]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("User denied execution.", "refused"), ("Operation cancelled by user", "cancelled"), (7, "cancelled")],
)
def test_a_no_has_words_of_its_own(reason: object, status: str) -> None:
    """I8: an Esc in the tool has others, which an Esc at the dialog may have too."""
    error = f"[Operation Cancelled] Reason: {reason}" if isinstance(reason, str) else reason
    result = [{"functionResponse": {"id": "c1", "name": "shell", "response": {"error": error}}}]
    appended = lines(gemini("g", "", [call("c1", status="cancelled", result=result)]))
    assert [seen.status for seen in GEMINI.seen_calls(appended)] == [status]


@pytest.mark.parametrize(
    ("record", "began"),
    [
        (META, False),
        ({"$set": {"messages": [user("c", CONTEXT)]}}, False),
        ({"$set": {"messages": [user("c", "from before a resume")]}}, False),
        (user("u", "x"), True),
        (gemini("g"), False),
        (b"junk", False),
    ],
)
def test_a_turn_on_disk_proves_itself(record: Any, began: bool) -> None:
    assert GEMINI.proves_turn(lines(record)) is began


# ---- properties ----------------------------------------------------------------------------------------------------

IDS = st.sampled_from("abcdef")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.builds(lambda i, c, r: {**call(i, c), "result": r}, IDS, IDS, JSON | st.just([response("a")])), max_size=3
)
RECORDS = st.one_of(
    st.just(META),
    st.builds(user, IDS, st.text(max_size=9)),
    st.builds(
        lambda i, parts: {**user(i, ""), "content": parts}, IDS, st.lists(JSON | st.builds(response, IDS), max_size=3)
    ),
    st.builds(gemini, IDS, st.text(max_size=5), CALLS),
    st.builds(lambda i, c: {**gemini(i), "content": c, "toolCalls": c}, IDS, JSON),
    st.builds(
        lambda ms: {"$set": {"messages": ms}}, st.lists(st.builds(user, IDS, st.text(max_size=9)) | JSON, max_size=3)
    ),
    st.builds(lambda i: {"$rewindTo": i}, IDS),
    st.builds(lambda pad: {"$set": {"memoryScratchpad": pad}}, JSON),
    st.builds(lambda i: {"id": i, "type": "info", "content": "x"}, IDS),
    st.dictionaries(st.sampled_from(["id", "$set", "type", "toolCalls", "sessionId", "content", "timestamp"]), JSON),
    st.binary(max_size=9).filter(lambda b: b"\n" not in b),
)
LOGGED = st.lists(
    st.builds(lambda c, r, t: (c, r, t), IDS, st.none() | st.text(max_size=3), st.sampled_from([0.0, AT - 9, AT + 9])),
    max_size=4,
)


@given(st.lists(RECORDS, max_size=8), LOGGED, st.integers(0, 30))
@example([user("a", "0"), {"$set": {"messages": []}}], [], 0)
@example([user("a", "0"), {"$rewindTo": "a"}], [], 0)
def test_whatever_the_file_is(kept: list[Any], calls: list[tuple[str, str | None, float]], torn: int) -> None:
    """Never an error; each record of a person survives with its words, and where nothing else is left, the prompt that
    Gemini took out; each call of the log is there."""
    main = lines(*kept)
    main = main[: len(main) - torn] if torn < len(main) else main
    log = [logged(n, c, r, t) for n, (c, r, t) in enumerate(calls, 1)]
    made = child(main, *log)
    before, after = load_session(main), load_session(made.data)
    assert made.messages == len(after.said())
    assert words(after) == (words(before) or ([] if log else taken_out(before)))
    assert after.meta["sessionId"] == "S"
    told = sum(len(m.calls) for m in after.messages.values())
    assert told >= len(log)
    assert told == sum(len(m.calls) for m in before.messages.values()) + made.put_back


@given(st.lists(RECORDS, max_size=8), LOGGED, st.sampled_from(["P", "/P", ""]), st.integers(0, 2))
def test_telling_adds_one_line_to_whatever_was_reconciled(
    kept: list[Any], calls: list[tuple[str, str | None, float]], prompt: str, before: int
) -> None:
    """It reads only the file's end; reading and writing all of it gives the same. Again changes nothing."""
    log = [logged(n, c, r, t) for n, (c, r, t) in enumerate(calls, 1)]
    main = child(lines(*kept, *[user(f"p{n}", f"{prompt}{n}") for n in range(before)]), *log).data
    told = b"".join(GEMINI.resume.inject_prompt(main, "S", WS, prompt))
    assert told is not None
    read, after = load_session(main), load_session(told)
    told_before = (
        read.said()[-1:] and read.said()[-1].kind == "user" and read.said()[-1].parts()[-1:] == [{"text": prompt}]
    )
    *rest, last = after.messages.items()
    assert dump_session(after) == told
    assert (after.meta, after.scratchpad, after.junk) == (read.meta, read.scratchpad, 0)
    if told == main:
        assert told_before
    else:
        assert [(k, m.value) for k, m in rest] == [(k, m.value) for k, m in read.messages.items()]
        assert (last[1].kind, last[1].parts()[-1]) == ("user", {"text": prompt})
        assert last[1].value["timestamp"] == (read.said()[-1].value.get("timestamp", EPOCH) if read.said() else EPOCH)
    assert b"".join(GEMINI.resume.inject_prompt(told, "S", WS, prompt)) == told


def taken_out(session: Any) -> list[str]:
    """The words of the prompt that is put back: the last one taken out of a session without a word or a call."""
    if any(m.kind == "gemini" and (m.calls or m.parts()) for m in session.messages.values()):
        return []
    return next((told for m in reversed(session.taken) if (told := words_of([m]))), [])


def words(session: Any) -> list[str]:
    return words_of(session.messages.values())


def words_of(messages: Any) -> list[str]:
    return [
        text
        for m in messages
        if m.kind == "user"
        for p in m.parts()
        if (text := p.get("text") if isinstance(p, dict) else p) and isinstance(text, str)
    ]
