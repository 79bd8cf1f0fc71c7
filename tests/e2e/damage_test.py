"""Files of a store that are damaged under a running process, on the real disk.

python3 damage_test.py BINARY
"""

import mmap
import os
import pathlib
import stat
import sys
import time

import harness
from harness import must
from runs import STEPS, Run

SETTINGS = {
    "run": {"steps": 400},
    "tiers": {"place": "nvme", "tile": 1},
    "durability": {"checkpoint": "every-step"},
}


def data_file(run):
    (path,) = pathlib.Path(run.folder / f"{run.name}-nvme").glob("*/data")
    return path


def damage_while_running(run, damage):
    """Starts the run, damages its data file after some steps, and waits for the end."""
    process = run.headrace.start("train", run.config)
    deadline = time.monotonic() + harness.TIMEOUT_S
    while process.poll() is None and harness.last_step(run.metrics) < 3:
        if time.monotonic() > deadline:
            process.kill()
            raise harness.Broken(f"no step 3 in {run.metrics}")
        time.sleep(0.002)
    damage(data_file(run))
    _, err = process.communicate(timeout=harness.TIMEOUT_S)
    # What was told before it came to that is no part of the error.
    told = err[err.rfind("error: ") :] if process.returncode else err
    return harness.Outcome(["train", run.config], process.returncode, "", told)


def flip_bits(path):
    """One bit in each 16 KiB of all that extents hold, past the page cache where that can be."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_RDWR)
    page = mmap.mmap(-1, mmap.PAGESIZE)  # aligned, as direct I/O wants it
    size = os.fstat(descriptor).st_size
    first = size // 4 // mmap.PAGESIZE * mmap.PAGESIZE  # beyond superblocks, records and tables
    for offset in range(first, size - mmap.PAGESIZE, 16 << 10):
        os.preadv(descriptor, [page], offset)
        page[100] ^= 8
        os.pwritev(descriptor, [page], offset)
    os.close(descriptor)


def cut_off(path):
    os.truncate(path, path.stat().st_size // 4)


def check_refused(report, headrace, folder, name, damage, words=()):
    run = Run(headrace, folder, name, SETTINGS)
    outcome = damage_while_running(run, damage)
    problems = harness.error_problems(outcome, harness.CORRUPT)
    report.check(f"{name}: the run ends with exit code 4", not problems, f"{problems}\n{outcome}")
    for word in (str(data_file(run)), *words):
        report.check(f"{name}: the error names the place ({word})", word in outcome.err, outcome)
    for command in (["verify", run.dir], ["export", run.dir, folder / f"{name}-out"]):
        told = headrace.run(*command)
        report.equal(f"{name}: `{command[0]}` finds it as well", told.code, harness.CORRUPT)


def flip_states(headrace, run):
    """The lowest bit of a number in each extent of state of the last commit: what a start does not
    load, and a step reads. Headers are left alone."""
    inspected = must(headrace.run("inspect", run.dir, "--json")).json()
    with open(inspected["files"][0], "r+b") as file:
        for extent in inspected["extents"]:
            if extent["kind"] != "state":
                continue
            place = extent["offset"] + extent["header_bytes"] + extent["payload_bytes"] // 8 * 4
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))


def check_opt_out(report, headrace, folder):
    """durability.verify_reads = false: steps do not look, everything else does."""
    changes = {"tiers": {"place": "nvme"}, "run": {"steps": 4}}
    run = Run(headrace, folder, "unchecked", changes)
    must(run.train())
    flip_states(headrace, run)
    more = ["--set", "run.steps=6"]
    stopped = run.train(*more)
    problems = harness.error_problems(stopped, harness.CORRUPT)
    report.check("by default a step finds a flipped bit", not problems, f"{problems}\n{stopped}")
    verified = headrace.run("verify", run.dir)
    report.equal("and `verify` does", verified.code, harness.CORRUPT)
    target = folder / "unchecked-copy"
    copied = headrace.run("store", "copy", data_file(run).parent, target)
    report.equal("and `store copy`", copied.code, harness.CORRUPT)
    trained = run.train(*more, "--set", "durability.verify_reads=false")
    report.equal("unchecked, steps go on", trained.code, harness.OK)
    told = "durability.verify_reads = false" in trained.err
    report.check("a warning says what that means", told, trained)
    inspected = must(headrace.run("inspect", run.dir))
    told = "durability.verify_reads = false" in inspected.out
    report.check("and `inspect` that the commit was made so", told, inspected)
    # Writes are summed in any case: the store is whole again, with what the damage made of it.
    must(headrace.run("verify", run.dir))


def check_folder_without_write_permission(report, headrace, folder):
    """No folder is touched on the step path: who may write there no longer matters."""
    whole = Run(headrace, folder, "whole", {"tiers": {"place": "nvme"}})
    must(whole.train())
    changes = {"tiers": {"place": "nvme"}, "durability": {"checkpoint": "every-step"}}
    run = Run(headrace, folder, "shut", changes)

    def shut(path):
        for place in (path.parent, path.parent.parent):
            place.chmod(stat.S_IRUSR | stat.S_IXUSR)

    outcome = damage_while_running(run, shut)
    for place in (data_file(run).parent, data_file(run).parent.parent):
        place.chmod(stat.S_IRWXU)
    report.equal("a folder that can no longer be written: the run ends well", outcome.code, 0)
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check(f"and has its {STEPS} steps", not difference, difference)


def main():
    report = harness.Report("damage_test")
    headrace = harness.Headrace(sys.argv[1])
    with harness.scratch(report, "damage") as folder:
        check_refused(report, headrace, folder, "flipped", flip_bits, ["offset", "unit"])
        check_refused(report, headrace, folder, "truncated", cut_off)
        check_opt_out(report, headrace, folder)
        check_folder_without_write_permission(report, headrace, folder)
    report.finish()


if __name__ == "__main__":
    main()
