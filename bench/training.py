#!/usr/bin/env python3
"""Tokens per second of training steps, headrace beside PyTorch, interleaved.

  bench/training.py BINARY [--torch-python PYTHON --peer gpt2_torch.py] [--rounds 3]

Models: GPT-2 124M at 4 x 256 (vocabulary 50257), and a byte model (6 layers, hidden 384) at
12 x 256; fp32, random tokens, all state in host memory. One process a measurement; the two systems
take turns, so that drift of the machine meets both. A figure is the median over rounds of the
median step. Without --torch-python only ours is measured. Prints one JSON line a measurement and a
table at the end.
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

MODELS = {
    "gpt2": dict(model='preset = "gpt2-124m"', micro_batch=4, vocab=50257),
    "byte": dict(
        model='arch = "gpt2"\nlayers = 6\nhidden = 384\nheads = 6\nmax_seq_len = 1024\nvocab = 256',
        micro_batch=12, vocab=256),
}
STEPS, WARMUP = 7, 2


def write_run(folder, name):
    model = MODELS[name]
    tokens = random.Random(7).choices(range(model["vocab"]), k=200_000)
    with open(os.path.join(folder, "tokens.bin"), "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *([0] * 253)))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    path = os.path.join(folder, "run.toml")
    with open(path, "w") as file:
        file.write(f"""[run]
steps = {STEPS}
[model]
{model["model"]}
[data]
train = ["tokens.bin"]
order = "sequential"
[batch]
micro_batch = {model["micro_batch"]}
seq_len = 256
""")
    return path


def measure_headrace(binary, name):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run = write_run(folder, name)
        subprocess.run([binary, "train", run], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(os.path.join(folder, "runs", "run", "metrics.jsonl")) as file:
            rates = [json.loads(line)["tokens_per_s"] for line in file][WARMUP:]
    return statistics.median(rates)


def measure_torch(python, peer, name):
    model = MODELS[name]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    command = [python, peer, "--model", name, "--B", str(model["micro_batch"]), "--T", "256",
               "--mode", "eager"]
    output = subprocess.run(command, check=True, capture_output=True, text=True,
                            env=environment).stdout
    return json.loads(output.strip().splitlines()[-1])["tok_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--torch-python")
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    if (arguments.torch_python is None) != (arguments.peer is None):
        parser.error("--torch-python and --peer go together")
    binary = os.path.abspath(arguments.binary)
    rates = {}
    for name in arguments.models:
        for _ in range(arguments.rounds):
            systems = [("headrace", lambda: measure_headrace(binary, name))]
            if arguments.torch_python:
                systems.append(("torch", lambda: measure_torch(arguments.torch_python,
                                                               arguments.peer, name)))
            for system, measure in systems:
                rate = measure()
                rates.setdefault((name, system), []).append(rate)
                print(json.dumps(dict(model=name, system=system, tokens_per_s=round(rate, 1))),
                      flush=True)
    for (name, system), values in rates.items():
        print(f"{name:8} {system:10} {statistics.median(values):10.0f} tokens/s  "
              f"({min(values):.0f} to {max(values):.0f})", file=sys.stderr)


if __name__ == "__main__":
    main()
