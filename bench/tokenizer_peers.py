#!/usr/bin/env python3
"""Text to tokens on one core: tokenizer_bench beside Hugging Face's tokenizers, in one run.

  bench/tokenizer_peers.py --bench build/release/bench/tokenizer_bench --python PYTHON
      --tokenizer tokenizer.json FILE...

PYTHON is the interpreter of an environment with `tokenizers`. Both encode the same documents of
64 KiB (cut at line feeds), one thread each, in a process of their own; they take turns. A figure is
the median over --rounds turns of each one's median. The tokens of both are compared before any time
counts.
"""

import argparse
import json
import statistics
import subprocess
import sys

PEER = r"""
import hashlib, json, statistics, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    data = file.read()
documents, at = [], 0
while at < len(data):
    newline = data.find(b"\n", at + 65536)
    end = len(data) if newline < 0 else newline + 1
    documents.append(data[at:end].decode())
    at = end
rates, ids = [], []
for turn in range(int(sys.argv[3]) + 1):
    start = time.perf_counter()
    encodings = [tokenizer.encode(text, add_special_tokens=False) for text in documents]
    if turn > 0:
        rates.append(len(data) / (time.perf_counter() - start) / 1e6)
    ids = [i for encoding in encodings for i in encoding.ids]
import array
array.array("i", ids).tofile(open(sys.argv[4], "wb"))
print("RESULT " + json.dumps({"mb_per_s": statistics.median(rates), "tokens": len(ids)}))
"""


def result_of(command):
    environment = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    for file in options.files:
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(result_of([options.bench, options.tokenizer, file, "3", "ours.tokens"]))
            theirs.append(result_of(
                [options.python, "-c", PEER, options.tokenizer, file, "1", "theirs.tokens"]))
        with open("ours.tokens", "rb") as mine, open("theirs.tokens", "rb") as other:
            if mine.read() != other.read():
                sys.exit(f"{file}: the tokens differ (ours.tokens, theirs.tokens)")
        mine, other = (statistics.median(result["mb_per_s"] for result in results)
                       for results in (ours, theirs))
        print(f"{file}: {ours[0]['tokens']} tokens, all equal; {mine:.1f} MB/s, tokenizers "
              f"{other:.2f} MB/s ({mine / other:.1f} times)")


if __name__ == "__main__":
    main()
