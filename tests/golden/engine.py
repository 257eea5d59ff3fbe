"""What the scripts of this folder share: running the built xjit, reading its logits, judging them with the goldens' tools."""
import json
import os
import signal
import struct
import subprocess
import sys

SKIP = 77  # ctest's SKIP_RETURN_CODE

# Each level needs the ones before it; read from the kernel, since xjit's own detection is what is tested.
ISAS = [
    ("avx2", "avx2 fma f16c"),
    ("avx512", "avx512f avx512bw avx512dq avx512vl"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_bf16", "avx512_bf16"),
]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def host_isas():
    with open("/proc/cpuinfo") as f:
        flags = set(next((line for line in f if line.startswith("flags")), "").split())
    out = []
    for name, needed in ISAS:
        if not flags.issuperset(needed.split()):
            break
        out.append(name)
    return out


def golden_folder(shared, name):
    folder = os.path.join(shared, "goldens", name)
    if not os.path.isdir(folder):
        skip(f"no golden {name} in {shared}")
    return folder


def clean_env():
    """The environment without what changes xjit's choices."""
    return {k: v for k, v in os.environ.items() if k not in ("XJIT_ISA", "XJIT_API_KEY")}


def run(args, timeout=300):
    """Runs a command; a CompletedProcess of text, whose returncode is None after a timeout."""
    try:
        return subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=timeout, env=clean_env())
    except subprocess.TimeoutExpired as e:
        text = e.stderr.decode(errors="replace") if isinstance(e.stderr, bytes) else (e.stderr or "")
        return subprocess.CompletedProcess(args, None, "", text)


def ended(p):
    """How a process ended, in words."""
    if p.returncode is None:
        return "timed out"
    if p.returncode < 0:
        return f"died of {signal.Signals(-p.returncode).name}"
    return f"exit status {p.returncode}"


def read_safetensors(path):
    """(metadata, {name: (dtype, shape, raw bytes)})"""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    meta = head.pop("__metadata__", {})
    return meta, {n: (h["dtype"], h["shape"], data[h["data_offsets"][0]:h["data_offsets"][1]]) for n, h in head.items()}


def ids_of(tensors, name):
    dtype, _, raw = tensors[name]
    width, code = {"I32": (4, "i"), "U32": (4, "I"), "I64": (8, "q")}[dtype]
    return list(struct.unpack(f"<{len(raw) // width}{code}", raw))


class Report:
    """One line a check; the output of what failed below it."""

    def __init__(self):
        self.failed = 0
        self.done = 0

    def line(self, ok, what, detail="", output=""):
        self.done += 1
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {what:<44} {detail}".rstrip())
        if not ok and output:
            for text in output.rstrip().splitlines()[-20:]:
                print("     |", text)
        sys.stdout.flush()
        return ok

    def finish(self):
        print(f"{self.done - self.failed} of {self.done} checks passed")
        return 1 if self.failed else 0


class Engine:
    """The built xjit, judged through one Report."""

    def __init__(self, xjit, shared, report):
        self.xjit, self.report = xjit, report
        self.tools = os.path.join(shared, "tools")
        if not os.access(xjit, os.X_OK):
            print(f"no xjit at {xjit}")
            sys.exit(1)

    def logits(self, what, model, ids, out, flags):
        """Runs `xjit logits`; (metadata, tensors), or None after reporting why not."""
        if os.path.exists(out):
            os.unlink(out)
        p = run([self.xjit, "logits", model, "--ids", ids, "--out", out] + flags)
        if p.returncode != 0:
            self.report.line(False, what, ended(p), " ".join(p.args) + "\n" + p.stderr)
            return None
        try:
            return read_safetensors(out)
        except (OSError, ValueError, KeyError, struct.error) as e:
            self.report.line(False, what, f"unreadable output: {e}", " ".join(p.args))
            return None

    def judge(self, what, tool, golden, out, flags, meta, stated):
        """Reports the tool's verdict on `out`, and that its metadata says what `stated` says."""
        for key, want in stated.items():
            if meta.get(key) != want:
                return self.report.line(False, what, f"metadata says {key} = {meta.get(key)}, not {want}")
        p = run([sys.executable, os.path.join(self.tools, tool), golden, out] + flags)
        detail = next((t.strip() for t in p.stdout.splitlines() if t.strip().startswith(("overall", "positions"))), "")
        return self.report.line(p.returncode == 0, what, f"mode {meta.get('mode')}: {detail}", p.stdout + p.stderr)

    def same_bits(self, what, a, b):
        """Reports whether two sets of tensors are equal to the last bit."""
        differ = [n for n in sorted(set(a) | set(b)) if a.get(n) != b.get(n)]
        detail = f"differ: {', '.join(differ)}" if differ else f"{len(a)} tensors"
        self.report.line(bool(a) and not differ, what, detail)

    def greedy_ids(self, what, model, prompt, count, flags):
        """The token ids of `xjit run` at temperature 0, or None after reporting why not."""
        p = run([self.xjit, "run", model, "--raw-ids", ",".join(map(str, prompt)), "--temperature", "0", "--max-tokens",
                 str(count), "--ignore-eos", "--json"] + flags)
        try:
            if p.returncode != 0:
                raise ValueError(ended(p))
            return json.loads(p.stdout)["token_ids"]
        except (ValueError, KeyError) as e:
            self.report.line(False, what, str(e), " ".join(p.args) + "\n" + p.stderr + p.stdout)
            return None
