"""A store over several folders: the same bits, and a folder that is not what it was is named.

python3 folders_test.py BINARY
"""

import pathlib
import shutil
import signal
import sys

import harness
from harness import must
from runs import Run


def spread(folder, name, **more):
    places = [{"path": str(folder / f"{name}-nvme"), **more}, str(folder / f"{name}-nvme-2")]
    return {
        "tiers": {"place": "nvme", "nvme": places, "tile": 1},
        "durability": {"checkpoint": "3 steps"},
    }


def data_files(folder, name):
    return sorted(pathlib.Path(folder).glob(f"{name}-nvme*/*/data"))


def check_same_bits(report, headrace, folder):
    one = Run(headrace, folder, "one", {"tiers": {"place": "nvme", "tile": 1}})
    must(one.train())
    two = Run(headrace, folder, "two", spread(folder, "two", write_limit="40MB/s"))
    must(two.train())
    sizes = [path.stat().st_size for path in data_files(folder, "two")]
    report.equal("a data file in each folder", len(sizes), 2)
    difference = harness.first_difference(two.rows(), one.rows())
    difference = difference or harness.same_tensors(two.weights(), one.weights())
    report.check("two unequal folders give the bits of one", not difference, difference)
    report.check("the one with a write limit gets fewer tiles", sizes[0] < sizes[1], sizes)
    must(headrace.run("verify", two.dir))
    return one


def cut_run(headrace, folder, name):
    run = Run(headrace, folder, name, spread(folder, name))
    must(run.stop_at(5, signal.SIGINT), harness.INTERRUPTED)
    return run


def check_refused(report, fact, run, path, codes):
    """A start, `verify` and `export` say which folder it is, and harm nothing."""
    before = [harness.fingerprint(file.parent) for file in data_files(run.folder, run.name)]
    named = path.parent.parent.name
    commands = [
        ["train", run.config],
        ["verify", run.dir],
        ["export", run.dir, run.folder / f"{run.name}-out"],
    ]
    for words in commands:
        outcome = run.headrace.run(*words)
        problems = harness.error_problems(outcome, outcome.code)
        right = outcome.code in codes and not problems and f"{named}/" in outcome.err
        report.check(f"{fact}: `{words[0]}` refuses and names it", right, outcome)
    after = [harness.fingerprint(file.parent) for file in data_files(run.folder, run.name)]
    report.equal(f"{fact}: nothing was changed", after, before)


def check_lost(report, headrace, folder, whole):
    run = cut_run(headrace, folder, "lost")
    second = data_files(folder, "lost")[1]
    away = folder / "away"
    second.parent.rename(away)
    check_refused(report, "a folder that is gone", run, second, [harness.OPERATING, harness.USAGE])
    away.rename(second.parent)
    must(run.train())
    difference = harness.first_difference(run.rows(), whole.rows())
    report.check("with the folder back the run goes on", not difference, difference)


def check_stale(report, headrace, folder):
    run = cut_run(headrace, folder, "stale")
    second = data_files(folder, "stale")[1]
    old = folder / "old"
    shutil.copyfile(second, old)
    must(run.train())
    shutil.copyfile(old, second)
    check_refused(report, "a folder from a backup", run, second, [harness.CORRUPT])


def check_swapped(report, headrace, folder):
    run = cut_run(headrace, folder, "swapped")
    first, second = data_files(folder, "swapped")
    spare = folder / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    outcome = run.train()
    refused = outcome.code in (harness.USAGE, harness.CORRUPT)
    problems = harness.error_problems(outcome, outcome.code)
    report.check("data files that were swapped are refused", refused and not problems, outcome)


def check_space(report, headrace, folder):
    for small in (0, 1):
        sections = spread(folder, "small")
        sections["tiers"]["nvme"] = [
            {"path": str(folder / name), "space": "64KiB" if index == small else "1MiB"}
            for index, name in enumerate(("small-nvme", "small-nvme-2"))
        ]
        outcome = Run(headrace, folder, "small", sections).train()
        problems = harness.error_problems(outcome, harness.DOES_NOT_FIT)
        fact = f"too little space is refused ({small})"
        report.check(fact, not problems, f"{problems}\n{outcome}")
        report.check("and leaves nothing", not data_files(folder, "small"))


def main():
    report = harness.Report("folders_test")
    headrace = harness.Headrace(sys.argv[1])
    with harness.scratch(report, "folders") as folder:
        whole = check_same_bits(report, headrace, folder)
        check_lost(report, headrace, folder, whole)
        check_stale(report, headrace, folder)
        check_swapped(report, headrace, folder)
        check_space(report, headrace, folder)
    report.finish()


if __name__ == "__main__":
    main()
