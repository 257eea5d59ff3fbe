#!/usr/bin/env python3
"""same.py FILE: compares standard input with FILE and prints the difference; XJIT_BLESS=1 rewrites FILE instead."""
import difflib
import os
import sys


def main():
    path, got = sys.argv[1], sys.stdin.read()
    if os.environ.get("XJIT_BLESS") == "1":
        with open(path, "w", encoding="utf-8") as f:
            f.write(got)
        return 0
    with open(path, encoding="utf-8") as f:
        want = f.read()
    if got == want:
        return 0
    sys.stdout.writelines(difflib.unified_diff(want.splitlines(True), got.splitlines(True), path, "output"))
    print("\n(XJIT_BLESS=1 accepts the output as it is)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
