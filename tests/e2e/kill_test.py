"""SIGKILL at any instant: the run goes on from its last commit with the same bits, in every format.

python3 kill_test.py BINARY [COUNT]   COUNT moments (20), chosen by HEADRACE_SEED
"""

import signal
import sys
import time

import harness
from harness import Broken, must
from runs import SPECULATIVE, STEPS, Run, slow_kernels, spilling

STATES = ["fp32", "q8", "bf16"]
CHECKPOINTS = {"every-step": 1, "7 steps": 7}  # with the steps between commits
KILLS_MAX = 3  # of one run, before it may end
REMOVALS = 6  # of what a kill left of a store that was being made


def split_memory(headrace, folder):
    """A host_memory under which a part of the state lives in memory and a part on NVMe."""
    run = Run(headrace, folder, "asked")
    for kibibytes in range(8 << 10, 64 << 10, 512):
        memory = f"{kibibytes}KiB"
        asked = headrace.run("plan", run.config, "--json", "--set", "tiers.tile=1",
                             "--set", f"tiers.host_memory={memory}")
        if asked.code != harness.OK:
            continue
        rows = {row["purpose"]: row for row in asked.json()["memory"]}
        in_memory, whole = rows["state"]["host_bytes"], rows["state"]["nvme_bytes"]
        if 0 < in_memory < whole:
            print(f"      split: {in_memory} of {whole} bytes of state in memory ({memory})")
            return memory
    raise Broken(f"no host_memory splits the state\n{asked}")


def placements(headrace, folder):
    """Settings of [tiers] by name; each takes the run's own folder for its store."""
    memory = split_memory(headrace, folder)
    return {
        "nvme": lambda own: {"place": "nvme", "nvme": [own]},
        "speculative": lambda own: {**SPECULATIVE["tiers"], "nvme": [own]},
        "split": lambda own: {"host_memory": memory, "tile": 1, "nvme": [own]},
        "two folders": lambda own: {"place": "nvme", "nvme": [own, f"{own}-2"]},
        "spilled activations": lambda own: {"nvme": [own]},
    }


def kill_somewhere(run, random, seconds):
    """Starts the run and kills it: a little after a row, where commits are made, while its store is
    made, or at any time."""
    if not run.metrics.exists() and random.random() < 0.3:
        delay_s = random.random() * 0.002
        outcome = run.kill_while_its_store_is_made(delay_s)
        return f"{delay_s * 1000:.1f} ms into the store's creation", outcome.code
    if random.random() < 0.5:
        step, delay_s = random.randrange(1, STEPS + 1), random.random() * 0.02
        outcome = run.stop_at(step, signal.SIGKILL, delay_s=delay_s)
        return f"{delay_s * 1000:.1f} ms after step {step}", outcome.code
    delay_s = random.random() * seconds * 1.1
    outcome = run.stop_at(0, signal.SIGKILL, delay_s=delay_s)
    return f"{delay_s * 1000:.0f} ms after the start", outcome.code


def check_moment(report, headrace, folder, case):
    run = Run(headrace, folder, f"killed{case['index']}", case["changes"], case["machine"])
    told = []
    for _ in range(case["random"].randrange(1, KILLS_MAX + 1)):
        moment, code = kill_somewhere(run, case["random"], case["seconds"])
        told.append(moment)
        if code == harness.OK:
            break
        if code != -signal.SIGKILL:
            raise Broken(f"{case['name']}, killed {', '.join(told)}: ended with exit code {code}")
    fact = f"{case['name']}: killed {', '.join(told)}"
    # A row is written once the commit before it has been made.
    due = (harness.last_step(run.metrics) - 1) // case["every"] * case["every"]
    if due > 0:
        step = must(headrace.run("inspect", run.dir, "--json")).json()["commit"]["step"]
        report.check(f"{fact}: step {due} or later is committed", step >= due, step)
    again = run.train()
    if not report.check(f"{fact}: goes on", again.code == harness.OK, again):
        return
    difference = harness.first_difference(run.rows(), case["rows"])
    difference = difference or harness.same_tensors(run.weights(), case["weights"])
    report.check(f"{fact}: equal metrics and weights", not difference, difference)
    for place in folder.glob(f"{run.name}-nvme*"):
        report.equal(f"{fact}: one store is left in {place.name}", len(list(place.iterdir())), 1)
    verified = headrace.run("verify", run.dir)
    report.check(f"{fact}: and it is whole", verified.code == harness.OK, verified)


def check_removal(report, headrace, folder, random):
    """What a start that was killed as it made its store has left is listed, and can be removed."""
    for index in range(REMOVALS):
        own = folder / f"cut{index}-nvme"
        places = [own, folder / f"cut{index}-nvme-2"]
        run = Run(headrace, folder, f"cut{index}",
                  {"tiers": {"place": "nvme", "nvme": [str(place) for place in places]}})
        watched = [run.dir, *places][index % 3]
        delay_s = random.random() * 0.01
        harness.stop_when(headrace, ["train", str(run.config)],
                          lambda watched=watched: list(watched.glob("*")), signal.SIGKILL, delay_s)
        found = []
        for place in places:
            for store in list(place.glob("*")):
                found.append(sorted(file.name for file in store.iterdir()))
                listed = must(headrace.run("store", "list", "--store", place))
                report.check("the rest of a creation is listed", store.name in listed.out, listed)
                removed = headrace.run("store", "remove", store.name, "--store", place)
                report.check(f"`store remove` takes a store of {found[-1]}",
                             removed.code == harness.OK and not store.exists(), removed)
        left = [path for place in places for path in place.glob("*")]
        fact = f"killed {delay_s * 1000:.1f} ms into a creation that had come to {found}: all goes"
        report.check(fact, not left, left)


def main():
    report = harness.Report("kill_test")
    headrace = harness.Headrace(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    random = harness.seeded_random()
    with harness.scratch(report, "kill") as folder:
        wholes = {}

        def whole(state, model):
            name = f"whole-{state}-{model.get('layers', 'usual')}"
            if name not in wholes:
                changes = {"durability": {"checkpoint": "none"}, "optim": {"state": state},
                           "model": model}
                run = Run(headrace, folder, name, changes)
                begin = time.monotonic()
                must(run.train())
                wholes[name] = (run, time.monotonic() - begin)
            return wholes[name]

        check_removal(report, headrace, folder, random)
        machine = slow_kernels(headrace, folder)
        places = placements(headrace, folder)
        for index in range(count):
            place = list(places)[index % len(places)]
            checkpoint = list(CHECKPOINTS)[index // len(places) % len(CHECKPOINTS)]
            state = STATES[(index + index // len(places)) % len(STATES)]
            extra = SPECULATIVE if place == "speculative" else {}
            changes = {
                "tiers": places[place](folder / f"killed{index}-nvme"),
                "durability": {"checkpoint": checkpoint},
                "optim": {"state": state, **extra.get("optim", {})},
                "model": extra.get("model", {}),
            }
            spills = place == "spilled activations"
            if spills:
                changes = spilling(headrace, folder, machine, changes)
            undisturbed, seconds = whole(state, changes["model"])
            check_moment(
                report,
                headrace,
                folder,
                {
                    "index": index,
                    "name": f"{place}, {checkpoint}, {state}",
                    "every": CHECKPOINTS[checkpoint],
                    "changes": changes,
                    "machine": machine if spills else None,
                    "random": random,
                    "seconds": seconds,
                    "rows": undisturbed.rows(),
                    "weights": undisturbed.weights(),
                },
            )
    report.finish()


if __name__ == "__main__":
    main()
