"""Explicit-state model checker for lease and log: docs/PROTOCOL.md explains it. Needs the standard library only.

A crash or an endless pause needs no event of its own: a host that is never scheduled again has crashed, one that is
scheduled later has come back. A put has three fates: decided at once (reply seen), landed with the reply lost (1 fault),
or delayed in the network (1 fault): the client sees an error and the put may land at any later time, or never.
The store is linearizable. Rules are switches, so that each can be taken out (ablation).
"""

# ruff: noqa: UP031, E501, E741, RUF059, PERF401

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

RULES = {
    "fence_read": 1,  # takeover seq taken: read it; a higher epoch there = give up
    "open_always": 1,  # every acquisition (also after closed/released) writes an opening (takeover) segment first
    "epoch_bump": 1,  # every acquisition raises the epoch
    "same_bytes": 1,  # an undecided append is re-sent with the same bytes until decided; never re-used with other bytes
    "mine": "bytes",  # read-back says "mine" iff: bytes | writer | nonce(last attempt, else fenced)
    "keep_t1": 1,  # retention keeps, with each takeover T, also T-1
    "keep_t": 1,  # retention keeps takeovers
    "tail_read": 1,  # before chaining to the tail: read it; give up unless its epoch is lower than mine
    "keep_s": 1,  # retention keeps the segment that a kept snapshot names (deletes only seq < S)
    "list_after": 1,  # after the opening segment landed: list(start_after) must be empty
    "plan_after": 1,  # the log is read for the plan after the opening segment landed
    "allow_clock": 1,  # the allow is given only while the own lease has not expired (checked with the allow, after the ack)
    "snap_acked": 1,  # a snapshot covers acked segments only
    "snap_hash": 1,  # a snapshot names the hash of segment seq; readers and retention reject one that does not chain
    "seal": 1,  # close/release only with no undecided put; nothing is appended or allowed after
    "epoch_from_log": 1,  # new epoch = max(lease epoch, highest epoch in the log) + 1
    "unlock_wait": 1,  # after unlock the next owner waits out the ttl too
    "resume_snap": 1,  # readers re-list when a segment vanished under them
    "task_ask": 1,  # a task's call is allowed only after the run that asked for it answered as for a call of its own
    "task_date": 1,  # the answer has the date of that run's lease, checked with the allow
    "task_end": 1,  # who gives the job up has ended its tasks first, as its tools
    "spool_lease": 1,  # spool is declared in the lease; no other run takes over by timeout
}
FEAT = {
    "hosts": 3,
    "appends": 1,
    "faults": 1,
    "timed": 1,
    "snap": 0,
    "retain": 0,
    "close": 0,
    "unlock": None,
    "spool": 0,
    "tasks": 0,
    "retry": 2,
    "maxseq": 40,
}

Flags = dict[str, Any]
Entry = Any  # of the log: (seq, epoch, owner, kind, uid, prev)


class Host(NamedTuple):
    pc: str
    epoch: int
    lver: int
    tail: int
    tuid: Any
    n: int
    att: int
    pend: Any
    view: Any
    seen: Any
    opened: int
    aux: Any
    task: tuple[Any, ...] = ()  # of this epoch: () none yet, ("asks", calls), ("answered", calls), ("over",)


H0 = Host("idle", 0, 0, 0, 0, 0, 0, None, None, None, 0, ())


class St(NamedTuple):
    lease: Any  # (ver, epoch, owner, state, spool)
    log: tuple[Entry, ...]
    snaps: Any
    net: Any
    hosts: tuple[Host, ...]
    expired: frozenset[int]
    faults: int
    gopen: int
    acked: frozenset[str]
    allowed: frozenset[str]
    misc: Any


Step = tuple[str, St, list[str]]


class Model:
    def __init__(self, rules: Flags, feat: Flags) -> None:
        self.r = dict(RULES, **rules)
        self.f = dict(FEAT, **feat)

    fresh = False

    def init(self) -> St:
        return St(
            None,
            (),
            (),
            (),
            (H0,) * self.f["hosts"],
            frozenset(),
            self.f["faults"],
            0,
            frozenset(),
            frozenset(),
            (0, 0, frozenset()),
        )

    # ---- store
    @staticmethod
    def get(st: St, seq: int) -> Entry | None:
        for e in st.log:
            if e[0] == seq:
                return e
        return None

    def create(self, st: St, e: Entry) -> tuple[St, bool]:
        if self.get(st, e[0]):
            return st, False
        st = st._replace(log=tuple(sorted((*st.log, e))))
        if e[1] < st.gopen and e[3] == "I":  # ghost: this record came to stand after a newer epoch had opened
            st = st._replace(misc=(*st.misc[:2], st.misc[2] | {e[4]}))
        if e[3] == "T" and e[1] > st.gopen and st.log[-1] == e:
            st = st._replace(gopen=e[1])
        return st, True

    def cas(self, st: St, ver: int, new: Any) -> tuple[St, bool]:
        cur = st.lease[0] if st.lease else 0
        if cur != ver:
            return st, False
        nv = st.misc[0] + 1
        st = st._replace(lease=(nv, *new), misc=(nv, *st.misc[1:]))
        return st, True

    # ---- replay
    def good(self, st: St, sn: Any) -> bool:
        if not self.r["snap_hash"]:
            return True
        e = self.get(st, sn[0])
        if e and e[4] != sn[1]:
            return False
        n = self.get(st, sn[0] + 1)
        return not (n and n[5] != sn[1])

    def replay(self, st: St, upto: int | None = None) -> tuple[Any, str | None]:
        """-> (entries (epoch,kind,uid) in order, damage)"""
        base, S, su = (), 0, 0
        for sn in st.snaps:
            if (upto is None or sn[0] <= upto) and sn[0] > S and self.good(st, sn):
                base, S, su = sn[2], sn[0], sn[1]
        d = {e[0]: e for e in st.log}
        top = max(d) if d else 0
        out = list(base)
        q = S + 1
        prev = su
        dam = None
        lim = top if upto is None else min(top, upto)
        while q <= lim:
            e = d.get(q)
            if e is None:
                dam = "segment %d missing" % q
                break
            if e[5] != prev:
                dam = "segment %d does not chain" % q
                break
            out.append((e[1], e[3], e[4]))
            prev = e[4]
            q += 1
        return tuple(out), dam

    # ---- checks on a store
    def check(self, st: St) -> list[str]:
        out, dam = self.replay(st)
        v = []
        if dam:
            v.append(f"DAMAGE: replay says {dam}")
        have = {u for _, _, u in out}
        lost = st.acked - have
        if lost:
            v.append(f"I3: acked {sorted(lost)} not in the replay")
        mx = 0
        wr: dict[int, str] = {}
        for ep, k, u in out:
            w = u[1:].lstrip("0123456789")[0]
            if wr.setdefault(ep, w) != w:
                v.append("I2: two writers in epoch %d (%s)" % (ep, u))
                break
            if ep < mx:
                v.append("I2: record %s of epoch %d after a takeover of epoch %d" % (u, ep, mx))
                break
            if k == "T":
                mx = ep
        return v

    # ---- transitions
    def put_fates(self, st: St, e: Entry) -> Iterator[tuple[str, St, str]]:
        """create of log entry e: yields (label, state, reply) reply in ok, conflict, unknown"""
        st2, ok = self.create(st, e)
        yield ("", st2, "ok" if ok else "conflict")
        if st.faults:
            f = st._replace(faults=st.faults - 1)
            st3, ok3 = self.create(f, e)
            if ok3:
                yield (" [landed, reply lost]", st3, "unknown")
            net = ("log", e)
            if net not in f.net:
                yield (
                    " [delayed, client sees an error]",
                    f._replace(net=tuple(sorted((*f.net, net), key=repr))),
                    "unknown",
                )

    def cas_fates(self, st: St, ver: int, new: Any) -> Iterator[tuple[str, St, str]]:
        st2, ok = self.cas(st, ver, new)
        yield ("", st2, "ok" if ok else "conflict")
        if st.faults:
            f = st._replace(faults=st.faults - 1)
            st3, ok3 = self.cas(f, ver, new)
            if ok3:
                yield (" [landed, reply lost]", st3, "unknown")
            net = ("lease", (ver, new))
            if net not in f.net:
                yield (
                    " [delayed, client sees an error]",
                    f._replace(net=tuple(sorted((*f.net, net), key=repr))),
                    "unknown",
                )

    def upd(self, st: St, h: int, **k: Any) -> St:
        hs = list(st.hosts)
        hs[h] = hs[h]._replace(**k)
        return st._replace(hosts=tuple(hs))

    def allow(self, st: St, h: int, uid: str) -> tuple[St, list[str]]:
        """returns (state, violations)"""
        H = st.hosts[h]
        v = []
        if st.gopen > H.epoch:
            v.append(
                ("ZOMBIE" if uid in st.misc[2] else "LATE")
                + ": host %d (epoch %d) allows tool %s after the takeover point of epoch %d"
                % (h, H.epoch, uid, st.gopen)
            )
        if H.pc == "gone" or H.aux == ("closed",):
            v.append("ACT: host %d allows tool %s after it closed its lease" % (h, uid))
        for i, o in enumerate(st.hosts):
            if (
                i != h
                and o.seen is not None
                and o.epoch >= H.epoch
                and o.epoch >= 1
                and uid not in o.seen
                and o.opened
                and (o.epoch > H.epoch or o.opened)
            ):
                if o.epoch > H.epoch:
                    v.append(
                        "SEEN: tool %s of host %d is allowed, but host %d (epoch %d) planned its recovery without it"
                        % (uid, h, i, o.epoch)
                    )
                elif o.pc not in ("fenced", "gone", "closed"):
                    v.append("ACT: hosts %d and %d both act in epoch %d" % (h, i, H.epoch))
        return st._replace(allowed=st.allowed | {uid}), v

    def fenced(self, st: St, h: int, why: str) -> tuple[St, list[str]]:
        H = st.hosts[h]
        v = []
        le = st.lease[1] if st.lease else 0
        lo = st.lease[2] if st.lease else None
        if st.gopen <= H.epoch and le <= H.epoch and lo in (h, None) and max([e[1] for e in st.log] or [0]) <= H.epoch:
            v.append("FALSE FENCE: host %d, epoch %d: %s" % (h, H.epoch, why))
        return self.upd(st, h, pc="fenced", pend=None), v

    def plan(self, st: St, h: int, view: Any) -> tuple[St, list[str]]:
        v = []
        seen = frozenset(u for _, k, u in view)
        H = st.hosts[h]
        for u in st.allowed:
            if u not in seen and int("".join(c for c in u[1:3] if c.isdigit())) <= H.epoch:
                v.append("SEEN: host %d (epoch %d) plans its recovery without the allowed tool %s" % (h, H.epoch, u))
        return self.upd(st, h, pc="own", seen=seen, view=None, opened=1), v

    def succ(self, st: St) -> Iterator[Step]:
        k: dict[str, Any]
        c: Any
        r, f = self.r, self.f
        for h, H in enumerate(st.hosts):
            P = "h%d " % h
            pc = H.pc
            if pc == "idle":
                if H.att > f["retry"]:
                    continue
                if h and st.lease is None and not st.misc[1] and not st.net and not self.fresh:
                    continue  # symmetry: host 0 starts first
                L = st.lease
                logmax = max([e[1] for e in st.log] or [0]) if r["epoch_from_log"] else 0
                if L is None:
                    yield (
                        P + "reads: no lease",
                        self.upd(st, h, pc="cas", epoch=max(0, logmax) + 1, lver=0, aux=("new",)),
                        [],
                    )
                else:
                    ver, ep, own, state, spool = L
                    if state == "held":
                        if own == h:
                            continue
                        if f["timed"] and ep not in st.expired:
                            continue
                        if spool and r["spool_lease"]:
                            continue
                        yield (
                            P + "reads the lease (epoch %d, host %d) and holds the owner for dead" % (ep, own),
                            self.upd(st, h, pc="cas", epoch=max(ep, logmax) + 1, lver=ver, aux=("take",)),
                            [],
                        )
                    else:
                        if state == "unlocked" and r["unlock_wait"] and f["timed"] and ep not in st.expired:
                            continue
                        ne = max(ep, logmax) + 1 if r["epoch_bump"] else max(ep, logmax)
                        yield (
                            P + "reads the lease (%s, epoch %d)" % (state, ep),
                            self.upd(st, h, pc="cas", epoch=ne, lver=ver, aux=("reopen",)),
                            [],
                        )
            elif pc == "cas":
                new = (H.epoch, h, "held", f["spool"])
                for lab, st2, rep in self.cas_fates(st, H.lver, new):
                    npc = {"ok": "list", "conflict": "casread", "unknown": "casread"}[rep]
                    k = {"pc": npc}
                    if rep == "ok":
                        k["lver"] = st2.lease[0]
                    yield P + "lease CAS to epoch %d: %s%s" % (H.epoch, rep, lab), self.upd(st2, h, **k), []
            elif pc == "casread":
                L = st.lease
                if L and L[2] == h and L[1] == H.epoch:
                    yield P + "reads back: lease is mine", self.upd(st, h, pc="list", lver=L[0]), []
                elif (L[0] if L else 0) == H.lver:
                    yield P + "reads back: lease unchanged", self.upd(st, h, pc="cas"), []
                else:
                    yield (
                        P + "reads back: lost the lease",
                        self.upd(st, h, pc="idle", att=H.att + 1, epoch=0, lver=0, aux=()),
                        [],
                    )
            elif pc == "list":
                top = max(st.log) if st.log else (0, 0, 0, 0, 0, 0)
                view, dam = self.replay(st)
                needs = r["open_always"] or H.aux == ("take",)
                if H.aux == ("new",) and not r["open_always"]:
                    needs = False
                k = {"tail": top[0], "tuid": top[4], "view": None if r["plan_after"] else view}
                if r["tail_read"] and top[1] >= H.epoch:
                    st2, v = self.fenced(st, h, "the tail has epoch %d" % top[1])
                    yield P + "lists: tail %d has epoch %d, gives up" % (top[0], top[1]), st2, v
                    continue
                if needs:
                    yield P + "lists: tail %d" % top[0], self.upd(st, h, pc="fence", **k), []
                else:
                    st2 = self.upd(st, h, **k)
                    if H.epoch > st2.gopen:
                        st2 = st2._replace(gopen=H.epoch)
                    st2, v = self.plan(st2, h, view)
                    yield P + "lists: tail %d, reopens without an opening segment" % top[0], st2, v
            elif pc == "fence":
                if H.tail + 1 > f["maxseq"]:
                    continue
                uid = "T%d" % H.epoch + "abcd"[h]
                e = (H.tail + 1, H.epoch, h, "T", uid, H.tuid)
                for lab, st2, rep in self.put_fates(st, e):
                    if rep == "ok":
                        k = {"pc": "fchk", "tail": e[0], "tuid": uid}
                    elif rep == "conflict" and not r["fence_read"]:
                        c = self.get(st2, e[0])
                        k = {"pc": "fence", "tail": e[0], "tuid": c[4]}
                    else:
                        k = {"pc": "fread"}
                    yield (
                        P + "takeover segment (epoch %d) at %d: %s%s" % (H.epoch, e[0], rep, lab),
                        self.upd(st2, h, **k),
                        [],
                    )
            elif pc == "fread":
                c = self.get(st, H.tail + 1)
                uid = "T%d" % H.epoch + "abcd"[h]
                if c is None:
                    yield P + "reads back %d: absent" % (H.tail + 1), self.upd(st, h, pc="fence"), []
                elif c[4] == uid:
                    yield P + "reads back %d: mine" % c[0], self.upd(st, h, pc="fchk", tail=c[0], tuid=uid), []
                elif r["fence_read"] and (c[1] > H.epoch or (c[1] == H.epoch and c[2] != h)):
                    st2, v = self.fenced(st, h, "finds epoch %d at %d" % (c[1], c[0]))
                    yield P + "reads back %d: epoch %d, gives up" % (c[0], c[1]), st2, v
                else:
                    yield (
                        P + "reads back %d: epoch %d, tries the next seq" % (c[0], c[1]),
                        self.upd(st, h, pc="fence", tail=c[0], tuid=c[4]),
                        [],
                    )
            elif pc == "fchk":
                if r["list_after"]:
                    later = [e for e in st.log if e[0] > H.tail]
                    if any(e[1] > H.epoch for e in later):
                        # fenced already; its takeover is not a success
                        st2, v = self.fenced(st, h, "list after the takeover shows a newer epoch")
                        yield P + "lists after its takeover at %d: newer epoch there, gives up" % H.tail, st2, v
                        continue
                    if later:
                        yield (
                            P + "lists after its takeover at %d: not the tail, again" % H.tail,
                            self.upd(st, h, pc="list"),
                            [],
                        )
                        continue
                if r["plan_after"]:
                    view, _dam = self.replay(st, H.tail)
                else:
                    view = H.view
                st2, v = self.plan(st._replace(acked=st.acked | {H.tuid}), h, view)
                yield (
                    P
                    + "plans its recovery%s" % ("" if r["plan_after"] else " (on the log as listed before the fence)"),
                    st2,
                    v,
                )
            elif pc == "own":
                if H.n < f["appends"] and H.tail + 1 <= f["maxseq"]:
                    uid = "I%d%s%d%s" % (H.epoch, "abcd"[h], H.n, "'" * H.att)
                    yield from self.append(st, h, (H.tail + 1, H.epoch, h, "I", uid, H.tuid))
                if f["close"] and H.aux != ("closed",):
                    yield from self.close(st, h)
                if f["snap"] and not any(x[3] == h for x in st.snaps):
                    yield from self.snap(st, h, H.tail, H.tuid)
                if f["retain"]:
                    yield from self.retain(st, h)
            elif pc == "put":
                yield from self.append(st, h, H.pend)
            elif pc == "aread":
                c = self.get(st, H.pend[0])
                if f["snap"] and not r["snap_acked"] and not any(x[3] == h for x in st.snaps):
                    yield from self.snap(st, h, H.pend[0], H.pend[4], H.pend)
                if f["close"] and not r["seal"] and H.aux != ("closed",):
                    yield from self.close(st, h)
                if f["spool"] and c is None:
                    st2, v = self.allow(st, h, H.pend[4])
                    yield P + f"spools {H.pend[4]} on its disk and allows the tool", self.upd(st2, h, pc="put"), v
                if c is None:
                    if r["same_bytes"]:
                        yield (
                            P + "reads back %d: absent, sends the same bytes again" % H.pend[0],
                            self.upd(st, h, pc="put"),
                            [],
                        )
                    else:
                        yield (
                            P + "reads back %d: absent, denies the tool and drops the record" % H.pend[0],
                            self.upd(st, h, pc="own", pend=None, att=H.att + 1),
                            [],
                        )
                elif c[4] == H.pend[4] or (r["mine"] == "writer" and c[2] == h and c[1] == H.epoch):
                    mu = H.pend[4]
                    yield (
                        P + "reads back %d: mine (%s)" % (c[0], c[4]),
                        self.upd(st, h, pc="ack", pend=H.pend, tail=c[0], tuid=c[4])._replace(acked=st.acked | {mu}),
                        [],
                    )
                elif c[1] > H.epoch or (c[1] == H.epoch and c[2] != h):
                    st2, v = self.fenced(st, h, "finds epoch %d at %d" % (c[1], c[0]))
                    yield P + "reads back %d: epoch %d of host %d: fenced" % (c[0], c[1], c[2]), st2, v
                elif c[1] == H.epoch and c[2] == h:
                    if r["mine"] == "nonce":
                        st2, v = self.fenced(st, h, "finds its own earlier attempt with another nonce at %d" % c[0])
                        yield P + "reads back %d: another nonce: fenced" % c[0], st2, v
                    else:  # my own earlier attempt landed late: chain behind it
                        p = H.pend
                        yield (
                            P + "reads back %d: my own earlier attempt %s; goes on behind it" % (c[0], c[4]),
                            self.upd(st, h, pc="put", tail=c[0], tuid=c[4], pend=(c[0] + 1, p[1], h, "I", p[4], c[4])),
                            [],
                        )
                else:
                    p = H.pend  # an OLDER epoch stands there: only possible without open_always
                    if p[0] + 1 <= f["maxseq"]:
                        yield (
                            P + "reads back %d: OLDER epoch %d; goes on behind it" % (c[0], c[1]),
                            self.upd(st, h, pc="put", tail=c[0], tuid=c[4], pend=(c[0] + 1, p[1], h, "I", p[4], c[4])),
                            [],
                        )
            elif pc == "ack":
                uid = H.pend[4]
                done = {"pc": "own", "pend": None, "n": H.n + 1, "att": 0}
                if r["allow_clock"] and f["timed"] and H.epoch in st.expired:
                    yield P + f"lease out of time: denies {uid}", self.upd(st, h, pc="fenced"), []
                elif r["seal"] and H.aux == ("closed",):
                    pass
                else:
                    st2, v = self.allow(st, h, uid)
                    yield P + f"ALLOWS tool {uid}", self.upd(st2, h, **done), v
                if f["snap"] and not any(x[3] == h for x in st.snaps):
                    yield from self.snap(st, h, H.tail, H.tuid)
            if f["tasks"]:
                yield from self.task(st, h)
        # network
        for i, p in enumerate(st.net):
            rest = st._replace(net=st.net[:i] + st.net[i + 1 :])
            if p[0] == "log":
                st2, ok = self.create(rest, p[1])
                yield (
                    "net: the delayed put %s at %d %s" % (p[1][4], p[1][0], "LANDS" if ok else "finds the seq taken"),
                    st2,
                    [],
                )
            else:
                st2, ok = self.cas(rest, *p[1])
                yield (
                    "net: the delayed lease CAS (epoch %d, %s) %s"
                    % (p[1][1][0], p[1][1][2], "LANDS" if ok else "fails"),
                    st2,
                    [],
                )
        if f["timed"] and st.lease and st.lease[3] in ("held", "unlocked") and st.lease[1] not in st.expired:
            yield (
                "clock: the lease of epoch %d runs out" % st.lease[1],
                st._replace(expired=st.expired | {st.lease[1]}),
                [],
            )
        if f["unlock"] and not st.misc[1] and st.lease and st.lease[3] == "held":
            L = st.lease
            m = (st.misc[0] + 1, 1, st.misc[2])
            if f["unlock"] == "delete":
                yield "a person: unlock deletes the lease", st._replace(lease=None, misc=m), []
            else:
                yield "a person: unlock", st._replace(lease=(m[0], L[1], L[2], "unlocked", L[4]), misc=m), []

    def append(self, st: St, h: int, e: Entry) -> Iterator[Step]:
        P = "h%d " % h
        for lab, st2, rep in self.put_fates(st, e):
            if rep == "ok":
                st2 = st2._replace(acked=st2.acked | {e[4]})
                k = {"pc": "ack", "pend": e, "tail": e[0], "tuid": e[4]}
            else:
                k = {"pc": "aread", "pend": e}
            yield P + "puts intent %s at %d: %s%s" % (e[4], e[0], rep, lab), self.upd(st2, h, **k), []

    def task(self, st: St, h: int) -> Iterator[Step]:
        """A task that the host's agent typed. Its log and its lease are another job's: judged is whether a call of it
        is allowed once its caller's job is another's, or was given up."""
        H, r = st.hosts[h], self.r
        held = H.aux != ("closed",)
        out_of_time = bool(self.f["timed"]) and H.epoch in st.expired
        match H.task:
            case ():
                if H.pc == "own" and held:
                    yield f"h{h} begins a task", self.upd(st, h, task=("asks", self.f["tasks"])), []
            case ("asks", left):
                acts = H.pc in ("own", "put", "aread", "ack") and held and not (r["allow_clock"] and out_of_time)
                if acts or not r["task_ask"]:
                    yield f"h{h} answers its task, or was not asked", self.upd(st, h, task=("answered", left)), []
            case ("answered", left) if not (r["task_date"] and out_of_time):
                v = []
                if st.gopen > H.epoch:
                    v.append("TASK: a task of host %d (epoch %d) acts after epoch %d opened" % (h, H.epoch, st.gopen))
                if H.pc in ("gone", "closed") or not held:
                    v.append("TASK: a task of host %d (epoch %d) acts after its job was given up" % (h, H.epoch))
                more = ("asks", left - 1) if left > 1 else ("over",)
                yield f"h{h}'s task ALLOWS a call", self.upd(st, h, task=more), v
            case _:
                pass

    def close(self, st: St, h: int) -> Iterator[Step]:
        H = st.hosts[h]
        new = (H.epoch, h, "closed", 0)
        if self.r["task_end"] and H.task:
            st = self.upd(st, h, task=("over",))
        for lab, st2, rep in self.cas_fates(st, H.lver, new):
            if rep == "conflict":
                st3 = self.upd(st2, h, pc="gone") if self.r["seal"] else self.upd(st2, h, aux=("closed",))
            else:
                st3 = self.upd(st2, h, pc="closed", pend=None) if self.r["seal"] else self.upd(st2, h, aux=("closed",))
            yield "h%d closes its lease: %s%s" % (h, rep, lab), st3, []

    def snap(self, st: St, h: int, seq: int, uid: str, pend: Any = None) -> Iterator[Step]:
        if seq == 0 or any(x[0] == seq for x in st.snaps):
            return
        up = seq - 1 if pend else seq
        out, dam = self.replay(st, up)
        if dam:
            return
        if pend:
            out = (*out, (pend[1], "I", pend[4]))
        elif not out or out[-1][2] != uid:  # zombie whose own tail was retired: it builds from its own memory; skip
            return
        yield (
            "h%d writes snapshot %d%s" % (h, seq, f" INCLUDING its undecided {pend[4]}" if pend else ""),
            st._replace(snaps=tuple(sorted((*st.snaps, (seq, uid, out, h))))),
            [],
        )

    def retain(self, st: St, h: int) -> Iterator[Step]:
        g = [x for x in st.snaps if self.good(st, x)]
        if not g:
            return
        S = max(x[0] for x in g)
        ts = {e[0] for e in st.log if e[3] == "T"}
        top = max(e[0] for e in st.log) if st.log else 0

        def keep(e: Entry) -> bool:
            if e[0] > S or e[0] == top or (self.r["keep_s"] and e[0] == S):
                return True
            if self.r["keep_t"] and e[3] == "T":
                return True
            return bool(self.r["keep_t1"] and e[0] + 1 in ts)

        log = tuple(e for e in st.log if keep(e))
        if log != st.log:
            gone = [e[0] for e in st.log if not keep(e)]
            yield "h%d retention deletes %s behind snapshot %d" % (h, gone, S), st._replace(log=log), []

    # can a fresh run always become owner and see a sound log? (recoverability, checked per distinct store)
    def recoverable(self, st: St) -> str | None:
        L = st.lease
        st = st._replace(faults=0, net=(), hosts=(*st.hosts, H0), expired=st.expired | ({L[1]} if L else set()))
        h = len(st.hosts) - 1
        self.fresh = True
        try:
            return self.recover1(st, h)
        finally:
            self.fresh = False

    def recover1(self, st: St, h: int) -> str | None:
        for _ in range(40):
            nxt = None
            for lab, st2, v in self.succ(st):
                if st2.hosts[h] != st.hosts[h]:
                    nxt = (lab, st2, v)
                    break
            if nxt is None:
                return f"a fresh run is stuck in {st.hosts[h].pc}"
            st = nxt[1]
            if nxt[2]:
                return "; ".join(nxt[2])
            if st.hosts[h].pc == "own":
                return None
            if st.hosts[h].pc == "fenced":
                return "a fresh run is fenced"
        return "a fresh run does not get the job in 40 steps"


def bfs(
    rules: Flags, feat: Flags, limit: int = 400000, tmax: float = 120, want: str | None = None, rec: bool = False
) -> tuple[dict[str, tuple[str, list[str]]], int, bool, float]:
    """Explore breadth first. Returns (violation by kind, each with its shortest trace; states; exhausted; seconds)."""
    m = Model(rules, feat)
    st = m.init()
    seen: dict[St, tuple[St, str] | None] = {st: None}
    q = collections.deque([st])
    found = {}
    n = 0
    t0 = time.time()
    stores = set()
    full = True
    while q:
        st = q.popleft()
        n += 1
        if n % 2000 == 0 and (n > limit or time.time() - t0 > tmax):
            full = False
            break
        for lab, st2, v in m.succ(st):
            v = [x for x in v if x.split(":")[0] not in feat.get("ignore", ())]
            old = st2 in seen  # a violation belongs to the step, so it is judged also when the state is known
            if old and not v:
                continue
            v = list(v)
            key = (st2.log, st2.snaps, st2.acked)
            if key not in stores:
                stores.add(key)
                v += m.check(st2)
                if rec and not v:
                    w = m.recoverable(st2)
                    if w:
                        v.append("LIVE: " + w)
            if not old:
                seen[st2] = (st, lab)
            if v:
                for x in v:
                    kind = x.split(":")[0]
                    if kind not in found:
                        tr = [lab]
                        c = st
                        while before := seen[c]:
                            c, label = before
                            tr.append(label)
                        found[kind] = (x, tr[::-1])
                if want and want in found:
                    return found, len(seen), False, time.time() - t0
                continue
            q.append(st2)
    return found, len(seen), full, time.time() - t0


FREE = {"allow_clock": 0}  # no clock anywhere: any host may be held for dead at any time


def free(**k: Any) -> Flags:
    return dict(k, timed=0, ignore=("LATE",))


SCEN: list[tuple[str, Flags, Flags]] = [
    # name, rules off, features.  A* = all rules, V* = one rule out.  "c" = clock-free (LATE is then expected and ignored)
    ("A0c 3 hosts, 1 append, 1 fault", FREE, free(hosts=3, appends=1, faults=1)),
    ("A1c 2 hosts, 3 appends, 2 faults, close", FREE, free(hosts=2, appends=3, faults=2, close=1)),
    ("A2c 3 hosts, 1 append, 0 faults, close", FREE, free(hosts=3, appends=1, faults=0, close=1)),
    (
        "A3c 2 hosts, 3 appends, 1 fault, snapshot, retention",
        FREE,
        free(hosts=2, appends=3, faults=1, snap=1, retain=1),
    ),
    ("A4c 3 hosts, 1 append, 1 fault, snapshot, retention", FREE, free(hosts=3, appends=1, faults=1, snap=1, retain=1)),
    (
        "A5c 2 hosts, 2 appends, 1 fault, close, snapshot, retention",
        FREE,
        free(hosts=2, appends=2, faults=1, close=1, snap=1, retain=1),
    ),
    ("A6 timed, 3 hosts, 1 append, 1 fault, close", {}, {"hosts": 3, "appends": 1, "faults": 1, "close": 1}),
    (
        "A7 timed, 2 hosts, 2 appends, 2 faults, snapshot, retention, unlock",
        {},
        {"hosts": 2, "appends": 2, "faults": 2, "snap": 1, "retain": 1, "unlock": "release"},
    ),
    (
        "A8 timed, 2 hosts, 2 appends, 2 faults, spool",
        {},
        {"hosts": 2, "appends": 2, "faults": 2, "spool": 1, "norec": 1},
    ),
    (
        "A9c 3 hosts, 3 appends, 0 faults, snapshot, retention",
        FREE,
        free(hosts=3, appends=3, faults=0, snap=1, retain=1),
    ),
    (
        "A10 timed, 2 hosts, 1 append, 1 fault, close, a task with 2 calls",
        {},
        {"hosts": 2, "appends": 1, "faults": 1, "close": 1, "tasks": 2},
    ),
    (
        "A11 timed, 3 hosts, 1 append, 0 faults, close, unlock, a task with 1 call",
        {},
        {"hosts": 3, "appends": 1, "faults": 0, "close": 1, "unlock": "release", "tasks": 1},
    ),
    (
        "A12 timed, 2 hosts, 2 appends, 2 faults, a task with 1 call",
        {},
        {"hosts": 2, "appends": 2, "faults": 2, "tasks": 1},
    ),
    (
        "V13 a task does not ask its caller",
        {"task_ask": 0, "task_date": 0},
        {"hosts": 2, "appends": 1, "faults": 0, "tasks": 1},
    ),
    ("V14 the answer to a task has no date", {"task_date": 0}, {"hosts": 2, "appends": 1, "faults": 0, "tasks": 1}),
    (
        "V15 a job is given up before its tasks have ended",
        {"task_end": 0},
        {"hosts": 2, "appends": 1, "faults": 0, "close": 1, "tasks": 1},
    ),
    ("V0 tail not read before chaining to it", dict(FREE, tail_read=0), free(hosts=2, appends=1, faults=0)),
    ("V1 takeover tries the next seq without reading", dict(FREE, fence_read=0), free(hosts=3, appends=1, faults=0)),
    ("V2 reopen without an opening segment", dict(FREE, open_always=0), free(hosts=2, appends=1, faults=1, close=1)),
    (
        "V2u unlock, then reopen without an opening segment",
        dict(FREE, open_always=0, unlock_wait=0),
        free(hosts=2, appends=2, faults=0, unlock="release"),
    ),
    (
        "V2r same, with retention",
        dict(FREE, open_always=0, seal=0),
        free(hosts=2, appends=2, faults=1, close=1, snap=1, retain=1),
    ),
    ("V2d reopen keeps the epoch (tail rule >)", dict(FREE, epoch_bump=0), free(hosts=2, appends=1, faults=0, close=1)),
    ("V3 no seal before close", dict(FREE, seal=0), free(hosts=2, appends=1, faults=1, close=1)),
    (
        "V4 seq re-used with other bytes; mine = same writer",
        dict(FREE, same_bytes=0, mine="writer"),
        free(hosts=2, appends=2, faults=1),
    ),
    (
        "V4b seq re-used with other bytes; mine = last nonce, else fenced",
        dict(FREE, same_bytes=0, mine="nonce"),
        free(hosts=2, appends=2, faults=1),
    ),
    (
        "V5 retention keeps takeovers, not T-1",
        dict(FREE, keep_t1=0),
        free(hosts=2, appends=2, faults=1, snap=1, retain=1),
    ),
    (
        "V5b retention keeps neither",
        dict(FREE, keep_t=0, keep_t1=0),
        free(hosts=2, appends=1, faults=1, snap=1, retain=1),
    ),
    ("V5e retention keeps T-1 but not T", dict(FREE, keep_t=0), free(hosts=2, appends=2, faults=1, snap=1, retain=1)),
    (
        "V5d retention may delete the segment that the snapshot names",
        dict(FREE, keep_s=0),
        free(hosts=3, appends=2, faults=0, snap=1, retain=1),
    ),
    (
        "V6 no list after the takeover segment",
        dict(FREE, list_after=0),
        free(hosts=3, appends=3, faults=0, snap=1, retain=1),
    ),
    ("V7 plan read before the fence", dict(FREE, plan_after=0), free(hosts=2, appends=1, faults=0)),
    ("V8 no clock check at the allow", {"allow_clock": 0}, {"hosts": 2, "appends": 1, "faults": 0}),
    (
        "V9 snapshot includes the undecided segment, no hash",
        dict(FREE, snap_acked=0, snap_hash=0),
        free(hosts=2, appends=1, faults=1, snap=1, retain=1),
    ),
    (
        "V9b snapshot includes the undecided segment, hash checked",
        dict(FREE, snap_acked=0),
        free(hosts=2, appends=2, faults=1, snap=1, retain=1),
    ),
    (
        "V9c snapshot of acked segments only, no hash",
        dict(FREE, snap_hash=0),
        free(hosts=2, appends=2, faults=1, snap=1, retain=1),
    ),
    (
        "V10 unlock deletes the lease, epoch from the lease only, tail not read",
        dict(FREE, epoch_from_log=0, tail_read=0),
        free(hosts=2, appends=2, faults=0, unlock="delete"),
    ),
    (
        "V10b unlock deletes the lease, epoch from the lease only",
        dict(FREE, epoch_from_log=0),
        free(hosts=2, appends=1, faults=0, unlock="delete"),
    ),
    (
        "V11 unlock without waiting out the ttl",
        {"unlock_wait": 0},
        {"hosts": 2, "appends": 1, "faults": 0, "unlock": "release"},
    ),
    ("V12 spool, takeover by timeout allowed", {"spool_lease": 0}, {"hosts": 2, "appends": 1, "faults": 1, "spool": 1}),
    (
        "D0c the design read literally: V0+V1+V2+V4+V5+V7+V9",
        dict(
            FREE,
            tail_read=0,
            fence_read=0,
            open_always=0,
            same_bytes=0,
            mine="writer",
            keep_t1=0,
            keep_s=0,
            list_after=0,
            plan_after=0,
            snap_acked=0,
            snap_hash=0,
            seal=0,
        ),
        free(hosts=2, appends=2, faults=1, close=1, snap=1, retain=1),
    ),
]


def main() -> None:
    pick = sys.argv[1:]
    for name, rules, feat in SCEN:
        if pick and not any(name.startswith(p + " ") or (name.startswith(p) and len(p) == 1) for p in pick):
            continue
        found, n, full, t = bfs(
            rules,
            feat,
            limit=3000000,
            tmax=float(os.environ.get("TMAX", 100)),
            rec=name[0] == "A" and not feat.get("norec"),
        )
        print(
            "## %s\n   rules off: %s | bounds: %s\n   %d states, %s, %.1f s: %s"
            % (
                name,
                rules or "none",
                feat,
                n,
                "exhaustive" if full else "NOT exhausted",
                t,
                "no violation" if not found else "%d kinds" % len(found),
            )
        )
        for x, tr in found.values():
            print("   VIOLATION " + x)
            for i, l in enumerate(tr):
                print("      %2d. %s" % (i + 1, l))
        sys.stdout.flush()


# --- R7 under a ttl that changes: one owner, one taker, a discrete clock

TTL_RULES = {
    "honour": 1,  # a taker waits the ttl that the lease says, counted from when that lease came to stand
    "shortest": 1,  # the owner counts the shortest ttl that it has sent since its last write that succeeded
    "acked_first": 1,  # the owner counts a longer ttl only once the lease that says it is acknowledged
}
SHORT, LONG, END = 2, 5, 9  # ticks


class Clocked(NamedTuple):
    now: int
    ttl: int  # what the lease says
    since: int  # when it came to stand
    known: bool  # whether the owner knows its version
    sent: int  # when the owner's last write that succeeded was sent
    bound: int  # the ttl that the owner counts with
    net: frozenset[int]  # the ttls of delayed writes that name the present version; those of others cannot land
    beat: bool  # whether the owner has written in this tick
    faults: int
    taken: bool
    late: bool  # an allow was given after the taking


def clocked_steps(st: Clocked, r: Flags) -> Iterator[Clocked]:
    if st.now < END:
        yield st._replace(now=st.now + 1, beat=False)
    if not st.taken and st.now - st.since >= (st.ttl if r["honour"] else SHORT):
        yield st._replace(taken=True, known=False, net=frozenset())
    if st.now - st.sent < st.bound:
        yield st._replace(late=st.late or st.taken)
    for ttl in st.net:  # a delayed write lands
        yield st._replace(ttl=ttl, since=st.now, known=False, net=frozenset())
    for ttl in () if st.beat else (SHORT, LONG):  # a heartbeat, with this ttl
        bound = min(st.bound, ttl) if r["shortest"] else st.bound
        asks = st._replace(bound=bound if r["acked_first"] else max(bound, ttl), beat=True)
        lost = asks._replace(faults=st.faults - 1)
        if st.known:
            yield asks._replace(ttl=ttl, since=st.now, sent=st.now, bound=ttl, net=frozenset())
            if st.faults:
                yield lost._replace(ttl=ttl, since=st.now, known=False, net=frozenset())  # it lands, the reply is lost
                yield lost._replace(net=st.net | {ttl})
        elif not st.taken:
            yield asks._replace(known=True, beat=False)  # an own write that was thought lost: adopt its version (R10)
        elif st.faults:
            yield lost


def bfs_ttl(rules: Flags) -> tuple[int, bool]:
    """Return the number of states, and whether an allow came after the taking (LATE)."""
    r = {**TTL_RULES, **rules}
    start = Clocked(0, SHORT, 0, True, 0, SHORT, frozenset(), False, 2, False, False)
    seen, left = {start}, [start]
    while left:
        for st in clocked_steps(left.pop(), r):
            if st.late:
                return len(seen), True
            if st not in seen:
                seen.add(st)
                left.append(st)
    return len(seen), False


if __name__ == "__main__":
    main()
