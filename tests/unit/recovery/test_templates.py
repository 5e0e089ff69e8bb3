"""A project's own prompts: hostile templates are refused by what they could cost, honest ones are used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from tests.unit.recovery.test_prompt import TOLD
from wal_agent import wording
from wal_agent.config import Consents
from wal_agent.recovery.prompt import (
    MAX_TEMPLATE_SIZE,
    MAX_TOKENS,
    PROMPT_FOLDER,
    TEMPLATE_NAMES,
    Templates,
    estimate_tokens,
    find_fault,
    load_templates,
    read_protocol,
    render_prompt,
)
from wal_agent.supervise.settings import prompt_wants

OWN = """\
{{ what_happened }} Ours:
{% for c in calls %}
{{ loop.index }}. {{ c.tool }} {{ c.cls | upper }} {% if c.finding %}{{ c.finding }}{% endif %}
{{ c.input }}
{% endfor %}
{% include "_rules.md" %}
"""


def consented(workspace: Path) -> dict[str, str]:
    """An environment in which the person has allowed what the project says."""
    env = {"XDG_STATE_HOME": str(workspace / "state")}
    Consents(workspace, env).allow(prompt_wants(workspace))
    return env


def loaded(workspace: Path) -> Templates:
    return load_templates(workspace, consented(workspace))


def protocol(workspace: Path) -> str:
    return read_protocol(workspace, consented(workspace))


def write(workspace: Path, name: str, text: str | bytes) -> Path:
    path = workspace / PROMPT_FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_what_ships_could_be_a_projects_own(name: str) -> None:
    """The constructs that our own texts need are possible in a project's."""
    assert find_fault(name, (wording.FOLDER / name).read_text()) is None


def test_a_projects_own_text_is_used(tmp_path: Path) -> None:
    write(tmp_path, "recovery.md", OWN)
    found = loaded(tmp_path)
    assert found.problems == ()
    text = render_prompt(TOLD, found)
    assert "Ours:\n1. `run_shell_command` UNKNOWN unknown" in text and "Rules: what is read-only" in text
    assert "git push origin main" in text
    assert render_prompt(replace(TOLD, calls=()), found) == render_prompt(replace(TOLD, calls=()))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for c in calls %}{% for d in calls %}x{% endfor %}{% endfor %}", "not inside another"),
        ("{% for c in range(10**9) %}x{% endfor %}", "a loop can only go over calls, finished, leftovers, lost"),
        ("{% for c in what_happened %}x{% endfor %}", "a loop can only go over"),
        ("{% for c in calls recursive %}{{ c.x }}{% endfor %}", "a loop can only go over"),
        ("{{ 'x' * 10**10 }}{% include '_calls.md' %}", "line 1: Mul is not possible"),
        ("\n{{ 10**10**10 }}{% include '_calls.md' %}", "line 2: Pow is not possible"),
        ("{% set a = what_happened %}{% include '_calls.md' %}", "Assign is not possible"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "Macro is not possible"),
        ("{{ what_happened.__class__.__mro__ }}{{ cycler('a') }}", "Call is not possible"),
        ("{{ what_happened ~ what_happened }}{% include '_calls.md' %}", "Concat is not possible"),
        ("{{ what_happened | center(10000000000) }}{% include '_calls.md' %}", "the filter center is not possible"),
        ("{% include '_calls.md' %}{% include '../../../etc/passwd' %}", "only _calls.md, _rules.md, _state.md can be"),
        ("{% include '_calls.md' %}{% include what_happened %}", "only _calls.md"),
        ("{% extends '_calls.md' %}", "Extends is not possible"),
        ("{% import '_calls.md' as x %}", "Import is not possible"),
        ("{% include '_calls.md' %}{{ 1 if }}", "line 1: "),
        ("{% include '_calls.md' %}" + "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "nested too deeply"),
        ("All is well.", "it does not tell the calls in flight"),
        ("{% include '_rules.md' %}{% for c in finished %}{{ c }}{% endfor %}", "it does not tell the calls in flight"),
    ],
)
def test_what_could_cost_or_hide_too_much_is_refused(text: str, why: str, tmp_path: Path) -> None:
    """I8, I9: what is in flight is told whatever the project says, in bounded time and size."""
    write(tmp_path, "recovery.md", text)
    found = loaded(tmp_path)
    assert not found.own and len(found.problems) == 1
    assert found.problems[0].startswith(".wal-agent/prompts/recovery.md is not used: ") and why in found.problems[0]


def test_what_cannot_be_read_is_told_and_not_used(tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text(OWN)
    workspace = tmp_path / "w"
    path = write(workspace, "recovery.md", "")
    path.unlink()
    path.symlink_to(outside)
    os.mkfifo(write(workspace, "x", "").with_name("cut_off.md"))
    write(workspace, "preempted.md", b"\xff\xfe")
    write(workspace, "start_again.md", " " * (MAX_TEMPLATE_SIZE + 1))
    write(workspace, "protocol.md", b"\xff")
    found = loaded(workspace)
    assert not found.own
    assert [p.partition("not used: ")[2] for p in found.problems] == [
        "it is a link that leads out of the workspace, and is not followed.",
        "it is not UTF-8 text.",
        "it is not a file.",
        "it is larger than 32 KiB, and is not read.",
    ]
    assert protocol(workspace) == protocol(tmp_path)
    write(workspace, "protocol.md", "Be careful. {{ not a template }}")
    assert protocol(workspace) == "Be careful. {{ not a template }}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% include '_calls.md' %}{{ nothing_of_the_kind }}", "is undefined"),
        ("{% include '_calls.md' %}{{ more | join(more) }}", "not iterable"),
        ("{% include '_calls.md' %}" + "much " * 6000, "has more than 4000 tokens"),
        ("{% include '_calls.md' %}" + "{% if more %}" * 150 + "{% endif %}" * 150, "recovery.md"),
    ],
)
def test_what_fails_when_it_is_needed_gives_way_to_ours(text: str, why: str, tmp_path: Path) -> None:
    write(tmp_path, "recovery.md", text)
    found = loaded(tmp_path)
    assert found.own and not found.problems
    told = render_prompt(TOLD, found)
    assert "Note: " in told and why in told and "wal-agent's own text is used" in told
    assert "git push origin main" in told and estimate_tokens(told) <= MAX_TOKENS


PIECES = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{%",
            "%}",
            "{#",
            "#}",
            "for c in calls",
            "endfor",
            "if more",
            "endif",
            "else",
            "include '_calls.md'",
        ),
        *("c.input", "loop.index", "what_happened", "| join(', ')", "| upper", "[0]", ".x", "'a'", "1", "==", "(", ")"),
        *("\n", " ", "text", "~", "*", "10**9", "set x = 1", "range(9)", "raw", "endraw", "-", "+", "\x00", "漢"),
    ]
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=200))
def test_no_text_crashes_or_hangs(text: str) -> None:
    text += "{% include '_calls.md' %}"
    if find_fault("recovery.md", text) is None:
        told = render_prompt(TOLD, Templates({"recovery.md": text}))
        assert "git push origin main" in told and estimate_tokens(told) <= MAX_TOKENS
