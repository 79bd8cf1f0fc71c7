"""Steps with NaN or Inf: reported, skipped, and without a trace in weights, state and schedule.

python3 skip_test.py BINARY GOLDEN_CASE_DIR
"""

import json
import pathlib
import shutil
import struct
import sys

import harness
from harness import must

SKIPS_IN_A_ROW_MAX = 20  # then the run stops
POISON = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def poisoned_model(golden, folder, value):
    """A copy of the model with one bad number in its final norm."""
    shutil.copytree(golden / "hf", folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    begin, _ = json.loads(content[8 : 8 + length])["transformer.ln_f.weight"]["data_offsets"]
    struct.pack_into("<f", content, 8 + length + begin + 12, value)
    path.write_bytes(content)
    return harness.read_safetensors(path)


def config(folder, golden, steps, optim, tiers):
    run = json.loads((golden / "run.json").read_text())
    sections = {
        "run": {"dir": folder / "run", "steps": steps},
        "model": {"path": folder / "hf"},
        "data": {"train": [golden / "tokens.bin"], "order": "sequential"},
        "batch": {key: run[key] for key in ("micro_batch", "seq_len")},
        "optim": {"lr": 1e-3, "warmup_steps": 2, **optim},
        "tiers": {"nvme": [folder / "nvme"], "direct_io": "auto", **tiers},
    }
    return harness.write_toml(folder / "run.toml", sections)


def check_skips(report, headrace, folder, golden, name, optim, tiers):
    before = poisoned_model(golden, folder / "hf", POISON[name])
    path = config(folder, golden, 3, optim, tiers)
    outcome = must(headrace.run("train", path))
    rows = [
        json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    fact = f"{name}, {optim} {tiers}"
    named = [row["skipped"] and row["skipped"]["tensor"] in before for row in rows]
    report.check(f"{fact}: every step is skipped and names a tensor", all(named), rows)
    report.check(f"{fact}: the log says so", "skipped" in outcome.err, outcome)
    rates = {row["lr"] for row in rows}
    report.equal(f"{fact}: the schedule stands still", rates, {1e-3 / 2})
    saved = sorted(path.name for path in (folder / "run/skipped").iterdir())
    report.equal(f"{fact}: their batches are kept", saved,
                 [f"step-{step:08}.bin" for step in (1, 2, 3)])
    report.equal(f"{fact}: steps and data go on", [row["step"] for row in rows], [1, 2, 3])
    told = must(headrace.run("inspect", folder / "run", "--json")).json()["commit"]
    counts = (told["step"], told["update_count"])
    report.equal(f"{fact}: three steps, no update", counts, (3, 0))
    after = harness.exported(headrace, folder / "run", folder / "out")
    moved = [key for key in before if after[key].data != before[key].data]
    report.check(f"{fact}: no weight is touched, bit for bit", not moved, moved)


def check_stop(report, headrace, folder, golden):
    poisoned_model(golden, folder / "hf", POISON["nan"])
    path = config(folder, golden, 30, {}, {})
    outcome = headrace.run("train", path)
    report.equal(f"{SKIPS_IN_A_ROW_MAX} in a row end the run", outcome.code, harness.OPERATING)
    said = outcome.err.rpartition("\nerror: ")[2]
    fact = "and it says how many, and where to look"
    report.check(fact, str(SKIPS_IN_A_ROW_MAX) in said and "hint" in said, outcome)
    last = harness.last_step(folder / "run" / "metrics.jsonl")
    report.equal("after that step", last, SKIPS_IN_A_ROW_MAX)


def main():
    report = harness.Report("skipped steps")
    headrace, golden = harness.Headrace(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    variants = [
        ("nan", {}, {}),
        ("inf", {"clip": 0.0}, {"place": "nvme", "lookahead": 1}),
        ("-inf", {"update": "after-backward"}, {"device_memory": "16MiB"}),
    ]
    for name, optim, tiers in variants:
        with harness.scratch(report, "skip") as folder:
            check_skips(report, headrace, folder, golden, name, optim, tiers)
    with harness.scratch(report, "skip") as folder:
        check_stop(report, headrace, folder, golden)
    report.finish()


if __name__ == "__main__":
    main()
