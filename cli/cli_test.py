"""The command line: what it says, what it writes, and how it ends.

    python3 cli_test.py BINARY [CASE ...]

A table of cases over one small committed run. Numbers of a run are tested elsewhere (tests/).
"""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import harness
from harness import HARDWARE_ABSENT, INTERRUPTED, OK, OPERATING, USAGE, must

COMMANDS = ["train", "plan", "bench", "eval", "generate", "tokenize", "export", "store", "inspect",
            "verify", "doctor"]
STEPS = 6
CASES = []


def case(function):
    CASES.append(function)
    return function


class World:
    """A folder with a run of six steps that has a commit."""

    def __init__(self, report, headrace, folder):
        self.report, self.headrace, self.folder = report, headrace, folder
        self.text = folder / "corpus.txt"
        self.text.write_text("".join(f"line {i} of the race, {i * i % 13}\n" for i in range(400)))
        self.run_dir = folder / "run"
        self.config = self.write("run", {})
        must(headrace.run("train", self.config))

    def write(self, name, changes):
        sections = {
            "run": {"dir": self.folder / name, "steps": STEPS},
            "model": {"arch": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "max_seq_len": 64},
            "data": {"train": [self.text], "tokenizer": "bytes"},
            "batch": {"micro_batch": 2, "seq_len": 32},
            "tiers": {"direct_io": "auto"},
        }
        for section, keys in changes.items():
            sections[section] = {**sections.get(section, {}), **keys}
        return harness.write_toml(self.folder / f"{name}.toml", sections)

    def run(self, *words):
        return self.headrace.run(*words)

    def fails(self, fact, code, *words, says=()):
        outcome = self.run(*words)
        problems = harness.error_problems(outcome, code)
        problems += "".join(f"\n'{word}' is not named" for word in says if word not in outcome.err)
        self.report.check(f"{fact}: exit {code}", not problems, f"{problems}\n{outcome}")


def options_of(help_text):
    return sorted(set(re.findall(r"^\s+(--[a-z0-9-]+)", help_text, re.MULTILINE)))


# ---- what it says about itself ----


@case
def help_and_version(world):
    for words in ([], ["--help"]):
        told = world.run(*words)
        good = told.code == OK and all(f"\n  {name} " in told.out for name in COMMANDS)
        world.report.check(f"headrace {' '.join(words)} lists the commands", good, told)
        first = "headrace plan" in told.out and "headrace train" in told.out
        world.report.check("and the first two to try", first, told)
    version = world.run("--version")
    good = re.fullmatch(r"headrace \d+\.\d+\.\d+\n", version.out)
    world.report.check("--version", version.code == OK and good, version)
    world.fails("an unknown command", USAGE, "measure", says=COMMANDS)


@case
def help_of_commands(world):
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(re.findall(r"^## headrace (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    common = {"--help", "--json", "--output", "--verbose"}
    world.report.equal("docs/cli.md has every command", sorted(sections), sorted(COMMANDS))
    for name in COMMANDS:
        told = must(world.run(name, "--help"))
        options = set(options_of(told.out))
        world.report.check(f"{name} --help lists the common options", common <= options, told)
        documented = set(re.findall(r"^\| `(--[a-z0-9-]+)", sections.get(name, ""), re.M))
        world.report.equal(f"{name}: docs/cli.md has its options", documented, options - common)


@case
def bad_arguments(world):
    model = ["--model", world.run_dir]
    world.fails("an unknown option", USAGE, "plan", world.config, "--fast", says=["--fast"])
    world.fails("a short option", USAGE, "plan", world.config, "-v")
    world.fails("a file too many", USAGE, "plan", world.config, world.config)
    world.fails("a choice that is none", USAGE, "train", world.config, "--resume", "maybe")
    words = ["train", world.config, "--resume", "required", "--overwrite"]
    world.fails("a contradiction", USAGE, *words, says=["--overwrite"])
    world.fails("no prompt", USAGE, "generate", *model, says=["--prompt"])
    world.fails("an empty prompt", USAGE, "generate", *model, "--prompt", "", says=["prompt"])
    for option, value in (
        ("--tokens", "-1"),
        ("--tokens", "3x"),
        ("--temperature", "nan"),
        ("--top-k", "0"),
        ("--top-p", "1.5"),
        ("--seed", "1.5"),
    ):
        words = ["generate", *model, "--prompt", "a", option, value]
        world.fails(f"{option} {value}", USAGE, *words, says=[option])
    world.fails("eval of nothing", USAGE, "eval", says=["RUN.toml"])
    world.fails("eval without data", USAGE, "eval", *model, says=["--data", "--seq-len"])
    words = ["eval", *model, "--data", world.text, "--seq-len", "65"]
    world.fails("longer than the model's longest", USAGE, *words, says=["65", "64"])
    world.fails("store without a folder", USAGE, "store", "list", says=["--store"])
    world.fails("an unknown action", USAGE, "store", "paint", says=["list", "remove"])
    place = ["--store", world.run_dir / "store"]
    q8 = ["--state", "q8"]
    words = ["store", "remove", *place]
    world.fails("remove without an id", USAGE, *words, says=["ID"])
    kept = harness.fingerprint(world.folder)
    for fact, extra, names in (
        ("a conversion into a folder", ["convert", world.run_dir, "elsewhere", *q8], "elsewhere"),
        ("a conversion with --store", ["convert", world.run_dir, *q8, *place], "--store"),
        ("a removal of two", ["remove", "0" * 32, "1" * 32, *place], "1" * 32),
        ("a copy with --state", ["copy", world.run_dir, "elsewhere", *q8], "--state"),
        ("a list of one", ["list", "0" * 32, *place], "0" * 32),
    ):
        world.fails(f"{fact}, not ignored in part", USAGE, "store", *extra, says=["take", names])
    changed = harness.changes(kept, harness.fingerprint(world.folder))
    world.report.check("and nothing is done", not changed, changed)
    world.fails("a dtype that is none", USAGE, "export", world.run_dir, "o", "--dtype", "f8")


# ---- results ----


def result_words(world):
    """One call of every command that succeeds."""
    model = ["--model", world.run_dir]
    return {
        "train, complete": ["train", world.config],
        "train": ["train", world.write("json", {})],
        "plan": ["plan", world.config],
        "eval of a run": ["eval", world.config],
        "eval of a directory": ["eval", *model, "--data", world.text, "--seq-len", "16"],
        "generate": ["generate", *model, "--prompt", "line ", "--tokens", "5"],
        "export": ["export", world.run_dir, world.folder / "hf"],
        "store list": ["store", "list", "--store", world.run_dir / "store"],
        "inspect of a run": ["inspect", world.run_dir],
        "inspect of a store": ["inspect", next((world.run_dir / "store").iterdir())],
        "verify of a run": ["verify", world.run_dir],
        "doctor": ["doctor", world.folder],
        "verify of a store": ["verify", next((world.run_dir / "store").iterdir())],
    }


@case
def json_results(world):
    for fact, words in result_words(world).items():
        told = world.run(*words, "--json")
        try:
            document = json.loads(told.out)
        except json.JSONDecodeError as error:
            world.report.check(f"{fact} --json is one document", False, f"{error}\n{told}")
            continue
        numbers = json.dumps(document)
        good = told.code == OK and isinstance(document, dict) and document
        world.report.check(f"{fact} --json is one document", good, told)
        strings = re.findall(r'": "-?\d+(\.\d+)?"', numbers)
        world.report.check(f"{fact} --json has numbers as numbers", not strings, strings)
    trained = world.run("train", world.config, "--json").json()
    world.report.equal("a complete run says so", trained["status"], "complete")


@case
def output_file(world):
    target = world.folder / "result"
    for fact, words in result_words(world).items():
        if fact == "train":
            words = ["train", world.write("output", {})]
        told = world.run(*words, "--output", target)
        good = told.code == OK and not told.out and target.stat().st_size > 0
        world.report.check(f"{fact} --output writes there, and only there", good, told)
        target.unlink()
    words = ["plan", world.config, "--output", world.folder / "no" / "where"]
    world.fails("--output that cannot be", OPERATING, *words, says=["no/where"])


@case
def step_lines(world):
    told = must(world.run("train", world.write("lines", {"log": {"every": 2}})))
    lines = told.out.splitlines()
    steps = [int(re.match(r"step\s+(\d+)/6 \| loss ", line).group(1)) for line in lines]
    world.report.equal("stdout is the step lines, each log.every steps", steps, [2, 4, 6])
    last = harness.last_step(world.folder / "lines" / "metrics.jsonl")
    world.report.equal("metrics have every step", last, STEPS)
    words = ("| optim.lr ", "| parameters ", "memory", "predicted")
    table = all(word in told.err for word in words)
    world.report.check("stderr begins with every setting and the plan", table, told)
    world.report.check("and has no progress where it is no terminal", "\r" not in told.err, told)


@case
def progress_on_a_terminal(world):
    config = world.write("terminal", {"run": {"steps": 40}})
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [world.headrace.binary, "train", str(config)],
        env=world.headrace.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    out = process.communicate()[0]
    os.close(controller)
    world.report.check("on a terminal, progress is redrawn", b"\r\x1b[Kstep " in shown, shown)
    world.report.check("and stays out of stdout", "\r" not in out and "step 40/40" in out, out)


# ---- commands ----


@case
def doctor(world):
    before = harness.fingerprint(world.folder)
    told = must(world.run("doctor", world.folder, world.config))
    lines = told.out.splitlines()
    for name in ("cpu", "memory", "huge pages", "io_uring", "profile", "gpu", "folder", "run"):
        found = [line for line in lines if line.startswith(f"{name} ")]
        world.report.check(f"doctor tells of {name}", found, told)
    says = "training       nothing here stops it on the CPU; on a GPU it is not in this version"
    world.report.equal("and that a GPU trains nothing yet", lines[-1], says)
    facts = must(world.run("doctor", "--json", world.folder, world.config)).json()
    run_dirs = [run["dir"] for run in facts["runs"]]
    world.report.equal("doctor --json has the run", run_dirs, [str(world.run_dir)])
    places = [(folder["path"], folder["stores"]) for folder in facts["folders"]]
    stores = [(str(world.folder), 0), (str(world.run_dir / "store"), 1)]
    world.report.equal("and each folder with its stores", places, stores)
    world.report.equal("and no error", facts["can_train"], True)
    gone = world.run("doctor", world.folder / "no" / "where", "--json")
    what = gone.json()["problems"][-1]
    good = gone.code == OPERATING and what["stops_training"] and "no folder" in what["what"]
    world.report.check("a folder that cannot be is an error of the machine, exit 1", good, gone)
    world.fails("doctor of a RUN.toml with an error", USAGE, "doctor", world.text)
    absent = world.folder / "runn.toml"
    world.fails("doctor of a RUN.toml not there", USAGE, "doctor", absent, says=[str(absent)])
    later = must(world.run("doctor", world.folder / "later", "--json")).json()["folders"][0]
    members = [sorted(folder) for folder in (later, gone.json()["folders"][0])]
    world.report.equal("every folder has all members", members, 2 * [sorted(facts["folders"][0])])
    nothing = (later["exists"], later["stores"], later["stores_in_use"])
    world.report.equal("null where there is nothing to tell", nothing, (False, None, None))
    changed = harness.changes(before, harness.fingerprint(world.folder))
    world.report.check("doctor leaves everything as it was", not changed, changed)


@case
def gpu_of_the_doctor(world):
    told = must(world.run("doctor"))
    gpu = must(world.run("doctor", "--json", "--nvml", "off")).json()["gpu"]
    lines = [line for line in told.out.splitlines() if line.startswith("gpu ")]
    world.report.equal("a line tells of the GPU", len(lines), 1)
    world.report.equal("which trains nothing", gpu["trains"], False)
    if not gpu["cuda"]:
        world.report.check("a binary without CUDA says so", "without CUDA" in lines[0], told)
        world.fails("and cannot ask NVML", USAGE, "doctor", "--nvml", "on", says=["without CUDA"])
    elif gpu["driver"] is None:
        expected = f"none: {gpu['runtime']} in this binary, no NVIDIA driver on this machine"
        world.report.equal("a machine without driver", lines[0].split(maxsplit=1)[1], expected)
        world.fails("NVML without driver", HARDWARE_ABSENT, "doctor", "--nvml", "on", says=["nvml"])
    else:
        world.report.check("each GPU has its name", all(g["name"] for g in gpu["devices"]), gpu)


@case
def no_gpu_unless_asked_for(world):
    """The loader tells every library that is looked for; the driver's is libcuda.so."""
    environment = {**world.headrace.environment, "LD_DEBUG": "files", "OMP_WAIT_POLICY": "passive"}

    def looked_for(*words):
        told = world.headrace.run(*words, environment=environment)
        if "calling init" not in told.err:
            world.report.skip("what the loader does", "it does not tell")
            return None
        return "libcuda.so" in told.err

    words = {"--version": ["--version"], **result_words(world)}
    del words["doctor"]
    for fact, command in words.items():
        if fact == "export":
            command = [*command, "--overwrite"]
        found = looked_for(*command)
        if found is None:
            return
        world.report.check(f"{fact} does not look for a driver", not found, command)
    if must(world.run("doctor", "--json")).json()["gpu"]["cuda"]:
        world.report.check("doctor does", looked_for("doctor"))


@case
def resolved_config(world):
    resolved = world.run_dir / "config.resolved.toml"
    told = world.run("train", resolved)
    said = f"complete at step {STEPS}; raise run.steps"
    same = told.code == OK and said in told.out
    world.report.check("config.resolved.toml is the run", same, told)
    told = must(world.run("plan", resolved, "--set", "run.compute_threads=1"))
    del told
    told = world.run("train", resolved, "--set", "run.compute_threads=1000")
    differs = told.code == USAGE and "run.compute_threads" in told.err
    world.report.check("and compute_threads are recorded in it", differs, told)


@case
def evaluations(world):
    changes = {"eval": {"fraction": 0.25, "every": 3, "batches": 4}}
    config = world.write("evaluated", changes)
    must(world.run("train", config))
    rows = harness.read_metrics(world.folder / "evaluated" / "metrics.jsonl")
    having = [int(row["step"]) for row in rows if "eval" in row]
    world.report.equal("eval.every 3: rows 3 and 6 have an evaluation", having, [3, 6])
    told = must(world.run("eval", config, "--json")).json()
    last = json.loads((world.folder / "evaluated" / "metrics.jsonl").read_text().splitlines()[-1])
    same = told["loss"] == last["eval"]["loss"] and told["tokens"] == last["eval"]["tokens"]
    world.report.check("headrace eval of the commit gives the same loss", same, (told, last))
    fresh = world.write("fresh", {})
    world.fails("eval of a run that has not begun", USAGE, "eval", fresh, says=["no commit"])
    world.report.check("and makes nothing", not (world.folder / "fresh").exists())


@case
def generation(world):
    words = ["generate", "--model", world.run_dir, "--prompt", "line 1", "--tokens", "20"]
    first, again = must(world.run(*words, "--json")), must(world.run(*words, "--json"))
    world.report.equal("a seed gives one text", first.json(), again.json())
    other = must(world.run(*words, "--json", "--seed", "2"))
    world.report.check("another seed another", other.json()["text"] != first.json()["text"])
    greedy = [*words, "--temperature", "0", "--json"]
    one, two = must(world.run(*greedy)).json(), must(world.run(*greedy, "--seed", "9")).json()
    world.report.equal("at temperature 0 the seed does not matter", one["text"], two["text"])
    exported = world.folder / "for-generation"
    must(world.run("export", world.run_dir, exported))
    words[2] = exported
    told = must(world.run(*words, "--json")).json()
    world.report.equal("the export generates the same", told["text"], first.json()["text"])
    words = ["generate", "--model", world.run_dir, "--prompt", "x" * 100, "--tokens", "3", "--json"]
    told = must(world.run(*words)).json()
    world.report.equal("a prompt longer than the window slides through it", told["tokens"], 3)
    none = must(world.run("generate", "--model", world.run_dir, "--prompt", "abc", "--tokens", "0"))
    world.report.equal("no tokens is the prompt", none.out, "abc\n")


@case
def exports(world):
    for dtype, name, bytes_ in (("f32", "F32", 4), ("bf16", "BF16", 2), ("f16", "F16", 2)):
        target = world.folder / f"export-{dtype}"
        told = must(world.run("export", world.run_dir, target, "--dtype", dtype, "--json")).json()
        tensors = harness.read_safetensors(target / "model.safetensors")
        dtypes = {tensor.dtype for tensor in tensors.values()}
        world.report.equal(f"export as {dtype}", dtypes, {name})
        size = sum(len(tensor.data) for tensor in tensors.values())
        world.report.equal(f"of {told['parameters']} parameters", size, told["parameters"] * bytes_)
    world.fails("export of a model directory", USAGE, "export", target, world.folder / "again")
    config = world.write("from-export", {})
    text = config.read_text()
    begin = harness.write_toml(
        config,
        {
            "run": {"dir": world.folder / "tuned", "steps": 1},
            "model": {"path": world.folder / "export-f32"},
        },
    ).read_text()
    config.write_text(f"{begin}\n{text[text.index('[data]') :]}")
    must(world.run("train", config))
    first = float(harness.read_metrics(world.folder / "tuned" / "metrics.jsonl")[0]["loss"])
    begun = float(harness.read_metrics(world.run_dir / "metrics.jsonl")[0]["loss"])
    world.report.check("training goes on from an export", first < begun, (first, begun))


@case
def stores(world):
    config = world.write("stored", {"tiers": {"nvme": [world.folder / "nvme"]}})
    must(world.run("train", config))
    listed = must(world.run("store", "list", "--store", world.folder / "nvme", "--json")).json()
    (store,) = listed["stores"]
    facts = (store["step"], store["dirty"], store["locked"], store["run_dir"])
    expected = (STEPS, False, False, str(world.folder / "stored"))
    world.report.equal("store list tells step, state and run", facts, expected)
    words = ["store", "remove", store["id"], "--store", world.folder / "nvme"]
    must(world.run(*words))
    world.report.equal("store remove removes it", list((world.folder / "nvme").iterdir()), [])
    world.fails("a second time", USAGE, *words, says=[store["id"]])
    world.fails("its run is not resumed", OPERATING, "train", config, says=[store["id"]])


@case
def machine_profiles(world):
    cache = pathlib.Path(world.headrace.environment["XDG_CACHE_HOME"])
    text = (cache / "headrace" / "machine.toml").read_text()
    mine = world.folder / "machine.toml"
    mine.write_text(re.sub(r'cpu = "', 'cpu = "Another ', text))
    told = world.run("plan", world.config, "--machine", mine)
    warned = told.code == OK and "another machine" in told.err
    world.report.check("a profile of another machine: planned with a warning", warned, told)
    mine.write_text(re.sub(r"memory_bytes = \d+", "memory_bytes = 40000000", text))
    told = world.run("plan", world.config, "--machine", mine)
    refused = told.code == harness.DOES_NOT_FIT
    world.report.check("a profile of 40 MB of memory: it does not fit there", refused, told)
    words = ["plan", world.config, "--machine", mine]
    later = (
        r"^(adamw_bf16|adamw_q8|decode_q8|gemm_(rows|forward|input|weight)|attention|operation_s"
        r"|collect|\w+_elements_per_s|nvme_mixed_(reads|writes)|\w+_beside).*\n"
    )
    older = re.sub(r"schema = \d+", "schema = 3", re.sub(later, "", text, flags=re.MULTILINE))
    mine.write_text(older)
    for state, notes in (("fp32", 1), ("bf16", 2), ("q8", 3)):
        told = world.run(*words, "--set", f'optim.state="{state}"', "--json")
        said = [note for note in must(told).json()["notes"] if "the machine profile" in note]
        fact = f"an older profile is planned with in state {state}, and what it lacks is said"
        world.report.equal(fact, len(said), notes)
    mine.write_text(text + "speed = 3\n")
    world.fails("an unknown key of a profile", USAGE, *words, says=["speed", "machine.toml:"])
    own = harness.Headrace(world.headrace.binary)
    own.environment["XDG_CACHE_HOME"] = str(world.folder / "own-cache")
    cache = world.folder / "own-cache" / "headrace" / "machine.toml"
    cache.parent.mkdir(parents=True)
    cache.write_text("cpu = 3\n")
    told = own.run("plan", world.config)
    schema = re.search(r"schema = \d+", text).group()
    mended = told.code == OK and "measuring again" in told.err and schema in cache.read_text()
    world.report.check("a broken cache is measured again", mended, told)
    cache.write_text(older)
    told = own.run("doctor", "--json")
    matches = told.json()["profile"]["matches"]
    world.report.check("doctor does not count a profile of an older schema", not matches, told)
    told = own.run("plan", world.config)
    mended = told.code == OK and "measuring again" in told.err and schema in cache.read_text()
    world.report.check("so is one of an older schema", mended, told)
    told = own.run("plan", world.config, "--json")
    rate = float(re.search(r"adamw_fp32_params_per_s = ([0-9.e+]+)", cache.read_text()).group(1))
    priced = told.json()["update_rates"]["update_params_per_s"]
    world.report.equal("a plan is priced with the rate of its format", priced, rate)


@case
def plans(world):
    told = must(world.run("plan", world.config))
    for words in ("of a step", "bound ", "stalls ", "tokens/s", "6 steps"):
        world.report.check(f"plan tells '{words}'", words in told.out, told)
    wide = [line for line in told.out.splitlines() if len(line) > 100]
    world.report.equal("and is a hundred columns wide", wide, [])
    document = must(world.run("plan", world.config, "--json", "--tokens", "1.5M")).json()
    step, budget = document["step"], document["token_budget"]
    facts = (step["tokens"], budget["tokens"], budget["steps"])
    world.report.equal("a budget of tokens, in steps", facts, (64, 1500000, 23438))
    seconds = budget["seconds"] / (budget["steps"] * step["seconds"])
    world.report.check("and in seconds", abs(seconds - 1) < 1e-9, document)
    shares = [use["share"] for use in step["resources"]]
    good = shares == sorted(shares, reverse=True) and 0 < step["bound_share"] <= 1.000001
    world.report.check("shares of a step, busiest first", good, step)
    for tokens in ("0", "-1", "10GB", "many", "9999999T"):
        words = ["plan", world.config, "--tokens", tokens]
        world.fails(f"--tokens {tokens}", USAGE, *words)


@case
def what_ifs(world):
    words = ["plan", world.config, "--what-if", "gemm=1000x"]
    told = must(world.run(*words))
    shown = all(word in told.out for word in ("today", "then", "tokens/s", "of bound", "gain"))
    world.report.check("plan --what-if shows two plans", shown, told)
    document = must(world.run(*words, "--what-if", "update=1000x", "--json")).json()["what_if"]
    names = [change["name"] for change in document["changes"]]
    world.report.equal("--what-if may be repeated", names, ["gemm", "update"])
    faster = document["then"]["seconds"] < document["today"]["seconds"]
    gain = document["then"]["tokens_per_s"] / document["today"]["tokens_per_s"] - 1
    good = faster and abs(document["gain"] - gain) < 1e-9
    world.report.check("and says what is gained", good, document)
    for text, says in (
        ("nvme.raed=2x", ["nvme.read", "device_memory"]),
        ("gemm", ["="]),
        ("gemm=fast", ["gemm", "TFLOPS"]),
        ("nvme.read=12GB", ["GB/s"]),
        ("h2d=2x", ["shares"]),
    ):
        fact = f"--what-if {text}"
        world.fails(fact, USAGE, "plan", world.config, "--what-if", text, says=says)
    words = ["plan", world.config, "--what-if", "host_memory=64KiB"]
    world.fails("--what-if too small", harness.DOES_NOT_FIT, *words, says=["--set"])


@case
def explanations(world):
    words = ["plan", world.config, "--set", "tiers.place=nvme", "--explain"]
    told = must(world.run(*words, "block.1"))
    shown = all(word in told.out for word in ("block.1", "why ", "read state", "update", "waits "))
    world.report.check("plan --explain tells of a unit", shown, told)
    document = must(world.run(*words, "block.1", "--json")).json()["explain"]
    things = {(thing["what"], thing["where"]) for thing in document["things"]}
    known = {("state", "nvme"), ("gradients", "host")} <= things
    world.report.check("and where its things are", known, things)
    world.fails("--explain of no unit", USAGE, *words, "block.2", says=["block.0 to block.1"])
    words = [*words, "head", "--what-if", "gemm=2x"]
    world.fails("--explain and --what-if", USAGE, *words, says=["--explain"])


@case
def searches(world):
    tight = ["--set", "tiers.host_memory=2MiB", "--set", "batch.accumulate=2"]
    words = ["plan", world.write("search", {"tiers": {"place": "nvme"}}), *tight]
    told = must(world.run(*words, "--search"))
    world.report.check("plan --search ranks what it tried", "best  " in told.out, told)
    lines = [line for line in told.out.splitlines() if "--set" not in line]
    wide = [line for line in lines if len(line) > 100]
    world.report.equal("in a hundred columns", wide, [])
    document = must(world.run(*words, "--search", "--json")).json()
    ranked = document["candidates"]
    speeds = [one["step"]["tokens_per_s"] for one in ranked]
    good = speeds == sorted(speeds, reverse=True) and len(ranked) > 2
    world.report.check("fastest first", good, speeds)
    same_tokens = {one["step"]["tokens"] for one in ranked}
    world.report.equal("a step has as many tokens", same_tokens, {128})
    for one in ranked:
        sets = [word for text in one["sets"] for word in ("--set", text)]
        planned = must(world.run(*words, *sets, "--json")).json()
        facts = (planned["step"]["seconds"], planned["traversal"], planned["state"])
        found = (one["step"]["seconds"], one["traversal"], one["state"])
        world.report.equal(f"{one['sets']} plans as it was found", facts, found)
        numbers = any(text.split("=")[0] in ("optim.state", "batch.micro_batch")
                      for text in one["sets"])
        world.report.equal("and says whether it changes numbers", one["changes_numbers"], numbers)
    more = must(world.run(*words, "--search", "--tokens-per-step", "256", "--json")).json()
    tokens = {one["step"]["tokens"] for one in more["candidates"] if one["changes_numbers"]}
    world.report.equal("--tokens-per-step is kept", tokens, {256})
    world.fails("no multiple", USAGE, *words, "--search", "--tokens-per-step", "100", says=["96"])
    world.fails("without --search", USAGE, *words, "--tokens-per-step", "64", says=["--search"])
    # Of a machine that has less than any run takes, whatever its budgets.
    cache = pathlib.Path(world.headrace.environment["XDG_CACHE_HOME"])
    text = (cache / "headrace" / "machine.toml").read_text()
    small = world.folder / "small.toml"
    small.write_text(re.sub(r"memory_bytes = \d+", "memory_bytes = 8388608", text, count=1))
    world.fails("nothing that fits the machine", harness.DOES_NOT_FIT, *words, "--machine", small,
                "--search", says=["are available"])
    stored = world.run("plan", world.config, "--set", "batch.traversal=layer-major", "--search",
                       "--json").json()
    numbers = [one["changes_numbers"] for one in stored["candidates"]]
    world.report.equal("a run under way keeps its numbers", numbers, [False, False])
    words = ["plan", world.write("none", {}), "--set", "tiers.host_memory=64KiB", "--search"]
    world.fails("a search without a find", harness.DOES_NOT_FIT, *words, says=["--set"])


# ---- endings ----


LINE_KEYS = "part name folder beside unit median p5 p95 n share_of_alone skipped".split()


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@case
def benchmark(world):
    store = world.folder / "bench-store"
    store.mkdir()
    saved = world.folder / "bench.toml"
    words = ["bench", "--quick", "--only", "nvme,gemm,together", "--store", store]
    told = must(world.run(*words, "--save-profile", saved, "--json"))
    found = told.json()
    lines = found["lines"]
    keys = all(list(line) == LINE_KEYS for line in lines)
    world.report.check("every line of the benchmark has the same keys", keys, told)
    measured = [line for line in lines if not line["skipped"]]
    numbers = all(
        is_number(line[key]) and line[key] > 0
        for line in measured
        for key in ("median", "p5", "p95", "n")
    )
    world.report.check("rates are numbers", measured and numbers, told)
    ordered = all(line["p5"] <= line["median"] <= line["p95"] for line in measured)
    world.report.check("the median lies between its percentiles", ordered, told)
    parts = {line["part"] for line in lines}
    world.report.equal("only what was asked for", parts, {"nvme", "gemm", "together"})
    shares = [line["share_of_alone"] for line in lines if line["beside"]]
    shared = bool(shares) and all(is_number(share) and 0 < share <= 1 for share in shares)
    world.report.check("what runs beside something has a share of its rate alone", shared, told)
    world.report.check("without the optimizer there is no verdict", not found["verdict"]["slowest"])
    world.report.equal("nothing is left in the folder", list(store.iterdir()), [])
    gemm = next(line["median"] for line in lines if line["part"] == "gemm")
    kept = float(re.search(r"gemm_fp32_flops_per_s = (\S+)", saved.read_text()).group(1))
    world.report.equal("the profile has the rate that was measured", kept, gemm)
    planned = must(world.run("plan", world.config, "--machine", saved, "--json"))
    said = [note for note in planned.json()["notes"] if "the machine profile" in note]
    world.report.equal("the profile lacks nothing that a plan is priced with", said, [])
    world.fails("an unknown part", USAGE, "bench", "--only", "gemm,disk", says=["disk", "nvme"])
    missing = world.folder / "missing"
    words = ["bench", "--store", missing]
    world.fails("a store that is not there", OPERATING, *words, says=["missing"])
    memory = pathlib.Path("/dev/shm")
    if memory.is_dir():
        told = must(world.run("bench", "--quick", "--only", "nvme", "--store", memory, "--json"))
        reasons = [line["skipped"] for line in told.json()["lines"]]
        world.report.check("a folder in memory is skipped with the reason", all(reasons), told)
    process = world.headrace.start("bench", "--only", "nvme", "--store", store)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=harness.TIMEOUT_S)
    world.report.equal("an interrupted benchmark", process.returncode, INTERRUPTED)
    world.report.equal("leaves nothing", list(store.iterdir()), [])


@case
def skipped_steps(world):
    changes = {
        "run": {"steps": 60},
        "optim": {"lr": 1e6, "lr_schedule": "constant", "clip": 0.0},
    }
    told = world.run("train", world.write("blown", changes))
    without_lines = harness.Outcome(told.words, told.code, "", told.err)
    problems = harness.error_problems(without_lines, OPERATING)
    world.report.check("20 skipped steps in a row: exit 1", not problems, f"{problems}\n{told}")
    lines = (world.folder / "blown" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    skipped = [row for row in rows if row["skipped"]]
    fact = f"{len(skipped)} of {len(rows)} rows are skipped, the last 20 of them"
    world.report.check(fact, len(skipped) >= 20 and all(row["skipped"] for row in rows[-20:]))
    named = all(row["skipped"]["count"] > 0 and row["skipped"]["tensor"] for row in skipped)
    world.report.check("each names a tensor and a count", named, skipped[:1])
    world.report.check("and lines say so", "skipped: NaN or Inf" in told.out, told)
    state = must(world.run("inspect", world.folder / "blown", "--json")).json()["commit"]
    counts = (state["step"], state["update_count"])
    expected = (len(rows), len(rows) - len(skipped))
    world.report.equal("the commit counts steps and updates apart", counts, expected)


@case
def readers_that_go_away(world):
    words = ["generate", "--model", world.run_dir, "--prompt", "line", "--tokens", "100000"]
    process = world.headrace.start(*words)
    process.stdout.buffer.read(10)
    process.stdout.close()
    code = process.wait(timeout=harness.TIMEOUT_S)
    said = process.stderr.read()
    process.stderr.close()
    world.report.check("generate ends when nobody reads", code == OK and not said, (code, said))
    config = world.write("unread", {"run": {"steps": 200}})
    process = world.headrace.start("train", config)
    process.stdout.readline()
    process.stdout.close()
    process.stderr.read()
    code = process.wait(timeout=harness.TIMEOUT_S)
    process.stderr.close()
    last = harness.last_step(world.folder / "unread" / "metrics.jsonl")
    world.report.equal("train goes on to its end", (code, last), (OK, 200))


@case
def interrupts(world):
    words = ["generate", "--model", world.run_dir, "--prompt", "line", "--tokens", "1000000"]
    process = world.headrace.start(*words)
    process.stdout.buffer.read(10)
    process.send_signal(signal.SIGINT)
    while process.stdout.buffer.read(65536):
        pass
    process.wait(timeout=harness.TIMEOUT_S)
    process.stdout.close()
    process.stderr.close()
    world.report.equal("an interrupted generate", process.returncode, INTERRUPTED)
    config = world.write("stopped", {"run": {"steps": 1000000}})
    metrics = world.folder / "stopped" / "metrics.jsonl"
    told = harness.stop_at(world.headrace, ["train", config, "--json"], metrics, 3)
    world.report.equal("an interrupted train", told.code, INTERRUPTED)
    told_steps = told.json()
    facts = (told_steps["status"], told_steps["step"])
    world.report.equal("tells where", facts, ("interrupted", harness.last_step(metrics)))
    # The end of a terminal, as of an ssh session.
    step = harness.last_step(metrics) + 3
    words = ["train", config, "--json"]
    told = harness.stop_at(world.headrace, words, metrics, step, signal.SIGHUP)
    world.report.equal("train whose terminal goes away", told.code, INTERRUPTED)
    step = must(world.run("inspect", world.folder / "stopped", "--json")).json()["commit"]["step"]
    world.report.equal("commits its last step", step, harness.last_step(metrics))


def main():
    report = harness.Report("cli")
    chosen = sys.argv[2:]
    begin = time.monotonic()
    with harness.scratch(report, "cli") as folder:
        world = World(report, harness.Headrace(sys.argv[1]), folder)
        for function in CASES:
            if not chosen or function.__name__ in chosen:
                print(f"---- {function.__name__}, at {time.monotonic() - begin:.1f} s", flush=True)
                function(world)
    report.finish()


if __name__ == "__main__":
    main()
