"""Text files to token files: the tokens, the formats, cuts, threads, errors, what is left behind.

python3 tokenize_test.py BINARY TESTDATA    TESTDATA: model/testdata/tokenizers

With the Python package `tokenizers` the repository's own files are compared as well.
"""

import array
import fcntl
import gzip
import json
import pathlib
import shlex
import struct
import sys

import harness
from harness import CORRUPT, OPERATING, USAGE, must

ROOT = pathlib.Path(__file__).resolve().parents[2]
EOS = 0  # <|endoftext|> of gpt2.json


def tokens_of(path):
    content = path.read_bytes()
    magic, version, count = struct.unpack_from("<3i", content)
    width = {(20240520, 1): "H", (20240801, 7): "I"}[(magic, version)]
    tokens = array.array(width, content[1024:])
    assert len(tokens) == count and not any(content[12:1024])
    return tokens.tolist()


def zstd_frame(data):
    """Of raw blocks: what needs no compressor."""
    blocks = [data[at:at + 65536] for at in range(0, len(data), 65536)] or [b""]
    frame = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data))
    for number, block in enumerate(blocks):
        header = (number == len(blocks) - 1) | len(block) << 3
        frame += struct.pack("<I", header)[:3] + block
    return frame


class World:
    """Fixtures, and a folder to work in."""

    def __init__(self, headrace, testdata, folder):
        self.headrace, self.folder = headrace, folder
        self.testdata = pathlib.Path(testdata).resolve()
        self.texts = json.loads((self.testdata / "texts.json").read_text(encoding="utf-8"))
        self.cases = json.loads((self.testdata / "cases.json").read_text(encoding="utf-8"))

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def lines(self, name, texts):
        rows = [json.dumps({"id": n, "text": text}, ensure_ascii=n % 2 == 0)
                for n, text in enumerate(texts)]
        return self.write(name, "\n".join(rows) + "\n")

    def run(self, *words, kind="gpt2", eos="<|endoftext|>"):
        tokenizer = kind if kind == "bytes" else self.testdata / f"{kind}.json"
        return self.headrace.run("tokenize", "--tokenizer", tokenizer, "--eos", eos, *words)

    def made(self, *words, **options):
        target = self.folder / "made.bin"
        must(self.run("--overwrite", "--to", target, *words, **options))
        return tokens_of(target)


def check_tokens(report, world):
    for case in world.cases[:4]:
        path = world.lines(f"{case['base']}.jsonl", world.texts)
        expected = [token for ids in case["ids"] for token in [*ids, EOS]]
        if case["base"] in ("llama3", "qwen2"):
            eos = json.loads((world.testdata / f"{case['base']}.json").read_text())["added_tokens"]
            number = next(t["id"] for t in eos if t["content"] == "<|endoftext|>")
            expected = [token for ids in case["ids"] for token in [*ids, number]]
        report.equal(f"JSON lines, {case['base']}", world.made(path, kind=case["base"]), expected)


def check_inputs(report, world):
    ids = world.cases[0]["ids"]
    a, b = world.texts.index("text<|endoftext|>text"), len(world.texts) - 1
    first = world.write("a.txt", world.texts[a])
    second = world.write("b.txt", world.texts[b])
    empty = world.write("empty.txt", "")
    expected = [*ids[a], EOS, EOS, *ids[b], EOS]
    report.equal("each text file is a document", world.made(first, empty, second), expected)
    plain = first.read_bytes()
    packed = world.write("two.gz", gzip.compress(plain[:9]) + gzip.compress(plain[9:]))
    report.equal("gzip, of two members", world.made(packed), [*ids[a], EOS])
    packed = world.write("two.zst", zstd_frame(plain[:9]) + zstd_frame(plain[9:]))
    report.equal("zstd, of two frames", world.made(packed), [*ids[a], EOS])
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    packed = world.write("skip.zst", skipped + zstd_frame(plain))
    report.equal("zstd, after a frame to skip", world.made(packed), [*ids[a], EOS])
    lines = world.lines("packed.jsonl", world.texts)
    packed = world.write("packed.jsonl.gz", gzip.compress(lines.read_bytes()))
    report.equal("JSON lines in gzip", world.made(packed), world.made(lines))
    report.equal("no end of documents", world.made(first, eos="none"), ids[a])
    report.equal("its id", world.made(first, eos="7"), [*ids[a], 7])
    other = world.write("other.jsonl", '{"body":"a"}\n\n  \r\n{"body":"a"}')
    one = ids[world.texts.index("a")]
    report.equal("another field, lines without text, no last line feed",
                 world.made(other, "--field", "body"), [*one, EOS, *one, EOS])
    report.equal("bytes", world.made(first, kind="bytes", eos="256"), [*plain, 256])


def check_formats(report, world):
    text = world.write("text.txt", "the wheel")
    tokens = world.made(text)
    raw = world.folder / "raw.bin"
    must(world.run("--to", raw, "--format", "raw", text))
    report.equal("raw", array.array("H", raw.read_bytes()).tolist(), tokens)
    big = json.loads((world.testdata / "gpt2.json").read_text(encoding="utf-8"))
    vocab = big["model"]["vocab"]
    vocab.update({f"filler{number}": number for number in range(len(vocab), 65537)})
    folder = world.folder / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(big))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "filler65536"}}')
    target = world.folder / "wide.bin"
    outcome = must(world.headrace.run("tokenize", "--tokenizer", folder, "--to", target, text,
                                      "--json"))
    report.equal("32 bits, and what a directory calls the end", tokens_of(target),
                 [*tokens[:-1], 65536])
    found = {key: value for key, value in outcome.json().items()
             if key not in ("seconds", "bytes_per_s", "target", "tokenizer")}
    report.equal("--json", found, {
        "format": "llm.c", "token_bytes": 4, "tokens": len(tokens), "documents": 1, "files": 1,
        "text_bytes": 9, "vocab": 65537, "eos": 65536})


def check_cuts(report, world):
    """A text of some megabytes is cut for the threads; as one line of JSON it is not."""
    made = harness.seeded_random()
    text = "".join(made.choices(world.texts, k=40000))
    while len(text.encode()) < 5 << 20:
        text += text[: 1 << 20]
    path = world.write("large.txt", text)
    whole = world.lines("large.jsonl", [text])
    for case in world.cases[:4]:
        kind = case["base"]
        expected = world.made(whole, kind=kind)
        for threads in (1, 2, 7):
            report.check(f"{kind}: cut for {threads} threads, the same tokens",
                         world.made(path, "--threads", threads, kind=kind) == expected)
    many = world.lines("many.jsonl", world.texts * 60)
    report.check("JSON lines with 1 and 7 threads, the same tokens",
                 world.made(many, "--threads", 1) == world.made(many, "--threads", 7))


def check_errors(report, world):
    good = world.write("good.txt", "a" * 3000)
    packed = gzip.compress(world.write("noise.txt", bytes(range(256)) * 900).read_bytes())
    bad = bytearray(packed)
    bad[len(bad) // 2] ^= 0x55
    target = world.folder / "kept.bin"
    must(world.run("--to", target, good))
    before = harness.fingerprint(world.folder)
    cases = {
        "a target that exists": (USAGE, [good], "exists"),
        "a damaged line": (CORRUPT, [good, world.write("x.jsonl", '{"text":"a"}\n{"text"')],
                           "x.jsonl:2"),
        "a line without the field": (CORRUPT, [world.write("y.jsonl", '\n{"no":1}')], "y.jsonl:2"),
        "a field that is no text": (CORRUPT, [world.write("z.jsonl", '{"text":5}')], "z.jsonl:1"),
        "gzip that ends early": (CORRUPT, [world.write("cut.gz", packed[:-20])], "cut.gz"),
        "damaged gzip": (CORRUPT, [world.write("bad.gz", bytes(bad))], "bad.gz"),
        "zstd that ends early": (CORRUPT, [world.write("cut.zst", zstd_frame(b"ab" * 9)[:-5])],
                                 "cut.zst"),
        "a packed name without packed bytes": (CORRUPT, [world.write("n.txt.gz", "text")],
                                               "n.txt.gz"),
        "an empty packed file": (CORRUPT, [world.write("n.zst", "")], "n.zst"),
        "xz": (USAGE, [world.write("a.xz", b"\xfd7zXZ\0\0")], "xz"),
        "no such file": (OPERATING, [world.folder / "nowhere.txt"], "nowhere.txt"),
        "the target among the inputs": (USAGE, [target], "input"),
        "an unknown end": (USAGE, [good, "--eos", "<|nowhere|>"], "<|nowhere|>"),
        "an end outside": (USAGE, [good, "--eos", "620"], "620"),
    }
    before = harness.fingerprint(world.folder)
    for name, (code, words, named) in cases.items():
        tokenizer = ["--tokenizer", world.testdata / "gpt2.json"]
        ends = [] if "--eos" in words else ["--eos", "none"]
        over = [] if name == "a target that exists" else ["--overwrite"]
        outcome = world.headrace.run("tokenize", *tokenizer, "--to", target, *ends, *over, *words)
        report.check(f"{name}: exit {code}, named",
                     outcome.code == code and named in outcome.err and not outcome.out, outcome)
        report.equal(f"{name}: nothing changes",
                     harness.changes(before, harness.fingerprint(world.folder)), "")
    left = world.write("kept.bin.partial", "what a killed run left of the target")
    outcome = world.run("--to", target, "--overwrite", good, left)
    report.check("what a killed run left is no input",
                 outcome.code == USAGE and left.name in outcome.err and left.exists(), outcome)
    outcome = world.headrace.run("tokenize", "--tokenizer", "bytes", "--to", "/dev/null",
                                 "--overwrite", good)
    report.check("a device is not replaced",
                 outcome.code == USAGE and "no regular file" in outcome.err, outcome)
    with open(f"{target}.partial", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = world.run("--to", target, "--overwrite", good)
    report.check("a target that another process writes is left to it",
                 outcome.code == OPERATING and "is being written" in outcome.err, outcome)
    outcome = world.headrace.run("tokenize", "--tokenizer", world.testdata / "gpt2.json",
                                 "--to", world.folder / "new.bin", good)
    report.check("an end that nothing says is asked for",
                 outcome.code == USAGE and "--eos" in outcome.err, outcome)


def check_training(report, world):
    """The command that train asks for; then train, generate and export by the same tokenizer."""
    tokenizer = world.testdata / "qwen2.json"
    text = world.write("corpus.txt", "the wheel turns the stone\n" * 400)

    def config(train):
        return harness.write_toml(world.folder / "run.toml", {
            "run": {"steps": 3, "dir": world.folder / "run"},
            "model": {"arch": "gpt2", "layers": 1, "hidden": 32, "heads": 2, "max_seq_len": 32},
            "data": {"train": [train], "tokenizer": tokenizer},
            "batch": {"micro_batch": 2, "seq_len": 16}})

    outcome = world.headrace.run("train", config(text))
    command = [line.split("hint: ")[1] for line in outcome.err.splitlines()
               if "hint: headrace tokenize" in line]
    report.check("text for a tokenizer.json is refused, with a command",
                 outcome.code == USAGE and len(command) == 1, outcome)
    must(world.headrace.run(*shlex.split(command[0])[1:], "--eos", "none"))
    must(world.headrace.run("train", config(f"{text}.bin")))
    asked = ["--prompt", "the wheel", "--tokens", "8", "--json"]
    told = must(world.headrace.run("generate", "--model", world.folder / "run", *asked)).json()
    must(world.headrace.run("export", world.folder / "run", world.folder / "exported"))
    own = json.loads((world.folder / "exported/config.json").read_text())["headrace"]
    report.equal("an export names no file of this machine", own, {})
    again = must(world.headrace.run("generate", "--model", world.folder / "exported", *asked))
    report.check("the run and its export, which has the tokenizer, generate the same",
                 again.json()["text"] == told["text"] and told["tokens"] == 8, again)
    must(world.headrace.run("eval", "--model", world.folder / "exported", "--data", f"{text}.bin",
                            "--seq-len", 16))
    # Another tokenizer in its place has tokens that the model has not.
    big = json.loads(tokenizer.read_text(encoding="utf-8"))
    big["added_tokens"].append({**big["added_tokens"][-1], "id": 623, "content": "<|more|>"})
    (world.folder / "exported/tokenizer.json").write_text(json.dumps(big))
    outcome = world.headrace.run("generate", "--model", world.folder / "exported",
                                 "--prompt", "the <|more|>")
    report.check("a prompt with tokens outside the model is refused",
                 outcome.code == USAGE and "623" in outcome.err, outcome)


def check_against_peer(report, world):
    try:
        from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
    except ImportError:
        report.skip("tokens of this repository's files", "no Python package `tokenizers`")
        return
    names = [path for suffix in ("cpp", "py", "md") for path in sorted(ROOT.rglob(f"*.{suffix}"))]
    texts = [path.read_bytes().decode() for path in names
             if "build" not in path.relative_to(ROOT).parts]
    path = world.lines("repository.jsonl", texts)
    for case in world.cases[:4]:
        peer = Tokenizer.from_file(str(world.testdata / f"{case['base']}.json"))
        ids = [peer.encode(text, add_special_tokens=False).ids for text in texts]
        expected = [token for one in ids for token in one]
        report.check(f"{case['base']}: {len(expected)} tokens of {len(texts)} files are the peer's",
                     world.made(path, kind=case["base"], eos="none") == expected)


def main():
    headrace = harness.Headrace(sys.argv[1])
    report = harness.Report("tokenize_test")
    with harness.scratch(report, "tokenize") as folder:
        world = World(headrace, sys.argv[2], folder)
        for check in (check_tokens, check_inputs, check_formats, check_cuts, check_errors,
                      check_training, check_against_peer):
            check(report, world)
    report.finish()


if __name__ == "__main__":
    main()
