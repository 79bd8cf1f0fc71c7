#!/usr/bin/env python3
"""What `headrace plan` predicts beside what `headrace train` takes, for runs in memory and on NVMe.

  bench/predictions.py BINARY [--cases NAME ...] [--steps 8] [--rounds 3] [--folder DIR]

The cases take turns, a process each; a figure is the median over rounds of the median steady step,
the first two steps and commits left out. Nothing is clipped, so that updates may be speculated.
`of bound` is that time by the least that any schedule takes, `of order` by the least with updates
in the run's order. Bytes are compared step by step. The store of a case is deleted after it.
Prints one JSON line a measurement and a table at the end.

350m: 24 layers of 1024; 1.3b: 24 layers of 2048; both with the vocabulary and the tied head of
GPT-2. Gradients in bf16 but for 124m. The largest needs 16 GB of disk and starts in a minute.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

GPT2 = 'arch = "gpt2"\nlayers = 24\nhidden = {}\nheads = 16\nvocab = 50257\nmax_seq_len = 1024'
MODELS = {"124m": ('preset = "gpt2-124m"', 1, "fp32"),
          "350m": (GPT2.format(1024), 1, "bf16"),
          "1.3b": (GPT2.format(2048), 2, "bf16")}  # 512 tokens a step
NVME = ['tiers.place="nvme"']
SMALL = ['tiers.host_memory="4GiB"']
CASES = {
    "124m memory": [],
    "124m nvme 1GiB": NVME + ['tiers.host_memory="1GiB"'],
    "124m nvme 1GiB after-backward":
        NVME + ['tiers.host_memory="1GiB"', 'optim.update="after-backward"'],
    "350m memory": [],
    "350m nvme": NVME,
    "1.3b 4GiB q8": SMALL + ['optim.state="q8"'],
    "1.3b 4GiB fp32": SMALL,
    "1.3b 4GiB fp32 held": SMALL + ['optim.update="held"'],
    "1.3b 4GiB fp32 speculative": SMALL + ['optim.update="speculative"'],
    "1.3b 4GiB fp32 after-backward": SMALL + ['optim.update="after-backward"'],
}
WARMUP = 2
LINKS = ("nvme_read", "nvme_write", "h2d", "d2h")


def write_run(folder, case, steps):
    model, micro_batch, grad = MODELS[case.split()[0]]
    text = "".join(random.Random(7).choices("abcdefgh \n", k=100_000))
    (folder / "corpus.txt").write_text(text)
    path = folder / "run.toml"
    path.write_text(f"""[run]
dir = "run"
steps = {steps}
[model]
{model}
[data]
train = ["corpus.txt"]
tokenizer = "bytes"
[batch]
micro_batch = {micro_batch}
seq_len = 256
[optim]
clip = 0
[precision]
grad = "{grad}"
[durability]
checkpoint = "none"
""")
    return path


def headrace(binary, command, run, settings):
    words = [binary, command, str(run), "--json"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def measure(binary, folder, case, steps, settings=()):
    folder.mkdir(parents=True)
    try:
        run = write_run(folder, case, steps)
        settings = [*CASES[case], *settings]
        plan = headrace(binary, "plan", run, settings)
        told = headrace(binary, "train", run, settings)
        rows = [json.loads(line) for line in open(folder / "run" / "metrics.jsonl")]
    finally:
        shutil.rmtree(folder)
    predicted = next(one for one in plan["predictions"] if one["variant"] == "steady")
    later = [row for row in rows[WARMUP:] if row["variant"] == "steady"]
    if not later:
        sys.exit(f"{case}: of {steps} steps none is a steady one")
    return {"case": case, "update": plan["update"], "predicted_s": predicted["seconds"],
            "bound_s": predicted["bound_seconds"],
            "order_bound_s": predicted["order_bound_seconds"],
            "steps_s": [row["step_s"] - row["stall_s"]["commit"] for row in later],
            "measured_s": statistics.median(row["step_s"] - row["stall_s"]["commit"]
                                            for row in later),
            "bytes_as_planned": all(row["bytes"][link] == predicted["bytes"].get(link, 0)
                                    for row in later for link in LINKS),
            "peak_bytes": told["peak"]["process"], "planned_bytes": told["peak"]["planned"],
            "differences": told["differences"]}


def print_table(found):
    print(f"\n{'case':32} {'predicted':>9} {'measured':>9} {'off':>6} {'of bound':>8} "
          f"{'of order':>8} {'bytes':>6} {'peak':>9} {'planned':>9}")
    for case, all_of_it in found.items():
        def median(key):
            return statistics.median(one[key] for one in all_of_it)
        measured, predicted = median("measured_s"), median("predicted_s")
        same = all(one["bytes_as_planned"] for one in all_of_it)
        print(f"{case:32} {predicted:8.2f}s {measured:8.2f}s {predicted / measured - 1:+6.1%} "
              f"{measured / median('bound_s'):8.2f} {measured / median('order_bound_s'):8.2f} "
              f"{'equal' if same else 'differ':>6} {median('peak_bytes') / 2**20:6.0f}MiB "
              f"{median('planned_bytes') / 2**20:6.0f}MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("predictions"))
    arguments = parser.parse_args()
    if arguments.steps <= WARMUP:
        sys.exit(f"--steps must be above {WARMUP}")
    found = {}
    for _ in range(arguments.rounds):
        for case in arguments.cases:
            one = measure(arguments.binary, arguments.folder / case.replace(" ", "-"), case,
                          arguments.steps)
            print(json.dumps(one), flush=True)
            found.setdefault(case, []).append(one)
    print_table(found)


if __name__ == "__main__":
    main()
