"""`python -m bench.crash`: play the rounds that are not kept yet, and write docs/BENCHMARK*.md. See `--help`.

Rounds whose results are kept are not played again (`--again`: they are); so a run that was interrupted goes on. A round
that did not end in time is not kept. Where the machine is overloaded, counts are kept and times are not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

from bench.crash.peers import PEERS, RESUME, applies, missing
from bench.crash.plan import LEARNED, Case, cases
from bench.crash.table import DOCS, Key, Result, pages, read, result, save, tables
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.drill.play import Round, Setup, plan_rounds, play
from wal_agent.drill.policy import POLICIES, Policy
from wal_agent.drill.scenario import POINTS, load, names

LONGEST = 600.0  # seconds that a start may take
BUSY = 2.0  # processes ready to run for each core, beyond which times say nothing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("--agent", choices=RESUME, action="append")
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--scenario", choices=names(), action="append")
    parser.add_argument("--point", choices=POINTS, action="append", help="only these kill points of the rounds")
    parser.add_argument("--rounds", type=int, help="not the plan, but so many rounds of each scenario and seed")
    parser.add_argument("--seeds", type=int, default=1, help="with --rounds: 1 to this")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument("--again", action="store_true", help="play also what is kept")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--tables", action="store_true", help="only print the tables behind the page")
    given = parser.parse_args()
    kept = {one.key: one for one in read()}
    if given.tables:
        print(tables(list(kept.values())))
        return
    if not given.page:
        _play(given, kept)
    for name, text in pages(list(kept.values())).items():
        (DOCS / name).write_text(text, "utf-8")
    print(f"{DOCS / 'BENCHMARK.md'}: {len(kept)} rounds")


def _play(given: argparse.Namespace, kept: dict[Key, Result]) -> None:
    peers = {peer.name: peer for peer in PEERS if peer.name in (given.peer or [p.name for p in PEERS])}
    for name, peer in list(peers.items()):
        if lacking := missing(peer):
            print(f"{name} is left out: this machine lacks {lacking}", file=sys.stderr)
            del peers[name]
    lock = Lock()

    def one(case: Case) -> None:
        each, agent, policy, name = case
        rehearsal = rehearsal_of(AGENTS[agent])
        assert rehearsal is not None
        setup = Setup(AGENTS[agent], rehearsal, peers[name], os.environ, policy, seconds=LONGEST)
        for played in play(setup, [each]):
            found = result(agent, name, policy, played)
            busy = os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
            with lock:
                if found.exit_code is None:
                    print(f"{' '.join(str(word) for word in found.key)}: did not end in time", file=sys.stderr)
                    continue
                if busy:
                    found = replace(found, back=None, per_call=None)
                kept[found.key] = found
                save(kept.values())
                how = f"repeated {found.repeated}, lost {found.lost}" if found.killed else "not killed"
                print(f"{' '.join(str(word) for word in found.key)}: {how}", file=sys.stderr, flush=True)

    left = [case for case in _wanted(given) if case[3] in peers and applies(peers[case[3]], case[1])]
    left = [case for case in left if given.again or _key(*case) not in kept]
    print(f"{len(left)} rounds to play", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, left))


def _wanted(given: argparse.Namespace) -> list[Case]:
    """Return the plan's rounds, or those that `--rounds` asks for, as far as the other options want them."""
    agents, policies = given.agent or list(RESUME), given.policy or ["well", "naive", "badly", *LEARNED]
    if given.rounds is None:
        found = list(cases())
    else:
        scenarios = [one for name in names() for one in load(name)]
        rounds = [each for seed in range(1, given.seeds + 1) for each in plan_rounds(scenarios, given.rounds, seed)]
        rounds.sort(key=lambda each: each.seed)  # so that an interrupted run has something of each scenario
        found = list(itertools.product(rounds, agents, policies, [peer.name for peer in PEERS]))
    return [
        (each, agent, policy, peer)
        for each, agent, policy, peer in found
        if agent in agents
        and policy in policies
        and each.scenario.name in (given.scenario or names())
        and each.point in (given.point or POINTS)
    ]


def _key(each: Round, agent: str, policy: Policy, peer: str) -> Key:
    return agent, peer, policy, each.scenario.name, each.point, each.target.effect, each.seed


if __name__ == "__main__":
    main()
