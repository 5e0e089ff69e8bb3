"""bench/wording: the conversations hold the shipped texts, and probabilities are added up by the way to go on."""

from __future__ import annotations

import pytest

from bench.wording.cases import APART, KINDS, TOOLS, TUNED, case
from bench.wording.model import Model, write_prompt
from wal_agent.wording.messages import REFUSED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*TUNED, *APART])
def test_the_last_words_name_the_check_and_no_way_is_empty(name: str, kind: str) -> None:
    made = case(name, kind)
    said = " ".join(message["content"] for message in made.messages[-2:])
    assert made.ways["verify"] and made.ways["repeat"] and "run `" in " ".join(m["content"] for m in made.messages)
    assert any(way.removeprefix(' "') in said for way in made.ways["verify"])
    assert made.messages[-1]["content"].startswith(REFUSED) is (kind == "refusal")
    prompt = write_prompt(made.messages, TOOLS)
    assert prompt.endswith("<|im_start|>assistant\n") and prompt.count("<|im_start|>") == len(made.messages) + 1


def test_the_longest_beginning_wins_and_unlikely_tokens_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {
        "": {" ./": 0.9, "x": 0.1},
        " ./": {"charge": 0.5, "charged": 0.25, "c": 0.25},
        " ./c": {"harge": 0.004, "at": 0.996},
    }
    model = Model("http://127.0.0.1:1", "m")
    monkeypatch.setattr(model, "next_tokens", tokens.__getitem__)
    found = model.spread("", {"repeat": (" ./charge",), "verify": (" ./charged",)})
    assert found == {"repeat": pytest.approx(0.9 * (0.5 + 0.25 * 0.004)), "verify": pytest.approx(0.9 * 0.25)}


def test_a_command_in_a_fence_is_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {
        "": {"```": 0.5, '{"': 0.2, "To": 0.3},
        "```": {"json": 0.25, "\n": 0.75},
    }
    model = Model("http://127.0.0.1:1", "m")
    monkeypatch.setattr(model, "next_tokens", tokens.__getitem__)
    assert model.begins_call("") == pytest.approx(0.2 + 0.5 * 0.25)
