"""Placement never changes numbers: the same steps, trained by the command line everywhere.

    python3 invariance_cli_test.py BINARY [ROUNDS]

The engine's own tests cover the full matrix; this one covers the way from RUN.toml to the plan, and
in ROUNDS rounds compares random models under random settings that must not matter (the seed is
printed; HEADRACE_SEED repeats it).
"""

import os
import sys

import harness
from harness import must

STEPS = 10
EVALUATED = (*harness.COMPARED, "evaluated")

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
    # A machine of two nodes, of a core each.
    "host, two NUMA nodes": {
        "tiers": {"place": "host"},
        "optim": {"threads": 5},
        "environment": {"HWLOC_SYNTHETIC": "numa:2 core:1 pu:1", "HWLOC_THISSYSTEM": "1"},
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
        "eval": {"fraction": 0.1, "every": 4, "batches": 3},
    }
    if "optim.group" in changes:
        sections["optim.group"] = changes["optim.group"]
    for section, keys in changes.items():
        if section in ("optim.group", "environment"):
            continue
        # Asked for less than can be, the plan says what is enough.
        given = {key: "64KiB" if value == LEAST else value for key, value in keys.items()}
        sections[section].update(given)
    return harness.write_toml(folder / "run.toml", sections)


def train(report, binary, model, changes, fact):
    """Rows and weights of one run."""
    with harness.scratch(report, "invariance") as folder:
        headrace = harness.Headrace(binary)
        headrace.environment.update(changes.get("environment", {}))
        path = config(folder, model, changes)
        words, planned = [], headrace.run("plan", path)
        if planned.code == harness.DOES_NOT_FIT:
            words = harness.set_arguments(planned.err)
            said = any("tiers." in word for word in words)
            report.check(f"{fact}: a refused plan says what to set", said, planned)
        elif LEAST in changes["tiers"].values():
            report.check(f"{fact}: 64 KiB are refused", False, planned)
        must(headrace.run("train", path, *words))
        if "environment" in changes and os.sched_getaffinity(0) >= {0, 1}:
            log = (folder / "run" / "run.log").read_text()
            told = "on NUMA nodes: 2 + 3" in log or "not bound to the 2 NUMA nodes" in log
            report.check(f"{fact}: the log says what became of the threads", told, log)
        rows = harness.read_metrics(folder / "run" / "metrics.jsonl")
        for row in rows:  # an evaluation sees the weights after the step, pending updates and all
            row["evaluated"] = row.get("eval", {}).get("loss")
        return rows, harness.exported(headrace, folder / "run", folder / "out")


def random_model(random):
    heads = random.choice((1, 2, 3, 4))
    model = {
        "arch": random.choice(("gpt2", "llama")),
        "layers": random.choice((1, 2, 3, 5)),
        "heads": heads,
        "hidden": heads * random.choice((8, 16, 24, 40)),
        "vocab": random.choice((256, 257, 300, 1000)),
        "max_seq_len": 64,
        "tied": random.choice((True, False)),
    }
    if random.random() < 0.5:
        model["ffn"] = random.choice((33, 64, 200, 700))
    if model["arch"] == "llama":
        model["kv_heads"] = random.choice([k for k in (1, 2, 3, 4) if heads % k == 0])
    return model


def random_numbers(random):
    """Settings that make the numbers: one draw for all runs of a round."""
    names = random.choice((["*.0.*"], ["*wte*", "*embed*"], ["*norm*", "*ln_*"], ["*proj*"]))
    group = random.choice(({"frozen": True}, {"lr_scale": 0.5}, {"betas": [0.5, 0.9], "eps": 1e-4}))
    return {
        "batch": {
            "micro_batch": random.choice((1, 2, 3)),
            "seq_len": random.choice((1, 7, 16, 33, 64)),
            "accumulate": random.choice((1, 1, 2, 3)),
        },
        "optim": {"clip": random.choice((0.0, 0.01, 1.0)), "lr": random.choice((1e-3, 1e-2))},
        "precision": {"grad": random.choice(("fp32", "fp32", "bf16"))},
        "optim.group": [{"match": names, **group}],
    }


def random_memory(random):
    """Settings that must not matter."""
    chances = {
        "tiers": {
            "place": ("host", "nvme", "device", None),
            "device_memory": (LEAST, "4MiB", "64MiB", None),
            "host_memory": (LEAST, "32MiB", None),
            "lookahead": (1, 2, 4, None),
            "tile": (1, 2, 5, None),
            "io_depth": (1, 2, 8, None),
        },
        "optim": {
            "threads": (1, 2, 3, None),
            "update": ("held", "speculative", "after-backward", None),
        },
        "batch": {"traversal": ("layer-major", "batch-major", None)},
    }
    drawn = {}
    for section, keys in chances.items():
        values = {key: random.choice(choices) for key, choices in keys.items()}
        drawn[section] = {key: value for key, value in values.items() if value is not None}
    return drawn


def merged(one, two):
    keys = one.keys() | two.keys()
    return {
        key: (
            one.get(key) or two[key]
            if key == "optim.group"
            else {**one.get(key, {}), **two.get(key, {})}
        )
        for key in keys
    }


def random_rounds(report, rounds):
    random = harness.seeded_random()
    for index in range(rounds):
        model, numbers = random_model(random), random_numbers(random)
        print(f"      round {index}: {model} {numbers}", flush=True)
        first = None
        for memory in [{"tiers": {"place": "host"}}] + [random_memory(random) for _ in range(3)]:
            fact = f"round {index}, {memory}"
            changes = merged(numbers, memory)
            rows, weights = train(report, sys.argv[1], model, changes, fact)
            first = first or (rows, weights)
            difference = harness.first_difference(rows, first[0], EVALUATED)
            difference = difference or harness.same_tensors(weights, first[1])
            report.check(f"{fact}: equal metrics and weights", not difference, difference)


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
            difference = harness.first_difference(rows, first[0], EVALUATED)
            report.check(f"{fact}: equal metrics", not difference, difference)
            difference = harness.same_tensors(weights, first[1])
            report.check(f"{fact}: equal weights, bit for bit", not difference, difference)
    random_rounds(report, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    report.finish()


if __name__ == "__main__":
    main()
