"""How often does a coding agent repeat or lose an effect when its machine dies? Peers, in the same worlds, by seed.

The rounds are those of `wal-agent drill` (docs/DRILL.md). `python -m bench.crash` plays them and writes
docs/BENCHMARK.md; `python -m bench.crash --page` only writes the page, from the results that are kept in results.json.
"""
