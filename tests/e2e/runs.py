"""Small runs that take long enough to be cut: a byte-level GPT-2 of some 20 ms a step."""

import json
import pathlib
import re
import signal

import harness
from harness import Broken, must

STEPS = 16
# Changes with which most blocks stream, so that their updates are speculated.
SPECULATIVE = {
    "model": {"layers": 6},
    "tiers": {"host_memory": "18MiB", "tile": 1},
    "optim": {"update": "speculative"},
}


# Changes with which not all activations find room.
SPILLED_LAYERS = 6


def slow_kernels(headrace, folder):
    """A profile of this machine with products a thousand times slower: recomputing is dear."""
    config = harness.write_toml(folder / "profiled.toml", base_config(folder, "profiled"))
    must(headrace.run("plan", config))
    measured = pathlib.Path(headrace.environment["XDG_CACHE_HOME"]) / "headrace" / "machine.toml"

    def slower(line):
        if not re.match(r"(gemm|attention)_\w*flops_per_s", line):
            return line
        key, numbers = line.split("=", 1)
        return key + "=" + re.sub(r"[\d.]+(e[+-]?\d+)?",
                                  lambda number: str(float(number.group()) / 1000),
                                  numbers.split("#")[0])

    profile = folder / "slow-kernels.toml"
    profile.write_text("\n".join(slower(line) for line in measured.read_text().splitlines()))
    return profile


def spilling(headrace, folder, machine, changes):
    """The same with a host_memory under which activations wait on NVMe."""
    layers = {"layers": SPILLED_LAYERS}
    run = Run(headrace, folder, "asked-spill", {**changes, "model": layers}, machine)
    for mebibytes in range(64, 8, -1):
        tiers = {**changes.get("tiers", {}), "place": "host", "host_memory": f"{mebibytes}MiB"}
        asked = headrace.run("plan", run.config, "--json", *run.words, "--set", "tiers.place=host",
                             "--set", f"tiers.host_memory={mebibytes}MiB")
        if asked.code == harness.OK and json.loads(asked.out)["spilled_blocks"] > 0:
            return {**changes, "model": layers, "tiers": tiers}
    raise Broken(f"no host_memory makes activations wait\n{asked}")


def base_config(folder, name):
    """A byte-level GPT-2 whose step takes some 20 ms, so that a signal finds it under way."""
    text = folder / "corpus.txt"
    if not text.exists():
        words = ["water", "wheel", "race", "gate", "mill", "pond", "weir", "sluice"]
        lines = (f"{words[i * 7 % 8]} {i} {words[i * i % 8]} turns" for i in range(2000))
        text.write_text("\n".join(lines))
    return {
        "run": {"dir": folder / name, "steps": STEPS, "seed": 5},
        "model": {"arch": "gpt2", "layers": 2, "hidden": 128, "heads": 4, "max_seq_len": 64},
        "data": {"train": [text], "tokenizer": "bytes", "order": "shuffled"},
        "batch": {"micro_batch": 8, "seq_len": 64, "accumulate": 1},
        "optim": {"lr": 1e-3, "lr_schedule": "cosine", "warmup_steps": 3, "min_lr": 1e-5},
        "precision": {"compute": "fp32"},
        "tiers": {"nvme": [folder / f"{name}-nvme"], "direct_io": "auto"},
    }


class Run:
    """One run directory and the file that makes it."""

    def __init__(self, headrace, folder, name, changes=None, machine=None):
        self.words = [] if machine is None else ["--machine", str(machine)]
        self.headrace, self.folder, self.name = headrace, folder, name
        sections = base_config(folder, name)
        for section, keys in (changes or {}).items():
            sections.setdefault(section, {}).update(keys)
        self.dir = folder / name
        self.metrics = self.dir / "metrics.jsonl"
        self.config = harness.write_toml(folder / f"{name}.toml", sections)

    def train(self, *words):
        return self.headrace.run("train", self.config, *self.words, *words)

    def stop_at(self, step, number, *words, delay_s=0.0):
        words = ["train", str(self.config), *self.words, *words]
        return harness.stop_at(self.headrace, words, self.metrics, step, number, delay_s)

    def kill_while_its_store_is_made(self, delay_s):
        words = ["train", str(self.config), *self.words]
        noted = self.dir / "store.making.json"
        return harness.stop_when(self.headrace, words, noted.exists, signal.SIGKILL, delay_s)

    def rows(self):
        return harness.read_metrics(self.metrics)

    def weights(self):
        return harness.exported(self.headrace, self.dir, self.folder / f"{self.name}-export")

    def fingerprint(self):
        """All of the run but its log, which tells of every start."""
        found = harness.fingerprint(self.dir)
        found.pop("run.log", None)
        return found, harness.fingerprint(self.folder / f"{self.name}-nvme")
