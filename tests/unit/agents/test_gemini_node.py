"""I6: one process instead of two must not mean V8's small default heap."""

from __future__ import annotations

from pathlib import Path

import psutil

from wal_agent.agents.gemini.node import gemini_node_command


def program(folder: Path, first: str = "#!/usr/bin/env node\n") -> Path:
    path = folder / "gemini"
    path.write_text(first + "rest\n")
    return path


def test_a_node_script_gets_half_of_the_memory_as_its_heap(tmp_path: Path) -> None:
    half = psutil.virtual_memory().total // 2 // (1 << 20)
    assert gemini_node_command(program(tmp_path), {"HOME": str(tmp_path)}) == ("node", f"--max-old-space-size={half}")


def test_anything_else_is_started_as_it_is(tmp_path: Path) -> None:
    assert gemini_node_command(program(tmp_path, "#!/bin/sh\n"), {"HOME": str(tmp_path)}) == ()
    assert gemini_node_command(tmp_path / "missing", {"HOME": str(tmp_path)}) == ()


def test_who_chose_a_heap_or_none_keeps_it(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert gemini_node_command(program(tmp_path), {**env, "NODE_OPTIONS": "--max-old-space-size=512"}) == ()
    (tmp_path / ".gemini").mkdir()
    settings = tmp_path / ".gemini" / "settings.json"
    settings.write_text('{"advanced": {"autoConfigureMemory": false}}')
    assert gemini_node_command(program(tmp_path), env) == ()
    settings.write_text("[not settings")
    assert gemini_node_command(program(tmp_path), env) != ()
