# lit's configuration: IR text goes through xjit-opt (or xjit) and FileCheck.
#   %xjit %xjit-opt    the built binaries
#   %shared            the folder of goldens and text vectors; needs `REQUIRES: shared`
#   %same FILE         compares standard input with FILE word for word; XJIT_BLESS=1 rewrites FILE instead
# Features: avx2, avx512, avx512_vnni, avx512_bf16, amx where the machine has them (read from the kernel, not from xjit,
# which is what is tested), amx_emulated where the emulator runs instead, and shared.
import os

import lit.formats

config.name = "xjit"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".xir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(os.path.abspath(__file__))
config.test_exec_root = os.path.join(config.xjit_build_dir, "tests", "lit")

tools = os.path.join(config.xjit_build_dir, "tools")
config.environment["PATH"] = os.pathsep.join(
    [tools, os.path.dirname(os.path.realpath(config.xjit_filecheck)), os.environ.get("PATH", "")])
for name in ("XJIT_BLESS", "HOME", "ASAN_OPTIONS", "UBSAN_OPTIONS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
# XJIT_ISA would change what the tests print.
config.environment.pop("XJIT_ISA", None)

same = os.path.join(config.test_source_root, "same.py")
# Longer names first: a substitution also matches the beginning of another.
config.substitutions += [
    ("%xjit-opt", os.path.join(tools, "xjit-opt")),
    ("%xjit", os.path.join(tools, "xjit")),
    ("%same", f"{config.xjit_python} {same}"),
    ("%shared", config.xjit_shared_dir),
]

LEVELS = [
    ("avx2", "avx2 fma f16c"),
    ("avx512", "avx512f avx512bw avx512dq avx512vl"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512_bf16", "avx512_bf16"),
    ("amx", "amx_tile amx_bf16 amx_int8"),
]
with open("/proc/cpuinfo") as f:
    flags = set(next((line for line in f if line.startswith("flags")), "").split())
for level, needed in LEVELS:
    if not flags.issuperset(needed.split()):
        break
    config.available_features.add(level)
if "avx512_bf16" in config.available_features and "amx_tile" not in flags:
    config.available_features.add("amx_emulated")
if os.path.isdir(os.path.join(config.xjit_shared_dir, "goldens")):
    config.available_features.add("shared")
