#!/usr/bin/env python3
"""Measures the matrix kernels against what the machine can do and prints the table of docs/performance.md.

Each row is `xjit bench-op`: the kernel in turns with a register-resident loop of its instruction, with an ascending read of
memory, and with oneDNN where xjit was built with it; medians. --write FILE replaces the table between the marks in FILE.

The limit of many rows is what this machine leaves: the kernel's speed with operands in L2 (unpacked weights included),
plus the time in which all threads read the activations from memory and write them converted, at the speed of the
reader. A bar above it is met by 95% of it.
"""
import argparse
import json
import subprocess
import sys

MANY = [(1024, 8192, 3072), (512, 4096, 4096), (128, 2048, 7168)]
GGUF_MANY = [(512, 8960, 1536), (512, 1536, 8960), (64, 8960, 1536)]
PLAIN = ("bf16", "int8", "fp8", "f16", "f32")
BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "iq4_nl", "iq4_xs", "mxfp4", "int4")
# Of the peak of the kernel's instruction, at the three shapes.
BARS = {"bf16": (.95, .95, .92), "f32": (.94, .94, .89), "int8": (.94, .94, .90)}
PEER_BARS = {"bf16": 1.0, "int8": .99}
LIGHT, HEAVY = (.72, .70, .65), (.67, .65, .63)  # without and with a minimum or two scales a block
BLOCK_BARS = {"q8_0": LIGHT, "q4_0": LIGHT, "q4_1": HEAVY, "q4_k": HEAVY, "q5_k": HEAVY, "q6_k": HEAVY, "int4": HEAVY}
# Bytes read and written to convert an activation: f32 to bf16, to int8, to int8 in blocks of 32 with 20 bytes of scales and sums.
CONVERTED, BLOCK_CONVERTED = {"f32": 0, "bf16": 4 + 2, "int8": 4 + 1}, 4 + 1 + 20 / 32
BEGIN, END = "<!-- kernels: begin -->\n", "<!-- kernels: end -->\n"


class Bench:
    def __init__(self, a):
        self.a, self.rows, self.failed = a, [], 0
        self.cached = {}  # share of the peak from L2, by weights and threads

    def run(self, op, threads, **flags):
        command = [self.a.xjit, "bench-op", op, "--threads", str(threads), "--reps", str(self.a.reps), "--json"]
        for flag, value in flags.items():
            command += [f"--{flag.replace('_', '-')}"] + ([] if value is True else [str(value)])
        p = subprocess.run(command, capture_output=True, text=True)
        if p.returncode != 0:
            print(" ".join(command), p.stderr.strip(), file=sys.stderr)
            return None
        return json.loads(p.stdout)

    def gemm(self, m, n, k, weights, threads, **flags):
        return self.run("gemm", threads, m=m, n=n, k=k, weights=weights, **flags)

    def add(self, what, shape, threads, value, bar, note="", limit=None):
        """One line of the table; value, bar and limit are shares, bar None where none was set."""
        met = bar is None or value >= bar or limit is not None and bar > limit and value >= .95 * limit
        self.failed += not met
        self.rows.append((what, shape, threads, f"{100 * value:.1f}%", "" if bar is None else f"{100 * bar:.0f}%" +
                          ("" if met else " (missed)"), "" if limit is None else f"{100 * limit:.1f}%", note))
        print("  ".join(map(str, self.rows[-1])), file=sys.stderr, flush=True)

    def table(self):
        lines = ["| kernel | shape | threads | measured | bar | limit | |", "|---|---|---|---|---|---|---|"]
        return "\n".join(lines + ["| " + " | ".join(map(str, r)) + " |" for r in self.rows]) + "\n"


def limit_of(b, weights, threads, m, n, k, d):
    """Share of the peak that the machine leaves a product whose figures are d; None where it was not measured."""
    shape = (768, 128 * threads, 256) if weights in BLOCKS else (128, 64 * threads, 1536)
    if (weights, threads) not in b.cached:
        # The best of three: what disturbs so short a run only makes the limit look lower.
        tries = [b.gemm(*shape, weights, threads, copies=1, prepared=True) for _ in range(3)]
        b.cached[weights, threads] = max((d["ratio"] for d in tries if d), default=None)
    cached = b.cached[weights, threads]
    if cached is None:
        return None
    product = 2 * m * n * k / (d["peak_gflops"] * 1e9 * cached)
    convert = m * k * CONVERTED.get(weights, BLOCK_CONVERTED) / (d["machine_read_gb_s"] * 1e9)
    return cached * product / (product + convert)


def many_rows(b, threads):
    for weights in ("bf16", "f32", "int8"):
        for (m, n, k), bar in zip(MANY, BARS[weights]):
            flags = {"vs": "onednn"} if b.a.onednn else {}
            d = b.gemm(m, n, k, weights, threads, **flags)
            if d is None:
                continue
            shape = f"{m}x{n}x{k}"
            b.add(f"{weights}, many rows", shape, threads, d["ratio"], bar, f"{d['gflops']:.0f} of {d['peak_gflops']:.0f} GFLOP/s ({d['peak_of']})",
                  limit_of(b, weights, threads, m, n, k, d))
            if "vs_peer" in d:
                b.add(f"{weights}, many rows / oneDNN", shape, threads, d["vs_peer"], PEER_BARS.get(weights))
    for m, n, k in MANY:
        bf16, fp8 = b.gemm(m, n, k, "bf16", threads), b.gemm(m, n, k, "fp8", threads)
        if bf16 and fp8:
            b.add("fp8, many rows / bf16", f"{m}x{n}x{k}", threads, fp8["ratio"] / bf16["ratio"], .96)
    for weights in BLOCKS:
        for (m, n, k), bar in zip(GGUF_MANY, BLOCK_BARS.get(weights, (None,) * 3)):
            d = b.gemm(m, n, k, weights, threads)
            if d:
                b.add(f"{weights}, many rows", f"{m}x{n}x{k}", threads, d["ratio"], bar, f"{d['gflops']:.0f} GOP/s",
                      limit_of(b, weights, threads, m, n, k, d))


def few_rows(b, threads):
    fp8 = int8 = None
    for weights in PLAIN + BLOCKS:
        one, four = (b.gemm(m, 8192, 3072, weights, threads) for m in (1, 4))
        if not one or not four:
            continue
        regime = f"{one['gb_s']:.1f} of {one['machine_read_gb_s']:.1f} GB/s"
        b.add(f"{weights}, 1 row / read", "1x8192x3072", threads, one["bandwidth_ratio"], .95, regime)
        fp8, int8 = (one if weights == "fp8" else fp8), (one if weights == "int8" else int8)
        # Either as fast as one row, or as fast as from L2: 256 KB for each thread.
        column = one["gb_s"] * one["us"] * 1e3 / 8192
        n = max(1, int(256e3 / column / 32)) * 32 * threads
        cached = b.gemm(4, n, 3072, weights, threads, copies=1)
        slower, of_l2 = one["bandwidth_ratio"] / four["bandwidth_ratio"], four["gb_s"] / cached["gb_s"]
        met = slower <= 1.15
        b.add(f"{weights}, 4 rows", "4x8192x3072", threads, 1.15 / slower if met else of_l2, 1.0 if met else .93,
              f"{slower:.2f} x the time of 1 row; {of_l2:.2f} of its speed from L2")
    if fp8 and int8:
        b.add("fp8, 1 row / int8's bytes a second", "1x8192x3072", threads, fp8["bandwidth_ratio"] / int8["bandwidth_ratio"], .95)


def experts(b, threads):
    for name, hidden, intermediate, n in (("Qwen3-MoE", 2048, 768, 128), ("R1", 7168, 2048, 128)):
        for tokens in (1, 4, 16, 64):
            d = b.run("moe", threads, experts=n, top_k=8, tokens=tokens, hidden=hidden, intermediate=intermediate, weights="int8")
            if d:
                b.add(f"int8, 8 of {n} experts, {tokens} tokens / read", name, threads, d["bandwidth_ratio"], .90 if tokens == 1 else None,
                      f"{d['gb_s']:.1f} GB/s, {100 * d['ratio']:.0f}% of the peak")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--xjit", default="build/tools/xjit")
    ap.add_argument("--threads", default="1,2", help="numbers of threads, separated by commas")
    ap.add_argument("--reps", type=int, default=5)
    ap.add_argument("--only", choices=("many", "few", "moe"), help="one part of the table")
    ap.add_argument("--no-onednn", dest="onednn", action="store_false")
    ap.add_argument("--write", metavar="FILE")
    a = ap.parse_args()
    b = Bench(a)
    for threads in map(int, a.threads.split(",")):
        for name, part in (("many", many_rows), ("few", few_rows), ("moe", experts)):
            if a.only in (None, name):
                part(b, threads)
    if a.write:
        with open(a.write) as f:
            head, rest = f.read().split(BEGIN)
        with open(a.write, "w") as f:
            f.write(head + BEGIN + b.table() + END + rest.split(END)[1])
    else:
        print(b.table())
    print(f"{b.failed} of {len(b.rows)} below their bar", file=sys.stderr)


if __name__ == "__main__":
    main()
