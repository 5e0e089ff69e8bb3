"""recovery/undo.py: which command is suggested, and where none is."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import classify_command
from wal_agent.calls.rules.table import load_rules
from wal_agent.recovery.undo import Undo, suggest_undo, undo_of_text, undo_of_words

CORPUS = Path(__file__).parents[1] / "calls/commands.jsonl"
KNOWN = {
    "git push origin main": "git push --force-with-lease origin 'origin/main@{1}:main'",
    "git -C 'a b' push origin main": "git -C 'a b' push --force-with-lease origin 'origin/main@{1}:main'",
    "git commit -am x": "git reset --soft 'HEAD~1'",
    "git tag v1 -m 'first; rm -rf /'": "git tag -d v1",
    "git rm a.txt": "git restore --staged --worktree -- a.txt",
    "kubectl -n shop apply -f k8s/ --server-side": "kubectl -n shop delete -f k8s/",
    "kubectl set image deploy/web web=web:2 -n shop": "kubectl rollout undo deploy/web -n shop",
    "helm upgrade --install shop ./chart -n prod --set a=b": "helm rollback shop -n prod",
    "helm install shop ./chart --kube-context=eu": "helm uninstall shop --kube-context=eu",
    "docker run -d --name web nginx": "docker rm --force web",
    "docker compose -f c.yml up -d": "docker compose -f c.yml down",
    "sudo apt-get install -y jq": "sudo apt-get remove jq",
    "pip install requests==2.0": "pip uninstall --yes requests",
    "systemctl stop nginx": "systemctl start nginx",
    "aws s3 cp a.txt s3://b/c.txt --profile eu": "aws s3 rm --profile eu s3://b/c.txt",
    "azcopy cp a.txt https://acme.blob.core.windows.net/con/c.txt": (
        "azcopy remove https://acme.blob.core.windows.net/con/c.txt"
    ),
    "az storage blob upload -f a.txt --account-name acme -c con --name=c.txt --account-key hidden": (
        "az storage blob delete --account-name acme -c con --name=c.txt"
    ),
    "cd sub && mkdir a": "cd sub && rmdir -- a",
    "sh -c 'mkdir a'": "rmdir -- a",
    "mv a 'b c'": "mv -n -- 'b c' a",
}


@pytest.mark.parametrize("text", KNOWN, ids=str)
def test_a_known_command_has_its_undo(text: str) -> None:
    found = undo_of_text(text, ReadCall("", b""))
    assert (found.kind, found.commands) == ("command", (KNOWN[text],))


@pytest.mark.parametrize(
    "text",
    [
        "KUBECONFIG=prod kubectl apply -f a",  # the undo would go to another cluster
        "export KUBECONFIG=prod; kubectl apply -f a",
        "kubectl apply -f $FILE",
        "kubectl apply -f -",
        "for f in a b; do kubectl apply -f $f; done",
        "echo hi | mail someone",
        "git() { rm -rf /; }; git push origin main",
        "charge 4",
        "mv a b/",
        "azcopy cp a.txt 'https://acme.blob.core.windows.net/con/c.txt?sv=1&sig=x'",
        "azcopy cp a.txt https://acme.blob.core.windows.net/con/folder",
        "az storage blob upload -f a.txt -c con",
        "",
        "echo 'unfinished",
        "git commit -m x; " * 300,
    ],
)
def test_what_cannot_be_read_for_certain_has_none(text: str) -> None:
    assert undo_of_text(text, ReadCall("", b"")) == Undo("unknown")


@pytest.mark.parametrize(
    "text", ["npm publish", "cargo publish", "docker push a/b", "rm -r out", "kubectl delete pod a"]
)
def test_what_nothing_takes_back_says_so(text: str) -> None:
    found = undo_of_text(text, ReadCall("", b""))
    assert found.kind == "impossible" and not found.commands and found.note


def test_commands_are_undone_in_the_opposite_order() -> None:
    found = undo_of_text("mkdir a && git tag v1", ReadCall("", b""))
    assert found.commands == ("git tag -d v1", "rmdir -- a")
    mixed = undo_of_text("mkdir a && ./deploy.sh", ReadCall("", b""))
    assert mixed.kind == "partial" and mixed.commands == ("rmdir -- a",) and "not all" in mixed.note
    assert undo_of_text("mkdir a && npm publish", ReadCall("", b"")).kind == "partial"


def test_a_look_changes_nothing() -> None:
    """Whatever else a text runs: deletions stood under "look"."""
    rules, texts = load_rules(), [row["cmd"] for row in map(json.loads, CORPUS.read_text("utf-8").splitlines())]
    texts += [f"{a} && {b}" for a, b in pairwise(texts)] + [f"./x && {text}" for text in KNOWN]
    looks = [
        each
        for text in texts
        if (found := undo_of_text(text, ReadCall("", b""))).kind == "look"
        for each in found.commands
    ]
    assert len(looks) > 20
    known = {each: classify_command(each, rules) for each in looks}
    changing = [each for each, found in known.items() if found.cls != "read_only" and not found.looks]
    assert changing == [], "what loads code of the folder to show something is no worse than a look"


def test_words_of_the_log_stay_words() -> None:
    evil = ["$(touch x)", "a;b", "`id`", "-rf", "a\nb", "\x1b[2J", "\u202ea"]
    for word in evil:
        for command in undo_of_words(["mkdir", word], ReadCall("", b"")).commands:
            assert command.isprintable()
            assert len(shlex.split(command.replace("$'", "'"))) == 3
    secret = "ghp_" + "a1B2c3D4e5" * 4
    assert secret not in str(undo_of_words(["git", "remote", "add", secret, "x"], ReadCall("", b"")))


def test_a_call_is_read_by_its_tool() -> None:
    rules = load_rules()
    call = json.dumps({"command": "git tag v1"}).encode()
    assert suggest_undo(ReadCall("run_shell_command", call), rules).commands == ("git tag -d v1",)
    codex = json.dumps({"command": ["bash", "-lc", "git tag v1"]}).encode()
    assert suggest_undo(ReadCall("shell", codex), rules).commands == ("git tag -d v1",)
    assert suggest_undo(ReadCall("mcp__pay", call), rules) == Undo("unknown")
    assert suggest_undo(ReadCall("run_shell_command", b"{"), rules) == Undo("unknown")
    assert suggest_undo(ReadCall("run_shell_command", b'{"command": 3}'), rules) == Undo("unknown")
    assert "restore" in suggest_undo(ReadCall("write_file", b'{"file_path": "a", "content": "b"}'), rules).note


@pytest.mark.parametrize("text", ["git reset", "git reset a.txt", "git reset HEAD a.txt", "git reset HEAD~1 -- a.txt"])
def test_a_reset_of_files_moves_no_head_back(text: str) -> None:
    assert undo_of_text(text, ReadCall("", b"")).kind == "look"
