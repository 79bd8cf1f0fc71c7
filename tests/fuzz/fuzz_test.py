"""Builds a parser with clang's libFuzzer and lets it run for some seconds.

Exit code 77 (a skip) where there is no clang or it has no runtime for libFuzzer.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZERS = "fuzzer,address,undefined"
CORE = ["core/assert.cpp", "core/error.cpp", "core/hash.cpp"]
STORE = ["tests/fuzz/store_fuzzer.cpp", "tiers/nvme/format.cpp", *CORE]
TOKENIZER = [
    "core/json.cpp",
    *(f"model/tokenizers/{name}.cpp" for name in (
        "added_tokens", "bpe", "oniguruma", "pre_tokenizer", "regex", "tokenizer_json", "unicode")),
    *CORE,
]
TEXTS = {
    "tokenizer": ["tests/fuzz/tokenizer_fuzzer.cpp", *TOKENIZER],
    "chat": ["tests/fuzz/chat_fuzzer.cpp", "train/chat_example.cpp", "train/chat_template.cpp",
             "core/files.cpp", "core/glob.cpp", *TOKENIZER],
}
STORE_PARSERS = ["superblock", "map", "tile_table", "extent_header"]
FIXTURES = ROOT / "model/testdata/tokenizers"
CHATS = ROOT / "train/testdata/chat"
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


def write_seeds(arguments, seeds):
    if arguments.parser in STORE_PARSERS:
        subprocess.run([arguments.seeds, seeds], check=True)
        for seed in seeds.iterdir():
            if seed.name != arguments.parser:
                seed.unlink()
        return
    if arguments.parser == "chat":
        for number, group in enumerate(json.loads((CHATS / "cases.json").read_text())):
            (seeds / f"template-{number}").write_text(group["template"])
            for place, case in enumerate(group["cases"]):
                both = {"prompt": case["messages"][:-1], "completion": case["messages"][-1:]}
                line = both if place % 2 else {"messages": case["messages"]}
                (seeds / f"line-{number}-{place}").write_text(json.dumps(line))
        (seeds / "texts").write_text('{"prompt": "a ", "completion": "b"}')
        return
    texts = json.loads((FIXTURES / "texts.json").read_text(encoding="utf-8"))
    for number, text in enumerate(texts):
        (seeds / f"text-{number}").write_bytes(bytes([number % 4]) + text.encode())
    cases = json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))
    for number, case in enumerate(cases):
        # Small ones: the vocabulary and the merges of a few bytes.
        made = json.loads((FIXTURES / f"{case['base']}.json").read_text(encoding="utf-8"))
        made["model"]["vocab"] = {"a": 0, "b": 1, "\u0120": 2, "ab": 3, "\u0120ab": 4}
        made["model"]["merges"] = ["a b", "\u0120 ab"] if number % 2 else [["a", "b"]]
        made.update((name, value) for name, value in case["set"].items() if "." not in name)
        for place, token in enumerate(made["added_tokens"] or []):
            token["id"] = 5 + place
        (seeds / f"{case['base']}-{number}").write_text(json.dumps(made), encoding="utf-8")


def build_fuzzer(arguments, build):
    binary = build / f"fuzz_{arguments.parser}"
    names = STORE if arguments.parser in STORE_PARSERS else TEXTS[arguments.parser]
    sources = [ROOT / name for name in names]
    command = [arguments.compiler, "-std=c++20", "-O1", "-g", f"-fsanitize={SANITIZERS}"]
    command += ["-fno-sanitize-recover=all", "-fno-omit-frame-pointer", f"-I{ROOT}"]
    command += [f"-DHEADRACE_FUZZ_PARSER=fuzz_{arguments.parser}", *sources]
    command += ["-o", binary, "-lfmt", "-lxxhash"]
    if arguments.parser in TEXTS:
        command += [f'-DHEADRACE_MODEL_TESTDATA="{FIXTURES.parent}"', "-lpcre2-8", "-lunistring"]
        command += [f'-DHEADRACE_CHAT_TESTDATA="{CHATS}"']
    subprocess.run(command, check=True)
    return binary


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parser", choices=[*STORE_PARSERS, *TEXTS])
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
    write_seeds(arguments, seeds)
    binary = build_fuzzer(arguments, build)
    seed = os.environ.get("HEADRACE_SEED", "0")
    command = [binary, f"-max_total_time={arguments.seconds}", f"-seed={seed}", "-max_len=8192"]
    command += ["-rss_limit_mb=2048", f"-artifact_prefix={build}/", corpus, seeds]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
