"""redact/key_formats.json: gitleaks' rules, translated; and how that is done."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.update_key_formats import TARGET, beginnings, convert, translate, without_edges
from tests.tiers import examples
from wal_agent.redact import redact
from wal_agent.redact.keys import _entropy

FILE: dict[str, Any] = json.loads(Path(TARGET).read_text())


def test_the_file_names_its_source_version_and_licence() -> None:
    assert FILE["source"].startswith("https://github.com/gitleaks/gitleaks") and FILE["version"].startswith("v8.")
    assert FILE["licence"].startswith("MIT License") and "Zachary Rice" in FILE["licence"]
    assert len(FILE["formats"]) >= 90


@pytest.mark.parametrize("row", FILE["formats"], ids=lambda row: row["id"])
@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_key_of_each_format_is_found(row: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.from_regex(re.compile(row["regex"], re.ASCII), fullmatch=True))
    if not key.startswith(tuple(row["starts"])) or _entropy(key) <= row.get("entropy", 0.0):
        return  # in other letters than the issuer's, or such as no issuer makes
    assert key not in redact(f"it is {key} there")


@pytest.mark.parametrize(
    ("go", "python"),
    [
        (r"""\b(p8e-(?i)[a-z]{2})(?:[\x60'"\s;]|\\[nr]|$)""", r"(p8e-(?i:[a-z]{2}))"),
        (r"(?:a(?i)b|c)d", r"(?:a(?i:b)|(?i:c))d"),
        (r"(?i)\b(npm_[a-z]{3})\b", r"(?i:(npm_[a-z]{3}))"),
        (r"pat[[:alnum:]]{2}\z", r"pat[0-9A-Za-z]{2}\Z"),
        (r"[()|(?i)]x\(", r"[()|(?i)]x\("),
    ],
)
def test_what_go_has_is_rewritten(go: str, python: str) -> None:
    assert translate(without_edges(go)) == python
    re.compile(python)


def test_the_beginnings_of_a_pattern_are_its_fixed_letters() -> None:
    assert beginnings(r"((?:sk|rk)_(?:test|live)_[a-z]{9})") == ["rk_live_", "rk_test_", "sk_live_", "sk_test_"]
    assert beginnings(r"(?:ghu|ghs)_[0-9]{2}") == ["ghs_", "ghu_"]
    assert beginnings(r"[a-f0-9]{40}x") == [""]


def test_a_rule_that_is_left_out_has_a_reason() -> None:
    rows, left_out = convert(
        [
            {"id": "file", "path": "x"},
            {"id": "near", "regex": r"[\w.-]{0,50}?(?:acme)"},
            {"id": "bare", "regex": r"\b[0-9]{40}\b"},
            {"id": "good", "regex": r"\b(acme_[0-9]{4})\b", "entropy": 2},
        ]
    )
    assert set(left_out) == {"file", "near", "bare"} and all(left_out.values())
    assert rows == [{"id": "good", "starts": ["acme_"], "regex": "(acme_[0-9]{4})", "entropy": 2}]
