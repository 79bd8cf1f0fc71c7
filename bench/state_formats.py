#!/usr/bin/env python3
"""What the optimizer's state format costs in loss: the same run in fp32, bf16 and q8.

  bench/state_formats.py BINARY --data tinyshakespeare.txt --model byte --seeds 1 2 3 --steps 1000
  bench/state_formats.py BINARY --data tinyshakespeare.txt --model gpt2-124m --seeds 1 2 --steps 300

The first nine tenths of the text train; the loss of every whole window of the rest is the figure.
Runs of one seed differ in `optim.state` only: same start, same data, same order. Each run keeps its
folder under --folder (default: state_formats/), so a table that was interrupted goes on where it
stopped. Prints one JSON line a run, then the table, with the difference from fp32 of the same seed
in percent.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

MODELS = {
    # The model of examples/quickstart.toml.
    "byte": dict(model='arch = "gpt2"\nlayers = 4\nhidden = 256\nheads = 4\nmax_seq_len = 256',
                 micro_batch=8, lr=1.5e-3, min_lr=1e-4, warmup_steps=50),
    "gpt2-124m": dict(model='preset = "gpt2-124m"', micro_batch=1, lr=3e-4, min_lr=3e-5,
                      warmup_steps=30),
}
SEQ_LEN = 256
FORMATS = ("fp32", "bf16", "q8")


def split(data, folder):
    """The training text and the held-out text, as files of `folder`."""
    text = pathlib.Path(data).read_bytes()
    cut = len(text) * 9 // 10
    train, held_out = folder / "train.txt", folder / "held_out.txt"
    train.write_bytes(text[:cut])
    held_out.write_bytes(text[cut:])
    return train, held_out


def write_run(folder, model, seed, steps, state, train):
    settings = MODELS[model]
    path = folder / f"{model}-{state}-{seed}.toml"
    path.write_text(f"""[run]
steps = {steps}
seed = {seed}
[model]
{settings["model"]}
[data]
train = ["{train.name}"]
tokenizer = "bytes"
[batch]
micro_batch = {settings["micro_batch"]}
seq_len = {SEQ_LEN}
[optim]
lr = {settings["lr"]}
min_lr = {settings["min_lr"]}
warmup_steps = {settings["warmup_steps"]}
lr_schedule = "cosine"
state = "{state}"
[tiers]
place = "host"
[durability]
checkpoint = "5min"
""")
    return path


def held_out_loss(binary, run, held_out):
    """Trains (or goes on, or finds it complete) and evaluates."""
    subprocess.run([binary, "train", run], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    output = subprocess.run(
        [binary, "eval", "--model", run.parent / "runs" / run.stem, "--data", held_out, "--seq-len",
         str(SEQ_LEN), "--json"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(output)["loss"]


def print_table(losses, seeds, formats):
    print("| seed | " + " | ".join(formats) + " |")
    print("|---" * (len(formats) + 1) + "|")
    for seed in seeds:
        cells = []
        for state in formats:
            loss = losses[seed, state]
            percent = 100 * (loss / losses[seed, "fp32"] - 1)
            cells.append(f"{loss:.4f}" + ("" if state == "fp32" else f" ({percent:+.2f} %)"))
        print(f"| {seed} | " + " | ".join(cells) + " |")
    means = {state: statistics.mean(losses[seed, state] for seed in seeds) for state in formats}
    print("| mean | " + " | ".join(
        f"{means[state]:.4f}" + ("" if state == "fp32"
                                 else f" ({100 * (means[state] / means['fp32'] - 1):+.2f} %)")
        for state in formats) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", choices=list(MODELS), default="byte")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--folder", default="state_formats")
    options = parser.parse_args()

    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = split(options.data, folder)
    losses = {}
    # By format: one that changes needs its own runs only.
    for state in options.formats:
        for seed in options.seeds:
            run = write_run(folder, options.model, seed, options.steps, state, train)
            losses[seed, state] = held_out_loss(options.binary, run, held_out)
            print(json.dumps({"model": options.model, "state": state, "seed": seed,
                              "steps": options.steps, "loss": losses[seed, state]}), flush=True)
    if "fp32" in options.formats:
        print_table(losses, options.seeds, options.formats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
