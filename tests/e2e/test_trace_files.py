"""How many files a reader passes for one hook, one tool call and one recovery (scripts/trace_files.py).

The limits are today's counts; they go up only for a new subject (the checkpoint in a recovery, messages behind a tool
call, the tree that is saved at the first prompt, the reading of a command that may be an open call again, the calls
whose processes are left, a call that is made for ever, the one budget for foreign bytes). The goal is 25 for a hook and
45 for a recovery; before the packages were reorganized they were 63, 79 and 127.
"""

from __future__ import annotations

from scripts.trace_files import count

LIMITS = {"hook": 37, "tool_call": 50, "recovery": 73}


def test_the_paths_grow_no_longer() -> None:
    found = count()
    assert {name: len(files) for name, files in found.items() if len(files) > LIMITS[name]} == {}, found
