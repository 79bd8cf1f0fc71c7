#!/usr/bin/env python3
"""A step of GPT-2 124M (1 x 256, fp32) with its state on NVMe, headrace beside DeepSpeed ZeRO-3.

  bench/zero_infinity.py BINARY --peer-python PYTHON --peer zero3_nvme.py [--rounds 3]

The peer is a script that trains the same shape with DeepSpeed's optimizer state on NVMe and prints
its figures as a line `JSON{"step_s": ..., "rss_gb": ..., "loss_first": ...}`. Of its settings each
takes its turn, and the fastest counts. Ours: everything in memory, and on NVMe with 1 GiB for the
host: with updates as the planner chooses while no step is clipped, and held (the pace of a run
that is clipped every step). One process a measurement, medians over rounds of the median step;
ratios are of one round. Prints one JSON line a measurement and a table at the end. Needs 8 GB of
disk and 12 GB of memory.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import predictions

# Case of predictions.py, and settings.
OURS = {
    "headrace, memory": ("124m memory", []),
    "headrace, nvme 1 GiB": ("124m nvme 1GiB", []),
    "headrace, nvme 1 GiB, updates held": ("124m nvme 1GiB", ['optim.update="held"']),
}
PEERS = {
    "zero-3, nvme": [],
    "zero-3, nvme, pipelined": ["--pipeline", "1"],
    "zero-3, nvme, groups of 50M": ["--sub_group", "5e7"],
    "zero-3, nvme, pipelined, groups of 50M":
        ["--pipeline", "1", "--sub_group", "5e7", "--opt_buffers", "12"],
}
FIRST_LOSS = math.log(50257)  # of weights that are small and know nothing


def measure_peer(arguments, words):
    folder = arguments.folder / "peer"
    folder.mkdir(parents=True)
    python = pathlib.Path(arguments.peer_python)
    environment = {**os.environ, "DS_ACCELERATOR": "cpu",
                   "PATH": f"{python.parent.absolute()}:{os.environ['PATH']}"}
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(variable, None)
    try:
        done = subprocess.run([python, arguments.peer, "--dir", folder, "--opt", "nvme", *words],
                              check=True, env=environment, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except subprocess.CalledProcessError as error:
        sys.exit(f"the peer ended with {error.returncode}:\n{error.stderr[-4000:]}")
    finally:
        shutil.rmtree(folder)
    line = next(line for line in done.stdout.splitlines() if line.startswith("JSON"))
    told = json.loads(line.removeprefix("JSON"))
    if abs(told["loss_first"] - FIRST_LOSS) > 1:
        sys.exit(f"the peer's first loss is {told['loss_first']}, not about {FIRST_LOSS:.1f}: "
                 "what it computes is not this model")
    return {"step_s": told["step_s"], "peak_bytes": told["rss_gb"] * 1e9}


def measure_ours(arguments, case, settings):
    told = predictions.measure(arguments.binary, arguments.folder / "ours", case, arguments.steps,
                               settings)
    return {"step_s": told["measured_s"], "peak_bytes": told["peak_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("zero_infinity"))
    arguments = parser.parse_args()
    sides = {name: lambda side=side: measure_ours(arguments, *side) for name, side in OURS.items()}
    sides |= {name: lambda words=words: measure_peer(arguments, words)
              for name, words in PEERS.items()}
    found = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, measure in sides.items():
            found[name].append(measure())
            print(json.dumps({"side": name, **found[name][-1]}), flush=True)
    ours = found["headrace, nvme 1 GiB"]
    print(f"\n{'side':40} {'step':>8} {'of ours on nvme':>16} {'peak':>9}")
    for name, all_of_it in found.items():
        ratio = statistics.median(one["step_s"] / own["step_s"]
                                  for one, own in zip(all_of_it, ours, strict=True))
        print(f"{name:40} {statistics.median(one['step_s'] for one in all_of_it):7.2f}s "
              f"{ratio:16.2f} {max(one['peak_bytes'] for one in all_of_it) / 2**30:5.2f} GiB")


if __name__ == "__main__":
    main()
