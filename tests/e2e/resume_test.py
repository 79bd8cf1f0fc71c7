"""Interrupted and resumed runs repeat the bits of an undisturbed one, and resuming has rules.

python3 resume_test.py BINARY [interrupt|rules]
"""

import os
import signal
import sys
import time

import harness
from harness import Broken, must
from runs import SPECULATIVE, STEPS, Run, base_config

NO_COMMITS = {"checkpoint": "none"}


def same_files(report, fact, before, after):
    difference = "\n".join(harness.changes(*pair) for pair in zip(before, after)).strip()
    report.check(fact, not difference, difference)


# What must not matter to where a run is cut.
VARIANTS = {
    "auto": {},
    "evaluated": {"eval": {"fraction": 0.2, "every": 3, "batches": 2}, "tiers": {"place": "nvme"}},
    "held-nvme": {
        "tiers": {"place": "nvme", "lookahead": 1, "device_memory": "64MiB"},
        "optim": {"update": "held"},
    },
    "speculative": SPECULATIVE,
    "after-backward": {"tiers": {"place": "host"}, "optim": {"update": "after-backward"}},
    "accumulate": {"batch": {"micro_batch": 3, "accumulate": 3, "traversal": "batch-major"}},
}
CUTS = [(1, signal.SIGINT), (4, signal.SIGTERM), (8, signal.SIGINT)]


def check_interrupts(report, headrace, folder, name, changes):
    whole = Run(headrace, folder, f"{name}-whole", changes)
    must(whole.train())
    cut = Run(headrace, folder, f"{name}-cut", changes)
    for step, number in CUTS:
        outcome = cut.stop_at(step, number)
        signal_name = signal.Signals(number).name
        fact = f"{name}: {signal_name} after step {step} ends with exit code 130"
        if not report.equal(fact, outcome.code, harness.INTERRUPTED):
            raise Broken(outcome)
        rows = cut.rows()
        report.check(
            f"{name}: the rows so far are those of the undisturbed run",
            len(rows) < STEPS and not harness.first_difference(rows, whole.rows()[: len(rows)]),
            lambda: harness.first_difference(rows, whole.rows()[: len(rows)]),
        )
    must(cut.train("--resume", "required"))
    difference = harness.first_difference(cut.rows(), whole.rows())
    report.check(f"{name}: the joined metrics are equal", not difference, difference)
    difference = harness.same_tensors(cut.weights(), whole.weights())
    report.check(f"{name}: the exported weights are equal bit for bit", not difference, difference)
    return whole


def one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def check_moving(report, headrace, folder, whole):
    """Memory, and the cores that there are, may change at every resume."""
    run = Run(headrace, folder, "moving")
    placements = [
        (3, ["tiers.place=host"]),
        (6, ["tiers.place=nvme", "tiers.lookahead=1", "optim.threads=1"]),
        (9, ["tiers.place=host", "tiers.device_memory=32MiB", "tiers.host_memory=256MiB"]),
        (None, ["tiers.lookahead=4", "optim.threads=3", "tiers.io_depth=4"]),
    ]
    for step, sets in placements:
        words = [word for key in sets for word in ("--set", key)]
        if step is None:
            # Fewer cores than the run began with: its compute threads are part of its numbers.
            must(headrace.run("train", run.config, *words, before=one_core))
            continue
        must(run.stop_at(step, signal.SIGINT, *words), harness.INTERRUPTED)
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("resumed under four placements: equal metrics", not difference, difference)
    difference = harness.same_tensors(run.weights(), whole.weights())
    report.check("resumed under four placements: equal weights", not difference, difference)


def check_kill(report, headrace, folder, whole):
    """With checkpoint = "none" nothing is promised after a kill, but nothing is silent either."""
    run = Run(headrace, folder, "killed")
    killed = run.stop_at(4, signal.SIGKILL)
    report.equal("SIGKILL kills", killed.code, -signal.SIGKILL)
    before = run.fingerprint()
    refused = run.train("--resume", "required")
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("a run without a commit is not resumed", not problems, f"{problems}\n{refused}")
    same_files(report, "and is left as it is", before, run.fingerprint())

    # State in host memory: the store is still what the commit made it.
    run = Run(
        headrace, folder, "killed-host", {"tiers": {"place": "host"}, "durability": NO_COMMITS}
    )
    must(run.stop_at(2, signal.SIGINT), harness.INTERRUPTED)
    run.stop_at(6, signal.SIGKILL)
    must(run.train("--resume", "required"))
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check(
        "killed with its state in memory: resumed at the commit", not difference, difference
    )

    # State on NVMe, one slot a tile: the steps since have written over the commit.
    run = Run(
        headrace, folder, "killed-nvme", {"tiers": {"place": "nvme"}, "durability": NO_COMMITS}
    )
    must(run.stop_at(2, signal.SIGINT), harness.INTERRUPTED)
    run.stop_at(6, signal.SIGKILL)
    before = run.fingerprint()
    refused = run.train()
    problems = harness.error_problems(refused, harness.OPERATING)
    report.check(
        "a store that was written since is refused", not problems, f"{problems}\n{refused}"
    )
    same_files(report, "and is left as it is", before, run.fingerprint())
    must(run.train("--resume", "never", "--overwrite"))
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("--overwrite starts it again", not difference, difference)
    stores = list((folder / "killed-nvme-nvme").iterdir())
    report.equal("and the old store is gone", len(stores), 1)


def check_kill_instants(report, headrace, folder, whole):
    """With checkpoint = "none" too, it goes on with the same bits or says why it cannot."""
    random = harness.seeded_random()
    weights, resumed, refused = whole.weights(), 0, 0
    for index in range(9):
        place, committed = (("host", True), ("nvme", True), ("nvme", False))[index % 3]
        changes = {"tiers": {"place": place}, "durability": NO_COMMITS}
        run = Run(headrace, folder, f"instant{index}", changes)
        if committed:
            must(run.stop_at(2, signal.SIGINT), harness.INTERRUPTED)
        # From the start of the process to beyond the final commit.
        step, delay_s = random.choice((0, STEPS // 2, STEPS - 1, STEPS)), random.random() * 0.05
        run.stop_at(step, signal.SIGKILL, delay_s=delay_s)
        fact = f"{place}: killed {delay_s * 1000:.1f} ms after step {step}"
        before = run.fingerprint()
        again = run.train()
        if again.code != harness.OK:
            refused += 1
            problems = harness.error_problems(again, harness.OPERATING)
            report.check(f"{fact}: refused", not problems, f"{problems}\n{again}")
            same_files(report, f"{fact}: left as it is", before, run.fingerprint())
            continue
        resumed += 1
        difference = harness.first_difference(run.rows(), whole.rows())
        difference = difference or harness.same_tensors(run.weights(), weights)
        report.check(f"{fact}: equal metrics and weights", not difference, difference)
    print(f"      {resumed} went on, {refused} were refused", flush=True)


def check_early_signals(report, headrace, folder, whole):
    """A signal before the first step, wherever the start is by then."""
    run = Run(headrace, folder, "early")
    for delay_ms in (1, 5, 10, 20, 40, 80):
        stopped = run.stop_at(0, signal.SIGINT, delay_s=delay_ms / 1000)
        fact = f"SIGINT {delay_ms} ms after the start ends it"
        codes = (harness.INTERRUPTED, -signal.SIGINT, harness.OK)
        report.check(fact, stopped.code in codes, stopped)
    must(run.train())
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("and does not change what comes of it", not difference, difference)
    left = list((folder / "early-nvme").iterdir())
    report.equal("and leaves one store", len(left), 1)


def check_moved(report, headrace, folder, whole):
    """A run with its store in its own folder may be moved."""
    run = Run(headrace, folder, "moved", {"tiers": {"nvme": [folder / "moved" / "store"]}})
    must(run.stop_at(5, signal.SIGINT), harness.INTERRUPTED)
    target = folder / "elsewhere"
    run.dir.rename(target)
    run.dir, run.metrics = target, target / "metrics.jsonl"
    words = ["--set", f"run.dir={target}", "--set", f'tiers.nvme=["{target}/store"]']
    must(run.train("--resume", "required", *words))
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("a moved run goes on", not difference, difference)


def check_lost_data(report, headrace, folder, whole):
    """A run whose data cannot be read any more commits, and goes on once they are back."""
    data = folder / "lost.txt"
    content = (folder / "corpus.txt").read_bytes()
    data.write_bytes(content)
    run = Run(headrace, folder, "lost", {"data": {"train": [data]}, "tiers": {"place": "nvme"}})
    process = headrace.start("train", run.config)
    while process.poll() is None and harness.last_step(run.metrics) < 2:
        time.sleep(0.002)
    os.truncate(data, 0)
    out, err = process.communicate(timeout=harness.TIMEOUT_S)
    outcome = harness.Outcome(["train", run.config], process.returncode, "", err)
    problems = harness.error_problems(outcome, harness.OPERATING)
    fact = "data that are lost under the run end it"
    report.check(fact, not problems and str(data) in err, f"{problems}\n{out}\n{outcome}")
    log = (run.dir / "run.log").read_text()
    report.check("and run.log says so", f"cannot read '{data}'" in log, log)
    report.check("and what was said at its start", "initial weights" in log, log)
    data.write_bytes(content)
    must(run.train("--resume", "required"))
    difference = harness.first_difference(run.rows(), whole.rows())
    difference = difference or harness.same_tensors(run.weights(), whole.weights())
    report.check("once they are back it goes on with the same bits", not difference, difference)


def check_differences(report, run):
    """Keys that make the numbers must match the commit's; all that differ are named."""
    before = run.fingerprint()
    keys = {
        "optim.lr": "0.002",
        "optim.betas": "[0.8, 0.9]",
        "optim.clip": "0.5",
        "run.seed": "6",
        "batch.seq_len": "32",
        "model.layers": "3",
        "precision.grad": "bf16",
    }
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    refused = run.train(*words)
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("changed numbers are refused", not problems, f"{problems}\n{refused}")
    unnamed = [key for key in keys if key not in refused.err]
    report.check("and every one is named", not unnamed, f"{unnamed}\n{refused}")
    same_files(report, "and the run is left as it is", before, run.fingerprint())

    text = run.folder / "corpus.txt"
    content = text.read_text()
    text.write_text("W" + content[1:])
    refused = run.train()
    text.write_text(content)
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("changed data are refused", not problems, f"{problems}\n{refused}")
    report.check("and named", "data" in refused.err, refused)
    same_files(report, "and the run is left as it is", before, run.fingerprint())


def check_never(report, run, whole):
    before = run.fingerprint()
    refused = run.train("--resume", "never")
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("--resume never keeps a commit", not problems, f"{problems}\n{refused}")
    report.check("and names --overwrite", "--overwrite" in refused.err, refused)
    same_files(report, "and the run is left as it is", before, run.fingerprint())
    must(run.train("--resume", "never", "--overwrite"))
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("--overwrite begins at step 1", not difference, difference)
    sizes = [
        sorted(size for _, size, digest in files[1].values() if digest)
        for files in (before, run.fingerprint())
    ]
    report.equal("and uses the same space", sizes[1], sizes[0])


def check_relative_paths(report, headrace, folder):
    """Paths in a file are relative to it, wherever the command is given."""
    sections = base_config(folder, "relative")
    place = folder / "sub"
    place.mkdir()
    sections["run"]["dir"] = "runs/here"
    sections["data"]["train"] = ["../corp*.txt"]
    del sections["tiers"]["nvme"]
    harness.write_toml(place / "run.toml", sections)
    must(headrace.run("train", "sub/run.toml", "--set", f"run.steps={STEPS // 2}", cwd=folder))
    must(headrace.run("train", "run.toml", "--resume", "required", cwd=place))
    rows = harness.read_metrics(place / "runs" / "here" / "metrics.jsonl")
    report.equal("from another folder: a row a step", len(rows), STEPS)
    must(headrace.run("export", "sub/runs/here", "relative-out", cwd=folder))
    report.check("and an export there", (folder / "relative-out" / "config.json").exists())


def check_required(report, headrace, folder):
    run = Run(headrace, folder, "absent")
    refused = run.train("--resume", "required")
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("--resume required needs a run", not problems, f"{problems}\n{refused}")
    left = [path for path in (run.dir, folder / "absent-nvme") if path.exists()]
    report.check("and makes nothing", not left, left)


def check_finished(report, run):
    before = run.fingerprint()
    again = run.train()
    said = f"complete at step {STEPS}; raise run.steps"
    report.equal("a finished run that is run again exits 0", again.code, harness.OK)
    report.check(f"and says '{said}'", said in again.out + again.err, again)
    same_files(report, "and is left as it is", before, run.fingerprint())


def check_raised(report, headrace, folder):
    """With a constant rate, 16 + 4 steps are 20 steps."""
    constant = {"optim": {"lr_schedule": "constant", "min_lr": 0.0}}
    longer = {"run": {"steps": STEPS + 4}, **constant}
    whole = Run(headrace, folder, "longer", longer)
    must(whole.train())
    run = Run(headrace, folder, "raised", constant)
    must(run.train())
    must(run.train("--set", f"run.steps={STEPS + 4}"))
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("raised steps go on where the run ended", not difference, difference)
    difference = harness.same_tensors(run.weights(), whole.weights())
    report.check("with equal weights", not difference, difference)


def check_two_at_once(report, headrace, folder):
    """A second process on a run that is under way is refused, and the first is not disturbed."""
    run = Run(headrace, folder, "busy", {"run": {"steps": 100000}})
    process = headrace.start("train", run.config)
    try:
        while process.poll() is None and harness.last_step(run.metrics) < 1:
            time.sleep(0.01)
        refused = run.train()
        problems = harness.error_problems(refused, harness.OPERATING)
        fact = "a second process on one run is refused"
        report.check(fact, not problems, f"{problems}\n{refused}")
        (store,) = (folder / "busy-nvme").iterdir()
        others = {
            "export": ["export", run.dir, folder / "busy-out"],
            "verify": ["verify", run.dir],
            "store remove": ["store", "remove", store.name, "--store", store.parent],
        }
        for name, words in others.items():
            refused = headrace.run(*words)
            problems = harness.error_problems(refused, harness.OPERATING)
            fact = f"{name} of a run under way is refused"
            report.check(fact, not problems, f"{problems}\n{refused}")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=harness.TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    report.equal("and the first one commits", process.returncode, harness.INTERRUPTED)
    told = must(headrace.run("inspect", run.dir, "--json")).json()
    fact = "what its metrics say"
    report.equal(fact, told["commit"]["step"], harness.last_step(run.metrics))


def interrupts(report, headrace, folder):
    whole = {}
    for name, changes in VARIANTS.items():
        whole[name] = check_interrupts(report, headrace, folder, name, changes)
    check_moving(report, headrace, folder, whole["auto"])


def rules(report, headrace, folder):
    whole = Run(headrace, folder, "whole")
    must(whole.train())
    check_kill(report, headrace, folder, whole)
    check_kill_instants(report, headrace, folder, whole)
    check_early_signals(report, headrace, folder, whole)
    check_moved(report, headrace, folder, whole)
    check_lost_data(report, headrace, folder, whole)
    run = Run(headrace, folder, "rules")
    must(run.stop_at(3, signal.SIGINT), harness.INTERRUPTED)
    check_differences(report, run)
    check_never(report, run, whole)
    check_relative_paths(report, headrace, folder)
    check_required(report, headrace, folder)
    check_finished(report, run)
    check_raised(report, headrace, folder)
    check_two_at_once(report, headrace, folder)


def main():
    parts = {"interrupt": interrupts, "rules": rules}
    for part in sys.argv[2:] or parts:
        report = harness.Report(f"resume {part}")
        with harness.scratch(report, f"resume-{part}") as folder:
            parts[part](report, harness.Headrace(sys.argv[1]), folder)
        report.finish()


if __name__ == "__main__":
    main()
