"""What the tests of errors share: every way to fail says so in the same form, with its exit code,
and damages nothing.

Each case runs one or more commands that must fail; afterwards everything in the test's folder (a
committed run among it) must be byte for byte what it was before the commands.
"""

import pathlib
import shutil
import sys

import harness
from harness import must

CASES = []


def case(name):
    def register(function):
        CASES.append((name, function))
        return function

    return register


class World:
    """A folder with one committed run, `good`, that no case may change."""

    def __init__(self, report, headrace, folder, golden):
        self.report, self.headrace, self.folder, self.golden = report, headrace, folder, golden
        self.text = folder / "corpus.txt"
        self.text.write_text("the race that feeds the wheel\n" * 200)
        self.good = folder / "good"
        self.good_config = self.config("good", {"run": {"dir": self.good}})
        must(headrace.run("train", self.good_config))

    def sections(self, name):
        return {
            "run": {"dir": self.folder / f"{name}-run", "steps": 2},
            "model": {"arch": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "max_seq_len": 32},
            "data": {"train": [self.text], "tokenizer": "bytes"},
            "batch": {"micro_batch": 2, "seq_len": 32},
            "optim": {"lr_schedule": "constant"},
            "precision": {"compute": "fp32"},
            "tiers": {"direct_io": "auto"},
        }

    def config(self, name, changes=None):
        sections = self.sections(name)
        for section, keys in (changes or {}).items():
            sections[section] = {**sections.get(section, {}), **keys}
        return harness.write_toml(self.folder / f"{name}.toml", sections)

    def copy_of_good(self, name):
        """Another run with the same commit, for a case to damage."""
        target = self.folder / name
        shutil.copytree(self.good, target)
        return target, self.config(name, {"run": {"dir": target, "steps": 4}})

    def fails(self, fact, code, *words, says=(), **how):
        """Runs a command that must fail with `code`, name all of `says`, and change no file."""
        before = harness.fingerprint(self.folder)
        outcome = self.headrace.run(*words, **how)
        after = harness.fingerprint(self.folder)
        problems = harness.error_problems(outcome, code)
        problems += "".join(f"\n'{word}' is not named" for word in says if word not in outcome.err)
        self.report.check(f"{fact}: exit {code}", not problems, f"{problems}\n{outcome}")
        self.unchanged(fact, before, after)
        return outcome

    def unchanged(self, fact, before, after):
        # A failed start may tell of itself in the log of its run.
        for files in (before, after):
            for name in [n for n in files if pathlib.Path(n).name == "run.log"]:
                del files[name]
        difference = harness.changes(before, after)
        self.report.check(f"{fact}: no file is changed or left", not difference, difference)


def store_data(run):
    (data,) = (run / "store").glob("*/data")
    return data


def model_case(world, name, change):
    """A model directory with a damaged model.safetensors, and a run that wants to train it."""
    folder = world.folder / f"hf-{name}"
    shutil.copytree(world.golden / "hf", folder)
    change(folder)
    sections = {**world.sections(name), "model": {"path": folder}}
    sections["data"] = {"train": [world.golden / "tokens.bin"]}
    sections["batch"] = {"micro_batch": 1, "seq_len": 8}
    return folder, harness.write_toml(world.folder / f"{name}.toml", sections)


def run_cases(name):
    """The end of each test: runs the cases that were registered, or those that are named."""
    report = harness.Report(name)
    golden = pathlib.Path(sys.argv[2]).resolve()
    chosen = sys.argv[3:]
    with harness.scratch(report, name) as folder:
        world = World(report, harness.Headrace(sys.argv[1]), folder, golden)
        for title, function in CASES:
            if not chosen or title in chosen:
                print(f"---- {title}", flush=True)
                function(world)
    report.finish()
