"""The recovery prompt as the user's last words in the restored session: there it arrives byte for byte, and stays."""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.pi.resume import entry_time, free_id, new_entry
from wal_agent.agents.pi.session import Entry, Tree, dump_tree, load_tree, mend_head
from wal_agent.agents.session_files import decode_json, encode_json

TITLE = "[wal-agent recovery]\n"  # before a prompt that would be dropped from the history


def inject_prompt(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once. `main` is empty or what `reconcile` made: only its end is read, and one line added."""
    main = main or _head_of(session, workspace)
    last = _last_entry(main)
    text = prompt if prompt.strip() else TITLE + prompt
    content = [{"type": "text", "text": text}]
    if last.role == "user" and last.message.get("content") == content:
        return main
    beside = Tree(entries=[last])
    parent = last.id if last.value.get("type") != "session" else ""
    name = f"{session} {parent} {text!r}"
    while f'"{(new := free_id((), name))}"'.encode() in main:
        name += "+"
    message = {"role": "user", "content": content, "timestamp": entry_time(beside)}
    return main + encode_json(new_entry(new, parent or None, beside.time, message).value) + b"\n"


def _head_of(session: str, workspace: Path) -> bytes:
    tree = load_tree(b"")
    mend_head(tree, session, workspace)
    return dump_tree(tree)


def _last_entry(main: bytes) -> Entry:
    """The last entry that others can hang on, else the head, of a file whose every line is a record."""
    end = len(main)
    while end > 0:
        begin = main.rfind(b"\n", 0, end - 1) + 1
        entry = Entry(decode_json(main[begin:end]))
        if entry.id or begin == 0:
            return entry
        end = begin
    return Entry({})
