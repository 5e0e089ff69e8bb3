"""Suggest how a call's effect could be undone: pure, from the words of the call.

A suggestion is for a person who cleans up; nothing here is ever run. The words come from a log, so each is quoted for a
shell. Where a command cannot be read for certain (expansions, pipes, loops, variables that choose a cluster), there is
no suggestion: an undo in the wrong place is a second accident.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from wal_agent.calls.call import ReadCall
from wal_agent.calls.rules.table import Rules
from wal_agent.calls.shell.syntax import Simple
from wal_agent.redact import redact
from wal_agent.text import quote_word

Kind = Literal["command", "partial", "look", "impossible", "unknown"]
MAX_TEXT: Final = 4_000  # characters of a command that is looked at
_MAX_COMMANDS: Final = 20
_HARMLESS: Final = frozenset(("cd", "true", "echo", "set", "sleep", "pwd", "exit", ":"))
_PUSHED: Final = "others may have fetched it; this rewinds the remote branch only if nobody has pushed since"
_RESETS: Final = ("--hard", "--keep", "--merge", "--soft", "--mixed")
_KUBE: Final = ("-n", "--namespace", "--context", "--kubeconfig")
_HELM: Final = ("-n", "--namespace", "--kube-context", "--kubeconfig")
_REPLACED: Final = "an object that was there before was replaced"
_AZ = ("--account-name", "--auth-mode", "--subscription", "-c", "--container-name", "-n", "--name")
_GONE: Final = "what was deleted is gone, but for backups; files of the working tree: wal-agent restore"
_MERGED: Final = "only while nothing was done after it"
_PUBLISHED: Final = "the version number is used up, and others may have it"
_NPM_PUBLISHED: Final = (
    "a published version number is used up, and others may have it; within 72 h npm unpublish "
    "may be allowed, later only: npm deprecate NAME@VERSION REASON"
)
_SENT: Final = "it was sent"

_VALUED: Final[Mapping[str, frozenset[str]]] = {  # options in front of the subcommand that take a value
    "git": frozenset(("-C", "--git-dir", "--work-tree")),
    "kubectl": frozenset(("-n", "--namespace", "--context", "--kubeconfig")),
    "helm": frozenset(("-n", "--namespace", "--kube-context", "--kubeconfig")),
    "terraform": frozenset(),
}

_A_COMMIT: Final = re.compile(r"(HEAD|@|ORIG_HEAD|[0-9a-f]{7,64})([~^@{}0-9]*)")  # and no path, which moves no HEAD
_HELM_VALUED: Final = (*_HELM, "-f", "--values", "--set", "--set-string", "--version", "--timeout", "--repo")

# The second as azcopy takes it, which does not show whether it is a folder; a SAS behind it would be a secret.
_OBJECT = re.compile(r"(?:s3|gs)://|https://[a-z0-9]{3,24}\.blob\.[a-z.]+/[a-z0-9-]+/[^?]*\.[^?/.]+$")


class Undo(msgspec.Struct, frozen=True):
    """How to undo one effect. `kind`: "command": `commands` undo it; "partial": they undo a part of it; "look": they
    only show what is there, since no command is known that undoes this and nothing else; "impossible": nothing takes
    it back; "unknown": no rule knows.
    `commands` can be pasted, redacted and quoted, in the order in which they are to be typed. `note`: what to know
    first, one sentence, or ""."""

    kind: Kind
    commands: tuple[str, ...] = ()
    note: str = ""


UNKNOWN: Final = Undo("unknown")


def suggest_undo(call: ReadCall, rules: Rules) -> Undo:
    """Return how the effect of a call could be undone."""
    fields = call.fields
    if fields is None:
        return UNKNOWN
    shell = rules.shells.get(call.tool)
    if shell is not None:
        command = fields.get(shell.field)
        if isinstance(command, str):
            return undo_of_text(command, call)
        words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
        return undo_of_words(words, call)
    if call.tool in rules.files:
        note = "a file of the working tree: wal-agent restore --at RECORD --to DIR has it as it was"
        return Undo("unknown", note=note)
    return UNKNOWN


def undo_of_text(text: str, call: ReadCall) -> Undo:
    """Return how to undo shell text of a call: the undoing of each of its commands, the last one first."""
    script = call.parse(text) if len(text) <= MAX_TEXT else None
    if script is None or script.functions or not 0 < len(script.commands) <= _MAX_COMMANDS:
        return UNKNOWN
    folder: list[str] = []
    found: list[Undo] = []
    for command in script.commands:
        words = _literal(command)
        if words is None:
            return UNKNOWN
        if words[0] == "cd" and len(words) == 2:
            folder.append(_typed(words))
            continue
        if words[0] in _HARMLESS:
            continue
        one = undo_of_words(words, call)
        found.append(Undo(one.kind, tuple(" && ".join((*folder, each)) for each in one.commands), one.note))
    if not found:
        return UNKNOWN
    kinds = {one.kind for one in found}
    first: tuple[Kind, ...] = ("command", "partial", "look", "impossible", "unknown")
    kind = next(each for each in first if each in kinds)
    shown = [one for one in reversed(found) if one.kind == kind or (kind, one.kind) == ("command", "partial")]
    notes = dict.fromkeys(one.note for one in reversed(found) if one.note)
    if "unknown" in kinds and kind != "unknown":
        notes = {"not all of the commands are known": None, **notes}
    if kind == "command" and kinds != {"command"}:
        kind = "partial"
    return Undo(kind, tuple(each for one in shown for each in one.commands), "; ".join(notes))


def undo_of_words(words: Sequence[str], call: ReadCall) -> Undo:
    """Return how to undo one command of a call, given as its words without quotes."""
    if len(words) == 3 and words[0].rpartition("/")[2] in ("sh", "bash", "zsh") and words[1] in ("-c", "-lc"):
        return undo_of_text(words[2], call)
    if len(words) > 2 and words[0] == "sudo" and not words[1].startswith("-") and "=" not in words[1]:
        one = undo_of_words(words[1:], call)
        return Undo(one.kind, tuple(f"sudo {each}" for each in one.commands), one.note)
    for length in (4, 3, 2, 1):
        rule = _RULES.get(" ".join(words[:length])) if len(words) >= length else None
        if rule is not None:
            return rule(words[length:])
    program = words[0] if words else ""
    if program in _VALUED:  # options of the program before its subcommand: git -C DIR push
        moved, rest = _split(words[1:], _VALUED[program])
        if moved and rest:
            one = undo_of_words((program, *rest), call)
            front = _typed((program, *moved))
            changed = tuple(each.replace(f"{program} ", f"{front} ", 1) for each in one.commands)
            return Undo(one.kind, changed, one.note)
    return UNKNOWN


def _literal(command: Simple) -> list[str] | None:
    if not command.sure or command.assigns or not command.words:
        return None
    words = [word.text for word in command.words if word.text is not None]
    return words if len(words) == len(command.words) and words[0] not in ("export", "source", ".", "eval") else None


def _typed(words: Sequence[str]) -> str:
    return redact(" ".join(quote_word(word) for word in words))


def _split(words: Sequence[str], valued: frozenset[str]) -> tuple[list[str], Sequence[str]]:
    """The leading options, and the rest."""
    i = 0
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in valued else 1
    return list(words[:i]), words[i:]


def _operands(words: Sequence[str], valued: Sequence[str] = ()) -> list[str]:
    """The words that are neither options nor the values of those in `valued`."""
    found, i = list[str](), 0
    while i < len(words):
        if words[i] == "--":
            return [*found, *words[i + 1 :]]
        if words[i].startswith("-") and words[i] != "-":
            i += 2 if words[i] in valued else 1
            continue
        found.append(words[i])
        i += 1
    return found


def _kept(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Of the words those options, with their values: -n shop, --namespace=shop."""
    found = list[str]()
    for i, word in enumerate(words):
        if word in options and i + 1 < len(words):
            found += (word, words[i + 1])
        elif word.partition("=")[0] in options and "=" in word:
            found.append(word)
    return found


Rule = Callable[[Sequence[str]], Undo]


def _command(*words: str, note: str = "") -> Undo:
    return Undo("command", (_typed(words),), note)


def _fixed(kind: Kind, note: str, *commands: str) -> Rule:
    return lambda _: Undo(kind, commands, note)


def _inverse(*front: str, valued: Sequence[str] = (), note: str = "", keep: Sequence[str] = ()) -> Rule:
    """The undoing is `front` with all operands of the command, and its options `keep`."""

    def rule(words: Sequence[str]) -> Undo:
        operands = _operands(words, (*valued, *keep))
        return _command(*front, *_kept(words, keep), *operands, note=note) if operands else UNKNOWN

    return rule


def _one(*front: str, valued: Sequence[str] = (), note: str = "", keep: Sequence[str] = ()) -> Rule:
    """As `_inverse`, with the first operand alone."""

    def rule(words: Sequence[str]) -> Undo:
        operands = _operands(words, (*valued, *keep))[:1]
        return _command(*front, *_kept(words, keep), *operands, note=note) if operands else UNKNOWN

    return rule


def _git_push(words: Sequence[str]) -> Undo:
    names = _operands(words, ("-o", "--push-option", "--repo", "--receive-pack"))
    bare = [w for w in words if w not in ("-u", "--set-upstream", "-q", "--quiet", "-v", "--verbose")]
    if len(names) == 2 and bare == names and ":" not in names[1] and not names[1].startswith("+"):
        remote, branch = names
        if branch == "HEAD":
            return Undo("look", (_typed(("git", "log", "-3", "--oneline", f"{remote}/HEAD")),), _PUSHED)
        back = ("git", "push", "--force-with-lease", remote, f"{remote}/{branch}@{{1}}:{branch}")
        return _command(*back, note=f"{_PUSHED}; or keep the history: git revert, then push")
    note = "undo on the remote: git revert and push again, or delete the pushed branch or tag"
    return Undo("look", ("git reflog --remotes -5",), note) if names else Undo("look", ("git status -sb",), note)


def _git_commit(words: Sequence[str]) -> Undo:
    note = "only while it is the newest commit and was not pushed; else: git revert COMMIT"
    return _command("git", "reset", "--soft", "HEAD@{1}" if "--amend" in words else "HEAD~1", note=note)


def _git_reset(words: Sequence[str]) -> Undo:
    mode = next((word for word in words if word in _RESETS), "--mixed")
    names = _operands(words)
    if mode == "--mixed" and ("--" in words or len(names) != 1 or not _A_COMMIT.fullmatch(names[0])):
        return Undo(
            "look", ("git status -sb",), "what was staged is still in the files; with a commit, HEAD moved to it"
        )
    note = "changes that were not committed and were discarded are gone, but for wal-agent restore"
    kept = {"--mixed": (), "--soft": ("--soft",)}.get(mode, ("--keep",))
    return _command("git", "reset", *kept, "HEAD@{1}", note=note if mode == "--hard" else "")


def _git_name(kind: str) -> Rule:
    """A tag or a branch that was made."""

    def rule(words: Sequence[str]) -> Undo:
        if any(w in ("-d", "-D", "--delete", "-M", "--move", "-f", "--force") for w in words) or "-m" in words[:1]:
            return Undo("look", ("git reflog -20",), f"the {kind} that was there before is in the reflog, if anywhere")
        return _one("git", kind, "-d", valued=("-m", "-F", "-u"))(words)

    return rule


def _git_stash(words: Sequence[str]) -> Undo:
    if not words or words[0] in ("push", "save"):
        return _command("git", "stash", "pop")
    if words[0] in ("pop", "apply"):
        return _command("git", "stash", "push")
    return Undo("impossible", note="a dropped stash can only be found by git fsck --unreachable")


def _kubectl_apply(words: Sequence[str]) -> Undo:
    files = _kept(words, ("-f", "--filename", "-k", "--kustomize"))
    if not files or "-" in files:
        return UNKNOWN
    note = "this deletes what was created; what existed before must be applied again in its old form"
    return _command("kubectl", "delete", *files, *_kept(words, _KUBE), note=note)


def _kubectl_create(words: Sequence[str]) -> Undo:
    if _kept(words, ("-f", "--filename", "-k", "--kustomize")):
        return _kubectl_apply(words)
    names = _operands(words, _KUBE)
    return _command("kubectl", "delete", *names[:2], *_kept(words, _KUBE)) if len(names) == 2 else UNKNOWN


def _kubectl_rollout(words: Sequence[str]) -> Undo:
    names = _operands(words, (*_KUBE, "--to-revision"))
    if not names or names[0] not in ("undo", "restart"):
        return UNKNOWN
    return _command("kubectl", "rollout", "undo", *names[1:], *_kept(words, _KUBE))


def _kubectl_set(words: Sequence[str]) -> Undo:
    names = _operands(words, _KUBE)
    if len(names) < 3 or names[0] != "image":
        return UNKNOWN
    return _command("kubectl", "rollout", "undo", names[1], *_kept(words, _KUBE))


def _helm(verb: str, note: str = "") -> Rule:
    def rule(words: Sequence[str]) -> Undo:
        names = _operands(words, _HELM_VALUED)
        return _command("helm", verb, names[0], *_kept(words, _HELM), note=note) if names else UNKNOWN

    return rule


def _docker_run(words: Sequence[str]) -> Undo:
    name = _kept(words, ("--name",))
    note = "what the container did outside of itself (mounts, network) stays"
    if name:
        return _command("docker", "rm", "--force", name[-1].removeprefix("--name="), note=note)
    if "--rm" in words and not {"-d", "--detach"} & set(words):
        return Undo("look", ("docker ps",), f"the container was removed when it ended; {note}")
    return Undo("look", ("docker ps --all -n 5",), f"it has no name: find it, then docker rm --force ID; {note}")


def _docker_build(words: Sequence[str]) -> Undo:
    tags = [w.removeprefix("--tag=") for w in _kept(words, ("-t", "--tag")) if w not in ("-t", "--tag")]
    return _command("docker", "rmi", *tags) if tags else Undo("look", ("docker images",))


def _compose(words: Sequence[str]) -> Undo:
    options = ("-f", "--file", "-p", "--project-name")
    verb = _operands(words, options)[:1]
    if verb == ["up"]:
        note = "also what ran of this project before; volumes and their data stay"
        return _command("docker", "compose", *_kept(words, options), "down", note=note)
    return _command("docker", "compose", *_kept(words, options), "up", "--detach") if verb == ["down"] else UNKNOWN


def _installed(*front: str, valued: Sequence[str] = ()) -> Rule:
    """Packages that were named; a project's own list of them (npm install alone) names none."""

    def rule(words: Sequence[str]) -> Undo:
        names = _operands(words, valued)
        if not names or any(w in ("-r", "--requirement", "-e", "--editable") or "/" in w for w in words):
            return UNKNOWN
        plain = [name.partition("==")[0].rstrip("<>~=!") for name in names]
        return _command(*front, *plain, note="packages that came with them stay; an older version was replaced")

    return rule


def _move(words: Sequence[str]) -> Undo:
    names = _operands(words, ("-t", "--target-directory", "-S"))
    if len(names) != 2 or set(words) & {"-t", "--target-directory"} or names[1].endswith(("/", ".")):
        return UNKNOWN
    return _command("mv", "-n", "--", names[1], names[0], note="a file that was there before was replaced and is gone")


def _az_upload(words: Sequence[str]) -> Undo:
    """Without a name it takes the file's."""
    kept = _kept(words, _AZ)
    given = {word.partition("=")[0] for word in kept}
    if not (given & {"-c", "--container-name"} and given & {"-n", "--name"}):
        return UNKNOWN
    return _command("az", "storage", "blob", "delete", *kept, note=_REPLACED)


def _cloud_copy(*remove: str) -> Rule:
    """A copy into a bucket."""

    def rule(words: Sequence[str]) -> Undo:
        names = _operands(words, ("--profile", "--region", "--endpoint-url", "--acl", "--storage-class"))
        if len(names) != 2 or not _OBJECT.match(names[1]) or names[1].endswith("/"):
            return UNKNOWN
        context = _kept(words, ("--profile", "--region", "--endpoint-url"))
        return _command(*remove, *context, names[1], note=_REPLACED)

    return rule


def _applied(program: str) -> Rule:
    note = "to go back, apply the configuration from before; the command shows all that is managed, not just this apply"
    return _fixed("look", note, f"{program} state list")


_RULES: Final[Mapping[str, Rule]] = {
    "git push": _git_push,
    "git commit": _git_commit,
    "git reset": _git_reset,
    "git tag": _git_name("tag"),
    "git branch": _git_name("branch"),
    "git stash": _git_stash,
    **dict.fromkeys(("git merge", "git pull", "git rebase"), _fixed("command", _MERGED, "git reset --keep ORIG_HEAD")),
    **dict.fromkeys(
        ("git cherry-pick", "git revert"),
        _fixed("command", f"{_MERGED}; one commit was added", "git reset --keep HEAD~1"),
    ),
    "git switch": _fixed("command", "goes to the branch before, if nobody has switched since", "git switch -"),
    "git add": _inverse("git", "restore", "--staged", "--"),
    "git rm": _inverse("git", "restore", "--staged", "--worktree", "--", note="the files as they were committed"),
    "git clean": _fixed("impossible", _GONE),
    "git remote add": _one("git", "remote", "remove"),
    "git worktree add": _one("git", "worktree", "remove", valued=("-b", "-B")),
    "git clone": _fixed("look", "delete the folder that it made", "ls -t"),
    "kubectl apply": _kubectl_apply,
    "kubectl create": _kubectl_create,
    "kubectl rollout": _kubectl_rollout,
    "kubectl set": _kubectl_set,
    "kubectl cordon": _inverse("kubectl", "uncordon", keep=_KUBE),
    "kubectl drain": _inverse("kubectl", "uncordon", keep=_KUBE, note="pods that were evicted run elsewhere"),
    "kubectl delete": _fixed("impossible", "apply the manifest again; data of deleted volumes is gone"),
    "kubectl scale": _fixed("look", "scale back to the number from before", "kubectl get deployments"),
    "helm install": _helm("uninstall"),
    "helm upgrade": _helm(
        "rollback", "goes to the revision before; with --install it may be the first: helm uninstall"
    ),
    "helm rollback": _helm("history", "choose the revision from before, then helm rollback NAME REVISION"),
    "helm uninstall": _fixed("impossible", "install it again; data of deleted volumes is gone"),
    "terraform apply": _applied("terraform"),
    "tofu apply": _applied("tofu"),
    "terraform destroy": _fixed("impossible", "apply again makes new ones; their data is gone"),
    "pulumi up": _fixed("look", "to go back, deploy the program from before", "pulumi stack history"),
    "docker run": _docker_run,
    "docker build": _docker_build,
    "docker compose": _compose,
    "docker pull": _inverse("docker", "rmi"),
    "docker push": _fixed(
        "impossible", "others may have it; delete the tag in the registry, or push the old image again"
    ),
    "docker stop": _inverse("docker", "start"),
    "docker start": _inverse("docker", "stop"),
    "docker network create": _one("docker", "network", "rm", valued=("-d", "--driver", "--subnet")),
    "docker volume create": _one("docker", "volume", "rm", valued=("-d", "--driver", "--label")),
    "docker tag": lambda words: _command("docker", "rmi", words[-1]) if len(_operands(words)) == 2 else UNKNOWN,
    **dict.fromkeys(
        ("docker rm", "docker rmi", "docker volume rm", "docker system prune"), _fixed("impossible", _GONE)
    ),
    **dict.fromkeys(("npm publish", "pnpm publish", "yarn publish"), _fixed("impossible", _NPM_PUBLISHED)),
    "cargo publish": _fixed("impossible", f"{_PUBLISHED}; hide it with: cargo yank --version VERSION"),
    "gem push": _fixed("impossible", f"{_PUBLISHED}; hide it with: gem yank NAME -v VERSION"),
    **dict.fromkeys(
        ("twine upload", "uv publish", "poetry publish", "flit publish", "hatch publish"),
        _fixed("impossible", f"{_PUBLISHED}; yank the release on the index's page"),
    ),
    "npm install": _installed("npm", "uninstall", valued=("--prefix",)),
    "pip install": _installed("pip", "uninstall", "--yes", valued=("-t", "--target", "-i", "--index-url")),
    "apt-get install": _installed("apt-get", "remove"),
    "apt install": _installed("apt", "remove"),
    "brew install": _installed("brew", "uninstall"),
    "cargo add": _inverse("cargo", "remove"),
    "uv add": _inverse("uv", "remove"),
    "gh pr create": _fixed("look", "then: gh pr close NUMBER", "gh pr list --author @me --limit 5"),
    "gh pr merge": _fixed("look", "revert its commit in a new pull request", "gh pr list --state merged --limit 5"),
    "gh pr close": _one("gh", "pr", "reopen", keep=("-R", "--repo")),
    "gh issue create": _fixed("look", "then: gh issue close NUMBER", "gh issue list --author @me --limit 5"),
    "gh issue close": _one("gh", "issue", "reopen", keep=("-R", "--repo")),
    "gh release create": _one(
        "gh", "release", "delete", valued=("-t", "--title", "-n", "--notes"), keep=("-R", "--repo")
    ),
    "aws s3 cp": _cloud_copy("aws", "s3", "rm"),
    "aws s3 rm": _fixed("impossible", "gone unless the bucket keeps versions"),
    "gsutil cp": _cloud_copy("gsutil", "rm"),
    "gcloud storage cp": _cloud_copy("gcloud", "storage", "rm"),
    **dict.fromkeys(("azcopy copy", "azcopy cp"), _cloud_copy("azcopy", "remove")),
    "az storage blob upload": _az_upload,
    **dict.fromkeys(
        ("gsutil rm", "gcloud storage rm", "azcopy remove", "azcopy rm", "az storage blob delete"),
        _fixed("impossible", "gone unless the bucket keeps versions"),
    ),
    "systemctl start": _inverse("systemctl", "stop"),
    "systemctl stop": _inverse("systemctl", "start"),
    "systemctl enable": _inverse("systemctl", "disable", note="with --now it was started as well"),
    "systemctl disable": _inverse("systemctl", "enable", note="with --now it was stopped as well"),
    "createdb": _one("dropdb", keep=("-h", "--host", "-p", "--port", "-U", "--username")),
    "dropdb": _fixed("impossible", _GONE),
    "alembic upgrade": _fixed("look", "then: alembic downgrade REVISION", "alembic history --indicate-current"),
    **dict.fromkeys(("mail", "sendmail", "mutt"), _fixed("impossible", _SENT)),
    "mkdir": _inverse("rmdir", "--", valued=("-m", "--mode")),
    "mv": _move,
    **dict.fromkeys(("rm", "rmdir", "shred", "truncate"), _fixed("impossible", _GONE)),
}
