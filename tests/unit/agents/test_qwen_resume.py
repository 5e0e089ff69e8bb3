"""The session file as the real program writes it, hurt in every way that a crash or a move can hurt it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.qwen.resume import inject_prompt, reconcile
from wal_agent.agents.qwen.session import load_chat, proves_turn, seen_calls, settled_length

WS = Path("/new/ws")
SESSION = "6e68637d-d547-4d4b-aa1f-b44129f5d965"
Json = dict[str, Any]


def record(n: int, kind: str, parts: list[Json] | None = None, parent: int | None = -1, **more: Any) -> Json:
    value: Json = {
        "uuid": f"u{n}",
        "parentUuid": f"u{n - 1}" if parent == -1 else None if parent is None else f"u{parent}",
        "sessionId": SESSION,
        "timestamp": f"2026-11-22T09:00:{n:02}.000Z",
        "type": kind,
        "cwd": "/old/ws",
        "version": "0.15.10",
    }
    if parts is not None:
        value["message"] = {"role": "model" if kind == "assistant" else "user", "parts": parts}
    return value | more


def call(id: str, command: str) -> Json:
    return {"functionCall": {"id": id, "name": "run_shell_command", "args": {"command": command}}}


def answer(id: str, output: str) -> Json:
    return {"functionResponse": {"id": id, "name": "run_shell_command", "response": {"output": output}}}


def event(n: int, command: str, status: str = "success", **more: Any) -> Json:
    told = {"event.name": "qwen-code.tool_call", "function_name": "run_shell_command", "status": status, **more}
    payload = {"uiEvent": told | {"function_args": {"command": command}}}
    return record(n, "system", subtype="ui_telemetry", systemPayload=payload)


BATCH = [
    record(0, "user", [{"text": "do it"}], None),
    record(1, "assistant", [{"text": "Then."}, call("c1", "one"), call("c2", "two"), call("c3", "three")]),
    event(2, "one"),
    record(3, "tool_result", [answer("c1", "one is done")]),
]


def lines(*records: Json) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def logged(n: int, command: str, result: object = None, at: float = 0.0, **more: Any) -> LoggedCall:
    data = None if result is None else json.dumps(result).encode()
    return LoggedCall(n, "run_shell_command", json.dumps({"command": command}).encode(), data, False, "", at, **more)


CALLS = [
    logged(1, "one", {"llmContent": "one is done"}),
    logged(2, "two", {"llmContent": "two is done"}),
    logged(3, "three"),
]


def told(data: bytes) -> list[tuple[str, str]]:
    """Call ids and what came of them, along the conversation."""
    found = []
    for each in load_chat(data).live():
        found += [("call", c["id"]) for c in each.inside("functionCall")]
        found += [(r["id"], next(iter(r["response"].values()))[:15]) for r in each.inside("functionResponse")]
    return found


def again(data: bytes, calls: list[LoggedCall]) -> bytes:
    """Reconciled, and it is the same when it is done twice."""
    first = reconcile(data, SESSION, WS, calls)
    second = reconcile(first.data, SESSION, WS, calls)
    assert (second.data, second.put_back, second.repairs) == (first.data, 0, ())
    return first.data


def test_a_batch_that_was_cut_off() -> None:
    """In the log's order: over in the file, over in the log only, open."""
    assert reconcile(lines(*BATCH), SESSION, WS, CALLS).put_back == 2
    assert told(again(lines(*BATCH), CALLS)) == [
        *(("call", id) for id in ("c1", "c2", "c3")),
        ("c1", "one is done"),
        ("c2", "two is done"),
        ("c3", "outcome unknown"),
    ]


def test_a_call_that_did_not_begin_is_told_so() -> None:
    assert told(again(lines(*BATCH), CALLS[:2]))[-1] == ("c3", "not known to ha")


def test_a_batch_of_which_the_model_s_message_is_lost() -> None:
    found = told(again(lines(BATCH[0]), CALLS))
    assert [id for what, id in found if what == "call"] == ["call_wal_1", "call_wal_2", "call_wal_3"]
    assert [what for _, what in found[3:]] == ["one is done", "two is done", "outcome unknown"]


def test_equal_calls_are_counted_and_one_that_ended_before_is_another() -> None:
    two = [record(0, "user", [{"text": "x"}], None), record(1, "assistant", [call("c1", "one"), call("c2", "one")])]
    calls = [logged(1, "one", {"llmContent": "done"}), logged(2, "one")]
    assert told(again(lines(*two), calls))[2:] == [("c1", "done"), ("c2", "outcome unknown")]
    later = logged(9, "one", {"llmContent": "later"}, at=1795338400.0)
    assert ("call_wal_9", "later") in told(again(lines(*BATCH[:4]), [later]))


def test_paths_that_qwen_unescaped_between_file_and_hook_are_the_same() -> None:
    file = record(1, "assistant", [{"functionCall": {"id": "c1", "name": "edit", "args": {"file_path": "a\\ b "}}}])
    hook = LoggedCall(1, "edit", b'{"file_path":"a b"}', b'{"llmContent":"ok"}', False)
    assert told(again(lines(BATCH[0], file), [hook])) == [("call", "c1"), ("c1", "ok")]


def test_what_somebody_said_after_a_batch_stays_the_last() -> None:
    """A result cannot stand behind the next message: the batch is told anew."""
    data = again(lines(*BATCH, record(4, "user", [{"text": "stop"}])), CALLS)
    assert [id for what, id in told(data) if what == "call"] == ["c1", "c2", "c3", "call_wal_2", "call_wal_3"]


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_torn_tail_and_nuls(cut: int) -> None:
    data = lines(*BATCH)
    kept = again(data + data[-cut - 1 :][:cut].replace(b"}", b"") + bytes(300), CALLS)
    assert kept == again(data, CALLS) and b"\0" not in kept


def test_a_torn_first_line_and_one_in_the_middle() -> None:
    """A lost record would end the conversation there."""
    first, *rest = lines(*BATCH).split(b"\n")
    data = again(b"\n".join([first[:40], *rest]), CALLS)
    assert len(told(data)) == 6
    assert json.loads(data.split(b"\n")[0])["parentUuid"] is None
    middle = again(b"\n".join([first, rest[0], rest[1][:50], *rest[2:]]), CALLS)
    assert [r.uuid for r in load_chat(middle).live()][:3] == ["u0", "u1", "u3"]


def test_a_record_that_was_appended_to_a_torn_one() -> None:
    data = lines(BATCH[0]) + b'{"uuid":"torn","par' + json.dumps(BATCH[1], separators=(",", ":")).encode() + b"\n"
    assert [r.uuid for r in load_chat(again(data, [])).live()][:2] == ["u0", "u1"]


def test_a_rewind_is_left_alone_and_what_it_left_did_run() -> None:
    rewound = record(4, "system", parent=0, subtype="rewind")
    data = again(lines(*BATCH, rewound, record(5, "user", [{"text": "again"}])), CALLS[:1])
    assert [r.uuid for r in load_chat(data).live()] == ["u0", "u4", "u5"]


def test_the_folder_and_the_session_are_this_machine_s() -> None:
    for line in again(lines(*BATCH), CALLS).splitlines():
        assert (json.loads(line)["cwd"], json.loads(line)["sessionId"]) == (str(WS), SESSION)
    same = lines(*BATCH).replace(b"/old/ws", str(WS).encode())
    assert again(same, CALLS).startswith(same), "a line that is not touched keeps its bytes"


def test_results_as_the_log_may_have_them() -> None:
    one = record(1, "assistant", [call(f"c{n}", f"do {n}") for n in range(5)])
    calls = [
        logged(0, "do 0", {"error": "bad"}),
        logged(1, "do 1", "its result was not saved"),
        LoggedCall(2, "run_shell_command", b'{"command":"do 2"}', b'{"llmContent":"cut of', False),
        logged(3, "do 3", {"llmContent": [{"text": "a"}, {"inlineData": 1}]}),
        LoggedCall(4, "run_shell_command", b'{"command":"do 4"}', b'{"llmContent":"no"}', True, "a note"),
    ]
    data = again(lines(BATCH[0], one), calls)
    said = [r["response"] for each in load_chat(data).live() for r in each.inside("functionResponse")]
    assert said == [
        {"error": "bad"},
        {"output": "its result was not saved"},
        {"output": '{"llmContent":"cut of'},
        {"output": "a\n[content that is not text: not put back]"},
        {"error": "no\n\n[wal-agent: a note]"},
    ]


def test_the_notice_is_the_last_word_once_and_exactly() -> None:
    words = "@x `$(y)` \u2028 😀 \"'\\\n"
    main = again(lines(*BATCH), CALLS)
    data = b"".join(inject_prompt(main, SESSION, WS, words))
    assert data.startswith(main) and b"".join(inject_prompt(data, SESSION, WS, words)) == data
    assert again(data, CALLS) == data
    last = load_chat(data).live()[-1]
    assert (last.kind, last.parts()) == ("user", [{"text": words}])
    alone = b"".join(inject_prompt(b"", SESSION, WS, words))
    assert json.loads(alone)["cwd"] == str(WS)


def test_what_the_file_tells_of_calls() -> None:
    data = lines(*BATCH, event(4, "two", "error"), event(5, "three", "cancelled", decision="reject"))
    found = seen_calls(b"junk\n" + data)
    assert [(c.tool, json.loads(c.input)["command"], c.status) for c in found] == [
        ("run_shell_command", "one", "done"),
        ("run_shell_command", "two", "failed"),
        ("run_shell_command", "three", "refused"),
    ]
    assert len({c.id for c in found}) == 3
    began = [event(6, "x", "cancelled", execution_status=how) for how in ("not_started", "cancelled")]
    assert [c.status for c in seen_calls(lines(*began))] == ["refused", "stopped"]
    assert proves_turn(data) and not proves_turn(lines(*BATCH[1:]))


def test_a_call_is_told_once_its_result_is_there() -> None:
    """I8: Qwen Code's hooks are ahead of its file, which may end between any two lines of a batch."""
    first = [*BATCH[:2], event(2, "one"), event(3, "two"), record(4, "tool_result", [answer("c1", "ONE")])]
    batch = [*first, record(5, "tool_result", [answer("c2", "TWO")])]
    ends = [settled_length(lines(*batch[:n])) for n in range(len(batch) + 1)]
    before = len(lines(*batch[:2]))
    assert ends == [0, len(lines(batch[0])), before, before, before, before, len(lines(*batch))]
    over = record(6, "assistant", [{"text": "bye"}])
    for later in ([over], [*batch[2:], over]):
        all = lines(*first, *later)
        assert settled_length(all) == len(all), "a record of another kind: the result is not to come"
        new = [*first, *later, event(9, "tool_result")]
        assert settled_length(lines(*new)) == len(all), "and the next batch waits for its own"
    spoken = [*batch, record(7, "assistant", [{"text": "tool_result and qwen-code.tool_call"}])]
    assert settled_length(b"\njunk\n" + lines(*spoken)) == len(b"\njunk\n" + lines(*spoken))


def test_a_call_that_the_file_answers_gets_no_other_result() -> None:
    """The log says for longer than needed that the file may lack it."""
    assert reconcile(lines(*BATCH), SESSION, WS, CALLS[:1]).put_back == 0
    data = again(lines(*BATCH), CALLS[:1])
    assert [what for id, what in told(data) if id == "c1"] == ["one is done"]


def test_a_model_that_repeats_its_call_ids() -> None:
    """A result is that of the last open request before it, and only what nobody knows is put back."""
    file = [
        BATCH[0],
        *(record(1, "assistant", [call("call_0", "one")]), record(2, "tool_result", [answer("call_0", "ONE")])),
        *(record(3, "assistant", [call("call_0", "two")]), record(5, "tool_result", [answer("call_0", "TWO")], 3)),
        record(6, "assistant", [call("call_0", "three"), call("call_0", "four")], 5),
    ]
    at = datetime.fromisoformat("2026-11-22T09:00:00+00:00").timestamp()
    calls = [logged(n, word, n < 3 and {"llmContent": word}, at + 2 * n - 0.8) for n, word in ((1, "one"), (2, "two"))]
    calls.append(logged(3, "three", None, at + 6.1))
    assert reconcile(lines(*file), SESSION, WS, calls).put_back == 1
    data = again(lines(*file), calls)
    assert [what for _, what in told(data)[:6]] == ["call_0", "ONE", "call_0", "TWO", "call_0", "call_0"]
    assert told(data)[-2:] == [("call_0", "outcome unknown"), ("call_0", "not known to ha")]
    lost = record(20, "assistant", [call("call_0", "five")])
    lost["parentUuid"] = load_chat(data).records[-1].uuid
    assert told(again(data + lines(lost), calls))[-1] == ("call_0", "not known to ha"), "after a second crash too"


def test_a_session_that_another_job_goes_on_with_has_calls_of_the_same_numbers() -> None:
    first = again(lines(BATCH[0]), [logged(3, "one", {"llmContent": "A"}, 1795338000.0)])
    data = again(first, [logged(3, "two", None, 1795339000.0)])
    assert told(data)[2:] == [("call", "call_wal_3"), ("call_wal_3", "outcome unknown")]
    assert len({r.uuid for r in load_chat(data).records}) == 5


def test_half_of_a_surrogate_pair_is_told_alike_by_file_and_hook() -> None:
    half = "echo \ud83d"
    hook = [LoggedCall(1, "run_shell_command", '{"command":"echo \ufffd"}'.encode(), b'{"llmContent":"ok"}', False)]
    file = lines(BATCH[0], record(1, "assistant", [call("c1", half)]))
    assert told(again(file, hook)) == [("call", "c1"), ("c1", "ok")]
    assert json.loads(seen_calls(lines(event(2, half)))[0].input) == json.loads(hook[0].input)


@pytest.mark.parametrize("deep", [190, 300, 990, 1100, 5000])
def test_deep_values_end_in_no_error(deep: int) -> None:
    nest = b'{"a":' * deep + b"1" + b"}" * deep
    file = (
        lines(BATCH[0]) + json.dumps(record(1, "assistant", [call("c1", "X")])).encode().replace(b'"X"', nest) + b"\n"
    )
    again(file, [LoggedCall(1, "run_shell_command", nest, nest, False)])
    seen_calls(lines(event(2, "X")).replace(b'"X"', nest))
    again(b'{"uuid":"torn","par' + file.replace(b'": ', b'":'), [])


RECORDS = st.lists(
    st.one_of(
        st.sampled_from([*BATCH, record(4, "user", [{"text": "x"}]), event(7, "two")]).map(lambda r: json.dumps(r)),
        st.sampled_from(
            ['{"uuid": 1}', "{}", "[]", "null", '{"uuid":"u1","message":{"parts":[1,{"functionCall":2}]}}']
        ),
        st.text(max_size=20),
    ),
    max_size=8,
)


@given(RECORDS, st.lists(st.sampled_from(CALLS), unique=True, max_size=3), st.binary(max_size=30))
@example(['{"type": "user", "uuid": "0", "parentUuid": [], "sessionId": "s"}'], [], b"")
def test_any_file_is_reconciled_once(parts: list[str], calls: list[LoggedCall], tail: bytes) -> None:
    data = "\n".join(parts).encode("utf-8", "replace") + tail
    found = again(data, calls)
    results = [result for id, result in told(found) if id != "call"]
    assert sum("outcome unknown" in text for text in results) <= 1
