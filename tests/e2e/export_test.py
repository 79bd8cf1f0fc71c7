"""[export]: the weights of commits, written while the run goes on.

python3 export_test.py BINARY
"""

import json
import signal
import sys

import harness
from harness import must
from runs import STEPS, Run

EVERY = 4
# So that a run of fewer steps is the beginning of a longer one.
CONSTANT = {"lr_schedule": "constant", "min_lr": 0.0}
EXPORTS = {
    "optim": CONSTANT,
    "eval": {"fraction": 0.2, "every": 16, "batches": 2},
    "durability": {"checkpoint": "3 steps"},
    "export": {"every": f"{EVERY} steps"},
}


def changed(**sections):
    merged = {name: dict(keys) for name, keys in EXPORTS.items()}
    for name, keys in sections.items():
        merged.setdefault(name, {}).update(keys)
    return merged


def beginning(steps):
    return {"run": {"steps": steps}, "optim": CONSTANT, "eval": EXPORTS["eval"]}


def folder_of(run, step):
    return run.dir / "exports" / f"step-{step:08}"


def exported_steps(run):
    listed = json.loads((run.dir / "exports/exports.json").read_text())["exports"]
    return [entry["step"] for entry in listed]


def tensors_of(run, step):
    return harness.read_safetensors(folder_of(run, step) / "model.safetensors")


def check_weights(report, headrace, folder):
    """Each export holds what `headrace export` writes of a run that ends with its step."""
    run = Run(headrace, folder, "whole", changed())
    told = must(run.train("--json")).json()
    expected = list(range(EVERY, STEPS + 1, EVERY))
    report.equal("an export every 4 steps, the last one too", exported_steps(run), expected)
    report.equal("the result counts them", told["exports"], {"written": len(expected), "failed": 0})
    for step in expected[:-1]:
        short = Run(headrace, folder, f"short{step}", beginning(step))
        must(short.train())
        difference = harness.same_tensors(tensors_of(run, step), short.weights())
        fact = f"the export of step {step} has the weights of step {step}"
        report.check(fact, not difference, difference)
    difference = harness.same_tensors(tensors_of(run, STEPS), run.weights())
    report.check("the last one has the run's weights", not difference, difference)
    plain = Run(headrace, folder, "plain", beginning(STEPS))
    must(plain.train())
    difference = harness.first_difference(run.rows(), plain.rows())
    report.check("exporting does not change the run", not difference, difference)
    words = ["generate", "--model", folder_of(run, EVERY), "--prompt", "a", "--tokens", 3]
    again = must(headrace.run(*words))
    report.check("an export is a model", again.out, again)
    return run


def check_dtype_and_keep(report, headrace, folder):
    changes = changed(export={"dtype": "bf16", "keep": 1, "best": True})
    run = Run(headrace, folder, "kept", changes)
    must(run.train())
    rows = {row["step"]: row for row in map(json.loads, run.metrics.read_text().splitlines())}
    losses = {step: rows[step]["eval"]["loss"] for step in range(EVERY, STEPS + 1, EVERY)}
    best = min(losses, key=losses.get)
    report.equal("the newest and the best stay", exported_steps(run), sorted({best, STEPS}))
    present = sorted(path.name for path in (run.dir / "exports").glob("step-*"))
    report.equal("and no other", present, [f"step-{step:08}" for step in sorted({best, STEPS})])
    target = folder / "bf16"
    must(headrace.run("export", run.dir, target, "--dtype", "bf16"))
    same = (target / "model.safetensors").read_bytes()
    found = (folder_of(run, STEPS) / "model.safetensors").read_bytes()
    report.check("export.dtype is that of `headrace export --dtype`", same == found)


def check_memory(report, headrace, folder):
    """What an export takes beside training (a buffer and a tile) stands in the plan."""
    run = Run(headrace, folder, "planned", changed())
    words = ["plan", run.config, "--json"]
    with_exports = must(headrace.run(*words)).json()["process_bytes"]
    without = must(headrace.run(*words, "--set", "export.every=none")).json()["process_bytes"]
    added = with_exports - without
    report.check("the plan counts the memory of exports", added > 8 << 20, f"{added} bytes")
    must(run.train())
    planned = json.loads((run.dir / "plan.json").read_text())
    budget = planned["host_peak_bytes"] + planned["device_peak_bytes"] + planned["process_bytes"]
    peak = max(row["peak"]["process"] for row in map(json.loads, run.metrics.open()))
    report.check("and the run keeps within it", peak <= budget, f"{peak} of {budget} bytes")


def check_killed(report, headrace, folder, whole):
    random = harness.seeded_random()
    for index in range(4):
        run = Run(headrace, folder, f"killed{index}", changed())
        step, delay_s = random.randrange(EVERY, STEPS), random.random() * 0.02
        run.stop_at(step, signal.SIGKILL, delay_s=delay_s)
        must(run.train())
        fact = f"killed {delay_s * 1000:.1f} ms after step {step}"
        report.equal(f"{fact}: all exports are there", exported_steps(run), exported_steps(whole))
        for at in exported_steps(run):
            difference = harness.same_tensors(tensors_of(run, at), tensors_of(whole, at))
            report.check(f"{fact}: the export of step {at} is equal", not difference, difference)


def check_failures(report, headrace, folder):
    run = Run(headrace, folder, "failing", changed())
    (run.dir / "exports").mkdir(parents=True)
    folder_of(run, EVERY).write_text("a file where a folder is due")
    told = must(run.train("--json"))
    counted = {"written": 3, "failed": 1}
    report.equal("an export that fails is counted", told.json()["exports"], counted)
    report.check("and told", f"the export of step {EVERY} failed" in told.err, told)
    report.check("what was there stays", folder_of(run, EVERY).is_file())

    other = Run(headrace, folder, "other-model", changed())
    folder_of(other, EVERY).mkdir(parents=True)
    (folder_of(other, EVERY) / "config.json").write_text("of another model")
    told = must(other.train("--json"))
    report.equal("another model in its place is no export", told.json()["exports"], counted)
    kept = [(path.name, path.read_text()) for path in folder_of(other, EVERY).iterdir()]
    report.equal("and is left alone", kept, [("config.json", "of another model")])

    foreign = Run(headrace, folder, "foreign", changed(export={"dir": run.dir / "exports"}))
    refused = foreign.train()
    problems = harness.error_problems(refused, harness.USAGE)
    report.check("another run's export.dir is refused", not problems, f"{problems}\n{refused}")

    contradictions = {
        "without commits": changed(durability={"checkpoint": "none"}),
        "best without evaluations": {"export": {"every": "4 steps", "best": True}},
        "keep without exports": {"export": {"keep": 2}},
    }
    for index, (name, changes) in enumerate(contradictions.items()):
        refused = Run(headrace, folder, f"refused{index}", changes).train()
        problems = harness.error_problems(refused, harness.USAGE)
        report.check(f"a contradiction is refused: {name}", not problems, f"{problems}\n{refused}")


def main():
    report = harness.Report("export_test")
    headrace = harness.Headrace(sys.argv[1])
    with harness.scratch(report, "export") as folder:
        whole = check_weights(report, headrace, folder)
        check_dtype_and_keep(report, headrace, folder)
        check_memory(report, headrace, folder)
        check_killed(report, headrace, folder, whole)
        check_failures(report, headrace, folder)
    report.finish()


if __name__ == "__main__":
    main()
