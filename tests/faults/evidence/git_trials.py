"""Real git commands, ended at places of theirs and let run to their end; every second time they may clean up after
themselves."""

from __future__ import annotations

import random
import shlex
import shutil
import signal
from pathlib import Path

from tests.faults.evidence.git_stage import Stage, Truths
from tests.faults.evidence.halt import Halter, places
from tests.faults.evidence.stage import truth
from tests.faults.evidence.tally import Tally

# name: what is done first, the command
COMMANDS = {
    "commit": ("echo x > a && git add a", "git commit -q -m 'a message'"),
    "commit -am": ("echo x > a; echo y > b", "git commit -am 'a message'"),
    "commit paths": ("echo x > a; echo y > b; git add b", "git commit -m m -- a"),
    "commit --amend": ("echo x > a && git add a", "git commit --amend -m other"),
    "commit --allow-empty": ("", "git commit --allow-empty -m empty"),
    "commit hooks": (
        "for h in pre-commit post-commit; do printf '#!/bin/sh\\necho ran >> ../'$h > .git/hooks/$h; done;"
        "chmod +x .git/hooks/p*; echo x > a; git add a",
        "git commit -m m",
    ),
    "commit nothing": ("", "git commit -m m"),
    "commit merge": ("git merge -q --no-commit --no-ff topic", "git commit -m merged"),
    "add": ("echo x > a; echo n > new", "git add -A"),
    "add file": ("echo x > a; echo n > new", "git add a new"),
    "rm": ("", "git rm -q b src/1"),
    "mv": ("", "git mv b c"),
    "merge": ("", "git merge --no-edit topic"),
    "merge ff": ("", "git merge ahead"),
    "merge conflict": ("git checkout -q -b x old; echo z > t; git add t; git commit -qm z", "git merge topic"),
    "merge same": ("", "git merge old"),
    "rebase": ("git checkout -q pair", "git rebase main"),
    "rebase apply": ("git checkout -q pair", "git rebase --apply main"),
    "checkout": ("echo y > b", "git checkout topic"),
    "checkout -b": ("echo y > b", "git checkout -b fresh"),
    "checkout -b at": ("", "git checkout -b fresh topic"),
    "checkout detached": ("", "git checkout --detach topic"),
    "checkout paths": ("echo y > b", "git checkout -- b"),
    "switch": ("", "git switch topic"),
    "switch -c": ("", "git switch -c fresh"),
    "restore": ("echo y > b", "git restore b"),
    "reset": ("echo y > b; git add b", "git reset -q"),
    "reset --hard": ("echo y > b; git add b", "git reset --hard old"),
    "reset --soft": ("", "git reset --soft HEAD~1"),
    "tag": ("", "git tag v1"),
    "tag -a": ("", "git tag -a v1 -m one"),
    "tag -d": ("git pack-refs --all", "git tag -d v0"),
    "branch": ("", "git branch fresh"),
    "branch at remote": ("", "git branch fresh origin/topic"),
    "branch -d": ("git pack-refs --all; git config branch.old.remote origin", "git branch -D old"),
    "branch -m": ("git config branch.old.remote origin", "git branch -m old older"),
    "push": ("echo x > a && git commit -qam x", "git push origin main"),
    "push bare": ("echo x > a && git commit -qam x", "git push"),
    "push -u": ("git checkout -q ahead", "git push -u origin ahead"),
    "push --force": ("git commit -q --amend -m other", "git push --force origin HEAD"),
    "push two": ("git branch -f topic ahead; git checkout -q ahead", "git push --force origin ahead topic"),
    "push tag": ("", "git push origin v0"),
    "push rejected": (
        "printf '#!/bin/sh\\nexit 1' > ../remote.git/hooks/pre-receive; chmod +x ../remote.git/hooks/pre-receive;"
        "git commit -q --allow-empty -m x",
        "git push origin main",
    ),
    "pull": ("git reset -q --hard old", "git pull"),
    "pull --rebase": ("git reset -q --hard old; echo n > new; git add new; git commit -qm new", "git pull --rebase"),
    "fetch": ("git update-ref -d refs/remotes/origin/topic", "git fetch origin"),
    "cherry-pick": ("", "git cherry-pick topic"),
    "cherry-pick two": ("", "git cherry-pick topic pair"),
    "revert": ("", "git revert --no-edit HEAD"),
    "stash": ("echo x > a; echo y > b", "git stash"),
    "stash -u": ("echo x > a; echo n > new", "git stash push -u -m later"),
    "stash pop": ("echo x > a; git stash -q", "git stash pop"),
    "stash pop of two": ("echo x > a; git stash -q; echo y > b; git stash -q", "git stash pop"),
    "stash drop": ("echo x > a; git stash -q", "git stash drop"),
    "clone": ("", "git clone -q ../remote.git ../made"),
    "clone into": ("mkdir ../made", "git clone ../remote.git ../made"),
    "init": ("mkdir ../made", "git init ../made"),
    "worktree add": ("", "git worktree add -b side ../made"),
}

UNFINISHED = {"merge conflict"}  # at their end something is in progress


def trial(name: str, halter: Halter, made: Path, top: Path, most: int) -> Tally:
    """Lets the command of that name run to its end, and ends it at `most` places (0: all, in both ways). `made`: the
    repositories; `top`: a folder for copies of them."""
    first, command = COMMANDS[name]
    words, rng, tally = shlex.split(command), random.Random(name), Tally()
    ready = Stage.copy(made, top / "ready")
    ready.sh(first)
    was = ready.truth()

    def run(stop: int | None, sig: signal.Signals, after: Truths | None) -> tuple[int, Truths]:
        stage = Stage.copy(ready.root, top / "trial")
        stage.settle()
        facts = stage.before(words)
        if stop is None:
            found = stage.assess(words, facts)
            tally.add(kind, found.finding, "untouched", f"{name}, before it starts ({found.why})")
        stops = halter.run(words, stage.work, stop, stage.env, sig)
        now, locks, found = stage.truth(), stage.locks(), stage.assess(words, facts)
        became = truth(was, now, now if after is None else after)
        if locks or (became == "done" and (name in UNFINISHED or found.finding == "partial")):
            became = "between"  # partial is the careful word where there is more in a git dir than truth() looks at
        where = f"{name}, {sig.name} at {stop or 'its end'} ({found.why}, locks: {locks})"
        tally.add(kind, found.finding, became, where)
        shutil.rmtree(stage.root)
        return stops, now

    kind = f"git {words[1]}"
    stops, after = run(None, signal.SIGKILL, None)
    for stop in places(stops, most, rng):
        for sig in (signal.SIGKILL, signal.SIGTERM) if not most else (rng.choice((signal.SIGKILL, signal.SIGTERM)),):
            run(stop, sig, after)
    shutil.rmtree(ready.root)
    return tally
