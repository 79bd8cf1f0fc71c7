"""Placement never changes numbers: the same steps, trained by the command line everywhere.

    python3 invariance_cli_test.py BINARY

The engine's own tests cover the full matrix; this one covers the way from RUN.toml to the plan.
"""

import sys

import harness
from harness import must

STEPS = 10

MODELS = {
    "gpt2, tied": {"arch": "gpt2", "layers": 3, "hidden": 64, "heads": 4, "max_seq_len": 48},
    "llama, untied": {
        "arch": "llama",
        "layers": 3,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 160,
        "max_seq_len": 48,
    },
}

LEAST = "the least memory that the plan can do with"
PLACES = {
    "host": {"tiers": {"place": "host"}},
    "device arena": {"tiers": {"place": "host", "device_memory": LEAST}},
    "nvme": {
        "tiers": {"place": "nvme", "device_memory": LEAST, "host_memory": LEAST},
        "optim": {"threads": 3},
    },
    "nvme, other order": {
        "tiers": {"place": "nvme", "lookahead": 4, "tile": 1, "io_depth": 2},
        "optim": {"threads": 1, "update": "after-backward"},
        "batch": {"traversal": "batch-major"},
    },
}


def config(folder, model, changes):
    text = folder / "corpus.txt"
    text.write_text("\n".join(f"{i} times {i % 7} is {i * (i % 7)}" for i in range(800)))
    sections = {
        "run": {"dir": folder / "run", "steps": STEPS},
        "model": model,
        "data": {"train": [text], "tokenizer": "bytes"},
        "batch": {"micro_batch": 2, "seq_len": 48, "accumulate": 2},
        "optim": {"lr": 2e-3, "warmup_steps": 2},
        "precision": {"compute": "fp32"},
        "tiers": {"nvme": [folder / "nvme"], "direct_io": "auto"},
    }
    for section, keys in changes.items():
        # Asked for less than can be, the plan says what is enough.
        given = {key: "64KiB" if value == LEAST else value for key, value in keys.items()}
        sections[section].update(given)
    return harness.write_toml(folder / "run.toml", sections)


def train(report, binary, model, changes, fact):
    """Rows and weights of one run."""
    with harness.scratch(report, "invariance") as folder:
        headrace = harness.Headrace(binary)
        path = config(folder, model, changes)
        words = []
        if LEAST in changes["tiers"].values():
            refused = must(headrace.run("plan", path), harness.DOES_NOT_FIT)
            words = harness.set_arguments(refused.err)
            report.check(f"{fact}: a refused plan says what to set", words, refused)
        must(headrace.run("train", path, *words))
        rows = harness.read_metrics(folder / "run" / "metrics.jsonl")
        return rows, harness.exported(headrace, folder / "run", folder / "out")


def main():
    report = harness.Report("invariance")
    for name, model in MODELS.items():
        first = None
        for place, changes in PLACES.items():
            fact = f"{name}, {place}"
            rows, weights = train(report, sys.argv[1], model, changes, fact)
            if first is None:
                report.equal(f"{fact}: {STEPS} steps", len(rows), STEPS)
                falls = float(rows[-1]["loss"]) < float(rows[0]["loss"])
                report.check(f"{fact}: the loss falls", falls, [row["loss"] for row in rows])
                first = rows, weights
                continue
            difference = harness.first_difference(rows, first[0])
            report.check(f"{fact}: equal metrics", not difference, difference)
            difference = harness.same_tensors(weights, first[1])
            report.check(f"{fact}: equal weights, bit for bit", not difference, difference)
    report.finish()


if __name__ == "__main__":
    main()
