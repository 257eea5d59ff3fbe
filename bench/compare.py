#!/usr/bin/env python3
"""Measures xjit beside other engines, in turns, and prints the ratio of the medians.

    bench/compare.py MODEL --peer "PYTHON llamacpp_bench.py" [--peer ...] [--xjit build/tools/xjit] [--threads N]
                     [--rounds 3] [--reps 3] [--gen 64] [--json]

A peer is a command that takes MODEL THREADS REPS and prints, as its last line, one JSON object with `peer`, `pp512`,
`pp1024` and `tg128_at_1024`: prompt tokens a second at 512 and 1024 tokens, generated tokens a second after 1024.
Each round runs xjit and then each peer, so that a machine that slows down slows all of them; a figure is the median over
the rounds, of medians over the repetitions. A ratio above 1 means that xjit is faster. Exit 1 where a command fails.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

COLUMNS = {"pp512": "prompt 512", "pp1024": "prompt 1024", "decode": "decode at 1024"}


class Failed(Exception):
    pass


def json_of(args):
    """The JSON that a command prints: all of its output, or the last line."""
    try:
        p = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as e:
        raise Failed(f"{args[0]}: {e.strerror}") from e
    if p.returncode != 0:
        why = (p.stderr.strip() or p.stdout.strip() or "no output").splitlines()[-1]
        raise Failed(f"{shlex.join(args)}: exit status {p.returncode}: {why}")
    for text in (p.stdout, p.stdout.strip().splitlines()[-1] if p.stdout.strip() else ""):
        try:
            return json.loads(text)
        except ValueError:
            continue
    raise Failed(f"{shlex.join(args)}: printed no JSON")


def xjit_figures(a):
    out = json_of([a.xjit, "bench", a.model, "-p", "512,1024", "-n", str(a.gen), "-r", str(a.reps), "--threads", str(a.threads), "--json"])
    rows = {r["prompt_tokens"]: r for r in out["rows"]}
    if not {512, 1024} <= rows.keys():
        raise Failed(f"xjit bench: rows for prompts of {sorted(rows)} tokens, not of 512 and 1024")
    return {"pp512": rows[512]["prefill_tok_s"]["median"], "pp1024": rows[1024]["prefill_tok_s"]["median"],
            "decode": rows[1024]["decode_tok_s"]["median"]}


def peer_figures(a, command):
    out = json_of(shlex.split(command) + [a.model, str(a.threads), str(a.reps)])
    return out.get("peer", command), {"pp512": out["pp512"], "pp1024": out["pp1024"], "decode": out["tg128_at_1024"]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ap.add_argument("--xjit", default=os.path.join(root, "build", "tools", "xjit"))
    ap.add_argument("--peer", action="append", required=True, metavar="COMMAND")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--gen", type=int, default=64, help="tokens that xjit generates after each prompt")
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    if min(a.threads, a.rounds, a.reps, a.gen) < 1:
        ap.error("--threads, --rounds, --reps and --gen must be positive")

    runs = {}
    try:
        for i in range(a.rounds):
            print(f"round {i + 1} of {a.rounds}", file=sys.stderr)
            runs.setdefault("xjit", []).append(xjit_figures(a))
            for command in a.peer:
                name, figures = peer_figures(a, command)
                runs.setdefault(name, []).append(figures)
    except (Failed, KeyError) as e:
        print(f"compare.py: error: {e if isinstance(e, Failed) else f'no {e} in what was printed'}", file=sys.stderr)
        return 1

    medians = {name: {c: statistics.median(f[c] for f in all_of) for c in COLUMNS} for name, all_of in runs.items()}
    ratios = {name: {c: medians["xjit"][c] / m[c] for c in COLUMNS} for name, m in medians.items() if name != "xjit"}
    if a.json:
        print(json.dumps({"model": os.path.basename(a.model), "threads": a.threads, "rounds": a.rounds, "tok_s": medians, "runs": runs,
                          "ratio": ratios}))
        return 0
    print(f"{os.path.basename(a.model)}, {a.threads} threads, median of {a.rounds} rounds, tokens a second")
    print(f"{'':<20}" + "".join(f"{title:>16}" for title in COLUMNS.values()))
    for name, m in medians.items():
        print(f"{name:<20}" + "".join(f"{m[c]:>16.1f}" for c in COLUMNS))
    for name, r in ratios.items():
        print(f"{'xjit / ' + name:<20}" + "".join(f"{r[c]:>16.2f}" for c in COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
