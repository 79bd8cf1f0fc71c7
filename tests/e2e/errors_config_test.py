"""Errors of the command line, of RUN.toml and of the budget.

python3 errors_config_test.py BINARY GOLDEN_CASE_DIR [CASE ...]
"""

import pathlib
import re

import harness
from errors_world import case, run_cases
from harness import DOES_NOT_FIT, HARDWARE_ABSENT, USAGE, must


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
    for key, value in (
        ("cores", "0"),
        ("memory_bytes_per_s", "1e-300"),
        ("adamw_q8_params_per_s", "nan"),
        ("adamw_bf16_params_per_s", "1e30"),
    ):
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


@case("deep keys")
def deep_keys(world):
    parts = ".".join(["a"] * 50000)
    for index, text in enumerate((f"[{parts}]\n", f"{parts} = 1\n", f"x = {{ {parts} = 1 }}\n")):
        path = world.folder / f"deep{index}.toml"
        path.write_text(text)
        says = [f"deep{index}.toml:1:", "64 dots"]
        world.fails(f"a name of 50,000 parts, form {index}", USAGE, "plan", path, says=says)


@case("budget too small")
def budget(world):
    path = world.config("budget", {"tiers": {"host_memory": "64KiB"}})
    outcome = world.fails("a budget too small", DOES_NOT_FIT, "train", path, says=["--set"])
    world.fails("a budget too small, planned", DOES_NOT_FIT, "plan", path, says=["--set"])
    words = harness.set_arguments(outcome.err)
    planned = world.headrace.run("plan", path, *words)
    fact = f"a budget too small: {' '.join(words)} mends it"
    world.report.check(fact, words and planned.code == harness.OK, planned)
    planned = world.headrace.run("plan", path, "--json")
    document = planned.json()
    (tier,) = document["tiers"]
    good = planned.code == DOES_NOT_FIT and not document["fits"] and tier["tier"] == "host"
    good = good and tier["budget_bytes"] == 65536 and tier["missing_bytes"] > 0
    good = good and len(document["largest"]) > 0
    world.report.check("a budget too small: --json says what is missing", good, planned)
    lines = [way["line"].replace('"', "") for way in document["ways"]]
    told = [" ".join(words).replace('"', "") for words in harness.set_lines(outcome.err)]
    world.report.equal("and the lines that the error gives", lines, told)
    separate = {"tiers": {"host_memory": "64KiB", "device_memory": "64KiB"}}
    path = world.config("budget", separate)
    outcome = world.fails("two budgets too small", DOES_NOT_FIT, "plan", path, says=["--set"])
    words = harness.set_arguments(outcome.err)
    trained = world.headrace.run("train", path, *words)
    fact = f"two budgets too small: {' '.join(words)} mends them"
    world.report.check(fact, words and trained.code == harness.OK, trained)


@case("every way out of a budget")
def ways_out(world):
    """Each line that a refusal gives is planned by itself. A wide step, so that there are many."""
    wide = {
        "model": {"hidden": 256, "heads": 4, "layers": 4, "max_seq_len": 128},
        "batch": {"micro_batch": 8, "seq_len": 128, "traversal": "layer-major"},
    }
    seen = set()
    for fact, tiers in (
        ("tight", {"host_memory": "17MiB"}),
        ("all on the host", {"host_memory": "60MiB", "place": "host"}),
        ("a small device", {"host_memory": "64MiB", "device_memory": "4MiB"}),
        ("next to nothing", {"host_memory": "64KiB", "device_memory": "64KiB"}),
        ("more than there is", {"host_memory": "1MiB", "device_memory": "900TiB"}),
    ):
        path = world.config("ways", {**wide, "tiers": tiers})
        outcome = world.fails(fact, DOES_NOT_FIT, "plan", path, says=["largest items", "--set"])
        for words in harness.set_lines(outcome.err):
            planned = world.headrace.run("plan", path, *words)
            seen |= {word.split("=")[0] for word in words if word != "--set"}
            world.report.check(f"{fact}: {' '.join(words)}", planned.code == harness.OK, planned)
    kinds = {"tiers.host_memory", "tiers.device_memory", "tiers.place", "batch.micro_batch"}
    world.report.check("ways of every kind were seen", kinds <= seen, seen)
    path = world.config("ways", {"tiers": {"host_memory": "64KiB"}, "run": {"dir": world.good}})
    under_way = world.fails("a run that is under way", DOES_NOT_FIT, "plan", path, says=["--set"])
    numbers = "changes the numbers" in under_way.err
    world.report.check("a run that is under way keeps its numbers", not numbers, under_way)


@case("a GPU that cannot train")
def gpu(world):
    """What is said depends on the binary and the machine: doctor tells both."""
    facts = must(world.headrace.run("doctor", "--json", "--nvml", "off")).json()["gpu"]
    if not facts["cuda"]:
        code, says = USAGE, "built without CUDA"
    elif not facts["devices"]:
        code, says = HARDWARE_ABSENT, "no NVIDIA driver" if facts["driver"] is None else "GPU"
    else:
        code, says = USAGE, "no CUDA kernels"
    path = world.config("gpu", {"tiers": {"device": "cuda:0"}})
    line = path.read_text().splitlines().index('device = "cuda:0"') + 1
    says = [says, 'tiers.device = "cpu"', f"gpu.toml:{line}:"]
    for command in ("train", "plan", "eval"):
        world.fails(f"{command} on cuda:0", code, command, path, says=says)
    beyond = USAGE if not facts["cuda"] else HARDWARE_ABSENT
    words = ["plan", world.good_config, "--set", "tiers.device=cuda:99"]
    world.fails("a GPU beyond all", beyond, *words, says=["cuda:99", "--set tiers.device"])
    for device, hint in (("gpu", '"cuda:0"'), ("cuda:x", '"cuda:99"'), ("cuda:100", '"cuda:99"')):
        path = world.config("gpu", {"tiers": {"device": device}})
        says = [device, hint, f"gpu.toml:{line}:"]
        world.fails(f"the device {device}", USAGE, "train", path, says=says)


if __name__ == "__main__":
    run_cases("errors_config")
