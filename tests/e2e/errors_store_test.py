"""Errors of a store: damaged, lost, left over, foreign, elsewhere.

python3 errors_store_test.py BINARY GOLDEN_CASE_DIR [CASE ...]
"""

import json
import os
import shutil
import signal
import struct
import time

import harness
from errors_world import case, run_cases, store_data
from harness import CORRUPT, OPERATING, USAGE, must

SUPERBLOCKS = (0, 64 * 1024)  # docs/store_format.md: offsets of the two copies
SUPERBLOCK_SEQUENCE_AT = 48


def an_extent(world, run, kind):
    """Offset of the payload of an extent in the data file, as `inspect` tells it."""
    told = must(world.headrace.run("inspect", run, "--json")).json()
    extents = [extent for extent in told["extents"] if extent["kind"] == kind]
    return extents[len(extents) // 2]


@case("corrupted extent")
def corrupted_extent(world):
    must(world.headrace.run("verify", world.good))
    for kind in ("param", "state"):
        run, path = world.copy_of_good(f"flipped-{kind}")
        extent = an_extent(world, run, kind)
        harness.flip_byte(store_data(run), extent["offset"] + extent["header_bytes"] + 77)
        fact = f"a flipped byte of {kind}"
        says = [f"unit {extent['unit']}", f"tile {extent['tile']}", str(store_data(run))]
        world.fails(f"{fact}, resumed", CORRUPT, "train", path, says=says)
        world.fails(f"{fact}, verified", CORRUPT, "verify", run, says=says)
        if kind == "param":
            out = world.folder / "out"
            world.fails(f"{fact}, exported", CORRUPT, "export", run, out, says=says)
            words = ["--data", world.text, "--seq-len", "32"]
            world.fails(f"{fact}, evaluated", CORRUPT, "eval", "--model", run, *words, says=says)
    run, path = world.copy_of_good("flipped-header")
    extent = an_extent(world, run, "param")
    harness.flip_byte(store_data(run), extent["offset"] + 60)
    world.fails("a flipped byte of a header", CORRUPT, "train", path, says=["header"])


@case("superblocks")
def superblocks(world):
    run, path = world.copy_of_good("one-superblock")
    data = store_data(run)
    content = data.read_bytes()
    sequences = [
        struct.unpack_from("<Q", content, at + SUPERBLOCK_SEQUENCE_AT)[0] for at in SUPERBLOCKS
    ]
    older = SUPERBLOCKS[sequences.index(min(sequences))]
    harness.flip_byte(data, older + 100)
    outcome = world.headrace.run("export", run, world.folder / "one-superblock-out")
    used = outcome.code == harness.OK and "superblock" in outcome.err
    world.report.check("the older superblock damaged: the newer one is used", used, outcome)
    run, path = world.copy_of_good("newer-superblock")
    newer = SUPERBLOCKS[sequences.index(max(sequences))]
    harness.flip_byte(store_data(run), newer + 100)
    # The other one is from before the commit: it must not pass for a run that never committed.
    world.fails("the newer superblock damaged", CORRUPT, "train", path, says=["superblock"])
    run, path = world.copy_of_good("no-superblock")
    for at in SUPERBLOCKS:
        harness.flip_byte(store_data(run), at + 100)
    says = ["superblock", str(store_data(run))]
    world.fails("both superblocks damaged", CORRUPT, "train", path, says=says)
    world.fails("both superblocks damaged, verified", CORRUPT, "verify", run, says=says)
    world.fails("both superblocks damaged, inspected", CORRUPT, "inspect", run, says=says)


@case("cut store")
def cut_store(world):
    run, path = world.copy_of_good("cut")
    data = store_data(run)
    os.truncate(data, data.stat().st_size // 2)
    world.fails("a store cut short", CORRUPT, "train", path, says=[str(data)])
    world.fails("a store cut short, exported", CORRUPT, "export", run, world.folder / "out")


@case("lost commits")
def lost_commits(world):
    """Whatever became of the store, each command says that a commit is lost, with one code."""

    def zeros(data):
        data.write_bytes(bytes(data.stat().st_size))

    def noise(data):
        data.write_bytes(bytes(range(256)) * (data.stat().st_size // 256))

    def link(data):
        data.rename(data.with_name("elsewhere"))
        data.symlink_to("elsewhere")

    def newer_superblock(data):
        content = data.read_bytes()
        numbers = [content[at + SUPERBLOCK_SEQUENCE_AT :][:8] for at in SUPERBLOCKS]
        newest = max(range(2), key=lambda i: int.from_bytes(numbers[i], "little"))
        harness.flip_byte(data, SUPERBLOCKS[newest] + 100)

    damages = {
        "cut to nothing": (CORRUPT, lambda data: os.truncate(data, 0)),
        "cut to a page": (CORRUPT, lambda data: os.truncate(data, 4096)),
        "zeros": (CORRUPT, zeros),
        "noise": (CORRUPT, noise),
        "a link": (CORRUPT, link),
        "before its commit": (CORRUPT, newer_superblock),
        "gone": (OPERATING, lambda data: shutil.rmtree(data.parent)),
    }
    for fact, (code, damage) in damages.items():
        name = "lost-" + fact.replace(" ", "-")
        run, path = world.copy_of_good(name)
        damage(store_data(run))
        out = world.folder / f"{name}-out"
        commands = {
            "train": ["train", path],
            "eval": ["eval", path],
            "generate": ["generate", "--model", run, "--prompt", "a"],
            "export": ["export", run, out],
            "inspect": ["inspect", run],
            "verify": ["verify", run],
        }
        for command, words in commands.items():
            world.fails(f"{command} of a store that is {fact}", code, *words, says=[str(run)])
        listed = must(world.headrace.run("store", "list", "--store", run / "store"))
        told = fact == "gone" or "cannot be used" in listed.out or "before" in fact
        world.report.check(f"a store that is {fact} is listed so", told, listed)


@case("leftovers")
def leftovers(world):
    """A store that was made by a start that was killed before store.json named it goes away."""
    endless = {"run": {"steps": 10**9}, "log": {"every": 100000}}
    path = world.config("left", endless)
    run = world.folder / "left-run"
    words = ["train", path]
    harness.stop_at(world.headrace, words, run / "metrics.jsonl", 1, signal.SIGKILL)
    (run / "store.json").unlink()
    (orphan,) = (run / "store").iterdir()
    resumed = must(world.headrace.run(*words, "--set", "run.steps=2"))
    stores = list((run / "store").iterdir())
    fact = "a store that no start names is removed"
    world.report.check(fact, len(stores) == 1 and orphan not in stores, stores)
    world.report.check("and it is said", orphan.name in resumed.err, resumed)
    # One that was cut short before it said whose it is.
    blank = run / "store" / ("0123456789abcdef" * 2)
    blank.mkdir()
    (blank / "data").write_bytes(bytes(4096))
    must(world.headrace.run(*words, "--set", "run.steps=3"))
    world.report.check("a blank one in the run's own folder too", not blank.exists())
    # In another folder it is this run's only if the start has noted it.
    noted, others = world.folder / "left-noted", world.folder / "left-others"
    for store in (noted, others):
        (store / blank.name).mkdir(parents=True)
        (store / blank.name / "data").write_bytes(bytes(4096))
    note = run / "store.making.json"
    note.write_text(json.dumps({"folders": [str(noted)], "id": blank.name, "committed_step": None}))
    must(world.headrace.run(*words, "--set", "run.steps=4"))
    world.report.check("what a start had noted too", not (noted / blank.name).exists())
    world.report.check("and its note", not note.exists())
    world.report.check("and nothing else", (others / blank.name / "data").exists())
    # Killed before its data file was made: the command removes it too, but nothing of somebody's.
    bare = others / ("fedcba9876543210" * 2)
    bare.mkdir()
    (bare / "notes.txt").write_text("mine")
    remove = ["store", "remove", bare.name, "--store", others]
    world.fails("a folder without a data file, with another", USAGE, *remove, says=[str(bare)])
    (bare / "notes.txt").unlink()
    listed = must(world.headrace.run("store", "list", "--store", others))
    world.report.check("a folder without a data file is listed", bare.name in listed.out, listed)
    must(world.headrace.run(*remove))
    world.report.check("and removed", not bare.exists())
    # Of a resumed run too; but never a commit.
    (run / "store.json").rename(world.folder / "kept.json")
    must(world.headrace.run(*words, "--set", "run.steps=2"))
    world.report.equal("a store with a commit stays", len(list((run / "store").iterdir())), 2)
    (run / "store.json").unlink()
    # Removed, and the next one not named yet, when it was killed.
    gone, path = world.copy_of_good("left-gone")
    shutil.rmtree(store_data(gone).parent)
    told = json.loads((gone / "store.json").read_text())
    (gone / "store.json").write_text(json.dumps({**told, "committed_step": None}))
    again = world.headrace.run("train", path)
    fact = "a store that is gone without a commit: trains"
    world.report.check(fact, again.code == harness.OK, again)


@case("other folders")
def other_folders(world):
    run, path = world.copy_of_good("elsewhere")
    other = f'tiers.nvme=["{world.folder / "other"}"]'
    says = [str(run / "store"), "--set"]
    words = ["train", path]
    refused = world.fails("a resume with another folder", USAGE, *words, "--set", other, says=says)
    world.fails("the plan of it", USAGE, "plan", path, "--set", other, says=says)
    must(world.headrace.run(*words, *harness.set_arguments(refused.err)[:2]))
    # Made elsewhere, and resumed without the key: it stays there, and the settings say so.
    place = world.folder / "made-here"
    path = world.config("made", {})
    must(world.headrace.run("train", path, "--set", f'tiers.nvme=["{place}"]'))
    must(world.headrace.run("train", path, "--set", "run.steps=3"))
    text = (world.folder / "made-run" / "config.resolved.toml").read_text()
    fact = "the folder of the store is in config.resolved.toml"
    world.report.check(fact, str(place) in text, text)


@case("a store that goes away")
def store_goes_away(world):
    """Under a run: what is written to a removed file is lost, and must not be called committed."""

    def replace(data):
        content = data.read_bytes()
        data.unlink()
        data.write_bytes(content)

    ways = {
        "removed": lambda data: data.unlink(),
        "removed with its folder": lambda data: shutil.rmtree(data.parent),
        "replaced": replace,
    }
    for fact, way in ways.items():
        name = "away-" + fact.replace(" ", "-")
        changes = {"run": {"steps": 10**9}, "log": {"every": 100000}}
        changes["durability"] = {"checkpoint": "20 steps"}
        path = world.config(name, changes)
        run = world.folder / f"{name}-run"
        process = world.headrace.start("train", path)
        try:
            while process.poll() is None and harness.last_step(run / "metrics.jsonl") < 30:
                time.sleep(0.005)
            way(store_data(run))
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        outcome = harness.Outcome(["train", path], process.returncode, "", err)
        problems = harness.error_problems(outcome, OPERATING)
        good = not problems and str(run / "store") in err and "is whole; the same" not in err
        fact = f"a store that is {fact} under a run: exit 1"
        world.report.check(fact, good, f"{problems}\n{err}")


@case("foreign store")
def foreign_store(world):
    own = json.loads((world.good / "store.json").read_text())
    thief, path = world.copy_of_good("thief")
    stolen = {"folders": [str(world.good / "store")], "id": own["id"]}
    (thief / "store.json").write_text(json.dumps(stolen))
    world.fails("the store of another run", USAGE, "train", path, says=[str(world.good)])
    words = ["train", path, "--resume", "never", "--overwrite"]
    world.fails("the store of another run, overwritten", USAGE, *words, says=[str(world.good)])

    run, path = world.copy_of_good("renamed")
    other = "0123456789abcdef" * 2
    (run / "store" / own["id"]).rename(run / "store" / other)
    (run / "store.json").write_text(json.dumps({"folders": ["store"], "id": other}))
    world.fails("a store under another's id", USAGE, "train", path, says=[own["id"]])

    run, path = world.copy_of_good("lost")
    (run / "store.json").write_text(json.dumps({"folders": ["store"], "id": other}))
    world.fails("a store that is gone", OPERATING, "train", path, says=[other])

    run, path = world.copy_of_good("nonsense")
    (run / "store.json").write_text('{"folders": 3')
    world.fails("a broken store.json", CORRUPT, "train", path, says=["store.json"])

    run, path = world.copy_of_good("nothing")
    store_data(run).write_bytes(b"not a store " * 100000)
    world.fails("a file that is no store", CORRUPT, "train", path, says=["not a headrace store"])
    remove = ["store", "remove", own["id"], "--store", run / "store"]
    world.fails("a file that is no store, removed", USAGE, *remove)


@case("broken metrics")
def broken_metrics(world):
    run, path = world.copy_of_good("metrics")
    (run / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n')
    world.fails("a row that is no step", CORRUPT, "train", path, says=["line 2"])


if __name__ == "__main__":
    run_cases("errors_store")
