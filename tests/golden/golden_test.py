"""Follows a parity case: trains from its run.json alone and compares with what PyTorch found.

    python3 golden_test.py BINARY CASE_DIR [--placement default|nvme]

A case folder is what make_cases.py writes (README.md). With `--placement nvme` the same run is
squeezed: all state on NVMe, a separate device arena, and as little memory as the plan can do with.
A CASE_DIR that does not exist is skipped: some cases live beside the repository.
"""

import argparse
import fnmatch
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import harness

LOSS_ABSOLUTE = 5e-6
NORM_RELATIVE = 1e-5
LR_RELATIVE = 1e-12
WEIGHT_ABSOLUTE = 2e-5
# GPT-2's key bias moves no loss: its true gradient is zero, and Adam amplifies rounding noise.
KEY_BIAS_ABSOLUTE = 2e-4

# Each squeezed run differs from the default one in everything that must not matter.
SQUEEZED = {"device": "cpu", "place": "nvme", "lookahead": 1, "tile": 1}


def settings(case, run, placement, folder):
    sections = {
        "run": {"dir": folder / "run", "steps": run["steps"]},
        "model": {"path": case / "hf"},
        "data": {"train": [case / "tokens.bin"], "order": "sequential"},
        "batch": {key: run[key] for key in ("micro_batch", "seq_len", "accumulate")},
        "optim": {
            **{key: run[key] for key in ("lr", "betas", "eps", "weight_decay", "clip")},
            **{key: run[key] for key in ("min_lr", "warmup_steps")},
            "lr_schedule": run["schedule"],
        },
        "precision": {"compute": "fp32", "grad": "fp32"},
        "tiers": {"nvme": [folder / "nvme"], "direct_io": "auto"},
    }
    if run.get("decay_steps"):
        sections["optim"]["decay_steps"] = run["decay_steps"]
    if placement == "nvme":
        sections["tiers"].update(SQUEEZED)
        sections["batch"]["traversal"] = "batch-major"
        sections["optim"]["update"] = "after-backward"
    if run.get("groups"):
        sections["optim.group"] = run["groups"]
    return sections


def least_memory(report, headrace, config):
    """--set words of the smallest plan: what a refused plan recommends."""
    tiny = ["--set", "tiers.device_memory=64KiB", "--set", "tiers.host_memory=64KiB"]
    refused = headrace.run("plan", config, *tiny)
    words = harness.set_arguments(refused.err)
    report.check(
        "a plan with 64 KiB of memory is refused, with what to set",
        refused.code == harness.DOES_NOT_FIT and words,
        refused,
    )
    return words


def compare_steps(report, rows, expected):
    report.equal("one row a step", len(rows), len(expected))
    worst = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0}
    for row, wanted in zip(rows, expected):
        step = wanted["step"] + 1
        if int(row["step"]) != step or row["skipped"] is not None:
            report.check(f"row {step} is step {step}, not skipped", False, row)
            return
        worst["loss"] = max(worst["loss"], abs(float(row["loss"]) - wanted["loss"]))
        for key in ("grad_norm", "lr"):
            worst[key] = max(worst[key], abs(float(row[key]) - wanted[key]) / abs(wanted[key]))
    limits = {"loss": LOSS_ABSOLUTE, "grad_norm": NORM_RELATIVE, "lr": LR_RELATIVE}
    for key, limit in limits.items():
        report.check(
            f"{key} of every step within {limit:g}: at most {worst[key]:.3g} off",
            worst[key] <= limit,
            lambda: "\n".join(f"{row[key]}  {wanted[key]}" for row, wanted in zip(rows, expected)),
        )


def largest_difference(found, wanted):
    return max((abs(a - b) for a, b in zip(found, wanted)), default=0.0)


def compare_weights(report, found, wanted):
    report.equal("the export holds the tensors of the model", sorted(found), sorted(wanted))
    worst, worst_key_bias, problems = 0.0, 0.0, []
    for name in sorted(found.keys() & wanted.keys()):
        tensor, target = found[name], wanted[name]
        if (tensor.dtype, tensor.shape) != ("F32", target.shape):
            problems.append(f"{name}: {tensor.dtype} {tensor.shape}, expected F32 {target.shape}")
            continue
        one, two = tensor.floats(), target.floats()
        key_bias = 0.0
        if name.endswith("attn.c_attn.bias"):
            third = len(one) // 3
            key_bias = largest_difference(one[third : 2 * third], two[third : 2 * third])
            one, two = one[:third] + one[2 * third :], two[:third] + two[2 * third :]
        rest = largest_difference(one, two)
        worst, worst_key_bias = max(worst, rest), max(worst_key_bias, key_bias)
        if rest > WEIGHT_ABSOLUTE or key_bias > KEY_BIAS_ABSOLUTE:
            problems.append(f"{name}: {rest:.3g} off, key bias {key_bias:.3g}")
    found_worst = f"at most {worst:.3g} off, key bias {worst_key_bias:.3g}"
    fact = f"weights within {WEIGHT_ABSOLUTE:g}: {found_worst}"
    report.check(fact, not problems, "\n".join(problems))


def frozen_names(run, names):
    """The first group that matches a tensor decides."""
    frozen = []
    for name in names:
        for group in run.get("groups", []):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["match"]):
                frozen += [name] if group.get("frozen") else []
                break
    return frozen


def compare_frozen(report, run, case, found, final):
    frozen = frozen_names(run, final)
    if not frozen:
        return
    start = harness.read_safetensors(case / "hf" / "model.safetensors")
    moved = [name for name in frozen if found[name].data != start[name].as_f32()]
    report.check(f"{len(frozen)} frozen tensors are exported bit for bit", not moved, moved)
    still = [name for name in final if name not in frozen]
    same = [name for name in still if found[name].data == start[name].as_f32()]
    report.check(f"the other {len(still)} tensors moved", not same, same)


def compare_state(report, told, frozen, final):
    """The store has m and v for what is trained, and nothing for what is not."""
    units = {}  # index: bytes of parameters, bytes of state
    for extent in told["extents"]:
        sums = units.setdefault(extent["unit"], {"param": 0, "state": 0})
        sums[extent["kind"]] += extent["payload_bytes"]
    trained = 8 * sum(t.count() for name, t in final.items() if name not in frozen)
    stored = sum(sums["state"] for sums in units.values())
    whole = 2 * sum(sums["param"] for sums in units.values())
    fact = f"state of {stored} bytes in the store: all {trained} of what is trained"
    report.check(fact, trained <= stored <= whole, units)
    if frozen:
        report.check(f"less than the {whole} without frozen tensors", stored < whole, units)
    # Units in the model's order: embedding, blocks, head.
    for block in range(len(units) - 2):
        tensors = [name for name in final if f".h.{block}." in name or f".layers.{block}." in name]
        if all(name in frozen for name in tensors):
            fact = f"block {block} is frozen as a whole and has no state"
            report.equal(fact, units[block + 1]["state"], 0)


def rounded_bf16(bits):
    """Nearest, ties to even; what is no number stays none."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def compare_narrow(report, headrace, folder, found):
    """bf16 and f16 exports are the fp32 weights, rounded to the nearest, ties to even."""
    for option, dtype in (("bf16", "BF16"), ("f16", "F16")):
        target = folder / option
        harness.must(headrace.run("export", folder / "run", target, "--dtype", option))
        wrong = []
        for name, tensor in harness.read_safetensors(target / "model.safetensors").items():
            count = tensor.count()
            if dtype == "BF16":
                words = struct.unpack(f"<{count}I", found[name].data)
                expected = struct.pack(f"<{count}H", *map(rounded_bf16, words))
            else:
                expected = struct.pack(f"<{count}e", *found[name].floats())
            wrong += [name] if (tensor.dtype, tensor.data) != (dtype, expected) else []
        report.check(f"{dtype} export is the rounded fp32 export", not wrong, wrong)


def evaluated(headrace, model, data, length):
    words = ["eval", "--model", model, "--data", data, "--seq-len", length, "--json"]
    return harness.must(headrace.run(*words)).json()["loss"]


def compare_eval(report, headrace, case, run, expected, folder):
    """The loss of the first step's tokens before training, and equal losses of run and export."""
    count = run["accumulate"] * run["micro_batch"] * run["seq_len"] + 1
    content = (case / "tokens.bin").read_bytes()
    tokens = struct.unpack_from(f"<{count}H", content, 1024)
    data = folder / "first.bin"
    data.write_bytes(harness.token_file(tokens))
    before = evaluated(headrace, case / "hf", data, run["seq_len"])
    off = abs(before - expected[0]["loss"])
    report.check(f"eval before training finds the first loss: {off:.3g} off", off <= LOSS_ABSOLUTE)
    after = [evaluated(headrace, folder / name, data, run["seq_len"]) for name in ("run", "out")]
    report.equal("eval of the run and of its export are equal", after[0], after[1])


LLAMA_FIELDS = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
    "rms_norm_eps",
]
WINDOW_FIELDS = ["use_sliding_window", "sliding_window", "layer_types"]
FIELDS = {
    "gpt2": ["n_embd", "n_layer", "n_head", "n_positions", "layer_norm_epsilon"],
    "llama": [*LLAMA_FIELDS, "head_dim", "attention_bias", "mlp_bias"],
    "mistral": [*LLAMA_FIELDS, "head_dim", "sliding_window"],
    "qwen2": [*LLAMA_FIELDS, *WINDOW_FIELDS],
    "qwen3": [*LLAMA_FIELDS, "head_dim", "attention_bias", *WINDOW_FIELDS],
}


def compare_config(report, case, exported):
    """Every field of the export's config.json that the source has says the same."""
    source = json.loads((case / "hf" / "config.json").read_text())
    target = json.loads((exported / "config.json").read_text())
    needed = ["architectures", "model_type", "tie_word_embeddings", "vocab_size"]
    sizes = FIELDS[source["model_type"]]
    missing = [key for key in needed + sizes if key not in target]
    report.check("config.json of the export names every size", not missing, missing)
    wrong = [
        f"{key}: {target[key]}, expected {source[key]}"
        for key in needed + sizes
        if key in target and target[key] != source[key]
    ]
    report.check("and says what the source says", not wrong, "\n".join(wrong))
    if "rope_parameters" in source:
        wanted = source["rope_parameters"]
        found = {key: target["rope_parameters"].get(key) for key in wanted}
        report.equal("with the same rotary positions", found, wanted)
        older = {"rope_theta": target["rope_theta"], "rope_type": "default"}
        report.equal(
            "under their older names too",
            {key: {**older, **(target["rope_scaling"] or {})}.get(key) for key in wanted},
            wanted,
        )
    dtype = target.get("dtype", target.get("torch_dtype"))
    report.equal("and float32 weights", dtype, "float32")


def run_case(report, binary, case, placement):
    run = json.loads((case / "run.json").read_text())
    expected = json.loads((case / "expected.json").read_text())["steps"]
    final = harness.read_safetensors(case / "final.safetensors")
    with harness.scratch(report, "golden") as folder:
        headrace = harness.Headrace(binary)
        config = folder / "run.toml"
        harness.write_toml(config, settings(case, run, placement, folder))
        words = least_memory(report, headrace, config) if placement == "nvme" else []
        outcome = headrace.run("train", config, *words)
        if not report.check("train ends with exit code 0", outcome.code == harness.OK, outcome):
            return
        compare_steps(report, harness.read_metrics(folder / "run" / "metrics.jsonl"), expected)
        found = harness.exported(headrace, folder / "run", folder / "out")
        compare_weights(report, found, final)
        compare_frozen(report, run, case, found, final)
        told = harness.must(headrace.run("inspect", folder / "run", "--json")).json()
        compare_state(report, told, frozen_names(run, final), final)
        compare_config(report, case, folder / "out")
        if placement == "default":
            compare_narrow(report, headrace, folder, found)
            compare_eval(report, headrace, case, run, expected, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("case", type=pathlib.Path)
    parser.add_argument("--placement", choices=("default", "nvme"), default="default")
    arguments = parser.parse_args()
    case = arguments.case.resolve()
    report = harness.Report(f"golden {case.name}, placement {arguments.placement}")
    if not case.is_dir():
        report.skip(case.name, f"there is no folder {arguments.case}")
    else:
        run_case(report, arguments.binary, case, arguments.placement)
    report.finish()


if __name__ == "__main__":
    main()
