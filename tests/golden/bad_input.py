#!/usr/bin/env python3
"""Hands the built xjit what it must refuse: broken files, wrong flags, prompts that do not fit.

Each case must end with exit status 1 (the work failed) or 2 (wrong usage) and exactly one error on stderr, one line that
starts with `xjit: error: ` and comes last (a line about the machine may come before it); never with a signal, a time-out or gigabytes of memory. A damaged file may still be a valid
one (a flipped bit in an unused name): there, success is allowed too.
"""
import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

from engine import Report, clean_env, ended, golden_folder, host_isas
from gguf import Layout, patched, with_string

SECONDS = 60
# A length taken from a file unchecked asks for far more; the models here are under a megabyte.
ADDRESS_SPACE = 16 << 30


class Cases:
    def __init__(self, xjit, tmp, report, limited):
        self.xjit, self.tmp, self.report, self.limited = xjit, tmp, report, limited
        self.ids = self.file("ids.json", json.dumps({"prompt_ids": [[1, 2, 3]]}).encode())

    def file(self, name, data):
        path = os.path.join(self.tmp, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def limit(self):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.limited:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    def run(self, args, **env):
        try:
            return subprocess.run([self.xjit] + args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
                                  errors="replace", env=clean_env() | env, preexec_fn=self.limit)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(args, None, "", "")

    def logits(self, model):
        return ["logits", model, "--ids", self.ids, "--out", os.path.join(self.tmp, "out.safetensors")]

    def complaint(self, p, may_succeed=False):
        """What is wrong with how a case ended; None if nothing is."""
        if p.returncode == 0 and may_succeed:
            return None
        if p.returncode not in (1, 2):
            return ended(p)
        lines = p.stderr.splitlines()
        errors = [line.startswith("xjit: error: ") for line in lines]
        if sum(errors) != 1 or not errors[-1] or len(lines) > 2 or not lines[0].startswith("xjit: "):
            return f"{len(lines)} lines on stderr, {sum(errors)} of them errors"
        return None

    def refused(self, what, args, status=None, says=None):
        """One case that must fail, with this exit status and a message that contains `says` (in any case of letters)."""
        p = self.run(args)
        why = self.complaint(p)
        if not why and status is not None and p.returncode != status:
            why = f"exit status {p.returncode}, not {status}"
        if not why and says and says.lower() not in p.stderr.lower():
            why = f"the message does not name {says!r}"
        self.report.line(not why, what, why or p.stderr.strip().replace(self.tmp, "")[:150], p.stderr)

    def survives(self, what, damaged):
        """Many damaged models, [(name, path)]: none may crash. Reports the first failures and how many were refused."""
        bad, refused = [], 0
        for name, path in damaged:
            p = self.run(self.logits(path))
            why = self.complaint(p, may_succeed=True)
            refused += p.returncode in (1, 2)
            if why:
                bad.append(f"{name}: {why}\n{p.stderr[-300:]}")
        self.report.line(not bad, what, f"{len(damaged)} tries, {refused} refused, {len(bad)} wrong", "\n".join(bad[:5]))
        return refused


def flag_cases(c, model):
    out = os.path.join(c.tmp, "out.safetensors")
    logits = ["logits", model, "--ids", c.ids]
    c.refused("no arguments", [], 2)
    c.refused("unknown command", ["frobnicate"], 2, "frobnicate")
    c.refused("unknown flag", ["run", model, "--frobnicate"], 2, "frobnicate")
    c.refused("no model", ["run"], 2)
    c.refused("flag without its value", ["run", model, "--prompt"], 2, "prompt")
    c.refused("--max-tokens words", ["run", model, "--raw-ids", "1", "--max-tokens", "many"], 2, "max-tokens")
    c.refused("--temperature -1", ["run", model, "--raw-ids", "1", "--temperature", "-1"], 2, "temperature")
    c.refused("two prompts", ["run", model, "--prompt", "a", "--prompt-file", "/nonexistent"], 2, "give one of them")
    c.refused("--threads 0", logits + ["--out", out, "--threads", "0"], 2, "threads")
    c.refused("--threads -3", logits + ["--out", out, "--threads", "-3"], 2, "threads")
    c.refused("--threads 5000", logits + ["--out", out, "--threads", "5000"], 2, "for each of")
    gemm = ["bench-op", "gemm", "--m", "1", "--n", "64"]
    c.refused("bench-op of nothing", ["bench-op"], 2, "which operation")
    c.refused("bench-op of the unknown", ["bench-op", "frobnicate"], 2, "frobnicate")
    c.refused("bench-op gemm without --k", gemm + ["--weights", "q4_k"], 2, "--k")
    c.refused("bench-op gemm --weights fp6", gemm + ["--k", "256", "--weights", "fp6"], 2, "fp6")
    c.refused("bench-op gemm of part of a block", gemm + ["--k", "250", "--weights", "q4_k"], 2, "256")
    c.refused("bench-op rows without --cols", ["bench-op", "rows"], 2, "--cols")
    c.refused("kernels with another family's flag", ["kernels", "--family", "prepare", "--cols", "64", "--m", "1"], 2, "--m")
    c.refused("--chunk 0", logits + ["--out", out, "--chunk", "0"], 2, "chunk")
    c.refused("--isa foo", logits + ["--out", out, "--isa", "foo"], 2, "avx2")
    if "avx512_bf16" not in host_isas():  # else its kernels run, under the emulator where there are no tiles
        c.refused("--isa amx", logits + ["--out", out, "--isa", "amx"], None, "avx2")
    c.refused("--kv-dtype foo", logits + ["--out", out, "--kv-dtype", "foo"], 2, "bf16")
    c.refused("--backend foo", logits + ["--out", out, "--backend", "foo"], 2, "interp")
    c.refused("unwritable output", logits + ["--out", "/nonexistent/x"], 1, "/nonexistent/x")
    c.refused("output is a folder", logits + ["--out", c.tmp], 1)
    # A file may have the name of a command or of a flag: that it is missing is no wrong usage.
    c.refused("a missing file called as the command", ["show", "show"], 1, "show: no such file")
    c.refused("a missing file called as a flag", ["show", "--", "--isa.gguf"], 1, "--isa.gguf: no such file")
    c.refused("--stage asm without --kernel", ["ir", model, "--stage", "asm"], 2, "--kernel")
    c.refused("--prompt and --raw-ids", ["run", model, "--prompt", "a", "--raw-ids", "1"], 2, "give one of them")
    c.refused("--kv-dtype int8", logits + ["--out", out, "--kv-dtype", "int8"], 2, "bf16 or f32")
    c.refused("no ids file", ["logits", model, "--ids", "/nonexistent.json", "--out", out], 1, "/nonexistent.json")
    for name, text in {"not JSON": "{", "no prompt_ids": "{}", "ids of the wrong kind": '{"prompt_ids": [["a"]]}',
                       "an empty prompt": '{"prompt_ids": [[]]}', "a negative id": '{"prompt_ids": [[-1]]}',
                       "an id past the vocabulary": '{"prompt_ids": [[99999999]]}',
                       "an id past 64 bits": '{"prompt_ids": [[99999999999999999999999]]}'}.items():
        ids = c.file("bad_ids.json", text.encode())
        c.refused(f"--ids, {name}", ["logits", model, "--ids", ids, "--out", out], 1)
    long = c.file("long.json", json.dumps({"prompt_ids": [[1] * 17]}).encode())
    c.refused("prompt longer than --ctx (logits)", ["logits", model, "--ids", long, "--out", out, "--ctx", "16"], 1, "16")
    c.refused("prompt longer than --ctx (run)", ["run", model, "--raw-ids", ",".join(["1"] * 17), "--ctx", "16"], 1, "16")
    c.refused("--raw-ids that are no numbers", ["run", model, "--raw-ids", "1,x"], 2, "raw-ids")
    c.refused("--raw-ids past the vocabulary", ["run", model, "--raw-ids", "99999999"], 1)
    c.refused("no prompt file", ["run", model, "--prompt-file", "/nonexistent.txt"], 1, "/nonexistent.txt")


def path_cases(c):
    c.refused("missing file", c.logits("/nonexistent/model.gguf"), 1, "/nonexistent/model.gguf")
    c.refused("missing folder", c.logits("/nonexistent"), 1, "/nonexistent")
    empty = os.path.join(c.tmp, "empty")
    os.makedirs(empty)
    c.refused("folder without config.json", c.logits(empty), 1, "config.json")
    c.refused("empty file", c.logits(c.file("empty.gguf", b"")), 1, "empty.gguf")
    c.refused("a file of zeros", c.logits(c.file("zeros.gguf", bytes(4096))), 1, "zeros.gguf")
    c.refused("a file of text", c.logits(c.file("text.txt", b"hello\n")), 1, "text.txt")


def cache_cases(c, model):
    """What was measured before (prefetch.txt) is a help, never a condition."""
    folder = os.path.join(c.tmp, "cache", "xjit")
    os.makedirs(folder)
    path = os.path.join(folder, "prefetch.txt")
    os.mkfifo(path)
    for what in ("a pipe", "garbage"):
        p = c.run(c.logits(model), XDG_CACHE_HOME=os.path.dirname(folder))
        c.report.line(p.returncode == 0, f"cache: prefetch.txt is {what}", "" if p.returncode == 0 else ended(p), p.stderr)
        os.unlink(path)
        with open(path, "wb") as f:
            f.write(b"AMD\tq4_1 1 1 -5\n\xff\xfe no line's end")


def gguf_cases(c, folder, rng):
    with open(os.path.join(folder, "model.gguf"), "rb") as f:
        data = f.read()
    layout = Layout(data)
    end = layout.header_end

    def one(what, damaged, says=None):
        c.refused(f"gguf: {what}", c.logits(c.file("one.gguf", damaged)), 1, says)

    one("version 99", patched(data, 4, "<I", 99), "99")
    one("tensor count 2^62", patched(data, 8, "<Q", 1 << 62))
    one("key count 2^62", patched(data, 16, "<Q", 1 << 62))
    one("unknown architecture", with_string(data, layout, "general.architecture", b"zzzzz"), "zzzzz")
    at = layout.values["tokenizer.ggml.pre"][1]
    (n,) = struct.unpack_from("<Q", data, at)
    name = b"z" * n
    # The tokenizer is only needed where there is text.
    c.refused("gguf: unknown pre-tokenizer", ["run", c.file("pre.gguf", with_string(data, layout, "tokenizer.ggml.pre", name)),
                                              "--prompt", "hello", "--max-tokens", "1"], 1, name.decode())
    at = layout.values["tokenizer.ggml.tokens"][1]
    one("array of 2^61 strings", patched(data, at + 4, "<Q", 1 << 61))
    one("array within array type", patched(data, at, "<I", 9))
    t = layout.tensors["blk.0.attn_q.weight"]
    one("misshapen tensor", patched(data, t["dims"] + 8, "<Q", 7), "blk.0.attn_q.weight")
    one("a dimension of zero", patched(data, t["dims"], "<Q", 0), "blk.0.attn_q.weight")
    one("dimensions whose product overflows", patched(data, t["dims"] + 8, "<Q", 1 << 61), "blk.0.attn_q.weight")
    one("2^32 - 1 dimensions", patched(data, t["n_dims"], "<I", 0xFFFFFFFF))
    one("unknown tensor type", patched(data, t["type"], "<I", 250), "250")
    one("tensor past the end", patched(data, t["offset"], "<Q", 1 << 40), "blk.0.attn_q.weight")
    one("tensor offset that overflows", patched(data, t["offset"], "<Q", (1 << 64) - 32), "blk.0.attn_q.weight")
    # The f16 scale in front of a block of q4_0: what is no number would else come out as logits.
    q = layout.tensors["blk.0.ffn_gate.weight"]
    (first,), (k,) = struct.unpack_from("<Q", data, q["offset"]), struct.unpack_from("<Q", data, q["dims"])
    assert struct.unpack_from("<I", data, q["type"]) == (2,)
    block_bytes = 18
    at = -(-end // 32) * 32 + first + 2 * (k // 32) * block_bytes + block_bytes
    for value, half in (("infinite", 0x7C00), ("no number", 0xFE00)):
        nan = c.file("nan.gguf", patched(data, at, "<H", half))
        says = "blk.0.ffn_gate.weight: row 2: the scale of block 1 is infinite or no number"
        c.refused(f"gguf: a block's scale is {value}", c.logits(nan), 1, says)
        c.refused(f"gguf: a block's scale is {value}, interpreted", c.logits(nan) + ["--backend", "interp"], 1, says)
    for key in layout.values:
        if key.endswith((".block_count", ".attention.head_count", ".embedding_length", ".feed_forward_length")):
            at = layout.values[key][1]
            for value in (0, 77, 0x7FFFFFFF):
                one(f"{key} = {value}", patched(data, at, "<I", value))

    # Up to where the last tensor begins: what follows its data may be padding, which nobody misses.
    last = -(-end // 32) * 32 + max(struct.unpack_from("<Q", data, t["offset"])[0] for t in layout.tensors.values())
    cuts = sorted({rng.randrange(1, end) for _ in range(45)} | {rng.randrange(end, last) for _ in range(15)} | {last})
    damaged = [(f"cut at {n}", c.file(f"cut/{n}.gguf", data[:n])) for n in cuts]
    refused = c.survives("gguf: truncated", damaged)
    c.report.line(refused == len(damaged), "gguf: every truncation is noticed", f"{refused} of {len(damaged)}")
    flips = []
    for i in range(100):
        b = bytearray(data)
        at = [rng.randrange(end) for _ in range(rng.choice((1, 1, 2, 4)))]
        for n in at:
            b[n] ^= 1 << rng.randrange(8)
        flips.append((f"bytes {at} flipped", c.file(f"flip/{i}.gguf", bytes(b))))
    c.survives("gguf: flipped bits in the header", flips)


def safetensors_cases(c, folder, rng):
    good = os.path.join(c.tmp, "good")
    shutil.copytree(folder, good)
    for d, _, names in os.walk(good):
        os.chmod(d, 0o755)
        for n in names:
            os.chmod(os.path.join(d, n), 0o644)
    with open(os.path.join(good, "model.safetensors.index.json")) as f:
        index = json.load(f)
    shard = os.path.join(good, index["weight_map"]["model.norm.weight"])
    with open(shard, "rb") as f:
        data = f.read()
    (size,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8:8 + size])

    def with_file(path, content, action):
        with open(path, "rb") as f:
            before = f.read()
        with open(path, "wb") as f:
            f.write(content)
        try:
            return action()
        finally:
            with open(path, "wb") as f:
                f.write(before)

    def one(what, name, content, says=None):
        path = name if os.path.isabs(name) else os.path.join(good, name)
        with_file(path, content, lambda: c.refused(f"folder: {what}", c.logits(good), 1, says))

    def header(change):
        h = json.loads(json.dumps(head))
        change(h["model.norm.weight"])
        text = json.dumps(h).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + size:]

    with open(os.path.join(good, "config.json")) as f:
        config = json.load(f)
    one("broken JSON in config.json", "config.json", b'{"architectures": [', "config.json")
    one("config.json is a list", "config.json", b"[]", "config.json")
    one("config.json nested 100000 deep", "config.json", b"[" * 100000, "config.json")
    one("unknown architecture", "config.json", json.dumps(config | {"model_type": "zzz", "architectures": ["ZzzForCausalLM"]}).encode(), "zzz")
    for key, value in (("hidden_size", "big"), ("hidden_size", -64), ("num_hidden_layers", 1 << 40), ("num_attention_heads", 0),
                       ("num_key_value_heads", 3), ("vocab_size", 1), ("rms_norm_eps", "x"), ("rope_scaling", {"rope_type": "zzz"})):
        one(f"{key} = {value}", "config.json", json.dumps(config | {key: value}).encode())
    no_index = "model.safetensors.index.json"
    one("broken JSON in the index", no_index, b"{", no_index)
    one("index names a missing shard", no_index,
        json.dumps(index | {"weight_map": {k: "absent.safetensors" for k in index["weight_map"]}}).encode(), "absent.safetensors")
    one("index leaves the folder", no_index,
        json.dumps(index | {"weight_map": {k: "../../../etc/passwd" for k in index["weight_map"]}}).encode())
    one("safetensors: misshapen tensor", shard, header(lambda t: t.update(shape=[3])), "model.norm.weight")
    one("safetensors: shape that overflows", shard, header(lambda t: t.update(shape=[1 << 62, 8])), "model.norm.weight")
    one("safetensors: offsets past the end", shard, header(lambda t: t.update(data_offsets=[0, 1 << 50])), "model.norm.weight")
    one("safetensors: offsets that go backwards", shard, header(lambda t: t.update(data_offsets=[64, 0])), "model.norm.weight")
    one("safetensors: unknown dtype", shard, header(lambda t: t.update(dtype="Z9")), "Z9")
    one("safetensors: header length 2^63", shard, struct.pack("<Q", 1 << 63) + data[8:])
    one("safetensors: broken header", shard, data[:8] + b"!" + data[9:])

    # survives() takes paths that exist at once; a damaged shard needs its folder around it.
    def folder_with(i, content):
        copy = os.path.join(c.tmp, "shards", str(i))
        shutil.copytree(good, copy)
        with open(os.path.join(copy, os.path.basename(shard)), "wb") as f:
            f.write(content)
        return copy

    cuts = sorted({rng.randrange(0, 8 + size) for _ in range(15)} | {rng.randrange(8 + size, len(data)) for _ in range(10)})
    damaged = [(f"cut at {n}", folder_with(n, data[:n])) for n in cuts]
    refused = c.survives("safetensors: truncated", damaged)
    c.report.line(refused == len(damaged), "safetensors: every truncation is noticed", f"{refused} of {len(damaged)}")
    flips = []
    for i in range(40):
        b = bytearray(data)
        n = rng.randrange(8 + size)
        b[n] ^= 1 << rng.randrange(8)
        flips.append((f"byte {n} flipped", folder_with(f"flip{i}", bytes(b))))
    c.survives("safetensors: flipped bits in the header", flips)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--xjit", required=True)
    ap.add_argument("--shared", required=True, help="folder that holds goldens/")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--no-memory-limit", action="store_true", help="for sanitizers, whose shadow needs terabytes of addresses")
    a = ap.parse_args()
    if not os.access(a.xjit, os.X_OK):
        print(f"no xjit at {a.xjit}")
        return 1
    gguf = golden_folder(a.shared, "gguf_llama_q4_0")
    folder = golden_folder(a.shared, "llama_gqa")
    rng = random.Random(a.seed)
    print(f"seed {a.seed}")
    report = Report()
    with tempfile.TemporaryDirectory() as tmp:
        c = Cases(a.xjit, tmp, report, not a.no_memory_limit)
        # What is broken below works when whole: otherwise every refusal would be for the wrong reason.
        for model in (os.path.join(gguf, "model.gguf"), folder):
            p = c.run(c.logits(model))
            report.line(p.returncode == 0, f"whole: {os.path.basename(os.path.dirname(model) if model.endswith('.gguf') else model)}",
                        "" if p.returncode == 0 else ended(p), p.stderr)
        flag_cases(c, os.path.join(gguf, "model.gguf"))
        path_cases(c)
        cache_cases(c, os.path.join(gguf, "model.gguf"))
        gguf_cases(c, gguf, rng)
        safetensors_cases(c, folder, rng)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
