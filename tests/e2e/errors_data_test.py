"""Errors of models and data.

python3 errors_data_test.py BINARY GOLDEN_CASE_DIR [CASE ...]
"""

import json
import struct

import harness
from errors_world import case, model_case, run_cases
from harness import CORRUPT, USAGE, must


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


if __name__ == "__main__":
    run_cases("errors_data")
