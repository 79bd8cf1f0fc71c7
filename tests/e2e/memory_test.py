"""Memory is what the plan said, and stays so: peaks within the plan, nothing grows over steps.

python3 memory_test.py BINARY [small|vocabulary]
"""

import json
import os
import pathlib
import sys
import time

import harness
from harness import must

MIB = 1 << 20
TOLERANCE_PART, TOLERANCE_BYTES = 0.05, 32 * MIB
EXPORT_BYTES_MAX = 64 * MIB  # libraries and two buffers: far below the weights
GROWTH_BYTES_MAX = 2 * MIB  # of the process over 50 steps: less than 1 % of what it holds


def allowed(bytes_):
    return bytes_ + max(TOLERANCE_PART * bytes_, TOLERANCE_BYTES)


def mib(bytes_):
    return f"{bytes_ / MIB:.1f} MiB"


def compare_peaks(report, name, run_dir, caps, begin=0):
    """Measured against planned, of the steps since `begin`, where the last start went on."""
    plan = json.loads((run_dir / "plan.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    peak = {key: max(row["peak"][key] for row in rows[begin:]) for key in rows[0]["peak"]}
    for tier in ("device", "host"):
        planned = plan[f"{tier}_peak_bytes"]
        fact = f"{name}: {tier} arena peak {mib(peak[tier])} within the planned {mib(planned)}"
        report.check(fact, 0 < peak[tier] <= planned)
        fact = f"{name}: planned {tier} memory {mib(planned)} within its cap {mib(caps[tier])}"
        report.check(fact, planned <= caps[tier])
    arenas = plan["device_peak_bytes"] + plan["host_peak_bytes"]
    planned = arenas + plan["process_bytes"]
    fact = f"{name}: process peak {mib(peak['process'])} within arenas + process {mib(planned)}"
    report.check(fact, peak["process"] <= allowed(planned), json.dumps(plan["memory"], indent=1))
    return rows, peak


def peak_of(headrace, *words):
    """Runs a command; its largest resident set (mapped files included) as the kernel counted it."""
    process = headrace.start(*words)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    must(harness.Outcome(words, process.returncode, out, err))
    return usage.ru_maxrss * 1024


class Sampler:
    """Watches a running process from outside, by step."""

    def __init__(self, process, metrics):
        self.process, self.metrics = process, metrics
        self.samples = []  # (step, anonymous bytes, descriptors)

    def take(self):
        proc = pathlib.Path("/proc") / str(self.process.pid)
        step = harness.last_step(self.metrics)
        try:
            status = dict(
                line.split(":", 1)
                for line in (proc / "status").read_text().splitlines()
                if ":" in line
            )
            descriptors = len(list((proc / "fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError):
            return
        if "RssAnon" not in status:
            return  # it has just ended
        kib = int(status["RssAnon"].split()[0]) + int(status["HugetlbPages"].split()[0])
        self.samples.append((step, kib * 1024, descriptors))

    def watch(self):
        deadline = time.monotonic() + harness.TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.take()
            time.sleep(0.01)
        out, err = self.process.communicate(timeout=1)
        return harness.Outcome(["train"], self.process.returncode, out, err)

    def between(self, first, last):
        return [sample for sample in self.samples if first <= sample[0] <= last]


def small(report, headrace, folder):
    """Sixty steps of a model that fits neither the device arena nor host memory as a whole."""
    steps = 60
    caps = {"device": 12 * MIB, "host": 36 * MIB}
    text = folder / "corpus.txt"
    text.write_text("\n".join(f"{i} and {i * i % 97}" for i in range(4000)))
    path = harness.write_toml(
        folder / "small.toml",
        {
            "run": {"dir": folder / "small", "steps": steps},
            "model": {"arch": "gpt2", "layers": 8, "hidden": 192, "heads": 6, "max_seq_len": 64},
            "data": {"train": [text], "tokenizer": "bytes"},
            "batch": {"micro_batch": 2, "seq_len": 64},
            "precision": {"compute": "fp32"},
            "durability": {"checkpoint": "every-step"},
            "tiers": {
                "nvme": [folder / "nvme"],
                "direct_io": "auto",
                "device_memory": f"{caps['device'] // MIB}MiB",
                "host_memory": f"{caps['host'] // MIB}MiB",
            },
        },
    )
    # The first ten steps, then on from the commit, within the same budgets.
    must(headrace.run("train", path, "--set", "run.steps=10"))
    compare_peaks(report, "first steps", folder / "small", caps)
    process = headrace.start("train", path)
    sampler = Sampler(process, folder / "small" / "metrics.jsonl")
    must(sampler.watch())
    rows, peak = compare_peaks(report, "small run", folder / "small", caps, begin=10)
    report.equal("small run: a row a step", len(rows), steps)
    streamed = min(row["bytes"].get("nvme_read", 0) for row in rows[1:])
    report.check(f"small run: NVMe is used in every step, {mib(streamed)} read", streamed > 0)

    growth = rows[-1]["peak"]["process"] - rows[19]["peak"]["process"]
    fact = f"small run: the process' peak grows by {mib(growth)} from step 20 to {steps}"
    report.check(fact, growth <= GROWTH_BYTES_MAX)
    early, late = sampler.between(15, 30), sampler.between(40, steps - 1)
    if not early or not late:
        report.skip("small run: seen from outside", "it ran too fast to be sampled")
        return
    grown = max(s[1] for s in late) - max(s[1] for s in early)
    fact = f"small run: memory seen from outside grows by {mib(grown)} between steps 30 and 40"
    report.check(fact, grown <= GROWTH_BYTES_MAX)
    seen = max(sample[1] for sample in sampler.samples)
    fact = f"small run: metrics say at least the {mib(seen)} seen from outside"
    report.check(fact, peak["process"] >= seen - MIB)
    # The smallest count: reading /proc, say, opens a file for a moment.
    before, after = min(s[2] for s in early), min(s[2] for s in late)
    report.equal("small run: descriptors stay as many", after, before)


def vocabulary(report, headrace, folder):
    """151,936 x 8,192 logits would be 5 GB, 8,192 x 8,192 attention of 4 heads 1 GB a layer."""
    vocab, length = 151936, 8192
    caps = {"device": 1024 * MIB, "host": 4096 * MIB}
    tokens = [i * 7919 % vocab for i in range(length + 1)]
    (folder / "tokens.bin").write_bytes(harness.token_file(tokens, 20240801, 7))
    path = harness.write_toml(
        folder / "wide.toml",
        {
            "run": {"dir": folder / "wide", "steps": 1},
            "model": {
                "arch": "gpt2",
                "layers": 2,
                "hidden": 256,
                "heads": 4,
                "vocab": vocab,
                "max_seq_len": length,
            },
            "data": {"train": [folder / "tokens.bin"], "order": "sequential"},
            "batch": {"micro_batch": 1, "seq_len": length},
            "precision": {"compute": "fp32"},
            "tiers": {
                "nvme": [folder / "nvme"],
                "direct_io": "auto",
                "device_memory": "1GiB",
                "host_memory": "4GiB",
            },
        },
    )
    must(headrace.run("train", path))
    rows, _ = compare_peaks(report, "wide vocabulary", folder / "wide", caps)
    report.equal("wide vocabulary: one step", len(rows), 1)
    # Of a fresh model, the loss is near that of a guess: ln(151936) = 11.93.
    report.check(f"wide vocabulary: loss {rows[0]['loss']}", 11.8 < rows[0]["loss"] < 12.2)
    peak = peak_of(headrace, "export", folder / "wide", folder / "out")
    size = (folder / "out" / "model.safetensors").stat().st_size
    fact = f"wide vocabulary: export of {mib(size)} holds {mib(peak)} at most"
    report.check(fact, peak <= EXPORT_BYTES_MAX)


def main():
    parts = {"small": small, "vocabulary": vocabulary}
    report = harness.Report("memory")
    for part in sys.argv[2:] or parts:
        with harness.scratch(report, f"memory-{part}") as folder:
            parts[part](report, harness.Headrace(sys.argv[1]), folder)
    report.finish()


if __name__ == "__main__":
    main()
