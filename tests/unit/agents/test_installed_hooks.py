"""Hooks in an agent's own settings: edits of JSON with comments, installed and taken out byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.agents import AGENTS, installed_hooks
from wal_agent.agents.base import HooksToInstall, HookTable
from wal_agent.agents.installed_hooks import (
    LIVE,
    NAME,
    cut_ranges,
    has_our_hooks,
    insert_hooks,
    parse_jsonc,
    ranges_without,
    remove_hooks,
    restore_text,
)
from wal_agent.errors import ConfigError

PARSED_SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)
)
PARSED_VALUE = st.recursive(
    PARSED_SCALAR, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)
)


@settings(deadline=None)
@given(PARSED_VALUE, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_plain_json_means_what_json_says(value: Any, indent: int | str | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert parse_jsonc(text).value == json.loads(text)


def test_comments_and_trailing_commas_are_nothing() -> None:
    assert parse_jsonc('\ufeff// x\n{"a": /* } */ [1, 2,], // "b": 3\n}\n/* end */').value == {"a": [1, 2]}
    assert parse_jsonc('{"a": "// no /* comment */"}').value == {"a": "// no /* comment */"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        "[1 2]",
        "[,]",
        "{,}",
        '{"a":1,,}',
        "[1]]",
        "'a'",
        "{a: 1}",
        '"\n"',
        "01",
        '"\\x"',
        "/* x",
        "NaN",
    ],
)
def test_what_is_not_json_has_a_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+, column \d+$"):
        parse_jsonc(text)


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_any_children_can_leave(data: st.DataObject) -> None:
    gap = st.sampled_from(["", " ", "\n", "\n  ", "// , ] [\n", "/* , */"])
    keep = data.draw(st.lists(st.booleans(), max_size=6))
    text = "["
    for i in range(len(keep)):
        comma = "," if i + 1 < len(keep) else data.draw(st.sampled_from(["", ","]))
        text += f"{data.draw(gap)}{i}{data.draw(gap)}{comma}"
    text += data.draw(gap) + "]"
    node = parse_jsonc(text)
    left = cut_ranges(
        text, ranges_without(text, node, [c for c, kept in zip(node.children, keep, strict=True) if not kept])
    )
    assert parse_jsonc(left).value == [i for i, kept in enumerate(keep) if kept]
    for comment in ("// , ]", "/* , */"):
        assert left.count(comment) == text.count(comment)


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ([0], '{\n  // of b\n  "b": 2, "c": 3 // of c\n}'),
        ([1], '{\n  "a": 1,\n  // of b\n "c": 3 // of c\n}'),
        ([2], '{\n  "a": 1,\n  // of b\n  "b": 2 // of c\n}'),
        ([1, 2], '{\n  "a": 1\n  // of b\n // of c\n}'),
        ([0, 1, 2], "{\n  // of b\n // of c\n}"),
    ],
)
def test_lines_of_their_own_go_with_them(gone: list[int], left: str) -> None:
    text = '{\n  "a": 1,\n  // of b\n  "b": 2, "c": 3 // of c\n}'
    node = parse_jsonc(text)
    assert cut_ranges(text, ranges_without(text, node, [node.children[i] for i in gone])) == left


HOOKS: HookTable = {
    "BeforeTool": [{"hooks": [{"name": NAME, "type": "command", "command": "x"}]}],
    "SessionEnd": [{"hooks": [{"type": "command", "command": LIVE + "y"}]}],
}
INSTALLS = {
    name: make
    for name, agent in AGENTS.items()
    if (make := agent.capabilities.hooks_to_install) and make({"HOME": "/h"}).form == "json"  # else: test_family.py
}
GEMINI = INSTALLS["gemini"]


def install(env: dict[str, str], state: Path) -> Path:
    return installed_hooks.install_hooks(GEMINI(env), state)


def uninstall(env: dict[str, str], state: Path) -> Path | None:
    return installed_hooks.uninstall_hooks(GEMINI(env), state)


def is_installed(env: dict[str, str]) -> bool:
    return installed_hooks.is_installed(GEMINI(env))


# ---- any settings -------------------------------------------------------------------------------------------------

USERS_GROUP = st.just({"matcher": "write.*", "hooks": [{"name": "lint", "type": "command", "command": "a // b /* c"}]})
USERS_HOOKS = st.dictionaries(
    st.sampled_from(["BeforeTool", "AfterTool", "SessionEnd"]), st.lists(USERS_GROUP, max_size=2), max_size=3
)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.floats(allow_nan=False, allow_infinity=False)
)
VALUE = st.recursive(
    SCALAR, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=6
)
SETTINGS = st.builds(
    lambda rest, hooks: {**rest, **({} if hooks is None else {"hooks": hooks})},
    st.dictionaries(st.text(max_size=4).filter(lambda k: k != "hooks"), VALUE, max_size=4),
    st.none() | USERS_HOOKS,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Settings as a person may have written them: any blanks, comments and trailing commas."""
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    gaps = st.sampled_from(["", "", " ", newline, newline + "  ", "\t", f"// it's {{ [{newline}", '/* "x": 1, */'])
    commas = st.sampled_from(["", ","])

    def gap() -> str:
        return draw(gaps)

    def write(value: Any) -> str:
        if isinstance(value, dict):
            parts = [f"{gap()}{json.dumps(k)}{gap()}:{gap()}{write(v)}{gap()}" for k, v in value.items()]
        elif isinstance(value, list):
            parts = [f"{gap()}{write(v)}{gap()}" for v in value]
        else:
            return json.dumps(value)
        body = ",".join(parts) + (draw(commas) if parts else "")
        return ("{%s%s}" if isinstance(value, dict) else "[%s%s]") % (body, gap())

    return f"{gap()}{write(draw(SETTINGS))}{gap()}"


def lean(value: Any) -> Any:
    """Without empty lists of hooks."""
    hooks = {event: groups for event, groups in value.get("hooks", {}).items() if groups}
    return {**{k: v for k, v in value.items() if k != "hooks"}, **({"hooks": hooks} if hooks else {})}


@settings(deadline=None, max_examples=examples(200))
@given(texts())
def test_what_goes_in_comes_out_again(text: str) -> None:
    before = installed_hooks.parse_jsonc(text).value
    new = insert_hooks(text, HOOKS)
    after = installed_hooks.parse_jsonc(new.text).value
    assert has_our_hooks(new.text) and not has_our_hooks(text)
    assert {k: v for k, v in after.items() if k != "hooks"} == {k: v for k, v in before.items() if k != "hooks"}
    for event in {*after["hooks"], *before.get("hooks", {})}:
        assert after["hooks"][event] == [*HOOKS.get(event, []), *before.get("hooks", {}).get(event, [])]
    assert restore_text(new.text, new.pieces) == text


@settings(deadline=None, max_examples=examples(200))
@given(texts(), texts())
def test_our_entries_leave_whatever_became_of_the_file(text: str, other: str) -> None:
    """Rewritten by Gemini or by hand: found by name. A second list stands for what the person added meanwhile."""
    new = insert_hooks(text, HOOKS)
    value = installed_hooks.parse_jsonc(new.text).value
    added = installed_hooks.parse_jsonc(other).value.get("hooks", {})
    for event, groups in added.items():
        value["hooks"].setdefault(event, []).extend(groups)
    for edited in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, indent="\t")):
        left = restore_text(edited, new.pieces)
        assert not has_our_hooks(left)
        wanted = installed_hooks.parse_jsonc(text).value
        hooks = {**wanted.get("hooks", {})}
        for event, groups in added.items():
            hooks[event] = [*hooks.get(event, []), *groups]
        assert lean(installed_hooks.parse_jsonc(left).value) == lean({**wanted, "hooks": hooks})


@settings(deadline=None, max_examples=examples(200))
@given(texts())
def test_removal_by_name_leaves_every_other_value_and_comment(text: str) -> None:
    left = remove_hooks(insert_hooks(text, HOOKS).text)
    assert lean(installed_hooks.parse_jsonc(left).value) == lean(installed_hooks.parse_jsonc(text).value)
    assert left.count("it's {") == text.count("it's {") and left.count("/*") == text.count("/*")


@pytest.mark.parametrize("text", ["[]", "1", "", "// x", "{", '{"a":}', '{"a" 1}', '{"a":1 "b":2}', "{} {}", "{,}"])
def test_what_is_not_settings_is_refused(text: str) -> None:  # fmt: skip
    with pytest.raises(ValueError):
        insert_hooks(text, HOOKS)


@pytest.mark.parametrize("text", ['{"hooks": []}', '{"hooks": null}', '{"hooks": {"BeforeTool": {}}}'])
def test_hooks_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hooks"):
        insert_hooks(text, HOOKS)


def test_a_name_given_twice_means_the_last_as_in_javascript() -> None:
    text = '{"hooks": {"BeforeTool": [1]}, "hooks": {"BeforeTool": [2]}}'
    new = insert_hooks(text, {"BeforeTool": HOOKS["BeforeTool"]})
    assert installed_hooks.parse_jsonc(new.text).value["hooks"]["BeforeTool"] == [*HOOKS["BeforeTool"], 2]
    assert restore_text(new.text, new.pieces) == text


# ---- the file -----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".gemini").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    return {"HOME": str(home)}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


MINE = b'{\r\n  // mine\r\n  "theme": "x", "hooks": {"BeforeTool": []}\r\n}'


def test_in_and_out_is_the_same_file(home: Path, env: dict[str, str], state: Path) -> None:
    path = home / ".gemini" / "settings.json"
    path.write_bytes(MINE)
    path.chmod(0o640)
    assert install(env, state) == path
    assert is_installed(env) and path.stat().st_mode & 0o777 == 0o640
    assert installed_hooks.parse_jsonc(path.read_text()).value["theme"] == "x"
    assert uninstall(env, state) == path
    assert path.read_bytes() == MINE and path.stat().st_mode & 0o777 == 0o640
    assert not is_installed(env) and list((state / "installed").iterdir()) == []
    assert uninstall(env, state) is None


def test_a_file_that_was_not_there_is_not_there_again(tmp_path: Path, state: Path) -> None:
    env = {"HOME": "/nowhere", "GEMINI_CLI_HOME": str(tmp_path / "other")}
    path = install(env, state)
    assert path == tmp_path / "other" / ".gemini" / "settings.json"
    assert path.stat().st_mode & 0o777 == 0o600
    uninstall(env, state)
    assert not path.exists()


def test_installing_twice_is_installing_once(home: Path, env: dict[str, str], state: Path) -> None:
    path = home / ".gemini" / "settings.json"
    path.write_bytes(MINE)
    install(env, state)
    once = path.read_bytes()
    install(env, state)
    assert path.read_bytes() == once
    uninstall(env, state)
    assert path.read_bytes() == MINE


def test_what_the_person_changed_meanwhile_stays_to_the_byte(home: Path, env: dict[str, str], state: Path) -> None:
    path = home / ".gemini" / "settings.json"
    path.write_bytes(MINE)
    install(env, state)
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"y" /* new */'))
    uninstall(env, state)
    assert path.read_bytes() == MINE.replace(b'"x"', b'"y" /* new */')


def test_without_the_way_back_the_entries_are_found_by_name(home: Path, env: dict[str, str], state: Path) -> None:
    path = home / ".gemini" / "settings.json"
    path.write_bytes(MINE)
    install(env, state)
    for memo in (state / "installed").iterdir():
        memo.write_text("{")
    uninstall(env, state)
    assert not is_installed(env)
    assert installed_hooks.parse_jsonc(path.read_text()).value == {"theme": "x"}
    assert "// mine" in path.read_text()


def test_a_link_is_written_through(home: Path, env: dict[str, str], state: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "gemini.json"
    real.parent.mkdir()
    real.write_bytes(MINE)
    link = home / ".gemini" / "settings.json"
    link.symlink_to(real)
    assert install(env, state) == installed_hooks.settings_path(GEMINI(env)) == real
    assert link.is_symlink() and NAME in real.read_text()
    uninstall(env, state)
    assert link.is_symlink() and real.read_bytes() == MINE


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"hooks": 1}', b"[" * 100_000])
def test_a_file_that_is_not_understood_is_left_alone(home: Path, env: dict[str, str], state: Path, data: bytes) -> None:
    path = home / ".gemini" / "settings.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="nothing was changed"):
        install(env, state)
    assert path.read_bytes() == data


def test_the_way_back_is_private(home: Path, env: dict[str, str], state: Path) -> None:
    """Settings may hold keys."""
    (home / ".gemini" / "settings.json").write_bytes(MINE)
    install(env, state)
    (memo,) = (state / "installed").iterdir()
    assert memo.stat().st_mode & 0o077 == 0


# ---- the hook -----------------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("name", INSTALLS)
BEFORE = {"gemini": "BeforeTool", "qwen": "PreToolUse", "claude": "PreToolUse"}
FILES = {"gemini": ".gemini/settings.json", "qwen": ".qwen/settings.json", "claude": ".claude/settings.json"}


def of(name: str, home: str = "/nowhere") -> HooksToInstall:
    return INSTALLS[name]({"HOME": home})


def call(name: str, event: str, *words: str, **env: str) -> tuple[int, str]:
    """As the agent runs it, with a shell; `words` stand on the agent's own command line."""
    line = of(name).hooks[event][0]["hooks"][0]["command"]
    agent = "import subprocess, sys; sys.exit(subprocess.run(['sh', '-c', sys.argv[1]]).returncode)"
    if name != "claude":
        agent = agent.replace("'sh'", "'bash'")
    done = subprocess.run(
        [sys.executable, "-c", agent, line, *words],
        env={"PATH": os.environ["PATH"], **env},
        input="{}",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@EACH
def test_the_agents_settings(name: str) -> None:
    assert of(name).settings == Path("/nowhere") / FILES[name]


@EACH
@pytest.mark.parametrize("env", [{}, {"WAL_AGENT_RUN": "r"}, {"WAL_AGENT_SOCKET": "/s"}])
def test_outside_a_run_the_hook_allows_and_says_nothing(name: str, env: dict[str, str]) -> None:
    assert call(name, BEFORE[name], **env) == (0, "")


@EACH
def test_in_a_run_that_does_not_answer_the_tool_is_refused(name: str, tmp_path: Path) -> None:
    env = {"WAL_AGENT_RUN": "r", "WAL_AGENT_SOCKET": str(tmp_path / "no $HOME 'here'/hook.sock")}
    code, said = call(name, BEFORE[name], **env)
    assert code == 0 and "wal-agent did not run this" in said
    after = next(event for event in of(name).hooks if event.startswith(("After", "Post")))
    assert call(name, after, **env) == (0, "")


@EACH
def test_an_agent_that_has_the_runs_own_hooks_needs_none_of_these(name: str, tmp_path: Path) -> None:
    env = {"WAL_AGENT_RUN": "r", "WAL_AGENT_SOCKET": str(tmp_path / "run/hook.sock"), "HOME": str(tmp_path)}
    words = ["--settings", str(tmp_path / "run/settings.json")]
    (tmp_path / FILES[name]).parent.joinpath("extensions/wal-agent-r").mkdir(parents=True)
    assert call(name, BEFORE[name], *(words if name == "claude" else []), **env) == (0, "")


def test_a_gemini_that_loaded_the_runs_extension_needs_none_of_these(tmp_path: Path) -> None:
    """Its pid says so, so that a Gemini which one of its tools starts is not taken for it."""
    line = of("gemini").hooks["BeforeTool"][0]["hooks"][0]["command"]
    env = {"PATH": os.environ["PATH"], "WAL_AGENT_RUN": "r", "WAL_AGENT_SOCKET": str(tmp_path / "hook.sock")}

    def said(pid: int) -> str:
        own = {**env, "HOME": str(tmp_path), "GEMINI_CLI_WAL_AGENT_HOOKS": str(pid)}
        return subprocess.run(["bash", "-c", line], env=own, input="{}", capture_output=True, text=True).stdout

    assert said(os.getpid()) == ""
    assert "wal-agent did not run this" in said(1)


@EACH
def test_every_entry_is_marked_and_comes_out_again(name: str, tmp_path: Path) -> None:
    wanted = of(name, str(tmp_path))
    assert all(has_our_hooks(json.dumps({"hooks": {event: groups}})) for event, groups in wanted.hooks.items())
    wanted.settings.parent.mkdir()
    wanted.settings.write_text('{"hooks": {"Stop": []}} // mine')
    installed_hooks.install_hooks(wanted, tmp_path / "state")
    assert installed_hooks.is_installed(wanted)
    installed_hooks.uninstall_hooks(wanted, tmp_path / "state")
    assert wanted.settings.read_text() == '{"hooks": {"Stop": []}} // mine'
