#!/usr/bin/env python3
"""Runs one golden folder through `xjit logits` and has the goldens' own tool judge the result.

Every ISA of this machine × (the prompt whole, one token at a time, in chunks of 16), each with decoded and greedy tokens;
then the interpreter and AVX2 with an f32 KV cache, which must both be true f32 (but for W8A8); then that threads
change no bit, and that greedy tokens do not depend on the command or on the chunks. --interp-only: the interpreter alone,
for models that have no kernels yet. --isa: that ISA alone, the machine's own or not (amx runs anywhere, emulated where it
must).
"""
import argparse
import json
import os
import sys
import tempfile

from engine import Engine, Report, golden_folder, host_isas, ids_of

PATHS = {"whole": [], "step": ["--step-by-step"], "chunk 16": ["--chunk", "16"]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--xjit", required=True)
    ap.add_argument("--shared", required=True, help="folder that holds goldens/ and tools/")
    ap.add_argument("--golden", required=True)
    which = ap.add_mutually_exclusive_group()
    which.add_argument("--interp-only", action="store_true")
    which.add_argument("--isa")
    a = ap.parse_args()
    golden = golden_folder(a.shared, a.golden)
    isas = [] if a.interp_only else [a.isa] if a.isa else host_isas()
    ids = os.path.join(golden, "expected.json")
    with open(ids) as f:
        expected = json.load(f)
    gguf = os.path.join(golden, "model.gguf")
    model = gguf if os.path.exists(gguf) else golden
    count = len(expected["greedy_ids"][0])
    # References of W8A8 checkpoints round activations; the interpreter's mode says so.
    exact = "int8" if "int8" in expected["tolerance"] else "fp32"
    report = Report()
    engine = Engine(a.xjit, a.shared, report)
    judged = ["--require", "logits,decode,greedy"]
    full = ["--decode", "--greedy", str(count)]

    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "logits.safetensors")

        def check(what, flags, stated):
            got = engine.logits(what, model, ids, out, full + flags)
            if got:
                engine.judge(what, "check_logits.py", golden, out, judged, got[0], stated)
            return got[1] if got else None

        for isa in isas:
            by_path = {}
            for path, flags in PATHS.items():
                by_path[path] = check(f"{isa}, {path}", ["--isa", isa] + flags, {"isa": isa, "backend": "jit"})

            threads = [engine.logits(f"{isa}, {n} threads", model, ids, out, full + ["--isa", isa, "--threads", str(n)])
                       for n in (1, 2, 3)]
            if all(threads):
                for n, got in zip((2, 3), threads[1:]):
                    engine.same_bits(f"{isa}, {n} threads = 1 thread", threads[0][1], got[1])

            if by_path["whole"] and by_path["chunk 16"]:
                ran = [engine.greedy_ids(f"{isa}, run on prompt {k}", model, prompt, count, ["--isa", isa])
                       for k, prompt in enumerate(expected["prompt_ids"])]
                for path in ("whole", "chunk 16") if all(ran) else ():
                    got = [ids_of(by_path[path], f"greedy_{k}") for k in range(len(ran))]
                    report.line(ran == got, f"{isa}, greedy tokens: run = {path}", f"{sum(map(len, ran))} tokens",
                                "\n".join(f"prompt {k}: {a}\n          {b}" for k, (a, b) in enumerate(zip(ran, got)) if a != b))

        for path, flags in PATHS.items() if not a.isa else ():
            check(f"interpreter, {path}", ["--backend", "interp"] + flags, {"backend": "interp", "mode": exact})
        if isas and not a.isa and exact == "fp32":
            for path, flags in PATHS.items():
                check(f"avx2 and f32 KV, {path}", ["--isa", "avx2", "--kv-dtype", "f32"] + flags,
                      {"isa": "avx2", "kv_dtype": "f32", "mode": "fp32"})
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
