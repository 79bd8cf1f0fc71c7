"""Instruction data: tokens and masks of `tokenize --chat`; training, evaluation, resumes on them.

python3 chat_test.py BINARY CASES TOKENIZERS    train/testdata/chat, model/testdata/tokenizers

With the Python packages transformers and trl, conversations made from a seed are compared as well.
"""

import gzip
import importlib.util
import json
import pathlib
import shlex
import shutil
import struct
import sys

import harness
from harness import CORRUPT, USAGE, must

LEARNED = 1 << 31


def read_chat(path):
    """Examples of a chat file: (token, learned) each."""
    content = path.read_bytes()
    magic, version, tokens, examples = struct.unpack_from("<2i2q", content)
    assert (magic, version) == (20261201, 1) and not any(content[24:1024])
    words = struct.unpack_from(f"<{tokens}I", content, 1024)
    ends = struct.unpack_from(f"<{examples}Q", content, 1024 + 4 * tokens)
    assert len(content) == 1024 + 4 * tokens + 8 * examples
    return [[(word % LEARNED, word >= LEARNED) for word in words[begin:end]]
            for begin, end in zip((0, *ends), ends)]


def chat_bytes(examples):
    words = [token + LEARNED * learned for example in examples for token, learned in example]
    ends = [sum(map(len, examples[:number + 1])) for number in range(len(examples))]
    head = struct.pack("<2i2q", 20261201, 1, len(words), len(ends))
    return (head.ljust(1024, b"\0") + struct.pack(f"<{len(words)}I", *words)
            + struct.pack(f"<{len(ends)}Q", *ends))


def expected_of(case):
    return [(token, learned == "1") for token, learned in zip(case["ids"], case["learned"])]


class World:
    """Model directories made of the cases, and a folder to work in."""

    def __init__(self, headrace, arguments, folder):
        self.headrace, self.folder = headrace, folder
        self.cases_folder, self.tokenizers = map(pathlib.Path, arguments)
        text = (self.cases_folder / "cases.json").read_text(encoding="utf-8")
        self.groups = json.loads(text)

    def model(self, group):
        """A directory with the tokenizer and the template of a group of cases."""
        made = self.folder / f"model-{group['name']}"
        made.mkdir(exist_ok=True)
        shutil.copy(self.tokenizers / f"{group['tokenizer']}.json", made / "tokenizer.json")
        (made / "tokenizer_config.json").write_text(json.dumps({
            "bos_token": {"content": "<|end|>"}, "eos_token": "<|endoftext|>",
            "chat_template": group["template"]}))
        return made

    def lines(self, name, rows):
        path = self.folder / name
        path.write_text("".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n"
                                for n, row in enumerate(rows)), encoding="utf-8")
        return path

    def run(self, model, *words):
        return self.headrace.run("tokenize", "--chat", "--tokenizer", model, *words)

    def made(self, model, *words):
        target = self.folder / "made.bin"
        must(self.run(model, "--overwrite", "--to", target, *words))
        return read_chat(target)


def check_tokens(report, world):
    for group in world.groups:
        path = world.lines("cases.jsonl", [{"messages": case["messages"], "id": number}
                                           for number, case in enumerate(group["cases"])])
        report.equal(f"{group['name']}: tokens and masks", world.made(world.model(group), path),
                     [expected_of(case) for case in group["cases"]])
        last = world.lines("last.jsonl", [{"prompt": case["messages"][:-1],
                                           "completion": case["messages"][-1:]}
                                          for case in group["cases"]])
        found = world.made(world.model(group), last)
        for case, example in zip(group["cases"], found):
            ids, learned = zip(*example)
            runs = "".join("01"[one] for one in learned).strip("0")
            report.check(f"{group['name']}: of prompt and completion the last turn is learned",
                         list(ids) == case["ids"] and "0" not in runs and runs != ""
                         and case["learned"].rstrip("0").endswith(runs), (case, runs))


def check_files(report, world):
    group = world.groups[1]
    model = world.model(group)
    rows = [{"messages": case["messages"]} for case in group["cases"]] * 300
    path = world.lines("many.jsonl", rows)
    one = world.made(model, "--threads", 1, path)
    report.check("1 and 7 threads, the same file", one == world.made(model, "--threads", 7, path))
    packed = world.folder / "many.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    report.check("gzip", world.made(model, packed) == one)
    plain = world.lines("plain.jsonl", [{"prompt": "the ", "completion": "wheel"},
                                        {"prompt": "<|endoftext|>", "completion": "<|endoftext|>"}])
    tokens = world.made(model, plain)
    report.check("texts: the completion and its end are learned, the end once",
                 [one for _, one in tokens[0]][-2:] == [True, True] and not tokens[0][0][1]
                 and [one for _, one in tokens[1]] == [False, True], tokens)
    report.check("texts without an end", len(world.made(model, "--eos", "none", plain)[0])
                 == len(tokens[0]) - 1)
    outcome = must(world.run(model, "--overwrite", "--to", world.folder / "made.bin", plain,
                             "--json"))
    report.equal("--json", {key: outcome.json()[key] for key in
                            ("format", "examples", "learned", "tokens")},
                 {"format": "chat", "examples": 2, "learned": sum(b for e in tokens for _, b in e),
                  "tokens": sum(map(len, tokens))})


def check_errors(report, world):
    model = world.model(world.groups[1])
    good = {"messages": world.groups[1]["cases"][0]["messages"]}
    other = world.folder / "other"
    shutil.copytree(model, other, dirs_exist_ok=True)
    (other / "chat_template.jinja").write_text("{{ messages }}")
    user = [{"role": "user", "content": "a"}]
    tool = [*user, {"role": "tool", "content": "a"}]
    lines = world.lines
    cases = {
        "no example": (CORRUPT, model, lines("a.jsonl", [good, {"text": "a"}]), "a.jsonl:2"),
        "no JSON": (CORRUPT, model, lines("b.jsonl", [good]), "b.jsonl:2"),
        "nothing to learn": (CORRUPT, model, lines("c.jsonl", [{"messages": user}]), "c.jsonl:1"),
        "a tool": (USAGE, model, lines("d.jsonl", [good, good, {"messages": tool}]), "d.jsonl:3"),
        "tools": (USAGE, model, lines("e.jsonl", [{**good, "tools": [{}]}]), "e.jsonl:1"),
        "another template": (USAGE, other, lines("f.jsonl", [good]), "chat_template.jinja"),
        "no lines": (USAGE, model, lines("g.txt", [good]), "g.txt"),
        "no template": (USAGE, world.tokenizers / "qwen2.json", lines("h.jsonl", [good]),
                        "no chat template"),
    }
    with open(world.folder / "b.jsonl", "a", encoding="utf-8") as file:
        file.write('{"messages": [}')
    before = harness.fingerprint(world.folder)
    for name, (code, tokenizer, path, named) in cases.items():
        outcome = world.run(tokenizer, "--to", world.folder / "new.bin", path)
        report.check(f"{name}: exit {code}, named",
                     outcome.code == code and named in outcome.err and not outcome.out, outcome)
    report.equal("nothing is left", harness.changes(before, harness.fingerprint(world.folder)), "")
    outcome = world.headrace.run("tokenize", "--tokenizer", model, "--to", world.folder / "new.bin",
                                 world.folder / "a.jsonl")
    report.check("without --chat a conversation is told apart",
                 outcome.code == USAGE and "--chat" in outcome.err, outcome)


def run_toml(world, train, name="run", **sections):
    batch = {"micro_batch": 2, "seq_len": 64, **sections.pop("batch", {})}
    run = {"steps": 6, "dir": world.folder / name, **sections.pop("run", {})}
    data = {"train": [train], "tokenizer": world.folder / "model-qwen2", **sections.pop("data", {})}
    return harness.write_toml(world.folder / f"{name}.toml", {
        "run": run, "data": data, "batch": batch,
        "model": {"arch": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "max_seq_len": 256},
        **sections})


def check_training(report, world):
    group = next(group for group in world.groups if group["name"] == "qwen2")
    world.model(group)
    lines = world.lines("train.jsonl", [{"messages": case["messages"]} for case in group["cases"]])
    config = run_toml(world, lines)
    outcome = world.headrace.run("train", config)
    command = [line.split("hint: ")[1] for line in outcome.err.splitlines() if "hint: " in line]
    report.check("train names the command that makes the file",
                 outcome.code == USAGE and "tokenize --chat" in command[0], outcome)
    must(world.headrace.run(*shlex.split(command[0])[1:]))
    chat = f"{lines}.bin"
    for packing in ("none", "wrapped"):
        sections = {"data": {"packing": packing}, "eval": {"fraction": 0.3, "every": 2}}
        whole = run_toml(world, chat, f"whole-{packing}", **sections)
        must(world.headrace.run("train", whole))
        rows = harness.read_metrics(world.folder / f"whole-{packing}/metrics.jsonl")
        report.check(f"packing {packing}: losses are finite and evaluated",
                     all(0 < float(row["loss"]) < 20 for row in rows)
                     and [row["step"] for row in rows if "eval" in row] == ["2", "4", "6"], rows)
        parts = run_toml(world, chat, f"parts-{packing}", run={"steps": 3}, **sections)
        must(world.headrace.run("train", parts, "--set", "optim.lr_schedule=constant"))
        more = ["--set", "run.steps=6", "--set", "optim.lr_schedule=constant"]
        must(world.headrace.run("train", parts, *more))
        must(world.headrace.run("train", whole, "--overwrite", "--resume", "never", *more))
        rows = harness.read_metrics(world.folder / f"whole-{packing}/metrics.jsonl")
        resumed = harness.read_metrics(world.folder / f"parts-{packing}/metrics.jsonl")
        report.equal(f"packing {packing}: a resumed run repeats the bits",
                     harness.first_difference(resumed, rows), "")
        must(world.headrace.run("eval", parts, *more))
    outcome = world.headrace.run("train", parts, "--set", "run.steps=9", "--set",
                                 "data.packing=none")
    report.check("packing makes the numbers", outcome.code == USAGE
                 and "data.packing" in outcome.err, outcome)
    examples = read_chat(pathlib.Path(chat))
    firsts = sorted([learned for _, learned in example].index(True) for example in examples)
    length = firsts[len(firsts) // 2]
    short = run_toml(world, chat, "short", batch={"seq_len": length})
    outcome = must(world.headrace.run("train", short))
    cut = sum(len(example) > length + 1 for example in examples)
    out = sum(first > length for first in firsts)
    report.check("what is cut and left out is said",
                 f"{cut} are longer than" in outcome.err and f"; {out} are left out" in outcome.err,
                 (cut, out, outcome.err))
    outcome = world.headrace.run("train", run_toml(world, chat, "tiny", batch={"seq_len": 1}))
    report.check("too short for any example is refused", outcome.code == USAGE
                 and "raise batch.seq_len" in outcome.err, outcome)


def check_losses(report, world):
    """Of masked targets: the mean of the losses that each target has alone."""
    must(world.headrace.run("export", world.folder / "whole-none", world.folder / "exported"))
    made = harness.seeded_random()

    def loss_of(examples, length=16):
        path = world.folder / "some.bin"
        path.write_bytes(chat_bytes(examples))
        told = must(world.headrace.run("eval", "--model", world.folder / "exported", "--data", path,
                                       "--seq-len", length, "--json")).json()
        return told["loss"], told["tokens"]

    ids = [made.randrange(600) for _ in range(9)]
    alone = [loss_of([[(token, place == at) for place, token in enumerate(ids)]])[0]
             for at in range(1, len(ids))]
    report.check("losses of targets differ", max(alone) - min(alone) > 1e-3, alone)
    for some in ({1}, {2, 3, 8}, {5, 7}, set(range(1, 9))):
        found, count = loss_of([[(token, place in some) for place, token in enumerate(ids)]])
        mean = sum(alone[at - 1] for at in some) / len(some)
        report.check(f"the loss of targets {some} is their mean",
                     abs(found - mean) < 1e-6 * mean and count == len(some), (found, mean))
    short = [(3, False), (4, True)]
    one, weight = loss_of([short])[0], 3
    three = loss_of([[(token, place in {2, 3, 8}) for place, token in enumerate(ids)]])[0]
    both = loss_of([[(token, place in {2, 3, 8}) for place, token in enumerate(ids)], short])[0]
    report.check("examples count by their targets",
                 abs(both - (weight * three + one) / (weight + 1)) < 1e-6 * both,
                 (both, three, one))
    longer = loss_of([[(token, True) for token in ids]], length=40)[0]
    report.check("padding changes nothing", abs(longer - sum(alone) / len(alone)) < 1e-6 * longer)
    plain = world.folder / "plain.bin"
    plain.write_bytes(harness.token_file(ids))
    told = must(world.headrace.run("eval", "--model", world.folder / "exported", "--data", plain,
                                   "--seq-len", 8, "--json")).json()
    report.check("all targets: the loss of a plain token file",
                 abs(told["loss"] - sum(alone) / len(alone)) < 1e-6 * told["loss"])


def check_generate(report, world):
    """A small model learns two answers, says them, and ends its turn."""
    group = next(group for group in world.groups if group["name"] == "smollm2")
    model = world.model({**group, "name": "answers"})
    text = (model / "tokenizer.json").read_text(encoding="utf-8")
    (model / "tokenizer.json").write_text(text.replace("<|end|>", "<|im_end|>"), encoding="utf-8")
    answers = {"one?": "the wheel turns", "two?": "\u00e9t\u00e9 of water"}
    rows = [{"prompt": [{"role": "user", "content": prompt}],
             "completion": [{"role": "assistant", "content": said}]}
            for prompt, said in answers.items()]
    chat = world.folder / "answers.bin"
    must(world.run(model, "--to", chat, world.lines("answers.jsonl", rows)))
    config = run_toml(world, chat, "answers", run={"steps": 60}, data={"tokenizer": model},
                      batch={"seq_len": 128}, optim={"lr": 0.01, "weight_decay": 0.0})
    must(world.headrace.run("train", config))

    def asked(*words):
        return world.headrace.run("generate", "--model", world.folder / "answers",
                                  "--temperature", 0, "--tokens", 40, *words)

    for prompt, said in answers.items():
        told = must(asked("--chat", "--prompt", prompt, "--json")).json()
        report.equal(f"the answer to {prompt}", (told["text"], told["end"]), (said, "eos"))
    report.equal("on a terminal the answer stands alone",
                 must(asked("--chat", "--prompt", "one?")).out, "the wheel turns\n")
    told = must(asked("--chat", "--prompt", "one?", "--stop", "turn", "--stop", "zz", "--json"))
    report.equal("a stop", (told.json()["text"], told.json()["end"]), ("the wheel ", "stop"))
    start = ("<|im_start|>system\nwheels<|im_end|>\n<|im_start|>user\none?<|im_end|>\n"
             "<|im_start|>assistant\n")
    plain = must(asked("--prompt", start, "--stop", "<|im_end|>", "--json")).json()["text"]
    chat = must(asked("--prompt", "one?", "--chat", "--system", "wheels", "--json")).json()["text"]
    report.equal("a system message", chat, plain)
    for name, words, named in (
            ("--system alone", ["--prompt", "a", "--system", "b"], "--chat"),
            ("an empty stop", ["--prompt", "a", "--stop", ""], "--stop")):
        outcome = asked(*words)
        report.check(f"{name} is refused", outcome.code == USAGE and named in outcome.err, outcome)
    (model / "tokenizer_config.json").unlink()
    outcome = asked("--chat", "--prompt", "one?")
    report.check("without a template --chat is refused", outcome.code == USAGE
                 and "no chat template" in outcome.err, outcome)


def check_against_peer(report, world):
    try:
        import transformers  # pylint: disable=import-outside-toplevel,unused-import
        spec = importlib.util.find_spec("trl")
        folder = pathlib.Path(next(iter(spec.submodule_search_locations))) / "chat_templates"
        names = ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3_1"]
        (folder / f"{names[-1]}.jinja").read_bytes()
    except (ImportError, AttributeError, OSError):
        report.skip("conversations from a seed", "no Python packages transformers and trl")
        return
    place = world.cases_folder / "make_cases.py"
    spec = importlib.util.spec_from_file_location("make_cases", place)
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    seed = harness.seeded_random().randrange(1 << 30)
    for group in maker.make(folder, names, seed, 60):
        path = world.lines("peer.jsonl", [{"messages": case["messages"]}
                                          for case in group["cases"]])
        report.check(f"{group['name']}: tokens and masks are the peer's",
                     world.made(world.model(group), path)
                     == [expected_of(case) for case in group["cases"]])


def main():
    headrace = harness.Headrace(sys.argv[1])
    report = harness.Report("chat_test")
    with harness.scratch(report, "chat") as folder:
        world = World(headrace, sys.argv[2:], folder)
        for check in (check_tokens, check_files, check_errors, check_training, check_losses,
                      check_generate, check_against_peer):
            check(report, world)
    report.finish()


if __name__ == "__main__":
    main()
