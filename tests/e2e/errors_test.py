"""Every way to fail says so in the same form, with its exit code, and damages nothing.

    python3 errors_test.py BINARY GOLDEN_CASE_DIR

A table of cases. Each case runs one or more commands that must fail; afterwards everything in the
test's folder (a committed run among it) must be byte for byte what it was before the commands.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import harness
from harness import CORRUPT, DOES_NOT_FIT, OPERATING, USAGE, must

SUPERBLOCKS = (0, 64 * 1024)  # docs/store_format.md: offsets of the two copies
SUPERBLOCK_SEQUENCE_AT = 48
NOBODY = 65534
CASES = []


def case(name):
    def register(function):
        CASES.append((name, function))
        return function

    return register


class World:
    """A folder with one committed run, `good`, that no case may change."""

    def __init__(self, report, headrace, folder, golden):
        self.report, self.headrace, self.folder, self.golden = report, headrace, folder, golden
        self.text = folder / "corpus.txt"
        self.text.write_text("the race that feeds the wheel\n" * 200)
        self.good = folder / "good"
        self.good_config = self.config("good", {"run": {"dir": self.good}})
        must(headrace.run("train", self.good_config))

    def sections(self, name):
        return {
            "run": {"dir": self.folder / f"{name}-run", "steps": 2},
            "model": {"arch": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "max_seq_len": 32},
            "data": {"train": [self.text], "tokenizer": "bytes"},
            "batch": {"micro_batch": 2, "seq_len": 32},
            "optim": {"lr_schedule": "constant"},
            "precision": {"compute": "fp32"},
            "tiers": {"direct_io": "auto"},
        }

    def config(self, name, changes=None):
        sections = self.sections(name)
        for section, keys in (changes or {}).items():
            sections[section] = {**sections.get(section, {}), **keys}
        return harness.write_toml(self.folder / f"{name}.toml", sections)

    def copy_of_good(self, name):
        """Another run with the same commit, for a case to damage."""
        target = self.folder / name
        shutil.copytree(self.good, target)
        return target, self.config(name, {"run": {"dir": target, "steps": 4}})

    def fails(self, fact, code, *words, says=(), **how):
        """Runs a command that must fail with `code`, name all of `says`, and change no file."""
        before = harness.fingerprint(self.folder)
        outcome = self.headrace.run(*words, **how)
        after = harness.fingerprint(self.folder)
        problems = harness.error_problems(outcome, code)
        problems += "".join(f"\n'{word}' is not named" for word in says if word not in outcome.err)
        self.report.check(f"{fact}: exit {code}", not problems, f"{problems}\n{outcome}")
        self.unchanged(fact, before, after)
        return outcome

    def unchanged(self, fact, before, after):
        # A failed start may tell of itself in the log of its run.
        for files in (before, after):
            for name in [n for n in files if pathlib.Path(n).name == "run.log"]:
                del files[name]
        difference = harness.changes(before, after)
        self.report.check(f"{fact}: no file is changed or left", not difference, difference)


def store_data(run):
    (data,) = (run / "store").glob("*/data")
    return data


# ---- the command line and the file ----


@case("bad config")
def bad_config(world):
    path = world.config(
        "bad",
        {
            "run": {"steps": -1},
            "batch": {"seq_len": "long"},
            "optim": {"learning_rate": 0.1, "lr_schedule": "cosin"},
            "tiers": {"host_memory": "24 GQ"},
            "optimizer": {"lr": 0.1},
        },
    )
    says = ["learning_rate", "optim.lr", "seq_len", "steps", "cosin", "host_memory", "optimizer"]
    outcome = world.fails("six errors in one file", USAGE, "train", path, says=says)
    count = sum(line.startswith("error: ") for line in outcome.err.splitlines())
    world.report.check("six errors in one file: all reported at once", count >= 6, outcome)
    lines = path.read_text().splitlines()
    for key in ("learning_rate", "seq_len"):
        line = next(i for i, text in enumerate(lines, 1) if text.startswith(key))
        place = f"bad.toml:{line}:"
        world.report.check(
            f"six errors in one file: {place} is named", place in outcome.err, outcome
        )
    world.fails("the plan of it", USAGE, "plan", path, "--json", says=says)


@case("sizes out of reach")
def sizes(world):
    """Refused within seconds, with the bound: no plan of it would end."""
    wide = ["model.hidden=65536", "model.heads=512"]
    for fact, sets, says in (
        ("too many layers", ["model.layers=2000"], "<= 1024"),
        ("too wide a model", ["model.hidden=1000000"], "<= 65536"),
        ("too many parameters", [*wide, "model.layers=1024"], "1.0 T"),
        ("too many micro-batches", ["batch.accumulate=5000"], "<= 4096"),
        ("with so many layers", ["batch.accumulate=4096", "model.layers=512"], "accumulate=127"),
        ("too many steps", [f"run.steps={2**63 - 1}"], "<= 1000000000000"),
        ("no integer of 64 bits", [f"run.steps={2**64}"], "64 bits"),
        ("no float", ["optim.lr=1e400"], "optim.lr = 1e400"),
        ("a list for a number", ["run.steps=[1]"], "an array was given"),
        ("a name with slashes", ["run.name=../up"], "run.name"),
        ("a name with an escape", ["run.name=a\x1bb"], "run.name"),
        ("the root folder", ["run.dir=/"], "root"),
    ):
        words = [word for text in sets for word in ("--set", text)]
        path = world.good_config
        world.fails(fact, USAGE, "plan", path, *words, says=[says], timeout_s=60)
    profile = pathlib.Path(world.headrace.environment["XDG_CACHE_HOME"]) / "headrace/machine.toml"
    for key, value in (("cores", "0"), ("memory_bytes_per_s", "1e-300")):
        machine = world.folder / "machine.toml"
        lines = profile.read_text().splitlines()
        lines = [f"{key} = {value}" if line.startswith(f"{key} ") else line for line in lines]
        machine.write_text("\n".join(lines))
        words = ["plan", world.good_config, "--machine", machine]
        world.fails(f"a profile of {key} = {value}", USAGE, *words, says=[key])


@case("bad arguments")
def bad_arguments(world):
    good = world.good_config
    world.fails("an unknown command", USAGE, "trian", good)
    world.fails("an unknown option", USAGE, "train", good, "--fast", says=["--fast"])
    world.fails("no file", USAGE, "train")
    words = ["train", good, "--set", "optim.lrr=1", "--set", "batch.micro_batch=few"]
    world.fails("bad --set", USAGE, *words, says=["optim.lrr", "batch.micro_batch", "--set"])
    world.fails("a TOML error", USAGE, "train", good, "--set", "data.train=[", says=["data.train"])
    words = ["eval", "--model", world.good, "--data", world.text, "--seq-len", 2**63 - 1]
    world.fails("a sequence that no memory holds", USAGE, *words, says=["too few"])


@case("missing files")
def missing_files(world):
    gone = world.folder / "gone"
    world.fails("a missing RUN.toml", USAGE, "train", f"{gone}.toml", says=["gone.toml"])
    data = world.config("data", {"data": {"train": [gone]}})
    world.fails("missing data", USAGE, "train", data, says=[str(gone)])
    model = harness.write_toml(
        world.folder / "model.toml", {**world.sections("model"), "model": {"path": gone}}
    )
    says = [str(gone), "model.preset", "model.toml:"]
    world.fails("a missing model", USAGE, "train", model, says=says)
    preset = world.fails("no such preset", USAGE, "plan", model, "--set", "model.preset=gpt9")
    names = re.findall(r"[a-z0-9]+-[0-9a-z.-]+[0-9]+[bm]\b", preset.err)
    page = (pathlib.Path(__file__).parents[2] / "docs/cli.md").read_text()
    listed = len(names) > 10 and all(name in page for name in names)
    world.report.check("docs/cli.md names every preset that the error names", listed, names)
    deep = world.config("deep", {"tiers": {"nvme": [gone / "deeper"]}})
    world.fails("a store folder without a parent", USAGE, "train", deep, says=[str(gone)])
    world.fails("the plan of it", USAGE, "plan", deep, says=[str(gone), "deep.toml:"])
    for fact, folder, code in (
        ("a file for the store", f'["{world.text}"]', USAGE),
        ("a folder without room", f'[{{path="{world.folder}", space="1KiB"}}]', DOES_NOT_FIT),
    ):
        words = [world.good_config, "--set", f"tiers.nvme={folder}", "--set", f"run.dir={gone}"]
        world.fails(fact, code, "train", *words)
        world.fails(f"{fact}, planned", code, "plan", *words)
    world.fails("export of no run", USAGE, "export", gone, world.folder / "out", says=[str(gone)])
    world.fails("a look at nothing", USAGE, "inspect", gone, says=[str(gone)])


# ---- what a command is started with, and what its paths name ----


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


@case("deep keys")
def deep_keys(world):
    parts = ".".join(["a"] * 50000)
    for index, text in enumerate((f"[{parts}]\n", f"{parts} = 1\n", f"x = {{ {parts} = 1 }}\n")):
        path = world.folder / f"deep{index}.toml"
        path.write_text(text)
        says = [f"deep{index}.toml:1:", "64 dots"]
        world.fails(f"a name of 50,000 parts, form {index}", USAGE, "plan", path, says=says)


# ---- folders ----


class Mounts:
    """Mounts that go away again; needs root and a kernel that lets it."""

    def __init__(self):
        self.undo = []

    def run(self, *words):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{words[0]}: {done.stderr.strip()}")

    def mount(self, *words):
        self.run("mount", *words)
        self.undo.append(words[-1])

    def close(self):
        for target in reversed(self.undo):
            self.run("umount", target)


@contextlib.contextmanager
def mounts(world, fact):
    """Skips what is in its body where mounting is not allowed."""
    if os.geteuid() != 0:
        world.report.skip(fact, "mounting needs root")
        yield None
        return
    held = Mounts()
    try:
        yield held
    finally:
        held.close()


def small_disk(world, held, fact, megabytes):
    """A new ext4 filesystem in a file, mounted; None (and a skip) where that cannot be."""
    image, target = world.folder / "disk.img", world.folder / "disk"
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    target.mkdir()
    try:
        held.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image)
        held.mount("-o", "loop", image, target)
    except OSError as error:
        world.report.skip(fact, error)
        return None
    return target


@case("full disk")
def full_disk(world):
    fact = "a full disk"
    with mounts(world, fact) as held:
        disk = held and small_disk(world, held, fact, 4)
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
    with mounts(world, fact) as held:
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


# ---- what the system allows ----


def limited(limit, bytes_or_count):
    return lambda: resource.setrlimit(limit, (bytes_or_count, bytes_or_count))


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def forbid_io_uring():
    """As a container's seccomp profile does: io_uring_setup (425 everywhere) fails with EPERM."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    rules = [
        (load, 0, 0, 0),
        (jump_if_equal, 0, 1, 425),
        (give, 0, 0, 0x50001),
        (give, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    program = struct.pack("@HP", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, filter_mode, program):
        raise OSError(ctypes.get_errno(), "prctl")


@case("limits")
def limits(world):
    on_nvme = {"tiers": {"place": "nvme"}}
    path = world.config("limits", on_nvme)
    words = ["train", path]
    fact = "a limit of a file's size"
    world.fails(fact, OPERATING, *words, before=limited(resource.RLIMIT_FSIZE, 1 << 20))
    for files in range(4, 24):
        run = world.folder / "few-files-run"
        how = {"before": limited(resource.RLIMIT_NOFILE, files)}
        few = world.config("few-files", on_nvme)
        outcome = world.headrace.run("train", few, **how)
        begun = "step 1/" in outcome.out
        if outcome.code == harness.OK or begun or "shared libraries" in outcome.err:
            shutil.rmtree(run, ignore_errors=True)
            continue
        problems = harness.error_problems(outcome, OPERATING)
        fact = f"a start with {files} open files: exit 1, nothing is left"
        world.report.check(fact, not problems and not run.exists(), f"{problems}\n{outcome}")
    # Sanitizers need terabytes of addresses.
    asked = world.headrace.run("--version", before=limited(resource.RLIMIT_AS, 1 << 30))
    if asked.code != harness.OK:
        world.report.skip("limits of memory", asked.err[:100])
    else:
        for limit, name in ((resource.RLIMIT_DATA, "data"), (resource.RLIMIT_AS, "all")):
            for mebibytes in (12, 16, 20, 24, 28, 32, 40, 48, 64, 72, 80, 96, 128):
                how = {"before": limited(limit, mebibytes << 20)}
                outcome = world.headrace.run("plan", path, **how)
                loaded = "shared librar" not in outcome.err and "shared object" not in outcome.err
                problems = loaded and outcome.code and harness.error_problems(outcome, OPERATING)
                fact = f"{mebibytes} MiB of memory ({name}): a plan or an error"
                world.report.check(fact, not problems, f"{problems}\n{outcome}")
    no_cache = {"PATH": os.environ["PATH"]}  # neither HOME nor XDG_CACHE_HOME
    trained = world.headrace.run("train", path, environment=no_cache)
    world.report.equal("no home: trains all the same", trained.code, harness.OK)
    words += ["--overwrite"]
    trained = world.headrace.run(*words, before=forbid_io_uring)
    told = trained.code == harness.OK and "io_uring" in trained.err
    world.report.check("no io_uring: trains, and says so", told, trained)


def few_threads(world, changes, how):
    """A limit of processes: OpenMP and oneTBB would end the process without a word of ours."""

    def limited_nobody(processes):
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        become_nobody()

    words = ["/bin/sh", "-c", "true & wait"]
    tried = subprocess.run(
        words, preexec_fn=lambda: limited_nobody(1), capture_output=True, text=True
    )
    if "fork" not in tried.stderr:
        world.report.skip("a limit of processes", "it does not hold here")
        return
    how = {**how, "before": lambda: limited_nobody(8)}
    threads = {"run": {**changes["run"], "compute_threads": 4}, "optim": {"threads": 4}}
    path = world.config("few", {**changes, **threads})
    says = ["thread", "ulimit -u"]
    world.fails("a limit of processes", OPERATING, "train", path, says=says, **how)


@case("another user")
def another_user(world):
    """Without root's rights: closed folders, and 64 KiB of memory that may be locked."""
    if os.geteuid() != 0:
        world.report.skip("another user", "only root can become one")
        return
    world.folder.chmod(0o755)
    for file, command in ((world.headrace.binary, "--version"), ("/bin/cat", world.text)):
        try:
            reached = subprocess.run([file, command], preexec_fn=become_nobody, capture_output=True)
        except PermissionError as error:
            world.report.skip("another user", error)
            return
        if reached.returncode != 0:
            world.report.skip("another user", reached.stderr.decode())
            return
    open_folder, closed = world.folder / "open", world.folder / "closed"
    open_folder.mkdir()
    os.chown(open_folder, NOBODY, NOBODY)
    closed.mkdir(mode=0o700)
    environment = {**world.headrace.environment, "XDG_CACHE_HOME": str(open_folder / "cache")}
    how = {"before": become_nobody, "environment": environment}
    run = {"run": {"dir": open_folder / "run"}}

    def poor():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        become_nobody()

    on_nvme = {"place": "nvme", "nvme": [open_folder / "store"]}
    path = world.config("poor", {**run, "tiers": on_nvme})
    trained = world.headrace.run("train", path, **{**how, "before": poor})
    fact = "64 KiB of lockable memory: trains all the same"
    world.report.check(fact, trained.code == harness.OK, trained)
    rows = [
        harness.read_metrics(folder / "metrics.jsonl")
        for folder in (open_folder / "run", world.good)
    ]
    difference = harness.first_difference(*rows)
    world.report.check("64 KiB of lockable memory: equal metrics", not difference, difference)

    few_threads(world, {"run": {"dir": open_folder / "few"}}, how)
    path = world.config(
        "shut", {"run": {"dir": open_folder / "shut"}, "tiers": {"nvme": [closed / "s"]}}
    )
    world.fails(
        "a closed folder for the store", OPERATING, "train", path, says=[str(closed)], **how
    )
    path = world.config("shut", {"run": {"dir": closed / "run"}})
    world.fails("a closed folder for the run", OPERATING, "train", path, says=[str(closed)], **how)
    secret = world.folder / "secret.txt"
    secret.write_text("x" * 2000)
    secret.chmod(0o600)
    path = world.config("shut", {"run": {"dir": open_folder / "shut"}, "data": {"train": [secret]}})
    world.fails("data that may not be read", OPERATING, "train", path, says=[str(secret)], **how)
    path = world.config("shut", {"run": {"dir": world.good, "steps": 4}})
    world.fails("another's run", OPERATING, "train", path, says=[str(world.good)], **how)


# ---- the budget ----


@case("budget too small")
def budget(world):
    path = world.config("budget", {"tiers": {"host_memory": "64KiB"}})
    outcome = world.fails("a budget too small", DOES_NOT_FIT, "train", path, says=["--set"])
    world.fails("a budget too small, planned", DOES_NOT_FIT, "plan", path, says=["--set"])
    words = harness.set_arguments(outcome.err)
    planned = world.headrace.run("plan", path, *words)
    fact = f"a budget too small: {' '.join(words)} mends it"
    world.report.check(fact, words and planned.code == harness.OK, planned)
    separate = {"tiers": {"host_memory": "64KiB", "device_memory": "64KiB"}}
    path = world.config("budget", separate)
    outcome = world.fails("two budgets too small", DOES_NOT_FIT, "plan", path, says=["--set"])
    words = harness.set_arguments(outcome.err)
    trained = world.headrace.run("train", path, *words)
    fact = f"two budgets too small: {' '.join(words)} mends them"
    world.report.check(fact, words and trained.code == harness.OK, trained)


# ---- the store ----


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


# ---- models and data ----


def model_case(world, name, change):
    """A model directory with a damaged model.safetensors, and a run that wants to train it."""
    folder = world.folder / f"hf-{name}"
    shutil.copytree(world.golden / "hf", folder)
    change(folder)
    sections = {**world.sections(name), "model": {"path": folder}}
    sections["data"] = {"train": [world.golden / "tokens.bin"]}
    sections["batch"] = {"micro_batch": 1, "seq_len": 8}
    return folder, harness.write_toml(world.folder / f"{name}.toml", sections)


def write_weights(folder, content):
    (folder / "model.safetensors").write_bytes(content)


def with_header(header, buffer=b""):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + buffer


@case("broken safetensors")
def broken_safetensors(world):
    whole = (world.golden / "hf" / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    header, buffer = whole[8 : 8 + length], whole[8 + length :]
    entries = json.loads(header)
    first = next(name for name in entries if name != "__metadata__")
    moved = {**entries, first: {**entries[first], "data_offsets": [8, 16]}}
    huge = {**entries, first: {**entries[first], "shape": [1 << 40, 1 << 40]}}
    contents = {
        "an empty file": b"",
        "a file of five bytes": b"\5\0\0\0\0",
        "a truncated header": whole[: 8 + length // 2],
        "a header of 2^60 bytes": struct.pack("<Q", 1 << 60) + whole[8:],
        "a header that is no JSON": with_header(b"{" + header[2:], buffer),
        "a buffer cut short": whole[:-5],
        "bytes after the buffer": whole + b"\0\0\0\0",
        "offsets that overlap": with_header(moved, buffer),
        "a shape that overflows": with_header(huge, buffer),
    }
    for index, (fact, content) in enumerate(contents.items()):
        folder, path = model_case(world, f"weights{index}", lambda f: write_weights(f, content))
        says = [str(folder / "model.safetensors")]
        world.fails(fact, CORRUPT, "train", path, says=says)


@case("unfit models")
def unfit_models(world):
    def edit(**changes):
        def change(folder):
            path = folder / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

        return change

    def rename_tensor(folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(b"ln_f.bias", b"ln_f.bios"))

    folder, path = model_case(
        world, "arch", edit(architectures=["Gpt9LMHeadModel"], model_type="g9")
    )
    world.fails("an unknown architecture", USAGE, "train", path, says=["Gpt9LMHeadModel"])
    folder, path = model_case(world, "types", edit(model_type="bert"))
    world.fails("two names of a model", USAGE, "train", path, says=["bert", "contradicts"])
    folder, path = model_case(world, "zero", edit(n_layer=0))
    world.fails("a size of zero", USAGE, "train", path, says=["'n_layer' = 0", "at least 1"])
    folder, path = model_case(world, "quoted", edit(n_layer="1"))
    once = world.fails("a size that is text", USAGE, "train", path, says=["not a whole number"])
    world.report.check("a size that is text: one error", "is missing" not in once.err, once)
    folder, path = model_case(world, "field", edit(rotary_twist=3))
    world.fails("an unknown field", USAGE, "train", path, says=["rotary_twist", "model.ignore"])
    mended = world.headrace.run("plan", path, "--set", 'model.ignore=["rotary_twist"]')
    world.report.equal("an unknown field passes with model.ignore", mended.code, harness.OK)
    folder, path = model_case(world, "scaled", edit(scale_attn_weights=False))
    world.fails("a field that changes numbers", USAGE, "train", path, says=["scale_attn_weights"])
    folder, path = model_case(world, "broken", lambda f: (f / "config.json").write_text("{"))
    world.fails("a broken config.json", CORRUPT, "train", path, says=[str(folder / "config.json")])
    folder, path = model_case(world, "tensor", rename_tensor)
    world.fails("a tensor that is missing", USAGE, "train", path, says=["ln_f.bias"])
    folder, path = model_case(world, "sizes", edit(n_embd=24, n_head=2))
    world.fails("a tensor of another shape", USAGE, "train", path, says=["24"])


@case("weights that are not finite")
def not_finite(world):
    out = world.folder / "not-finite"
    must(world.headrace.run("export", world.good, out))
    path = out / "model.safetensors"
    # The last tensor is the token table, tied to the head.
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    words = ["generate", "--model", out, "--prompt", "the", "--tokens", 2**63 - 1]
    world.fails("a logit that is NaN", CORRUPT, *words, says=["logit of token 255", str(out)])


@case("broken data")
def broken_data(world):
    tokens = list(range(60)) * 20
    contents = {
        "a token file cut short": (CORRUPT, harness.token_file(tokens)[:-7], "wrong size"),
        "a token file cut in its header": (CORRUPT, harness.token_file(tokens)[:700], "wrong size"),
        "a count beyond the file": (
            CORRUPT,
            harness.token_file(tokens, count=1 << 30),
            "wrong size",
        ),
        "a newer token file": (USAGE, harness.token_file(tokens, version=9), "version 9"),
        "a token out of the vocabulary": (USAGE, harness.token_file(tokens + [256]), "token 256"),
        "too few tokens": (USAGE, harness.token_file(tokens[:20]), ""),
    }
    for index, (fact, (code, content, word)) in enumerate(contents.items()):
        data = world.folder / f"tokens{index}.bin"
        data.write_bytes(content)
        path = world.config(f"tokens{index}", {"data": {"train": [data]}})
        world.fails(fact, code, "train", path, says=[word])
        world.fails(f"{fact}, evaluated", code, "eval", path, says=[word])


def main():
    report = harness.Report("errors")
    golden = pathlib.Path(sys.argv[2]).resolve()
    chosen = sys.argv[3:]
    with harness.scratch(report, "errors") as folder:
        world = World(report, harness.Headrace(sys.argv[1]), folder, golden)
        for name, function in CASES:
            if not chosen or name in chosen:
                print(f"---- {name}", flush=True)
                function(world)
    report.finish()


if __name__ == "__main__":
    main()
