"""Whether a call would repeat another one (I1, I8): by what it runs, in whatever words. spellings.jsonl has calls that
do, and calls that do not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.calls import reading
from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import classify, classify_command
from wal_agent.calls.equality import would_repeat
from wal_agent.calls.reading import Runs, find_runs
from wal_agent.calls.rules.table import load_rules
from wal_agent.calls.shell.reader import parse

RULES = load_rules()
SHOP = "/srv/shop"
CHARGE = "./charge.sh 49.90"
LINES = [json.loads(line) for line in Path(__file__).with_name("spellings.jsonl").read_text("utf-8").splitlines()]
REPEATS = [(line["asked"], line["repeats"]) for line in LINES if "repeats" in line]
DIFFERS = [(line["asked"], line["differs"]) for line in LINES if "differs" in line]


def read(command: object, tool: str = "Bash", **more: object) -> Runs:
    return read_in(SHOP, command, tool, **more)


def read_in(folder: str, command: object, tool: str = "Bash", **more: object) -> Runs:
    field = RULES.shells[tool].field if tool in RULES.shells else "command"
    return find_runs(ReadCall(tool, json.dumps({field: command, **more}).encode()), folder, RULES)


def read_other(tool: str, **fields: object) -> Runs:
    return find_runs(ReadCall(tool, json.dumps(fields).encode()), SHOP, RULES)


def test_the_table_is_large_enough() -> None:
    charges = [again for asked, again in REPEATS if asked == CHARGE]
    assert len({*charges}) >= 60 and len({*DIFFERS}) >= 40 and len({*REPEATS, *DIFFERS}) == len(LINES)


@pytest.mark.parametrize("tool", RULES.shells)
def test_another_spelling_in_the_shell_of_any_agent_repeats_a_call(tool: str) -> None:
    """I1: a job may be handed over to an agent whose shell has another name."""
    let_past = [line for line in REPEATS if not would_repeat(read(line[0]), read(line[1], tool))]
    assert let_past == []


def test_the_gate_asks_about_each_spelling() -> None:
    """It asks only where a call may change something."""
    mild = [again for _asked, again in REPEATS if classify_command(again, RULES).cls not in ("mutation", "unknown")]
    assert mild == []


@pytest.mark.parametrize("tool", RULES.shells)
def test_another_call_is_no_repetition(tool: str) -> None:
    refused = [line for line in DIFFERS if would_repeat(read(line[0]), read(line[1], tool))]
    assert refused == []


@pytest.mark.parametrize("tool", ["shell", "local_shell"])
@pytest.mark.parametrize("words", [["bash", "-lc", CHARGE], ["./charge.sh", "49.90"], ["sh", "charge.sh", "49.90"]])
def test_words_without_a_shell_are_read_too(tool: str, words: list[str]) -> None:
    assert would_repeat(read(CHARGE), read(words, tool)) and would_repeat(read(words, tool), read(CHARGE))
    assert not would_repeat(read(["./charge.sh", "20"], tool), read(words, tool))


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("Bash", {"timeout": 4}),
        ("Bash", {"description": "once more", "run_in_background": True}),
        ("Bash", {"run_in_background": False, "dangerouslyDisableSandbox": True}),
        ("run_shell_command", {"is_background": True, "delay_ms": 5}),
        ("run_shell_command", {"dir_path": "."}),
        ("run_shell_command", {"directory": SHOP}),
        ("bash", {"workdir": "../shop", "timeout": 1}),
        ("bash", {"mode": "async", "detach": True, "shellId": "1"}),
        ("exec_command", {"yield_time_ms": 1, "tty": True, "sandbox_permissions": "x"}),
        ("Monitor", {"timeout_ms": 5, "description": "watch"}),
        ("mcp__box__run", {"session": 1}),
    ],
)
def test_other_fields_make_no_other_call(tool: str, more: dict[str, object]) -> None:
    assert would_repeat(read(CHARGE), read(CHARGE, tool, **more))


def test_a_call_in_another_folder_is_another_call() -> None:
    asked = read(CHARGE)
    assert not would_repeat(asked, read_in("/srv/other", CHARGE))
    assert not would_repeat(asked, read(CHARGE, "run_shell_command", dir_path="sub"))
    assert would_repeat(asked, read("../charge.sh 49.90", "run_shell_command", dir_path="sub"))
    assert would_repeat(asked, read_in(f"{SHOP}/sub", f"cd .. && {CHARGE}"))
    assert not would_repeat(asked, read(CHARGE, "Write")), "it writes a file"


@pytest.mark.parametrize(
    ("one", "other", "repeats"),
    [
        (("mcp__pay__charge", {"amount": 5}), ("mcp__pay__charge", {"amount": 5, "description": "again"}), True),
        (("mcp__pay__charge", {"amount": 5}), ("mcp_pay_charge", {"amount": 5, "timeout": 9}), True),
        (("mcp__pay__charge", {"amount": 5}), ("pay-charge", {"amount": 5, "note": ""}), True),
        (("mcp__pay__charge", {"amount": 5, "to": "x"}), ("mcp__pay__charge", {"to": "x ", "amount": 5.0}), True),
        (("mcp__pay__charge", {"amount": 5}), ("mcp__pay__charge", {"amount": 6}), False),
        (("mcp__pay__charge", {"amount": 5}), ("mcp__pay__refund", {"amount": 5}), False),
        (("SendMessage", {"to": "a", "message": "x"}), ("SendMessage", {"message": "x", "to": "a"}), True),
        (("SendMessage", {"to": "a", "message": "x"}), ("SendMessage", {"message": "y", "to": "a"}), False),
        (("task", {"command": "review", "prompt": "a"}), ("task", {"command": "review", "prompt": "b"}), False),
        (("Agent", {"prompt": "a"}), ("Agent", {"prompt": "a", "run_in_background": True}), True),
    ],
)
def test_calls_of_other_tools_are_compared_by_their_fields(
    one: tuple[str, dict[str, object]], other: tuple[str, dict[str, object]], repeats: bool
) -> None:
    (tool, fields), (again, others) = one, other
    assert would_repeat(read_other(tool, **fields), read_other(again, **others)) is repeats


@pytest.mark.parametrize("junk", [b"", b"\xff", b"[]", b'{"command": 1}', b'{"command": "\\ud800"}', b"{" * 9999])
def test_junk_repeats_nothing(junk: bytes) -> None:
    found = find_runs(ReadCall("Bash", junk), SHOP, RULES)
    assert not would_repeat(read(CHARGE), found) and not would_repeat(found, read(CHARGE))


@pytest.mark.parametrize("text", ["x=$(", "echo 'a", "a " * 9000, "echo $(( a[$(b)] ))"])
def test_what_cannot_be_read_is_compared_by_its_words(text: str) -> None:
    asked = read(CHARGE)
    assert would_repeat(asked, read(f"{CHARGE}; {text}")) and not would_repeat(asked, read(f"./charge.sh 20; {text}"))
    assert would_repeat(read(text), read(f"true\n{text}")) and not would_repeat(read(text), asked)


def test_a_call_of_very_many_commands_is_read_up_to_a_bound() -> None:
    """I9."""
    many = read("; ".join(f"./x{n}.sh {n} ./y 'a b'" for n in range(600)))
    assert many.commands is not None and len(many.commands) <= 2 * reading.MAX_COMMANDS
    assert would_repeat(read("./x599.sh 599 ./y 'a b'"), many), "its words count where it is not read"


@cache
def mutations() -> list[str]:
    table = Path(__file__).parents[1] / "calls/commands.jsonl"
    known = [json.loads(line) for line in table.read_text("utf-8").splitlines()]
    return [row["cmd"] for row in known if "\\" not in row["cmd"] and row["class"] == "mutation"]


def is_plain(text: str) -> bool:
    """Whether it is one command of literal words."""
    script = parse(text)
    if script is None or len(script.commands) != 1 or "#" in text:
        return False
    (command,) = script.commands
    return command.sure and not command.redirects and not command.assigns and all(w.text for w in command.words)


AROUND_ONE: list[Callable[[str], str]] = [
    lambda t: f"timeout 60 {t}",
    lambda t: f"sudo -n env A=1 {t}",
    lambda t: f"nohup nice -n 5 {t}",
    lambda t: f"FOO=1 command {t}",
    lambda t: f"time {t} > /tmp/log 2>&1",
    lambda t: "  ".join(shlex.quote(word) for word in shlex.split(t)),
    lambda t: " ".join(f"'{word}'" if "'" not in word else shlex.quote(word) for word in shlex.split(t)),
    lambda t: f"true && {t} || true",
]
AROUND_ANY: list[Callable[[str], str]] = [
    lambda t: f"sh -c {shlex.quote(t)}",
    lambda t: f"timeout 9 bash -lc {shlex.quote(t)}",
    lambda t: f"eval {shlex.quote(t)}",
    lambda t: f"(\n{t}\n)",
    lambda t: f"{{\n{t}\n}} 2>&1 | tail -5",
    lambda t: f"{{\n{t}\n}} &",
    lambda t: f"A=$(\n{t}\n)",
    lambda t: f"cd {SHOP}\n{t}\necho $?",
    lambda t: f"bash <<'ENDOFIT'\n{t}\nENDOFIT",
    lambda t: f"for i in 1; do\n{t}\ndone",
    lambda t: f"if true; then\n{t}\nfi",
    lambda t: f"# once more\n{t}",
    lambda t: f"  {t}\n",
]


@given(st.data())
def test_whatever_is_put_around_a_changing_command_it_is_found(data: st.DataObject) -> None:
    text = asked = data.draw(st.sampled_from(mutations()))
    if is_plain(text):
        for around in data.draw(st.lists(st.sampled_from(AROUND_ONE), max_size=1)):
            text = around(text)
    for around in data.draw(st.lists(st.sampled_from(AROUND_ANY), max_size=3)):
        if "ENDOFIT" not in text:
            text = around(text)
    assert would_repeat(read(asked), read(text))


@given(st.text(max_size=60), st.deferred(lambda: st.sampled_from(mutations())))
def test_any_text_is_read(text: str, asked: str) -> None:
    found = read(text, "run_shell_command", dir_path=text)
    would_repeat(read(asked), found), would_repeat(found, read(asked))
    assert classify(ReadCall("run_shell_command", json.dumps({"command": text}).encode()), RULES)
