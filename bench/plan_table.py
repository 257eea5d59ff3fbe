#!/usr/bin/env python3
"""Predictions for two Xeon 6980P beside published measurements, as the Markdown table of docs/planner.md.

    bench/plan_table.py [--xjit build/tools/xjit]             prints the table
    bench/plan_table.py --check docs/planner.md               exit 1 if the file holds another table
    bench/plan_table.py --write docs/planner.md               puts the table there

Published: LMSYS blog 2025-07-14, "Cost Effective Deployment of DeepSeek R1 with Intel Xeon 6 CPU on SGLang", one request,
1024 tokens in, 1024 out, milliseconds.
"""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Model, configuration, --quantize, name of the type, sockets, llama.cpp (first token, token), SGLang (first token, token).
ROWS = [
    ("DeepSeek-R1-671B", "deepseek-r1-671b", "int8", "INT8", 2, ("24546.76", "172.01"), ("1885.25", "67.99")),
    ("DeepSeek-R1-671B", "deepseek-r1-671b", "fp8", "FP8", 2, None, ("2235.00", "77.72")),
    ("Qwen3-235B-A22B", "qwen3-235b-a22b", "int8", "INT8", 2, ("16806.34", "214.9"), ("1164.29", "51.84")),
    ("Qwen3-235B-A22B", "qwen3-235b-a22b", "fp8", "FP8", 2, None, ("1340.62", "55.88")),
    ("R1-Distill-Llama-70B", "r1-distill-llama-70b", "int8", "INT8", 2, ("20306.85", "194.97"),
     ("2637.84", "76.53")),
    ("Llama-3.2-3B", "llama-3.2-3b", "bf16", "BF16", 1, ("1659.94", "55.35"), ("268.2", "16.98")),
]
BEGIN, END = "<!-- plan_table.py: begin -->", "<!-- plan_table.py: end -->"
HEAD = ["model", "weights", "sockets", "ranks", "llama.cpp", "SGLang", "memory alone", "arithmetic alone", "predicted"]


def command(config, quantize, sockets):
    return ["plan", os.path.join("models", "configs", f"{config}.json"), "--machine", "xeon6980p-2s", "--sockets", str(sockets),
            "--quantize", quantize]  # 1024 in, 1024 out, batch 1 are the defaults


def plan(xjit, arguments):
    result = subprocess.run([xjit, *arguments, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"xjit {' '.join(arguments)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def pair(values):
    return "–" if values is None else f"{values[0]} / {values[1]}"


def table(xjit):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    commands = []
    for model, config, quantize, weights, sockets, llama, sglang in ROWS:
        arguments = command(config, quantize, sockets)
        commands.append("    xjit " + " ".join(arguments))
        p = plan(xjit, arguments)
        limits = [f"{p['prefill'][key]:.0f} / {p['decode'][key]:.1f}" for key in ("bandwidth_limit_ms", "flops_limit_ms")]
        lines.append("| " + " | ".join([model, weights, str(sockets), str(p["tp"]), pair(llama), pair(sglang), *limits,
                                        f"{p['ttft_ms']:.0f} / {p['tpot_ms']:.1f}"]) + " |")
    return "\n".join([*lines, "", *commands]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xjit", default=os.path.join(ROOT, "build", "tools", "xjit"))
    parser.add_argument("--check", metavar="FILE")
    parser.add_argument("--write", metavar="FILE")
    args = parser.parse_args()
    text = table(os.path.abspath(args.xjit))
    path = args.check or args.write
    if path is None:
        print(text, end="")
        return
    with open(path, encoding="utf-8") as file:
        old = file.read()
    if BEGIN not in old or END not in old:
        sys.exit(f"{path}: no place for the table ({BEGIN} and {END})")
    new = old[:old.index(BEGIN) + len(BEGIN)] + "\n" + text + old[old.index(END):]
    if args.write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)
    elif new != old:
        sys.exit(f"{path}: not the current table (bench/plan_table.py --write {path} refreshes it):\n{text}")


if __name__ == "__main__":
    main()
