#!/usr/bin/env python3
"""Checks what the compiler does not: who includes whom, which headers are off limits, sizes, and that nothing lacks its test.

    tests/lint.py [ROOT]

Prints one line a finding, `FILE:LINE: what`; exit 1 if there are any.
"""
import os
import re
import sys

ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A folder and what it may include; the longest prefix counts, and a folder may always include itself.
MAY_INCLUDE = {
    "ir/support": [],
    "ir": ["ir/support"],
    "codegen": ["ir/support"],
    "runtime": ["ir/support", "codegen"],
    "passes": ["ir", "codegen", "runtime/program.h"],
    "models": ["ir"],
    "frontend/text": [],
    "frontend": ["ir", "codegen", "runtime", "passes", "models", "frontend/text"],
    "tools": ["ir", "codegen", "runtime", "passes", "models", "frontend"],
}
# The distribution's Abseil is the C++14 ABI: its string_view is not std's, and sanitizers can't see into its Mutex.
BANNED = {"absl/strings/": "use fmt and std::string_view", "absl/synchronization/": "use std::mutex",
          "absl/types/optional.h": "use std::optional", "absl/types/span.h": "use std::span"}
MAX_LINES = 800
MAX_README = 15

findings = []


def found(path, line, what):
    findings.append(f"{path}:{line}: {what}")


def sources():
    for top in sorted({f.split("/")[0] for f in MAY_INCLUDE} | {"tests", "scripts", "bench"}):
        for folder, dirs, names in os.walk(os.path.join(ROOT, top)):
            dirs[:] = sorted(d for d in dirs if d not in ("target", "__pycache__"))
            for name in sorted(names):
                if name.endswith((".cc", ".h", ".inc", ".rs", ".py", ".sh")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def home(path):
    return max((f for f in MAY_INCLUDE if under(path, f)), key=len, default=None)


def check_include(path, number, target):
    for banned, instead in BANNED.items():
        if target.startswith(banned):
            found(path, number, f"includes {target}: {instead}")
    mine, theirs = home(path), home(target)
    if mine and theirs and mine != theirs and not any(under(target, f) for f in MAY_INCLUDE[mine]):
        found(path, number, f"{mine}/ may not include {target}")


def check_file(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        lines = f.read().splitlines()
    if len(lines) > MAX_LINES:
        found(path, len(lines), f"{len(lines)} lines, over {MAX_LINES}: split it along its ideas")
    for number, line in enumerate(lines, 1):
        include = re.match(r'\s*#include\s+["<]([^">]+)[">]', line)
        if include:
            check_include(path, number, include.group(1))


def rows(path, pattern):
    full = os.path.join(ROOT, path)
    if not os.path.exists(full):
        return
    with open(full, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            row = re.match(pattern, line)
            if row:
                yield number, row.group(1)


def main():
    for path in sources():
        check_file(path)
    for top in ("ir", "codegen", "runtime", "passes", "models", "frontend", "tools", "tests", "bench", "scripts"):
        readme = os.path.join(ROOT, top, "README.md")
        if not os.path.exists(readme):
            found(f"{top}/README.md", 1, "a top-level folder explains itself")
        elif sum(1 for _ in open(readme, encoding="utf-8")) > MAX_README:
            found(f"{top}/README.md", MAX_README, f"over {MAX_README} lines")
    for number, name in rows("passes/passes.inc", r'XJIT_PASS\(\w+,\s*"(\w+)"'):
        if not os.path.exists(os.path.join(ROOT, "tests", "lit", "passes", f"{name}.xir")):
            found("passes/passes.inc", number, f"no tests/lit/passes/{name}.xir")
    folder = os.path.join(ROOT, "tests", "lit", "ir")
    texts = ""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".xir"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                texts += f.read()
    for number, name in rows("ir/ops.inc", r'XJIT_OP\(\w+,\s*"(\w+)"'):
        if not re.search(rf"(= |^\s*){name}\b", texts, re.MULTILINE):
            found("ir/ops.inc", number, f"no {name} in tests/lit/ir/*.xir")
    print("\n".join(findings + [f"{len(findings)} findings"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
