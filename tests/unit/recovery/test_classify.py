"""classify: what may be called read_only, and that nothing wrapped around a command makes it so."""

from __future__ import annotations

import json
import shlex
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.records import Class, Finding
from wal_agent.recovery.classify import NO_RULE, UNREADABLE, classify, next_step
from wal_agent.recovery.rules import load_rules
from wal_agent.recovery.shell import plain_words

RULES = load_rules()

# ALL_BUILTIN_TOOL_NAMES of Gemini CLI 0.61.0, its alias, and the tools of its background shells.
GEMINI_TOOLS = [
    "glob",
    "write_todos",
    "write_file",
    "google_web_search",
    "web_fetch",
    "replace",
    "run_shell_command",
    "grep_search",
    "read_many_files",
    "read_file",
    "list_directory",
    "activate_skill",
    "ask_user",
    "tracker_create_task",
    "tracker_update_task",
    "tracker_get_task",
    "tracker_list_tasks",
    "tracker_add_dependency",
    "tracker_visualize",
    "get_internal_docs",
    "enter_plan_mode",
    "exit_plan_mode",
    "update_topic",
    "complete_task",
    "invoke_agent",
    "read_mcp_resource",
    "list_mcp_resources",
    "search_file_content",
    "list_background_processes",
    "read_background_output",
]


def shell(command: str, **more: object) -> str:
    return classify("run_shell_command", json.dumps({"command": command, **more}).encode(), RULES).cls


def test_every_builtin_tool_has_a_rule() -> None:
    assert [t for t in GEMINI_TOOLS if t not in RULES.tools] == []


@pytest.mark.parametrize("tool", ["mcp_github_create_issue", "discovered_tool_x", "browser_agent", "", "READ_FILE"])
def test_other_tools_are_unknown(tool: str) -> None:
    assert classify(tool, b"{}", RULES) == NO_RULE


@pytest.mark.parametrize(
    ("tool", "cls"),
    [
        ("read_file", "read_only"),
        ("search_file_content", "read_only"),
        ("write_file", "idempotent"),
        ("replace", "idempotent"),
        ("tracker_create_task", "mutation"),
        ("save_memory", "mutation"),
        ("invoke_agent", "unknown"),
        ("read_mcp_resource", "unknown"),
    ],
)
def test_tools(tool: str, cls: str) -> None:
    assert classify(tool, b"{}", RULES).cls == cls


@pytest.mark.parametrize(
    "input", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"command":"ls","command":"rm x"}', b"[" * 10**5]
)
def test_an_input_that_cannot_be_read_is_unknown(input: bytes) -> None:
    assert classify("run_shell_command", input, RULES) == UNREADABLE
    assert classify("read_file", input, RULES) == UNREADABLE


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "  ls -la src  ",
        "ls '-l' \"a b\"",
        "cat README.md",
        "head -n 20 src/a.py",
        "head -5 a",
        "tail -n -5 a",
        "wc -l a b",
        "grep -rn TODO src",
        "grep -- -x a",
        "date",
        "date -u +%Y-%m-%d",
        "hostname -f",
        "sleep 60",
        "echo hello",
        "git rev-parse --short HEAD",
        "git branch --show-current",
        "stat -c %s a",
    ],
)
def test_commands_that_only_read(command: str) -> None:
    assert shell(command, description="look", dir_path="src") == "read_only"


@pytest.mark.parametrize(
    "command",
    [
        "",
        " ",
        "rm -rf x",
        "npm test",
        "make",
        "FOO=1 ls",
        "/bin/ls",
        "./ls",
        "~/ls",
        "sudo ls",
        "env ls",
        "command ls",
        "time ls",
        "xargs ls",
        "bash -c ls",
        "ls > a",
        "ls >a",
        "cat < a",
        "ls; rm a",
        "ls && rm a",
        "ls | tee a",
        "ls & rm a",
        "ls $(rm a)",
        "ls `rm a`",
        'ls "$(rm a)"',
        'ls "`rm a`"',
        "ls {a,b}",
        "ls *",
        "ls a?",
        "ls [ab]",
        "ls !!",
        "ls # rm",
        "ls\nrm a",
        "ls\r\nrm a",
        "ls \\\nrm",
        "l\\s",
        "ls 'a",
        "ls a\x00b",
        "lѕ",
        "date -s 2020-01-01",
        "date --set=2020-01-01",
        "date --se=2020-01-01",
        "date 010203042026",
        "date -us 1",
        "date -- 010203042026",
        "hostname evil",
        "hostname -F a",
        "sort -o a b",
        "find . -delete",
        "uniq a b",
        "tail --lin=5 a",
        "less a",
        "git log",
        "git -c core.pager=x rev-parse HEAD",
        "git status",
        "git branch new",
        "git branch -D x --show-current",
        "git branch",
        "git rev-parse --parseopt",
        "rg --pre x y",
        "printf -v x y",
        "file -C -m a",
        "cat /dev/tty",
        "cat ../../proc/kmsg",
        "cat dev/x",
        "sleep infinity",
        "alias ls",
        "exec ls",
        "ls " + "a" * 5000,
    ],
)
def test_commands_that_may_change_something(command: str) -> None:
    assert shell(command) == "unknown"


@pytest.mark.parametrize(
    "more", [{"is_background": True}, {"additional_permissions": {"fs": "rw"}}, {"new_field": "x"}]
)
def test_a_field_of_unknown_meaning_makes_it_unknown(more: dict[str, object]) -> None:
    assert shell("ls", **more) == "unknown"


def test_fields_that_are_off_do_not_count() -> None:
    assert shell("ls", is_background=False, delay_ms=None) == "read_only"


LISTED = {" ".join(c.program) for commands in RULES.commands.values() for c in commands}
META = st.sampled_from(
    [*";|&<>$`(){}[]*?~!#\n\t\r\\'\"", "&&", "||", "$(", "<(", ">>", "\\\n", "x=1 ", "", " ", "=", "%", "@"]
)
READING = st.sampled_from(["ls", "cat a", "echo hi", "date", "git rev-parse HEAD", "true", "sleep 1"])
CHANGING = st.sampled_from(
    ["rm a", "touch a", "npm test", "git push", "./deploy", "date -s 1", "sort -o a b", "sh x", "xyz"]
)


@given(CHANGING, st.lists(st.tuples(META, READING | st.just("")), max_size=4), st.lists(META, max_size=4), META)
def test_nothing_wrapped_around_a_command_makes_it_read_only(
    command: str, before: list[tuple[str, str]], after: list[str], glue: str
) -> None:
    text = "".join(m + r for m, r in before) + glue + command + "".join(after)
    words = plain_words(text)
    # Plain words that begin with a listed program are arguments to it ("echo rm a"); nothing else may pass.
    if words is None or not any(" ".join(words[:n]) in LISTED for n in (1, 2)):
        assert shell(text) == "unknown"


@given(READING, st.sampled_from(";|&<>$`(){}[]*?~!#\n\t\r\\\x00\x1b\u202eé"), st.data())
def test_any_metacharacter_makes_a_reading_command_unknown(command: str, meta: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(command)))
    assert shell(command[:at] + meta + command[at:]) == "unknown"


@given(st.text(alphabet="abz019 -_./,:=+@%'\"", max_size=40))
def test_plain_words_are_what_a_posix_shell_would_read(text: str) -> None:
    words = plain_words(text)
    if words is not None:
        assert list(words) == shlex.split(text)


@given(st.binary(max_size=200), st.sampled_from([*GEMINI_TOOLS, "mcp_x_y"]))
def test_total(input: bytes, tool: str) -> None:
    assert classify(tool, input, RULES).cls in get_args(Class)


@pytest.mark.parametrize("cls", get_args(Class))
@pytest.mark.parametrize("finding", get_args(Finding))
def test_every_finding_has_a_next_step(cls: Class, finding: Finding) -> None:
    said = next_step(cls, finding, "look at {it}", RULES)
    assert said and "{verify}" not in said
    assert "()" not in next_step(cls, finding, "", RULES)
    if cls in ("mutation", "unknown") and finding in ("unknown", "partial"):
        assert "look at {it}" in said and "verif" in said.lower()
