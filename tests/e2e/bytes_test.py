"""What a step moves over each link is what its plan says, to the byte.

python3 bytes_test.py BINARY
"""

import json
import sys

import harness
from harness import must
from runs import SPECULATIVE, Run, slow_kernels, spilling

LINKS = ("nvme_read", "nvme_write", "h2d", "d2h")
NVME = {"place": "nvme"}
# Less than each tier would like to have, so that everything moves.
DEVICE = {"device_memory": "12MiB", "host_memory": "12MiB", "tile": 1}
CASES = {
    "nvme": {"tiers": NVME},
    "nvme, little memory": {"tiers": {**NVME, "host_memory": "14MiB", "tile": 1}},
    "nvme, q8": {"tiers": NVME, "optim": {"state": "q8"}},
    "nvme, bf16 state, two folders": {"tiers": NVME, "optim": {"state": "bf16"}, "folders": 2},
    "nvme, speculative": {**SPECULATIVE, "optim": {"update": "speculative", "clip": 0}},
    "nvme, speculative, clipped": {**SPECULATIVE, "optim": {"update": "speculative", "clip": 1e-6}},
    "nvme, after backward": {"tiers": NVME, "optim": {"update": "after-backward"}},
    "spilled activations": {"tiers": {}},
    "spilled activations, groups": {"tiers": {}, "batch": {"micro_batch": 4, "accumulate": 4}},
    "separate device": {"tiers": DEVICE, "precision": {"grad": "bf16"}},
    "separate device, batch-major": {
        "tiers": DEVICE, "batch": {"accumulate": 2, "traversal": "batch-major"}},
    "separate device, nvme": {"tiers": {**DEVICE, **NVME}, "optim": {"state": "q8"}},
}


# Of their steps, where it is not first, then steady.
KINDS = {
    "nvme, speculative": ["first", "recovered", "steady"],
    "nvme, speculative, clipped": ["first", "clipped", "clipped"],
    "nvme, after backward": ["steady"] * 3,
}


def planned_bytes(plan):
    by_variant = {one["variant"]: one["bytes"] for one in plan["predictions"]}
    return {name: {link: found.get(link, 0) for link in LINKS}
            for name, found in by_variant.items()}


def check(report, headrace, folder, name, changes):
    changes = dict(changes)
    machine = None
    if "spilled" in name:
        machine = slow_kernels(headrace, folder)
        changes = spilling(headrace, folder, machine, changes)
    folders = changes.pop("folders", 1)
    changes["durability"] = {"checkpoint": "none"}
    changes["run"] = {"steps": 3}
    number = name.replace(" ", "-").replace(",", "")
    changes["tiers"] = {**changes["tiers"],
                        "nvme": [folder / f"{number}-{i}" for i in range(folders)]}
    run = Run(headrace, folder, number, changes, machine)
    must(run.train())
    whole_plan = json.loads((run.dir / "plan.json").read_text())
    plan = planned_bytes(whole_plan)
    report.equal(f"{name}: units are updated in backward if that was asked for",
                 any(unit["speculated"] for unit in whole_plan["units"]), "speculative" in name)
    report.equal(f"{name}: activations wait on NVMe if that was asked for",
                 whole_plan["spilled_blocks"] > 0, "spilled" in name)
    kinds = [row["variant"] for row in run.rows()]
    report.equal(f"{name}: its steps", kinds, KINDS.get(name, ["first", "steady", "steady"]))
    for row in run.rows():
        variant = row["variant"]
        moved = {link: int(row["bytes"][link]) for link in LINKS}
        report.equal(f"{name}: step {row['step']} moves what is planned", moved, plan[variant])
    report.check(f"{name}: something moves", any(plan["steady"].values()), plan)


def main():
    headrace = harness.Headrace(sys.argv[1])
    report = harness.Report("bytes_test")
    with harness.scratch(report, "bytes") as folder:
        for name, changes in CASES.items():
            check(report, headrace, folder, name, changes)
    report.finish()


if __name__ == "__main__":
    main()
