"""`headrace store copy`: a backup that a run can go on from, whatever happens while it is made.

python3 copy_test.py BINARY
"""

import json
import pathlib
import resource
import signal
import sys
import time

import harness
from harness import CORRUPT, DOES_NOT_FIT, OPERATING, USAGE, must
from mounts import small_disk
from runs import Run

KILLS = 8


def settings(folder, name, folders):
    places = [folder / f"{name}-nvme", folder / f"{name}-nvme-2"][:folders]
    return {
        "tiers": {"place": "nvme", "nvme": places, "tile": 1},
        "durability": {"checkpoint": "3 steps"},
    }


def parts(run):
    """The store's folder in each folder of the drive."""
    return sorted(path.parent for path in run.folder.glob(f"{run.name}-nvme*/*/data"))


def copy(run, target, **how):
    return run.headrace.run("store", "copy", parts(run)[0], target, **how)


def cut_run(headrace, folder, name, folders):
    run = Run(headrace, folder, name, settings(folder, name, folders))
    must(run.stop_at(5, signal.SIGINT), harness.INTERRUPTED)
    return run


def check_goes_on(report, headrace, folder, whole, folders):
    """A run whose store is the copy repeats the bits of a run that was never cut."""
    fact = f"a copy of a store over {folders} folders"
    run = cut_run(headrace, folder, f"cut{folders}", folders)
    before = run.fingerprint()
    target = folder / f"copies{folders}"
    copied = must(headrace.run("store", "copy", parts(run)[-1], target, "--json")).json()
    report.equal(f"{fact}: the source is as it was", run.fingerprint(), before)
    place = target / copied["id"]
    report.equal(f"{fact}: lies in the target", copied["folder"], str(target))
    told = must(headrace.run("verify", place, "--json")).json()
    source = must(headrace.run("verify", run.dir, "--json")).json()
    found = (told["step"], told["extents"])
    report.equal(f"{fact}: holds the commit", found, (source["step"], source["extents"]))
    (listed,) = must(headrace.run("store", "list", "--store", target, "--json")).json()["stores"]
    report.check(f"{fact}: is listed as one", listed["copy"] and not listed["problem"], listed)

    reference = {"folders": [str(target)], "id": copied["id"], "committed_step": source["step"]}
    (run.dir / "store.json").write_text(json.dumps(reference))
    must(run.train("--resume", "required", "--set", f'tiers.nvme=["{target}"]'))
    difference = harness.first_difference(run.rows(), whole.rows())
    difference = difference or harness.same_tensors(run.weights(), whole.weights())
    report.check(f"{fact}: a run that goes on has the same bits", not difference, difference)
    return run


def check_fails(report, fact, run, code, target, says=(), **how):
    """The copy fails in the form of errors; the source stays, and the target as it was."""
    held = harness.fingerprint(target) if target.is_dir() else None
    before = run.fingerprint()
    outcome = copy(run, target, **how)
    problems = harness.error_problems(outcome, code)
    problems += "".join(f"\n'{word}' is not named" for word in says if word not in outcome.err)
    report.check(f"{fact}: exit {code}", not problems, f"{problems}\n{outcome}")
    report.equal(f"{fact}: the source is as it was", run.fingerprint(), before)
    left = harness.fingerprint(target) if target.is_dir() else None
    report.check(f"{fact}: nothing is left behind", (left or {}) == (held or {}), left)


def check_refusals(report, headrace, folder, run):
    taken = folder / "taken"
    taken.write_text("a file")
    check_fails(report, "a target that is a file", run, USAGE, taken, [str(taken)])
    deep = folder / "none" / "deeper"
    check_fails(report, "a target without a parent", run, USAGE, deep, [str(deep.parent)])
    other = folder / "other"
    other.mkdir()
    (other / "notes").write_text("x")
    copied = must(copy(run, other))
    kept = (other / "notes").read_text() == "x" and len(list(other.iterdir())) == 2
    report.check("a target with other files keeps them", kept, copied)

    def short_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    target = folder / "short"
    fact = "files that may not grow"
    check_fails(report, fact, run, OPERATING, target, [str(target)], before=short_files)
    fact = "a disk without room"
    with small_disk(report, fact, folder, 2) as disk:
        if disk:
            check_fails(report, fact, run, DOES_NOT_FIT, disk / "copy", [str(disk), "free"])

    nothing = headrace.run("store", "copy", folder / "taken", folder / "new")
    problems = harness.error_problems(nothing, USAGE)
    report.check("a source that is no store", not problems, f"{problems}\n{nothing}")


def check_in_use(report, headrace, folder):
    run = Run(headrace, folder, "used", settings(folder, "used", 1))
    process = headrace.start("train", run.config, "--set", "run.steps=1000000")
    try:
        deadline = time.monotonic() + harness.TIMEOUT_S
        while process.poll() is None and harness.last_step(run.metrics) < 4:
            if time.monotonic() > deadline:
                raise harness.Broken(f"no step 4 in {run.metrics}")
            time.sleep(0.002)
        outcome = copy(run, folder / "used-copy")
        problems = harness.error_problems(outcome, OPERATING)
        named = str(process.pid) in outcome.err and str(parts(run)[0]) in outcome.err
        fact = "a store that a run has open: exit 1, with the process"
        report.check(fact, named and not problems, f"{problems}\n{outcome}")
        report.check("and nothing is left behind", not list(folder.glob("used-copy/*")))
        report.check("and the run goes on", process.poll() is None)
    finally:
        process.kill()
        process.communicate()


def check_damaged(report, run):
    """A damaged extent must not become a sound one with a new sum."""
    told = must(run.headrace.run("inspect", run.dir, "--json")).json()
    extent = told["extents"][-1]
    place = extent["offset"] + extent["header_bytes"] + 77
    harness.flip_byte(pathlib.Path(told["files"][extent["folder"]]), place)
    says = [f"unit {extent['unit']}", "offset", told["files"][extent["folder"]]]
    check_fails(report, "a damaged source", run, CORRUPT, run.folder / "sound", says)


def look_at(run, place, step):
    """Of what a killed copy left: "whole", "incomplete", or what is wrong with it."""
    headrace = run.headrace
    verified = headrace.run("verify", place, "--json")
    if verified.code == harness.OK:
        return "whole" if verified.json()["step"] == step else f"another step\n{verified}"
    problems = harness.error_problems(verified, verified.code)
    listing = must(headrace.run("store", "list", "--store", place.parent, "--json")).json()
    (listed,) = [store for store in listing["stores"] if store["id"] == place.name]
    if problems or listed["step"] is not None:
        return f"{problems}\n{verified}\n{listed}"
    return "incomplete"


def check_killed(report, headrace, folder, run):
    """SIGKILL at seeded moments: the target is whole or says that it is not."""
    random = harness.seeded_random()
    step = must(headrace.run("verify", run.dir, "--json")).json()["step"]
    before = run.fingerprint()
    begin = time.monotonic()
    must(copy(run, folder / "timed"))
    seconds = time.monotonic() - begin
    found = []
    for index in range(KILLS):
        target = folder / f"killed{index}"
        process = headrace.start("store", "copy", parts(run)[0], target)
        if index % 2:
            time.sleep(random.random() * seconds)
        else:  # as soon as there is something to leave behind
            while process.poll() is None and not list(target.glob("*/data")):
                pass
        process.kill()
        process.communicate()
        for place in [path.parent for path in target.glob("*/data")]:
            found.append(look_at(run, place, step))
            must(headrace.run("store", "remove", place.name, "--store", target))
            gone = not place.exists()
            report.check("`store remove` takes what a killed copy left", gone, place)
    right = all(state in ("whole", "incomplete") for state in found)
    report.check(f"killed copies are whole or known not to be: {found}", right, "\n".join(found))
    report.equal("and the source is as it was", run.fingerprint(), before)


def main():
    report = harness.Report("copy_test")
    headrace = harness.Headrace(sys.argv[1])
    with harness.scratch(report, "copy") as folder:
        whole = Run(headrace, folder, "whole", settings(folder, "whole", 1))
        must(whole.train())
        check_goes_on(report, headrace, folder, whole, 1)
        check_goes_on(report, headrace, folder, whole, 2)
        check_refusals(report, headrace, folder, whole)
        check_in_use(report, headrace, folder)
        check_killed(report, headrace, folder, whole)
        check_damaged(report, whole)
    report.finish()


if __name__ == "__main__":
    main()
