"""The child of a restored rollout, the notice in it, and what a file tells while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import codex as CODEX
from wal_agent.agents.base import LoggedCall, Reconciled, SeenCall
from wal_agent.agents.codex.resume import DECLINED, NOT_BEGUN, SCRIPTS
from wal_agent.agents.codex.session import LOST_SCRIPTS, SCRIPT

WS = Path("/w/shop")
S = "01a20281-b689-7383-9548-fb903d18e48e"
N1, N2 = "exec-00000000-0000-4000-8000-000000000001", "exec-00000000-0000-4000-8000-000000000002"


def line(kind: str, payload: dict[str, Any]) -> bytes:
    return json.dumps(
        {"timestamp": "2026-11-22T09:06:25.080Z", "ordinal": 3, "type": kind, "payload": payload}
    ).encode()


HEAD = line("session_meta", {"id": S, "session_id": S, "cwd": "/old"})
BEGIN = line("event_msg", {"type": "task_started"})


def said(role: str, text: str) -> bytes:
    return line("response_item", {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})


def shell(id: str, command: str, name: str = "exec_command") -> bytes:
    call = {"type": "function_call", "name": name, "arguments": json.dumps({"cmd": command}), "call_id": id}
    return line("response_item", call)


def script(id: str, text: str = "js") -> bytes:
    return line("response_item", {"type": "custom_tool_call", "name": "exec", "input": text, "call_id": id})


def output(id: str, text: str, kind: str = "function_call_output") -> bytes:
    return line("response_item", {"type": kind, "call_id": id, "output": text})


def item(id: str, command: str, code: int, out: str = "", **more: Any) -> bytes:
    about = {"type": "CommandExecution", "id": id, "command": ["bash", "-lc", command], "exit_code": code}
    about |= {"aggregated_output": out, "source": "unified_exec_startup", "status": "completed", **more}
    return line("event_msg", {"type": "item_completed", "item": about})


def join(*lines: bytes) -> bytes:
    return b"".join(one + b"\n" for one in lines)


def logged(n: int, id: str, command: str = "ls", result: Any = "out", tool: str = "Bash", note: str = "") -> LoggedCall:
    told = None if result is None else json.dumps(result).encode()
    return LoggedCall(n, tool, json.dumps({"command": command}).encode(), told, False, note, 0.0, id)


def child(main: bytes, *calls: LoggedCall) -> Reconciled:
    made = CODEX.reconcile(main, S, WS, calls)
    again = CODEX.reconcile(made.data, S, WS, calls)
    assert (again.data, again.put_back, again.repairs) == (made.data, 0, ())
    return made


def results(made: Reconciled) -> dict[str, str]:
    payloads = [json.loads(text)["payload"] for text in made.data.splitlines()]
    found = [(p["call_id"], p["output"]) for p in payloads if "output" in p]
    assert len(dict(found)) == len(found), "each call once"
    return dict(found)


def test_each_call_gets_the_truth() -> None:
    main = join(
        HEAD,
        shell("old", "never told"),
        BEGIN,
        shell("done", "a"),
        shell("by-item", "b"),
        shell("flying", "c"),
        shell("never", "d"),
        shell("unknown", "e", name="write_stdin"),
        item("by-item", "b", 3, "B"),
    )
    made = child(
        main,
        logged(1, "done", "a", {"exit_code": 0, "output": "A"}, note="its files are elsewhere"),
        logged(2, "flying", "c", None, note="nobody knows."),
        logged(3, "lost", "f", "F"),
        logged(4, "patch", "*** Begin Patch", "P", "apply_patch"),
        logged(5, "mcp", "x", {"content": []}, "mcp__a__b"),
    )
    assert results(made) == {
        "done": "Process exited with code 0\nOutput:\nA\n\n[wal-agent: its files are elsewhere]",
        "by-item": "Process exited with code 3\nOutput:\nB",
        "flying": "outcome unknown: nobody knows.",
        "never": NOT_BEGUN,
        "lost": "F",
        "patch": "P",
        "mcp": '{"content": []}',
    }
    assert made.put_back == 5
    assert made.data.startswith(main), "what was there stays as it is"
    calls = {p["call_id"]: p for text in made.data.splitlines() if "name" in (p := json.loads(text)["payload"])}
    assert calls["lost"]["arguments"] == '{"cmd":"f"}' and calls["lost"]["name"] == "exec_command"
    assert calls["patch"]["input"] == "*** Begin Patch" and calls["patch"]["type"] == "custom_tool_call"
    assert calls["mcp"]["name"] == "mcp__a__b"
    ordinals = [json.loads(text)["ordinal"] for text in made.data[len(main) :].splitlines()]
    assert ordinals == list(range(4, 4 + len(ordinals)))


def test_what_ended_though_the_log_did_not_hear_of_it() -> None:
    main = join(HEAD, BEGIN, shell("a", "x"), shell("b", "y"), item("a", "x", 0, "X"), item("b", "y", -1, "cut"))
    told = results(child(main, logged(1, "a", "x", None), logged(2, "b", "y", None, note="?")))
    assert told == {"a": "Process exited with code 0\nOutput:\nX", "b": "outcome unknown: ?"}


def test_a_command_that_had_yielded() -> None:
    main = join(HEAD, BEGIN, shell("a", "x"), output("a", "Process running with session ID 7\nOutput:\n"))
    told = results(child(main, logged(1, "a", "x", None, note="?")))["a"]
    assert told.startswith("Process running") and "it runs no more. outcome unknown: ?]" in told
    assert results(child(main))["a"].endswith("Output:\n")


def test_a_yielded_command_that_was_followed_to_its_end() -> None:
    """What `write_stdin` was told stands; of another command, or that this one runs, it tells nothing."""
    runs = "Process running with session ID 7\nOutput:\n"
    for session, told, says in ((7, "Process exited with code 0\n", False), (8, "Process exited with code 0\n", True)):
        poll = {"type": "function_call", "name": "write_stdin", "arguments": json.dumps({"session_id": session})}
        poll["call_id"] = "p"
        main = join(HEAD, BEGIN, shell("a", "x"), output("a", runs), line("response_item", poll), output("p", told))
        assert ("it runs no more" in results(child(main, logged(1, "a", "x", "R")))["a"]) is says
        still = main.replace(b"exited with code 0", b"running with session ID 7")
        assert "it runs no more" in results(child(still, logged(1, "a", "x", "R")))["a"]


def test_what_was_declined_did_not_run() -> None:
    main = join(HEAD, BEGIN, shell("a", "x"), item("a", "x", -1, status="declined"))
    assert results(child(main)) == {"a": DECLINED}
    assert results(child(main, logged(1, "a", "x", None, note="?"))) == {"a": DECLINED}
    patch = line(
        "event_msg", {"type": "item_completed", "item": {"type": "FileChange", "id": "a", "status": "declined"}}
    )
    assert results(child(join(HEAD, BEGIN, shell("a", "x"), patch))) == {"a": DECLINED}


def test_half_a_pair() -> None:
    """Of surrogates. Codex drops a line that has one."""
    main = join(HEAD, BEGIN, shell("a", "x"))
    made = child(main, logged(1, "a", "x", "cut \ud83d"), logged(2, "b", "echo \ud83d", None))
    assert results(made)["a"] == "cut \ufffd"
    assert "echo \ufffd" in made.data.decode() and b"\\ud83d" not in made.data
    told = b"".join(CODEX.resume.inject_prompt(made.data, S, WS, "p\ud83d \U0001f600"))
    assert told is not None and told.decode().splitlines()[-1].count("p\ufffd \U0001f600") == 1
    assert b"".join(CODEX.resume.inject_prompt(told, S, WS, "p\ud83d \U0001f600")) == told


def test_an_output_whose_call_was_damaged() -> None:
    made = child(join(HEAD, BEGIN, shell("a", "x")[:-9], output("a", "r")), logged(1, "a", "x", "r"))
    kinds = [json.loads(text)["payload"].get("type") for text in made.data.splitlines()]
    assert kinds == [None, "task_started", "function_call", "function_call_output"]
    assert (made.put_back, results(made)) == (1, {"a": "r"})


def test_scripts() -> None:
    """One that was cut off tells its calls; one that had yielded has its output, and what came behind is a message."""
    main = join(HEAD, BEGIN, script("s"), item(N1, "one", 4, "n1"))
    for calls in ((), (logged(1, N1, "one", {"exit_code": 4, "output": "n1"}),)):
        told = results(child(main, *calls, logged(2, N2, "two", None, note="?")))["s"]
        assert told.startswith(SCRIPT)
        assert told.count("code 4\nOutput:\nn1") == 1
        assert told.count("outcome unknown: ?") == 1 and '"two"' in told
    assert results(child(join(HEAD, BEGIN, script("s"))))["s"].endswith("(none)")

    yielded = join(
        HEAD, BEGIN, script("s"), item(N1, "one", 0), output("s", "Script running", "custom_tool_call_output")
    )
    assert child(yielded, logged(1, N1, "one")).put_back == 0
    made = child(yielded, logged(1, N1, "one"), logged(2, N2, "two", None, note="?"))
    assert made.put_back == 1
    last = json.loads(made.data.splitlines()[-1])["payload"]
    assert last["role"] == "user" and last["content"][0]["text"].startswith(LOST_SCRIPTS)
    later = made.data + join(item(N2, "two", 0))
    assert child(later, logged(2, N2, "two", None)).data == later, "a later resume's own call is not an old one"


def test_calls_of_an_earlier_script_are_not_the_lost_ones() -> None:
    done = (item(N1, "one", 0, "n1"), output("s", "Script completed", "custom_tool_call_output"))
    main = join(HEAD, BEGIN, script("s"), *done, script("t"))
    told = results(child(main, logged(1, N1, "one"), logged(2, N2, "two", None, note="?")))["t"]
    assert N1 not in told and told.count(N2) == 1


def test_scripts_that_cannot_be_told_apart() -> None:
    main = join(HEAD, BEGIN, script("s"), script("t"), item(N1, "one", 0, "n1"))
    assert all(text.endswith("(none)") for text in results(child(join(HEAD, BEGIN, script("s"), script("t")))).values())
    made = child(main, logged(2, N2, "two", None, note="?"))
    assert results(made) == {"s": SCRIPTS, "t": SCRIPTS}
    last = json.loads(made.data.splitlines()[-1])["payload"]
    assert last["role"] == "user" and last["content"][0]["text"].startswith(LOST_SCRIPTS)
    assert made.data.decode().count(f"[{N1}]") == made.data.decode().count(f"[{N2}]") == 1


def test_a_call_put_back_does_not_hide_what_a_yielded_script_did() -> None:
    yielded = (script("s"), output("s", "Script running", "custom_tool_call_output"), item(N1, "one", 0, "n1"))
    made = child(join(HEAD, BEGIN, *yielded, shell("a", "x")), logged(1, N1, "one"), logged(2, "a", "x", None))
    assert made.data.decode().count(f"[{N1}]") == 1


def test_damage() -> None:
    """A torn tail, junk, NULs; a first line that is none; nothing at all."""
    good = join(HEAD, BEGIN, said("user", "do"), said("assistant", "ok"))
    made = child(good + b'{"torn":' + bytes(99))
    assert (made.data, made.messages, len(made.repairs)) == (good, 2, 1)
    assert child(good + bytes(512)).data == good
    assert child(b"\xff\n[]\n\x00\x00\n{}\n" + good).repairs == (
        "4 damaged line(s) of the session file were left out.",
    )
    headless = child(HEAD[:30] + b"\n" + join(BEGIN, said("user", "do")))
    assert json.loads(headless.data.splitlines()[0])["payload"]["id"] == S
    assert len(headless.repairs) == 2
    assert json.loads(child(b"").data)["payload"]["cwd"] == "/w/shop"


def test_results_that_are_cut_off_or_long() -> None:
    main = join(HEAD, BEGIN, shell("a", "x"), shell("b", "y"))
    cut = LoggedCall(1, "Bash", b"{}", b'{"exit_code":0,"output":"abc', False, call_id="a")
    told = results(child(main, cut, logged(2, "b", "y", "z" * 100_000)))
    assert told["a"] == '{"exit_code":0,"output":"abc'
    assert len(told["b"]) < 41_000 and "wal-agent log" in told["b"]


PROMPT = st.text() | st.sampled_from(["!x", "$skill", "\u2028", "a\r\nb", " "])
ANY = st.binary(max_size=40) | st.sampled_from(
    [
        *(HEAD, BEGIN, shell("a", "x"), shell("b", "y"), script("s"), output("a", "r"), item("a", "x", 0)),
        *(output("s", "t", "custom_tool_call_output"), said("user", "u"), b"{}", b'{"payload":{}}', b'{"payload":[]}'),
        *(item(N1, "n", 1), output("b", "Process running with session ID 1"), b'{"type":3,"payload":{"id":[]}}'),
        line("response_item", {"call_id": 3, "type": "function_call"}),
    ]
)
CALLS = st.lists(
    st.builds(
        LoggedCall,
        st.integers(1, 9),
        st.sampled_from(["Bash", "apply_patch", "x"]),
        st.sampled_from([b'{"command":"x"}', b"{}", b"\xff"]),
        st.none() | st.sampled_from([b'"r"', b'{"exit_code":null,"output":[]}', b"\xff{"]),
        st.booleans(),
        st.just("note"),
        st.just(0.0),
        st.sampled_from(["a", "b", "c", N1, N2, ""]),
    ),
    max_size=5,
    unique_by=lambda call: call.call_id,
)


@given(st.lists(ANY, max_size=12), CALLS, PROMPT)
def test_any_file(lines: list[bytes], calls: list[LoggedCall], prompt: str) -> None:
    made = CODEX.reconcile(b"\n".join(lines), S, WS, calls)
    assert CODEX.reconcile(made.data, S, WS, calls).data == made.data
    assert all(isinstance(json.loads(text)["payload"], dict) for text in made.data.split(b"\n")[:-1])
    told = b"".join(CODEX.resume.inject_prompt(made.data, S, WS, prompt))
    assert told is not None and told.startswith(made.data)
    assert b"".join(CODEX.resume.inject_prompt(told, S, WS, prompt)) == told
    last = json.loads(told.split(b"\n")[-2])["payload"]
    assert last["content"][0]["text"] == prompt
    CODEX.seen_calls(b"\n".join(lines))
    CODEX.proves_turn(b"\n".join(lines))


def test_what_a_growing_file_tells() -> None:
    appended = join(
        b"junk",
        shell("a", "x"),
        item("a", "x", 0),
        output("a", "Process exited with code 0"),
        item("b", "y", 7, status="failed"),
        item("c", "z", -1, status="failed"),
        item("killed", "z", 137, status="failed"),
        item("d", "z", 0, status="declined"),
        item("mine", "ls", 0, source="user_shell"),
        line("event_msg", {"type": "item_completed", "item": {"type": "FileChange", "id": "e", "status": "completed"}}),
        shell("f", "x", name="view_image"),
        output("f", "unable to locate image"),
        shell("g", "x"),
        output("g", "Process running with session ID 4"),
        shell("h", "x"),
        output("h", "Wall time: 1.7 seconds\naborted by user"),
        shell("i", "x"),
        output("i", "Command blocked by PreToolUse hook: no. Command: x"),
        script("s"),
        output("s", "Script completed", "custom_tool_call_output"),
    )
    seen = CODEX.seen_calls(appended)
    assert [(s.call_id, s.tool, s.status) for s in seen] == [
        ("a", "Bash", "done"),
        ("b", "Bash", "done"),
        ("c", "Bash", "cancelled"),
        ("killed", "Bash", "cancelled"),
        ("d", "Bash", "refused"),
        ("e", "apply_patch", "done"),
        ("f", "view_image", "failed"),
        ("g", "Bash", "runs_on"),
        ("h", "Bash", "cancelled"),
        ("i", "Bash", "refused"),
    ]
    patch = {"type": "FileChange", "id": "p", "status": "completed"}
    patched = line("event_msg", {"type": "item_completed", "item": patch})
    (by_shell,) = CODEX.seen_calls(join(shell("p", "apply_patch <<'EOF'"), patched, output("p", "Success.")))
    assert (by_shell.call_id, by_shell.tool, by_shell.status) == ("p", "Bash", "done"), "as the before-hook named it"
    assert seen[0] == SeenCall("Bash", b'{"command":"x"}', "done", "a", "a")
    assert not CODEX.proves_turn(appended)
    assert CODEX.proves_turn(line("event_msg", {"type": "item_completed", "item": {"type": "UserMessage", "id": "u"}}))
