#!/usr/bin/env python3
"""The memory table of Llama-3-8B on a device of 24 GB beside 64 GB of host memory, and of the same
with all state on NVMe: `headrace plan --json` against a sheet of its own.

    plan_sheet_test.py HEADRACE

The sheet knows the published architecture (hidden 4096, 32 layers, 32 heads of 128, 8 of them for
keys and values, feed-forward 14336, vocabulary 128256, untied, no biases) and these rules:
  - compute in fp32: weights, activations and the logits' input are 4 bytes a number;
  - gradients are held in bf16 in host memory, 2 bytes; on the device a block's is fp32, in 2 slots;
  - Adam's moments are 8 bytes a parameter beside a master of 4; on NVMe lies a copy of all of it,
    and a second one, since the last commit stays whole;
  - on the device lie the weights that the plan keeps there, and `lookahead` + 1 slots of a block;
  - forward leaves each block's input, and where the plan keeps activations q, k, v, attention's
    output, the residual in the middle, both halves of the feed-forward and the softmax statistics;
  - rows of the embedding's gradient: at most one for each token, fp32.
Which blocks lie where is the plan's choice and read from it; what they weigh is computed here.
Rows agree within 2 %, and so does each tier's total of them. Two rows are not the architecture's:
staging is as much as the plan likes to have on its way, and with it a tier stays within its budget;
the workspace is the feed-forward's gradients and one activation, and up to 32 MiB that kernels want
beside them.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 4096, 32, 32, 8, 128, 14336, 128256
TOLERANCE = 0.02
KERNEL_BYTES = 32 << 20
BUDGETS = {"device": 24 * 10**9, "host": 64 * 10**9}
PUBLISHED_PARAMETERS = 8030261248

MACHINE = """
schema = 4
cpu = "a workstation"
cores = 16
memory_bytes = 137438953472
kernel = "6.1"
gemm_fp32_flops_per_s = 1e12
memory_bytes_per_s = 40e9
host_copy_bytes_per_s = 20e9
adamw_fp32_params_per_s = 1.4e9
adamw_bf16_params_per_s = 1.6e9
adamw_q8_params_per_s = 2e9
adamw_q8_decoded_params_per_s = 1.5e9
decode_q8_params_per_s = 4e9
checksum_bytes_per_s = 10e9
nvme_device = "259:0"
nvme_read_bytes_per_s = 7e9
nvme_write_bytes_per_s = 5e9
nvme_mixed_bytes_per_s = 6e9
nvme_io_depth = 32
nvme_request_bytes = 1048576
nvme_capacity_bytes = 2000000000000
"""

RUN = """
[run]
steps = 10
[model]
preset = "llama-3-8b"
[data]
train = ["text.txt"]
tokenizer = "bytes"
[batch]
micro_batch = {micro_batch}
seq_len = {seq_len}
accumulate = {accumulate}
[precision]
grad = "bf16"
[tiers]
device_memory = "24GB"
host_memory = "64GB"
{tiers}
"""


def parameters_by_unit():
    attention = HIDDEN * HEADS * HEAD_DIM * 2 + HIDDEN * KV_HEADS * HEAD_DIM * 2
    block = attention + 3 * HIDDEN * FFN + 2 * HIDDEN
    return [VOCAB * HIDDEN] + [block] * LAYERS + [HIDDEN + VOCAB * HIDDEN]


def sheet(plan, batch):
    """Bytes by purpose and tier."""
    units = parameters_by_unit()
    total, block = sum(units), units[1]
    homes = plan["units"]
    rows = batch["micro_batch"] * batch["seq_len"]
    # Micro-batches whose activations are alive together.
    alive = plan["group_size"]
    activation = 4 * rows * HIDDEN
    kept = 4 * rows * (HIDDEN * 2 + HEADS * HEAD_DIM + 2 * KV_HEADS * HEAD_DIM + 2 * FFN + HEADS)

    def where(condition, bytes_each):
        return sum(bytes_each * size for size, unit in zip(units, homes) if condition(unit))

    # The embedding is looked up on the host.
    pinned = where(lambda unit: unit["pinned"] and unit["name"] != "embedding", 4)
    streams = any(not unit["pinned"] for unit in homes[1:])
    slots = (plan["lookahead"] + 1) * 4 * block if streams else 0
    # With offloaded inputs those of the block at work, its output, and what is on its way back.
    levels = plan["lookahead"] + 2 if plan["offload_inputs"] else LAYERS + 1
    offloaded = (LAYERS - levels) * alive if plan["offload_inputs"] else 0
    # Gradients that the host adds to stay floats.
    held = 4 if plan["group_size"] < batch["accumulate"] else 2
    # A buffer for what is recomputed.
    shared = plan["kept_blocks"] + plan["spilled_blocks"] < LAYERS
    turns_around = shared and alive == 1 and plan["kept_blocks"] > 0  # the last block's lies there
    saved = kept * (plan["kept_blocks"] * alive - turns_around + shared)
    return {
        "weights": {"device": pinned + slots,
                    "host": where(lambda unit: unit["weights_in_memory"], 4), "nvme": 4 * total},
        "gradients": {"device": 2 * 4 * block, "nvme": 0,
                      "host": held * total + 4 * HIDDEN * min(VOCAB, rows * batch["accumulate"])},
        "state": {"device": 0, "host": where(lambda unit: unit["state_home"] != "nvme", 8),
                  "nvme": 8 * total},
        "commits": {"device": 0, "host": 0, "nvme": 12 * total},
        "activations": {"device": (levels + 1) * alive * activation + saved, "nvme": 0,
                        "host": activation * (batch["accumulate"] + 1 + offloaded) +
                        kept * alive * plan["spilled_blocks"]},
        "logits": {"device": alive * activation, "host": 0, "nvme": 0},
        "workspace": {"device": 4 * rows * (2 * FFN + HIDDEN), "host": 0, "nvme": 0},
    }


def off_by(ours, theirs):
    return abs(ours - theirs) / max(ours, theirs, 1)


def check(name, plan, batch):
    expected = sheet(plan, batch)
    wrong = []
    if {plan["parameters"], sum(parameters_by_unit())} != {PUBLISHED_PARAMETERS}:
        wrong.append(f"parameters: {plan['parameters']}, published are {PUBLISHED_PARAMETERS}")
    table = {row["purpose"]: row for row in plan["memory"]}
    for tier in ("device", "host", "nvme"):
        planned_total = sum(table[purpose][f"{tier}_bytes"] for purpose in expected)
        sheet_total = sum(row[tier] for row in expected.values())
        print(f"{name:12} {tier:8} {'total':12} sheet {sheet_total:16,} plan {planned_total:16,}")
        if off_by(sheet_total, planned_total) > TOLERANCE:
            wrong.append(f"{tier} in total: {sheet_total:,} by the sheet, "
                         f"{planned_total:,} planned")
        with_staging = planned_total + table["staging"][f"{tier}_bytes"]
        if with_staging > BUDGETS.get(tier, with_staging):
            wrong.append(f"{tier} with staging: {with_staging:,} planned, over its budget")
        for purpose, row in expected.items():
            ours, theirs = row[tier], table[purpose][f"{tier}_bytes"]
            print(f"{name:12} {tier:8} {purpose:12} sheet {ours:16,} plan {theirs:16,}")
            slack = KERNEL_BYTES if purpose == "workspace" and tier == "device" else 0
            if off_by(ours, theirs) > TOLERANCE and not ours <= theirs <= ours + slack:
                wrong.append(f"{purpose} on {tier}: {ours:,} by the sheet, {theirs:,} planned")
    return [f"{name}: {one}" for one in wrong]


def main():
    headrace = pathlib.Path(sys.argv[1]).resolve()
    cases = {
        "auto": ({"micro_batch": 1, "seq_len": 2048, "accumulate": 1}, ""),
        "nvme": ({"micro_batch": 1, "seq_len": 2048, "accumulate": 1}, 'place = "nvme"'),
        "recompute": ({"micro_batch": 2, "seq_len": 2048, "accumulate": 4}, 'place = "nvme"'),
    }
    wrong = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        folder = pathlib.Path(folder)
        (folder / "text.txt").write_text("A headrace feeds a turbine from a reservoir.\n" * 2000)
        (folder / "machine.toml").write_text(MACHINE.lstrip())
        for name, (batch, tiers) in cases.items():
            (folder / "run.toml").write_text(RUN.format(tiers=tiers, **batch))
            done = subprocess.run(
                [headrace, "plan", folder / "run.toml", "--machine", folder / "machine.toml",
                 "--json"], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                wrong.append(f"{name}: exit code {done.returncode}: {done.stderr}")
                continue
            wrong += check(name, json.loads(done.stdout), batch)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
