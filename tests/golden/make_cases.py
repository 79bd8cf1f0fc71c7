"""Makes this folder's parity cases with PyTorch and Hugging Face transformers.

    python3 make_cases.py [--out DIR] [CASE ...]     needs torch, transformers, safetensors, numpy

Every case becomes a folder: hf/ (config.json and weights), tokens.bin (llm.c's format, uint16),
run.json (every setting), expected.json (each step's loss, gradient norm and learning rate) and
final.safetensors (weights after the last step). README.md states the rules that both sides follow.

The training below runs twice, in float32 and in float64. The float32 run is what the engine is
compared with. An element whose first gradients are as small as eps turns rounding noise into a step
of Adam; a run in which float32 is far from float64 has such an element, so the first seed without
one is taken.
"""

import argparse
import fnmatch
import json
import math
import pathlib
import shutil
import struct

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent

# How far float32 may be from float64: a tenth of what golden_test.py allows for weights, a fifth of
# what it allows for GPT-2's key bias, less than half for losses and norms.
NOISE_MAX = {"loss": 2e-6, "grad_norm": 4e-6, "weight": 2e-6, "key_bias": 4e-5}
SEEDS_MAX = 20

DEFAULTS = {
    "micro_batch": 2,
    "seq_len": 16,
    "accumulate": 1,
    "steps": 8,
    "lr": 1e-3,
    "min_lr": 0.0,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 1.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "decay_steps": None,
    "groups": [],
}


def gpt2(**changes):
    sizes = {"vocab_size": 64, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1}
    return transformers.GPT2Config(**{**sizes, **off, **changes})


def llama(**changes):
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    }
    return transformers.LlamaConfig(**{**sizes, "initializer_range": 0.1, **changes})


# Llama's family, smaller still.
NARROW = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,
}


def rope(kind, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


def strip_prefix(tensors):
    """The older spelling of a GPT-2 file: no `transformer.`, and the masks stored as buffers."""
    plain = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    positions = plain["wpe.weight"].shape[0]
    for name in [n for n in plain if n.endswith("attn.c_attn.weight")]:
        block = name.removesuffix("c_attn.weight")
        mask = torch.ones(positions, positions).tril().view(1, 1, positions, positions)
        plain[block + "bias"] = mask
        plain[block + "masked_bias"] = torch.tensor(-1e4)
    return plain


# name: config, changes to DEFAULTS, how the weights are stored
CASES = {
    "gpt2-tied-accumulate-cosine": (
        lambda: gpt2(n_embd=32, n_head=4, vocab_size=96),
        {"accumulate": 3, "schedule": "cosine", "warmup_steps": 2, "min_lr": 1e-4, "clip": 0.5},
        {"dtype": torch.float16},
    ),
    "gpt2-untied-linear": (
        lambda: gpt2(tie_word_embeddings=False, vocab_size=80, n_inner=40),
        {"schedule": "linear", "warmup_steps": 3, "min_lr": 5e-5, "steps": 10, "lr": 5e-4},
        {"rename": strip_prefix},
    ),
    "gpt2-groups-frozen": (
        lambda: gpt2(n_layer=3),
        {
            "accumulate": 2,
            "groups": [
                {"match": ["*.wpe.weight", "*.h.1.mlp.*"], "frozen": True},
                {
                    "match": ["*.wte.*"],
                    "lr_scale": 0.5,
                    "betas": [0.8, 0.99],
                    "eps": 1e-6,
                    "weight_decay": 0.0,
                },
                {"match": ["*.ln_?.weight", "*.ln_f.*"], "lr_scale": 2.0, "weight_decay": 0.05},
            ],
        },
        {},
    ),
    "gpt2-frozen-vocabulary": (
        lambda: gpt2(),
        {"lr": 5e-4, "groups": [{"match": ["*.wte.weight", "transformer.h.1.*"], "frozen": True}]},
        {},
    ),
    "gpt2-unclipped-norm": (
        lambda: gpt2(vocab_size=67, n_head=4),
        {"clip": 100.0, "micro_batch": 1, "seq_len": 23, "steps": 6, "lr": 4e-4},
        {},
    ),
    "llama-untied-gqa": (
        lambda: llama(rope_theta=50000.0),
        {"micro_batch": 3, "seq_len": 21, "betas": [0.85, 0.98], "eps": 1e-6},
        {"dtype": torch.bfloat16},
    ),
    "llama-tied-wsd": (
        lambda: llama(
            hidden_size=24,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=40,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
        {
            "schedule": "wsd",
            "warmup_steps": 2,
            "decay_steps": 4,
            "min_lr": 1e-4,
            "steps": 10,
            "eps": 1e-6,
        },
        {},
    ),
    "llama-groups-clip-off": (
        lambda: llama(hidden_size=16, num_attention_heads=2, num_key_value_heads=2),
        {
            "clip": 0.0,
            "schedule": "wsd",
            "steps": 10,
            "groups": [
                {"match": ["model.embed_tokens.*", "*.layers.0.*"], "frozen": True},
                {"match": ["lm_head.weight"], "lr_scale": 0.25, "weight_decay": 0.2},
                {"match": ["*_proj.weight"], "betas": [0.95, 0.9]},
            ],
        },
        {},
    ),
}


CASES |= {
    "llama-rope-llama3": (
        lambda: transformers.LlamaConfig(
            **NARROW,
            **rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
            head_dim=16,
            max_position_embeddings=64,
        ),
        {"seq_len": 45, "micro_batch": 1},
        {"dtype": torch.bfloat16},
    ),
    "mistral-window": (
        lambda: transformers.MistralConfig(**NARROW, sliding_window=5, max_position_embeddings=64),
        {"seq_len": 23, "lr": 5e-4},
        {},
    ),
    "qwen3-window-dynamic": (
        lambda: transformers.Qwen3Config(
            **{**NARROW, "num_hidden_layers": 3, "num_attention_heads": 4},
            **rope("dynamic", factor=2.0),
            head_dim=8,
            use_sliding_window=True,
            sliding_window=7,
            max_window_layers=1,
            max_position_embeddings=12,
            tie_word_embeddings=True,
        ),
        {"seq_len": 21, "accumulate": 2},
        {},
    ),
    "qwen2-rope-yarn": (
        lambda: transformers.Qwen2Config(
            **NARROW,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64),
            max_position_embeddings=256,
        ),
        {"seq_len": 27, "eps": 1e-6},
        {},
    ),
}


def learning_rate(run, step):
    top, low, steps, warmup = run["lr"], run["min_lr"], run["steps"], run["warmup_steps"]
    if step < warmup:
        return top * (step + 1) / warmup
    part = (step - warmup) / max(1, steps - warmup)
    if run["schedule"] == "constant":
        return top
    if run["schedule"] == "linear":
        return low + (top - low) * (1 - part)
    if run["schedule"] == "cosine":
        return low + (top - low) * (1 + math.cos(math.pi * part)) / 2
    decay = run["decay_steps"] or max(1, steps // 10)
    into = max(0, step - (steps - decay))
    return low + (top - low) * (1 - into / decay)


def make_tokens(run, vocab, seed):
    count = run["steps"] * run["accumulate"] * run["micro_batch"] * run["seq_len"] + 1
    tokens = numpy.random.default_rng(seed).integers(0, vocab, size=count)
    # Every odd token follows from the one before it, so that there is something to learn.
    odd = tokens[1::2]
    odd[:] = (tokens[0::2][: len(odd)] * 5 + 2) % vocab
    return tokens


def write_tokens(path, tokens):
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + tokens.astype("<u2").tobytes())


def matches(pattern, name):
    return fnmatch.fnmatchcase(name, pattern)


def make_optimizer(model, run):
    """One torch group a tensor. Freezes what the run freezes."""
    groups = []
    for name, parameter in model.named_parameters():
        chosen = {}
        for group in run["groups"]:
            if any(matches(pattern, name) for pattern in group["match"]):
                chosen = group
                break
        if chosen.get("frozen"):
            parameter.requires_grad_(False)
            continue
        by_shape = run["weight_decay"] if parameter.dim() >= 2 else 0.0
        groups.append(
            {
                "params": [parameter],
                "lr_scale": chosen.get("lr_scale", 1.0),
                "betas": tuple(chosen.get("betas", run["betas"])),
                "eps": chosen.get("eps", run["eps"]),
                "weight_decay": chosen.get("weight_decay", by_shape),
            }
        )
    return torch.optim.AdamW(groups, lr=run["lr"])


def train(model, tokens, run):
    optimizer = make_optimizer(model, run)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    rows, width, parts = run["micro_batch"], run["seq_len"], run["accumulate"]
    steps = []
    for step in range(run["steps"]):
        loss_of_step = 0.0
        for part in range(parts):
            start = (step * parts + part) * rows * width
            inputs = tokens[start : start + rows * width].view(rows, width)
            targets = tokens[start + 1 : start + 1 + rows * width].view(rows, width)
            logits = model(input_ids=inputs, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(rows * width, -1), targets.reshape(-1)
            )
            (loss / parts).backward()
            loss_of_step += loss.item() / parts
        limit = run["clip"] if run["clip"] > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(trained, limit).item()
        lr = learning_rate(run, step)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps.append({"step": step, "loss": loss_of_step, "grad_norm": norm, "lr": lr})
    return steps


def weights_of(model):
    tied = model.config.tie_word_embeddings
    return {
        name: tensor.detach().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }


def load_model(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.to(dtype).train()


def split_key_bias(name, difference):
    """GPT-2's key bias has a true gradient of zero: (the rest's largest, the key bias' largest)."""
    if not name.endswith("attn.c_attn.bias"):
        return difference.max().item(), 0.0
    query, key, value = difference.chunk(3)
    return max(query.max().item(), value.max().item()), key.max().item()


def rounding_noise(single, double, single_weights, double_weights):
    noise = {"loss": 0.0, "grad_norm": 0.0, "weight": 0.0, "key_bias": 0.0}
    for one, two in zip(single, double):
        noise["loss"] = max(noise["loss"], abs(one["loss"] - two["loss"]))
        relative = abs(one["grad_norm"] / two["grad_norm"] - 1)
        noise["grad_norm"] = max(noise["grad_norm"], relative)
    for name, tensor in single_weights.items():
        difference = (tensor.double() - double_weights[name].double()).abs()
        rest, key = split_key_bias(name, difference)
        noise["weight"] = max(noise["weight"], rest)
        noise["key_bias"] = max(noise["key_bias"], key)
    return noise


def write_model(folder, config, store):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases and norms off 0 and 1, so that a swapped one shows
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.to(store.get("dtype", torch.float32)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def train_from(folder, tokens, run, dtype):
    model = load_model(folder, dtype)
    steps = train(model, torch.from_numpy(tokens).long(), run)
    return steps, weights_of(model)


def write_start(folder, name, seed):
    """Weights and tokens; returns the tokens."""
    make_config, changes, store = CASES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    config = make_config()
    write_model(folder / "hf", config, store)
    tokens = make_tokens({**DEFAULTS, **changes}, config.vocab_size, seed)
    write_tokens(folder / "tokens.bin", tokens)
    return tokens


def make_case(name, out):
    _, changes, store = CASES[name]
    run = {**DEFAULTS, **changes}
    folder = out / name
    for seed in range(SEEDS_MAX):
        tokens = write_start(folder, name, seed)
        steps, weights = train_from(folder / "hf", tokens, run, torch.float32)
        exact_steps, exact_weights = train_from(folder / "hf", tokens, run, torch.float64)
        noise = rounding_noise(steps, exact_steps, weights, exact_weights)
        if all(noise[key] <= limit for key, limit in NOISE_MAX.items()):
            break
        print(f"{name}: seed {seed} is ill-conditioned: {noise}")
    else:
        raise SystemExit(f"{name}: no seed of {SEEDS_MAX} is well-conditioned")

    if "rename" in store:
        file = folder / "hf" / "model.safetensors"
        save_file(store["rename"](load_file(file)), file)
    save_file(weights, folder / "final.safetensors")
    expected = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": seed,
        "float32_against_float64": noise,
        "steps": steps,
    }
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    count = sum(tensor.numel() for tensor in weights.values())
    first, last = steps[0]["loss"], steps[-1]["loss"]
    print(f"{name}: {count} parameters, loss {first:.4f} -> {last:.4f}, rounding: {noise}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "cases")
    parser.add_argument("case", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.case or CASES:
        make_case(name, arguments.out)


if __name__ == "__main__":
    main()
