#!/usr/bin/env python3
"""Reads the tracked tree and fails on what a reviewer should not have to look for.

    tidy_test.py text                        lines, functions, banned calls, folders, fixtures
    tidy_test.py headers --cache DIR         every header compiles alone
    tidy_test.py readme --binary HEADRACE    commands, flags and keys in the documents exist
    tidy_test.py self                        plants one fault of each kind and finds it

Exit code: 0 clean, 1 findings, 77 skipped (no git, or no binary).
"""

import argparse
import concurrent.futures
import hashlib
import pathlib
import re
import subprocess
import sys

import tidy_code
import tidy_documents
from tidy_code import Finding

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURE_BYTES_MAX = 2 * 1000 * 1000
TEXT_SUFFIXES = {
    ".bash", ".cmake", ".cpp", ".cu", ".hpp", ".json", ".md", ".py", ".supp", ".toml", ".txt", ""}
SKIPPED = 77


def tracked_files():
    """Paths relative to the root, or None outside a git checkout."""
    try:
        result = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    names = [pathlib.PurePosixPath(name) for name in result.stdout.split("\0") if name]
    return [name for name in names if (ROOT / name).is_file()]


def is_fixture(name):
    return "testdata" in name.parts or name.parts[:3] == ("tests", "golden", "cases")


def read_tree(names):
    """Name -> text of every file that people read."""
    return {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in names
        if name.suffix in TEXT_SUFFIXES and not is_fixture(name)
    }


def check_folders(names):
    """A folder with code has a README.md, or its parent has one."""
    code = {name.parent for name in names if name.suffix in (".cpp", ".hpp")}
    readmes = {name.parent for name in names if name.name == "README.md"}
    top = pathlib.PurePosixPath(".")
    return [
        Finding(folder, 0, "a folder with code and without README.md", "write one screen")
        for folder in sorted(code)
        if folder not in readmes and (folder.parent == top or folder.parent not in readmes)
    ]


def check_fixtures(names):
    total = sum((ROOT / name).stat().st_size for name in names if is_fixture(name))
    if total <= FIXTURE_BYTES_MAX:
        return []
    message = f"fixtures take {total} bytes, more than {FIXTURE_BYTES_MAX}"
    return [Finding("tests", 0, message, "make the cases smaller")]


def text_findings():
    names = tracked_files()
    if names is None:
        return None
    files = read_tree(names)
    findings = check_folders(names) + check_fixtures(names)
    for name, text in files.items():
        findings += tidy_code.check_file(name, text)
    return findings + tidy_code.check_heads(files) + tidy_code.check_heavy_headers(files)


INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def header_key(header):
    """Of the header and every header of ours that it reaches."""
    seen, todo = {header}, [header]
    while todo:
        text = (ROOT / todo.pop()).read_text(encoding="utf-8")
        for name in map(pathlib.PurePosixPath, INCLUDE.findall(text)):
            if name not in seen and (ROOT / name).is_file():
                seen.add(name)
                todo.append(name)
    digest = hashlib.sha256()
    for name in sorted(seen):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def compile_header(options, header):
    command = [options.compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-x", "c++",
               "-include", str(ROOT / header), "-I", str(ROOT), "/dev/null"]
    if options.cuda_include:
        command += ["-isystem", options.cuda_include]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr


def header_findings(options):
    names = tracked_files()
    if names is None:
        return None
    cache = pathlib.Path(options.cache)
    cache.mkdir(parents=True, exist_ok=True)
    # X_inl.hpp is a part of Highway sources, included once per target: no header by itself.
    keys = {name: header_key(name) for name in names
            if name.suffix == ".hpp" and not name.stem.endswith("_inl")}
    if not options.cuda_include:
        # Built only where the toolkit is.
        keys = {name: key for name, key in keys.items()
                if "#include <cuda_" not in (ROOT / name).read_text(encoding="utf-8")}
    todo = [name for name, key in keys.items() if not (cache / key).exists()]
    print(f"tidy_test: {len(keys)} headers, {len(todo)} to compile")
    findings = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        outputs = pool.map(lambda name: compile_header(options, name), todo)
        for name, output in zip(todo, outputs):
            if output:
                findings.append(Finding(name, 0, "does not compile alone:\n" + output,
                                        "include what it uses"))
            else:
                (cache / keys[name]).touch()
    return findings


def readme_findings(options):
    names = tracked_files()
    if names is None or not pathlib.Path(options.binary).is_file():
        return None
    return tidy_documents.check(ROOT, names, options.binary)


def report(findings):
    if findings is None:
        print("tidy_test: skipped: no git checkout, or no binary")
        return SKIPPED
    for finding in findings:
        print(finding)
    print(f"tidy_test: {len(findings)} findings" if findings else "tidy_test: clean")
    return 1 if findings else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["text", "headers", "readme", "self"])
    parser.add_argument("--cache", default="tidy-headers")
    parser.add_argument("--cuda-include", default="", help="folder of the CUDA toolkit's headers")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--binary", default="headrace")
    options = parser.parse_args()
    if options.what == "text":
        return report(text_findings())
    if options.what == "headers":
        return report(header_findings(options))
    if options.what == "readme":
        return report(readme_findings(options))
    return report(tidy_code.self_test() + tidy_documents.self_test())


if __name__ == "__main__":
    sys.exit(main())
