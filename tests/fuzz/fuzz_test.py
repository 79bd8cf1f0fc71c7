"""Builds a parser of the store with clang's libFuzzer and lets it run for some seconds.

Exit code 77 (a skip) where there is no clang or it has no runtime for libFuzzer.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZERS = "fuzzer,address,undefined"
SOURCES = [
    "tiers/nvme/format.cpp",
    "core/assert.cpp",
    "core/error.cpp",
    "core/hash.cpp",
]
SKIP = 77
COMPILERS = ["clang++-16", "clang++-15", "clang++-14", "clang++"]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def has_runtime(compiler, build):
    probe = build / "probe.cpp"
    probe.write_text(
        "#include <cstddef>\n#include <cstdint>\n"
        'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
    )
    command = [compiler, f"-fsanitize={SANITIZERS}", probe, "-o", build / "probe"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build_fuzzer(arguments, build):
    binary = build / f"fuzz_{arguments.parser}"
    sources = [ROOT / "tests/fuzz/store_fuzzer.cpp", *(ROOT / source for source in SOURCES)]
    command = [arguments.compiler, "-std=c++20", "-O1", "-g", f"-fsanitize={SANITIZERS}"]
    command += ["-fno-sanitize-recover=all", "-fno-omit-frame-pointer", f"-I{ROOT}"]
    command += [f"-DHEADRACE_FUZZ_PARSER=fuzz_{arguments.parser}", *sources]
    command += ["-o", binary, "-lfmt", "-lxxhash"]
    subprocess.run(command, check=True)
    return binary


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parser", choices=["superblock", "map", "tile_table", "extent_header"]
    )
    parser.add_argument("--compiler", help="default: the first clang++ that has libFuzzer")
    parser.add_argument("--seeds", required=True, help="the binary store_seeds")
    parser.add_argument("--build", required=True, help="a folder for binaries and inputs")
    parser.add_argument("--seconds", type=int, default=5)
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build) / f"fuzz-{arguments.parser}"
    seeds = build / "seeds"
    corpus = build / "corpus"
    for folder in (seeds, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    candidates = [arguments.compiler] if arguments.compiler else COMPILERS
    candidates = [name for name in candidates if shutil.which(name)]
    arguments.compiler = next((name for name in candidates if has_runtime(name, build)), None)
    if not arguments.compiler:
        skip(f"no clang++ with libFuzzer among {candidates} (Debian: libclang-rt-16-dev)")
    subprocess.run([arguments.seeds, seeds], check=True)
    for seed in seeds.iterdir():
        if seed.name != arguments.parser:
            seed.unlink()
    binary = build_fuzzer(arguments, build)
    seed = os.environ.get("HEADRACE_SEED", "0")
    command = [binary, f"-max_total_time={arguments.seconds}", f"-seed={seed}", "-max_len=8192"]
    command += ["-rss_limit_mb=2048", f"-artifact_prefix={build}/", corpus, seeds]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
