"""`python -m bench.crash`: play the rounds that are not kept yet, and write docs/BENCHMARK.md. See `--help`.

Rounds whose results are kept are not played again (`--again`: they are); so a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from bench.crash.peers import PEERS, RESUME, applies, missing
from bench.crash.table import PAGE, Key, Result, page, read, result, save
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.drill.play import Round, Setup, Subject, plan_rounds, play
from wal_agent.drill.policy import POLICIES, Policy
from wal_agent.drill.scenario import POINTS, load, names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("--agent", choices=RESUME, action="append")
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--scenario", choices=names(), action="append")
    parser.add_argument("--point", choices=POINTS, action="append", help="only these kill points of the rounds")
    parser.add_argument("--rounds", type=int, default=7, help="of each scenario and seed (7: each kill point once)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument("--again", action="store_true", help="play also what is kept")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    kept = {one.key: one for one in read()}
    if not given.page:
        _play(given, kept)
    PAGE.write_text(page(list(kept.values())), "utf-8")
    print(f"{PAGE}: {len(kept)} rounds")


def _play(given: argparse.Namespace, kept: dict[Key, Result]) -> None:
    scenarios = [one for name in given.scenario or names() for one in load(name)]
    rounds = [each for seed in range(1, given.seeds + 1) for each in plan_rounds(scenarios, given.rounds, seed)]
    rounds = [each for each in rounds if each.point in (given.point or POINTS)]
    rounds.sort(key=lambda each: each.seed)  # so that an interrupted run has something of each scenario
    wanted = [peer for peer in PEERS if peer.name in (given.peer or [p.name for p in PEERS])]
    for peer in wanted:
        if lacking := missing(peer):
            print(f"{peer.name} is left out: this machine lacks {lacking}", file=sys.stderr)
    wanted = [peer for peer in wanted if not missing(peer)]
    lock = Lock()

    def one(case: tuple[Round, str, Subject, Policy]) -> None:
        each, agent, peer, policy = case
        rehearsal = rehearsal_of(AGENTS[agent])
        assert rehearsal is not None
        setup = Setup(AGENTS[agent], rehearsal, peer, os.environ, policy)
        for played in play(setup, [each]):
            found = result(agent, peer.name, policy, played)
            with lock:
                kept[found.key] = found
                save(kept.values())
                how = f"repeated {found.repeated}, lost {found.lost}" if found.killed else "not killed"
                print(f"{' '.join(str(word) for word in found.key)}: {how}", file=sys.stderr, flush=True)

    # Of each round all peers, so that the machine's drift hits all alike.
    policies: list[Policy] = given.policy or ["well", "naive", "badly"]
    cases = itertools.product(rounds, given.agent or list(RESUME), wanted, policies)
    able = [(each, agent, peer, policy) for each, agent, peer, policy in cases if applies(peer, agent)]
    left = [case for case in able if given.again or _key(*case) not in kept]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, left))


def _key(each: Round, agent: str, peer: Subject, policy: Policy) -> Key:
    return agent, peer.name, policy, each.scenario.name, each.point, each.target.effect, each.seed


if __name__ == "__main__":
    main()
