#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Holds every #include of the project's sources against src/LAYERS.

Usage: layers.py [TOP]     (TOP, or $top_srcdir, or the folder above this file's)

Prints one line a violation, FILE:LINE: what is wrong, and exits with 1 when there is one.
"""
import fnmatch
import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ROOTS = ("src", "proto", "gpu", "tools", "tests")
SUFFIXES = (".c", ".h", ".cu")


def read_rules(path):
    """Returns (module -> list of allowed patterns, list of (system header pattern, list of file patterns))."""
    modules, systems = {}, []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            name, colon, allowed = line.partition(":")
            if not colon:
                sys.exit(f"{path}:{number}: no colon")
            if name.startswith("<"):
                systems.append((name.strip("<> "), allowed.split()))
            else:
                modules[name.strip()] = allowed.split()
    return modules, systems


def module_of(path):
    """The module of a path relative to the top, and the path as the rules write it."""
    parts = path.split("/")
    if parts[0] == "src":
        return parts[1], "/".join(parts[1:])
    return parts[0], path


def is_device(path):
    """Whether a header is shared with device code: NAME_hd.h, and base/hd.h which they all stand on."""
    return path.endswith("_hd.h") or path.endswith("base/hd.h")


def sources(top):
    for root in ROOTS:
        for folder, _, names in os.walk(os.path.join(top, root)):
            for name in sorted(names):
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), top)


def resolve(top, path, included):
    """The file that a quoted include names, relative to the top, or None."""
    beside = os.path.normpath(os.path.join(os.path.dirname(path), included))
    for candidate in (beside, "src/" + included, included):
        if os.path.isfile(os.path.join(top, candidate)):
            return candidate
    return None


def check_own(top, path, included, modules):
    """None, or what is wrong with path including the project's own header."""
    target = resolve(top, path, included)
    if target is None:
        return None if included == "config.h" else f"'{included}' is no file of this project"
    if is_device(target):
        return None
    if is_device(path):
        return f"a device header may not include '{included}'"
    module, _ = module_of(path)
    other, name = module_of(target)
    if module == other:
        return None
    if module not in modules:
        return f"module '{module}' has no line in src/LAYERS"
    allowed = modules[module]
    if "*" in allowed or other in allowed or name in allowed:
        return None
    return f"'{module}' may not include '{name}' (allowed: {' '.join(allowed) or 'nothing'})"


def check_system(path, included, modules, systems):
    """None, or what is wrong with path including a system header."""
    if is_device(path) and included not in ("stdint.h", "stddef.h"):
        return f"a device header may include <stdint.h> and <stddef.h>, not <{included}>"
    module, name = module_of(path)
    if module in ("tests", "tools"):
        return None
    for pattern, files in systems:
        if fnmatch.fnmatch(included, pattern) and not any(fnmatch.fnmatch(name, f) for f in files):
            return f"<{included}> belongs to {', '.join(files)}"
    return None


def main():
    above = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    top = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("top_srcdir", above)
    modules, systems = read_rules(os.path.join(top, "src", "LAYERS"))
    files = wrong = 0
    for path in sources(top):
        files += 1
        with open(os.path.join(top, path), encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                if match[1] == '"':
                    fault = check_own(top, path, match[2], modules)
                else:
                    fault = check_system(path, match[2], modules, systems)
                if fault:
                    print(f"{path}:{number}: {fault}")
                    wrong += 1
    print(f"layers: {files} files, {wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
