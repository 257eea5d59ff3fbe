#!/usr/bin/env python3
"""same.py FILE [SECTION]: compares standard input with FILE, or with what stands in it between the lines
`<!-- SECTION: begin ... -->` and `<!-- SECTION: end -->`, and prints the difference; XJIT_BLESS=1 rewrites it instead."""
import difflib
import os
import re
import sys


def main():
    path, got = sys.argv[1], sys.stdin.read()
    bless = os.environ.get("XJIT_BLESS") == "1"
    want = ""
    if len(sys.argv) > 2 or not bless:
        with open(path, encoding="utf-8") as f:
            want = f.read()
    before = after = ""
    if len(sys.argv) > 2:
        name = re.escape(sys.argv[2])
        section = re.fullmatch(rf"(.*^<!-- {name}: begin[^\n]*-->\n)(.*?)(^<!-- {name}: end -->\n.*)", want, re.DOTALL | re.MULTILINE)
        if section is None:
            print(f"{path} has no section {sys.argv[2]}")
            return 1
        before, want, after = section.groups()
    if bless:
        with open(path, "w", encoding="utf-8") as f:
            f.write(before + got + after)
        return 0
    if got == want:
        return 0
    sys.stdout.writelines(difflib.unified_diff(want.splitlines(True), got.splitlines(True), path, "output"))
    print("\n(XJIT_BLESS=1 accepts the output as it is)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
