"""Small runs that take long enough to be cut: a byte-level GPT-2 of some 20 ms a step."""

import signal

import harness

STEPS = 16
# Changes with which most blocks stream, so that their updates are speculated.
SPECULATIVE = {
    "model": {"layers": 6},
    "tiers": {"host_memory": "18MiB", "tile": 1},
    "optim": {"update": "speculative"},
}


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

    def __init__(self, headrace, folder, name, changes=None):
        self.headrace, self.folder, self.name = headrace, folder, name
        sections = base_config(folder, name)
        for section, keys in (changes or {}).items():
            sections.setdefault(section, {}).update(keys)
        self.dir = folder / name
        self.metrics = self.dir / "metrics.jsonl"
        self.config = harness.write_toml(folder / f"{name}.toml", sections)

    def train(self, *words):
        return self.headrace.run("train", self.config, *words)

    def stop_at(self, step, number, *words, delay_s=0.0):
        words = ["train", str(self.config), *words]
        return harness.stop_at(self.headrace, words, self.metrics, step, number, delay_s)

    def kill_while_its_store_is_made(self, delay_s):
        words = ["train", str(self.config)]
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
