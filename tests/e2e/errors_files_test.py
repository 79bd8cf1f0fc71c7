"""Errors of what paths name: standard files, pipes, targets, disks and folders.

python3 errors_files_test.py BINARY GOLDEN_CASE_DIR [CASE ...]
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time

import harness
from errors_world import case, model_case, run_cases, store_data
from harness import DOES_NOT_FIT, OPERATING, USAGE, must
from mounts import mounts, small_disk


def closing(*descriptors):
    def close():
        for descriptor in descriptors:
            os.close(descriptor)

    return close


@case("closed standard files")
def closed_standard_files(world):
    """No file of a run may get the number of one, and with it what is said to the user."""
    for descriptors in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
        name = "closed" + "".join(map(str, descriptors))
        path = world.config(name, {"run": {"steps": 5}, "tiers": {"place": "nvme"}})
        trained = world.headrace.run("train", path, before=closing(*descriptors))
        # Step lines that cannot be written are an error, at the end of a run that is whole.
        expected = OPERATING if 1 in descriptors else harness.OK
        world.report.equal(f"{name}: how train ends", trained.code, expected)
        run = world.folder / f"{name}-run"
        verified = world.headrace.run("verify", run)
        world.report.check(f"{name}: the run is whole", verified.code == harness.OK, verified)
        rows = harness.read_metrics(run / "metrics.jsonl")
        good = harness.read_metrics(world.good / "metrics.jsonl")
        difference = harness.first_difference(rows[:2], good)
        world.report.check(f"{name}: equal metrics", len(rows) == 5 and not difference, difference)
        log = (run / "run.log").read_text()
        world.report.check(f"{name}: nothing foreign in the log", "step    " not in log, log)
    for words in (["--version"], ["--help"], ["plan", "--help"], ["inspect", world.good]):
        world.fails(f"{words[0]} with stdout closed", OPERATING, *words, before=closing(1))
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                command = [world.headrace.binary, *words]
                done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
            fact = f"{words[0]} to a full device"
            world.report.equal(fact, (done.returncode, b"ENOSPC" in done.stderr), (OPERATING, True))


@case("export targets")
def export_targets(world):
    def target(name, **files):
        folder = world.folder / f"target-{name}"
        folder.mkdir()
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)
        return folder

    def refused(fact, folder, says, *more):
        words = ["export", world.good, folder, *more]
        world.fails(fact, USAGE, *words, says=[says, str(folder)])

    other = {"config__json": '{"model_type": "bert"}', "model__safetensors": "weights"}
    foreign = target("foreign", **other)
    refused("an export over another model", foreign, "--overwrite")
    notes = target("notes", **{"notes__txt": "x"})
    refused("an export into a folder of other files", notes, "notes.txt")
    shards = {"model-00001-of-00002__safetensors": "x", "model__safetensors__index__json": "{}"}
    sharded = target("sharded", **shards)
    refused("an export beside shards", sharded, "other weights", "--overwrite")
    odd = target("odd")
    (odd / "config.json").mkdir()
    refused("an export over a folder config.json", odd, "not a regular file", "--overwrite")
    refused("an export into the run", world.good, "own folder", "--overwrite")
    refused("an export into the store", store_data(world.good).parent, "store is in")
    link = world.folder / "link-to-store"
    link.symlink_to(world.good / "store")
    refused("an export into the store by a link", link / "new", "store is in")

    exported = world.folder / "target-exported"
    for fact, folder, words in (
        ("a new folder", exported, []),
        ("an earlier export", exported, []),
        ("an empty folder", target("empty"), []),
        ("what a killed export left", target("killed", model__safetensors__partial="x"), []),
        ("another model, with --overwrite", foreign, ["--overwrite"]),
    ):
        done = world.headrace.run("export", world.good, folder, *words)
        same = done.code == harness.OK and not harness.same_tensors(
            harness.read_safetensors(folder / "model.safetensors"),
            harness.read_safetensors(exported / "model.safetensors"),
        )
        world.report.check(f"an export over {fact}", same, done)
        marked = "headrace" in json.loads((folder / "config.json").read_text())
        world.report.check(f"an export over {fact}: is known for one", marked)


@case("pipes and devices")
def pipes(world):
    pipe = world.folder / "pipe"
    os.mkfifo(pipe)
    how = {"timeout_s": 20}
    for what in (pipe, "/dev/zero"):
        says = ["not a regular file", str(what)]
        words = ["plan", what]
        world.fails(f"{what} as RUN.toml", USAGE, *words, says=says, **how)
        words = ["plan", world.good_config, "--machine", what]
        world.fails(f"{what} as a machine profile", OPERATING, *words, says=says, **how)
        data = world.config("piped", {"data": {"train": [what]}})
        world.fails(f"{what} as data", USAGE, "train", data, says=says, **how)
    for name in ("config.json", "model.safetensors"):

        def put_pipe(folder):
            (folder / name).unlink()
            os.mkfifo(folder / name)

        folder, path = model_case(world, f"piped-{name}", put_pipe)
        says = ["not a regular file", str(folder / name)]
        world.fails(f"a pipe as {name}", OPERATING, "train", path, says=says, **how)
        words = ["generate", "--model", folder, "--prompt", "a"]
        world.fails(f"a pipe as {name}, generated", OPERATING, *words, says=says, **how)


@case("full disk")
def full_disk(world):
    fact = "a full disk"
    with small_disk(world.report, fact, world.folder, 4) as disk:
        if not disk:
            return
        changes = {"model": {"hidden": 256, "heads": 4}, "tiers": {"nvme": [disk / "store"]}}
        path = world.config("full", changes)
        world.fails(fact, DOES_NOT_FIT, "train", path, says=[str(disk), "free"])
        # The disk fills while the run is under way: the next row of the metrics finds no room.
        run = disk / "run"
        elsewhere = {"run": {"dir": run, "steps": 100000}, "tiers": {"nvme": [world.folder / "s"]}}
        elsewhere["durability"] = {"checkpoint": "none"}
        process = world.headrace.start("train", world.config("filling", elsewhere))
        while process.poll() is None and harness.last_step(run / "metrics.jsonl") < 1:
            time.sleep(0.01)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        outcome = harness.Outcome(["train", "filling.toml"], process.returncode, "", err)
        problems = harness.error_problems(outcome, OPERATING)
        good = not problems and "metrics" in err and "ENOSPC" in err and "step" in out
        world.report.check(
            "a disk that fills under the run: exit 1", good, f"{problems}\n{outcome}"
        )
        (disk / "filler").unlink()
        told = must(world.headrace.run("inspect", run, "--json")).json()
        fact = "a disk that fills under the run: its steps are committed"
        world.report.check(fact, told["commit"] and told["commit"]["step"] >= 1, told["commit"])


@case("read-only folder")
def read_only_folder(world):
    fact = "a read-only folder"
    with mounts(world.report, fact) as held:
        if not held:
            return
        folder = world.folder / "locked"
        folder.mkdir()
        try:
            held.mount("--bind", folder, folder)
            held.run("mount", "-o", "remount,bind,ro", folder)
        except OSError as error:
            world.report.skip(fact, error)
            return
        path = world.config("locked", {"tiers": {"nvme": [folder]}})
        world.fails(f"{fact} for the store", OPERATING, "train", path, says=[str(folder)])
        path = world.config("locked", {"run": {"dir": folder / "run"}})
        world.fails(f"{fact} for the run", OPERATING, "train", path, says=[str(folder)])
        words = ["export", world.good, folder / "out"]
        world.fails(f"{fact} for an export", OPERATING, *words, says=[str(folder)])


@case("folder on tmpfs")
def tmpfs(world):
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True)
    if kind.stdout.strip() != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        world.report.skip("a folder on tmpfs", "/dev/shm is not a tmpfs to write to")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        path = world.config("memory", {"tiers": {"nvme": [f"{memory}/store"]}})
        world.fails("a folder on tmpfs", USAGE, "train", path, says=["tmpfs", memory])
        world.fails("a folder on tmpfs, planned", USAGE, "plan", path, says=["tmpfs", memory])
        world.report.equal("a folder on tmpfs: nothing is made there", os.listdir(memory), [])


if __name__ == "__main__":
    run_cases("errors_files")
