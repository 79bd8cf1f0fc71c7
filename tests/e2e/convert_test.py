"""`headrace store convert`: the run goes on in the other format, whatever happens meanwhile.

python3 convert_test.py BINARY [COUNT]   COUNT moments of a SIGKILL (10), chosen by HEADRACE_SEED
"""

import pathlib
import signal
import sys
import time

import harness
from harness import CORRUPT, DOES_NOT_FIT, OK, OPERATING, USAGE, must
from mounts import small_disk
from runs import Run

STATES = ["fp32", "bf16", "q8"]
STEPS, MORE = 6, 4
# Weights are kept bit for bit but where they get fewer bits; then to so much of themselves.
Q8_ERROR = 2.0**-16


def settings(folder, name, state, folders=1, place="host"):
    places = [folder / f"{name}-nvme", folder / f"{name}-nvme-2"][:folders]
    return {
        # The schedule's end does not depend on how many steps are run.
        "run": {"steps": STEPS},
        "optim": {"state": state, "lr_schedule": "constant", "min_lr": 0.0},
        "tiers": {"place": place, "nvme": places, "tile": 1},
    }


def trained(headrace, folder, name, state, **how):
    run = Run(headrace, folder, name, settings(folder, name, state, **how))
    must(run.train())
    return run


def convert(run, state, *words, **how):
    return run.headrace.run("store", "convert", run.dir, "--state", state, *words, **how)


def go_on(run, state):
    return run.train("--resume", "required", "--set", f"run.steps={STEPS + MORE}",
                     "--set", f"optim.state={state}")


def stores(run):
    return sorted(run.folder.glob(f"{run.name}-nvme*/*"))


def ids(run):
    return {path.name for path in stores(run)}


def fingerprint(run):
    """All of the run but its log, which tells of every start."""
    found = {"run.dir": harness.fingerprint(run.dir)}
    found["run.dir"].pop("run.log", None)
    for place in run.folder.glob(f"{run.name}-nvme*"):
        found[place.name] = harness.fingerprint(place)
    return {f"{part}/{name}": what for part in found for name, what in found[part].items()}


def weights_of(run, name):
    return harness.exported(run.headrace, run.dir, run.folder / f"{run.name}-{name}")


def check_weights(report, fact, before, after, exact):
    if exact:
        difference = harness.same_tensors(after, before)
        return report.check(f"{fact}: the same weights", not difference, difference)
    worst = 0.0
    for name, tensor in before.items():
        for one, two in zip(tensor.floats(), after[name].floats()):
            worst = max(worst, abs(one - two) / abs(one) if one else abs(two))
    return report.check(f"{fact}: weights to 16 bits", 0 < worst <= Q8_ERROR, worst)


def check_converted(report, run, state, before, exact):
    """One conversion: what it says, what the run then holds."""
    old = stores(run)
    fact = f"{run.name} to {state}"
    told = must(convert(run, state, "--json")).json()
    report.check(f"{fact}: converted", told["converted"] and told["old_removed"], told)
    report.equal(f"{fact}: of the commit", (told["step"], told["state"]), (STEPS, state))
    left = stores(run)
    report.check(f"{fact}: one new store", len(left) == len(old) and not set(left) & set(old), left)
    told = must(run.headrace.run("inspect", run.dir, "--json")).json()
    found = (told["state"], told["commit"]["step"], told["commit"]["update_count"])
    report.equal(f"{fact}: the store says so", found, (state, STEPS, STEPS))
    verified = run.headrace.run("verify", run.dir)
    report.check(f"{fact}: it is whole", verified.code == OK, verified)
    after = weights_of(run, state)
    check_weights(report, fact, before, after, exact)
    again = must(convert(run, state))
    report.check(f"{fact}: then it is already", f"is already {state}" in again.out, again)
    report.equal(f"{fact}: and stays", stores(run), left)
    return after


def check_goes_on(report, run, before, state):
    """RUN.toml still has the format of before: refused with what to do; then the run goes on."""
    fact = f"{run.name} after it became {state}"
    refused = run.train("--set", f"run.steps={STEPS + MORE}")
    problems = harness.error_problems(refused, USAGE)
    says = [f"--set optim.state={state}", f"headrace store convert {run.dir} --state {before}"]
    problems += "".join(f"\n'{text}' is not said" for text in says if text not in refused.err)
    report.check(f"{fact}: the old setting is refused", not problems, f"{problems}\n{refused}")
    outcome = go_on(run, state)
    fact = f"{fact}: goes on"
    if report.check(fact, outcome.code == OK, outcome):
        rows = run.rows()
        report.equal(f"{fact}, no step twice", len(rows), STEPS + MORE)
        falls = float(rows[-1]["loss"]) < float(rows[STEPS - 1]["loss"])
        report.check(f"{fact}, and the loss falls", falls, rows[-MORE:])
    resolved = run.dir / "config.resolved.toml"
    report.check(f"{fact}, and so it is noted", f'state = "{state}"' in resolved.read_text())


def check_formats(report, headrace, folder):
    """Every format into every other, of state in memory; then training in it."""
    for state in STATES:
        run = trained(headrace, folder, f"was-{state}", state)
        weights = weights_of(run, "before")
        for other in [name for name in STATES if name != state] + [state]:
            # What has been q8 before is not rounded again.
            exact = other != "q8" or state == "q8"
            weights = check_converted(report, run, other, weights, exact)
        report.check(f"{run.name}: trains on as {state}", go_on(run, state).code == OK)


def refused(report, fact, run, outcome, code, before, says=()):
    problems = harness.error_problems(outcome, code)
    problems += "".join(f"\n'{word}' is not named" for word in says if word not in outcome.err)
    report.check(f"{fact}: exit {code}", not problems, f"{problems}\n{outcome}")
    difference = harness.changes(before, fingerprint(run))
    report.check(f"{fact}: nothing is changed", not difference, difference)


def check_refusals(report, headrace, folder, run):
    before = fingerprint(run)

    def check(fact, outcome, code, says=()):
        refused(report, fact, run, outcome, code, before, says)

    check("an unknown format", convert(run, "fp8"), USAGE, ["fp8", "q8"])
    check("no format", headrace.run("store", "convert", run.dir), USAGE, ["--state"])
    nothing = headrace.run("store", "convert", folder / "absent", "--state", "q8")
    check("a folder that is not there", nothing, USAGE, ["absent"])
    (folder / "empty").mkdir()
    nothing = headrace.run("store", "convert", folder / "empty", "--state", "q8")
    check("a folder that is no run", nothing, USAGE, ["empty"])
    store = stores(run)[0]
    check("a store", headrace.run("store", "convert", store, "--state", "q8"), USAGE, [store.name])
    fact = "a disk without room"
    with small_disk(report, fact, folder, 20) as disk:
        if disk:
            small = Run(headrace, folder, "small", settings(folder, "small", "q8"))
            words = ["--set", f'tiers.nvme=["{disk}/nvme"]']
            must(small.train(*words))
            held = harness.fingerprint(disk)
            outcome = convert(small, "fp32")
            problems = harness.error_problems(outcome, DOES_NOT_FIT)
            named = str(disk) in outcome.err and "are missing" in outcome.err
            problems += "" if named else "\nthe disk and what it lacks are not named"
            report.check(f"{fact}: exit 3", not problems, f"{problems}\n{outcome}")
            report.equal(f"{fact}: nothing is changed", harness.fingerprint(disk), held)


def check_uncommitted(report, headrace, folder):
    run = Run(headrace, folder, "uncommitted", settings(folder, "uncommitted", "fp32"))
    run.stop_at(2, signal.SIGKILL, "--set", "run.steps=1000000")
    before = fingerprint(run)
    refused(report, "no commit", run, convert(run, "q8"), OPERATING, before, [str(run.dir)])


def check_in_use(report, headrace, folder):
    run = Run(headrace, folder, "used", settings(folder, "used", "fp32"))
    process = headrace.start("train", run.config, "--set", "run.steps=1000000")
    try:
        deadline = time.monotonic() + harness.TIMEOUT_S
        while process.poll() is None and harness.last_step(run.metrics) < 3:
            if time.monotonic() > deadline:
                raise harness.Broken(f"no step 3 in {run.metrics}")
            time.sleep(0.002)
        held = stores(run)
        outcome = convert(run, "q8")
        problems = harness.error_problems(outcome, OPERATING)
        said = "another process is training" in outcome.err
        report.check("a run that is under way: exit 1", said and not problems, outcome)
        report.equal("and it has no other store", stores(run), held)
        report.check("and it goes on", process.poll() is None)
    finally:
        process.kill()
        process.communicate()


def check_damaged(report, run):
    told = must(run.headrace.run("inspect", run.dir, "--json")).json()
    extent = told["extents"][-1]
    place = extent["offset"] + extent["header_bytes"] + 77
    data = pathlib.Path(told["files"][extent["folder"]])
    harness.flip_byte(data, place)
    before = fingerprint(run)
    says = [f"unit {extent['unit']}", "offset", str(data)]
    refused(report, "a damaged tile", run, convert(run, "q8"), CORRUPT, before, says)
    harness.flip_byte(data, place)
    verified = run.headrace.run("verify", run.dir)
    report.check("and the rest of it is whole", verified.code == OK, verified)


def check_interrupted(report, headrace, run):
    """SIGTERM while it works: nothing is left, or it was done."""
    before = fingerprint(run)
    words = ["store", "convert", str(run.dir), "--state", "q8"]
    noted = run.dir / "store.making.json"
    outcome = harness.stop_when(headrace, words, noted.exists, signal.SIGTERM)
    if outcome.code == OK:
        report.skip("an interrupt", "the conversion was done first")
        must(convert(run, "fp32"))
        return
    refused(report, "an interrupt", run, outcome, harness.INTERRUPTED, before)


class Conversion:
    """A conversion that is watched from outside: where it stands is seen in the run's folder."""

    def __init__(self, run, state):
        self.run = run
        self.note, self.named = run.dir / "store.making.json", run.dir / "store.json"
        self.before = self.named.read_bytes()
        self.words = ["store", "convert", str(run.dir), "--state", state]

    def switched(self):
        return self.named.read_bytes() != self.before

    def seconds(self):
        """From its note to the switch, and from there to its end."""
        process = self.run.headrace.start(*self.words)
        times = []
        for reached in (self.note.exists, self.switched, lambda: process.poll() is not None):
            while not reached() and process.poll() is None:
                time.sleep(0.0002)
            times.append(time.monotonic())
        process.communicate()
        if process.returncode != OK:
            raise harness.Broken(f"{self.words} ended with {process.returncode}")
        return times[1] - times[0], times[2] - times[1]

    def kill_once(self, random, seconds):
        """Kills it somewhere; the moment in words, and the exit code."""
        late = random.random() < 0.4
        delay_s = random.random() * seconds[late]
        reached = self.switched if late else self.note.exists
        kill = signal.SIGKILL
        outcome = harness.stop_when(self.run.headrace, self.words, reached, kill, delay_s)
        moment = "the switch" if late else "its note"
        return f"{delay_s * 1000:.1f} ms after {moment}", outcome.code


def listed_left(run):
    """Ids of the stores that `store list` says were left by a conversion."""
    folder = run.folder / f"{run.name}-nvme"
    told = must(run.headrace.run("store", "list", "--store", folder, "--json")).json()
    return [store["id"] for store in told["stores"] if store["left_of_conversion"]]


def check_killed(report, headrace, folder, count):
    """SIGKILL at seeded moments: the run is in the old format or in the new one, and whole; what is
    left goes with the next conversion or start; and it goes on with the bits of one that was not
    killed."""
    random = harness.seeded_random()
    rows, seconds = {}, (0.0, 0.0)
    for state in STATES[1:]:
        whole = trained(headrace, folder, f"whole-{state}", "fp32", folders=2)
        seconds = Conversion(whole, state).seconds()
        must(go_on(whole, state))
        rows[state] = whole.rows(), whole.weights()
    found = []
    for index in range(count):
        state = STATES[1 + index % 2]
        run = trained(headrace, folder, f"killed{index}", "fp32", folders=2)
        moment, code = Conversion(run, state).kill_once(random, seconds)
        fact = f"to {state}, killed {moment}"
        if code not in (OK, -signal.SIGKILL):
            report.check(f"{fact}: the kill came", False, code)
            continue
        verified = headrace.run("verify", run.dir, "--json")
        if not report.check(f"{fact}: the run is whole", verified.code == OK, verified):
            continue
        named = must(headrace.run("inspect", run.dir, "--json")).json()
        found.append((named["state"], len(ids(run))))
        left = set(listed_left(run))
        report.check(f"{fact}: the other is told", left <= ids(run) - {named["id"]}, left)
        if index % 2:
            # A finished run that is started again has nothing to do but this.
            must(run.train("--set", f"optim.state={named['state']}"))
            report.equal(f"{fact}: a start leaves one", ids(run), {named["id"]})
        must(convert(run, state))
        report.equal(f"{fact}: the next conversion leaves one", len(ids(run)), 1)
        noted = (run.dir / "store.making.json").exists()
        resolved = (run.dir / "config.resolved.toml").read_text()
        settled = not noted and f'state = "{state}"' in resolved
        report.check(f"{fact}: and no note, and its setting", settled, resolved)
        must(go_on(run, state))
        difference = harness.first_difference(run.rows(), rows[state][0])
        difference = difference or harness.same_tensors(run.weights(), rows[state][1])
        report.check(f"{fact}: goes on with the same bits", not difference, difference)
    print(f"      found (format, stores): {found}")


def check_left(report, headrace, folder):
    """What a killed conversion left goes with the next start of the run, or with `store remove`."""
    for how in ("train", "remove"):
        run = trained(headrace, folder, f"left-{how}", "fp32")
        words = ["store", "convert", str(run.dir), "--state", "q8"]
        made = lambda: [path for path in stores(run) if (path / "data").exists()]
        harness.stop_when(headrace, words, lambda: len(made()) > 1, signal.SIGKILL)
        if len(made()) < 2:
            report.skip(f"left for {how}", "the kill came too late")
            continue
        named = must(headrace.run("inspect", run.dir, "--json")).json()
        (other,) = [path for path in stores(run) if path.name != named["id"]]
        if how == "remove":
            must(headrace.run("store", "remove", other.name, "--store", other.parent))
        must(go_on(run, named["state"]))
        report.check(f"what was left goes with `{how}`", not other.exists(), other)
        noted = (run.dir / "store.making.json").exists()
        report.check(f"what was left goes with `{how}`, and its note", not noted)


def main():
    report = harness.Report("convert_test")
    headrace = harness.Headrace(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with harness.scratch(report, "convert") as folder:
        check_formats(report, headrace, folder)
        run = trained(headrace, folder, "run", "fp32", folders=2, place="nvme")
        check_refusals(report, headrace, folder, run)
        check_uncommitted(report, headrace, folder)
        check_in_use(report, headrace, folder)
        check_damaged(report, run)
        check_interrupted(report, headrace, run)
        must(convert(run, "q8"))
        check_goes_on(report, run, "fp32", "q8")
        check_left(report, headrace, folder)
        check_killed(report, headrace, folder, count)
    report.finish()


if __name__ == "__main__":
    main()
