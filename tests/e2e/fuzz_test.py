"""Damaged input never crashes the binary, and damaged weights never pass for whole ones.

    python3 fuzz_test.py BINARY GOLDEN_CASE_DIR

Every file that a command reads is changed at random (the seed is printed, HEADRACE_SEED repeats
it). Whatever the change: a known exit code, and the error form where it is not 0. Of a changed
store, an export that succeeds has the bits of the unchanged one.
"""

import pathlib
import shutil
import struct
import sys

import harness
from harness import must

KNOWN = (harness.OK, harness.OPERATING, harness.USAGE, harness.DOES_NOT_FIT, harness.CORRUPT)
ROUNDS = 30  # of each file


def damage(random, content, end):
    """One to three changes within the first `end` bytes."""
    content = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(min(end, len(content)))
        kind = random.randrange(5)
        if kind == 0:
            content[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            content[at] = random.randrange(256)
        elif kind == 2:
            del content[at : at + random.randint(1, 8)]
        elif kind == 3:
            content[at:at] = bytes(random.choice(b'[]{}",:-0129eE.\\\0\xff') for _ in range(3))
        else:
            content[at : at + 8] = struct.pack("<Q", random.getrandbits(64))
    return bytes(content)


def settled(outcome):
    """What is wrong with the end of a command, in words."""
    if outcome.code not in KNOWN:
        return f"exit code {outcome.code}"
    return harness.error_problems(outcome, outcome.code) if outcome.code else ""


class Fuzzer:
    def __init__(self, report, headrace, folder, golden):
        self.report, self.headrace, self.folder = report, headrace, folder
        self.random = harness.seeded_random()
        shutil.copytree(golden / "hf", folder / "hf")
        shutil.copy(golden / "tokens.bin", folder / "tokens.bin")
        self.config = harness.write_toml(
            folder / "run.toml",
            {
                "run": {"dir": folder / "run", "steps": 2},
                "model": {"path": folder / "hf"},
                "data": {"train": [folder / "tokens.bin"], "order": "sequential"},
                "batch": {"micro_batch": 1, "seq_len": 8},
                "optim": {"lr": 1e-3, "betas": [0.9, 0.95]},
                "optim.group": [{"match": ["*.wte.*"], "lr_scale": 0.5}],
                "tiers": {"direct_io": "auto", "host_memory": "1GiB"},
            },
        )
        must(headrace.run("train", self.config))

    def fuzz(self, path, words, end=1 << 60):
        """Runs `words` on ROUNDS changes of a file; puts the file back."""
        whole, codes = path.read_bytes(), {}
        problems = []
        for _ in range(ROUNDS):
            changed = damage(self.random, whole, end)
            path.write_bytes(changed)
            outcome = self.headrace.run(*words, timeout_s=60)
            codes[outcome.code] = codes.get(outcome.code, 0) + 1
            if settled(outcome):
                kept = self.folder / f"bad-{path.name}-{len(problems)}"
                kept.write_bytes(changed)
                problems.append(f"{settled(outcome)}\n{kept}\n{outcome}")
        path.write_bytes(whole)
        counts = ", ".join(f"{count} x exit {code}" for code, count in sorted(codes.items()))
        fact = f"{path.relative_to(self.folder)} damaged, {words[0]}: {counts}"
        self.report.check(fact, not problems, "\n".join(problems))

    def fuzz_store(self):
        """Bytes of all regions of the data file: tables, map, headers, weights, state."""
        run, out = self.folder / "run", self.folder / "out"
        (data,) = (run / "store").glob("*/data")
        size, codes, problems = data.stat().st_size, {}, []
        expected = harness.exported(self.headrace, run, self.folder / "whole")
        told = must(self.headrace.run("inspect", run, "--json")).json()
        regions = [(0, 256 * 1024), (128 * 1024, min(size, 1024 * 1024)), (0, size)]
        for extent in told["extents"]:
            begin = extent["offset"]
            regions.append((begin, begin + 512))
            regions.append((begin, begin + extent["header_bytes"] + extent["payload_bytes"]))
        for begin, end in regions * 2:
            at = self.random.randrange(begin, end)
            harness.flip_byte(data, at)
            shutil.rmtree(out, ignore_errors=True)
            outcome = self.headrace.run("export", run, out)
            codes[outcome.code] = codes.get(outcome.code, 0) + 1
            problem = settled(outcome)
            if outcome.code == harness.OK:
                found = harness.read_safetensors(out / "model.safetensors")
                problem = harness.same_tensors(found, expected)
            if problem:
                problems.append(f"byte {at}: {problem}\n{outcome}")
            harness.flip_byte(data, at)
        counts = ", ".join(f"{count} x exit {code}" for code, count in sorted(codes.items()))
        fact = f"a flipped byte of the store, exported: refused or equal bits ({counts})"
        self.report.check(fact, not problems, "\n".join(problems))
        must(self.headrace.run("verify", run))


def main():
    report = harness.Report("fuzz")
    golden = pathlib.Path(sys.argv[2]).resolve()
    with harness.scratch(report, "fuzz") as folder:
        fuzzer = Fuzzer(report, harness.Headrace(sys.argv[1]), folder, golden)
        plan = ["plan", fuzzer.config]
        fuzzer.fuzz(fuzzer.config, plan)
        fuzzer.fuzz(folder / "hf" / "config.json", plan)
        evaluate = ["eval", "--model", folder / "hf", "--data", folder / "tokens.bin"]
        evaluate += ["--seq-len", 8]
        fuzzer.fuzz(folder / "hf" / "model.safetensors", evaluate, end=4096)
        fuzzer.fuzz(folder / "tokens.bin", evaluate)
        fuzzer.fuzz(folder / "run" / "store.json", ["inspect", folder / "run"])
        fuzzer.fuzz(folder / "run" / "metrics.jsonl", ["verify", folder / "run"])
        fuzzer.fuzz_store()
    report.finish()


if __name__ == "__main__":
    main()
