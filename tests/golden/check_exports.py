"""Loads exports in Hugging Face transformers and compares with `headrace eval`.

    python3 check_exports.py BINARY CASE_DIR...       needs torch, transformers

For each case: trains it, exports the run, loads the export with AutoModelForCausalLM (every tensor
must be found, and no other), and compares log-probabilities: of the whole sequence, and of what
could follow it. By hand, since CI has no torch.
"""

import json
import pathlib
import struct
import sys

import golden_test
import harness
import torch
import transformers

LOG_PROBABILITY_ABSOLUTE = 1e-4
CANDIDATES = 40  # of the next token


def load(report, folder):
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {key: found for key, found in told.items() if found}
    report.check(f"{type(model).__name__} loads with every tensor", not problems, problems)
    return model.eval()


def log_probabilities(model, tokens):
    """Of the tokens after the first, summed; and of each token that may follow the last."""
    with torch.no_grad():
        found = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
    along = sum(found[i, token].item() for i, token in enumerate(tokens[1:]))
    return along, found[-1]


def check_case(report, binary, case):
    run = json.loads((case / "run.json").read_text())
    length = run["seq_len"]
    tokens = list(struct.unpack_from(f"<{length}H", (case / "tokens.bin").read_bytes(), 1024))
    with harness.scratch(report, "exports") as folder:
        headrace = harness.Headrace(binary)
        config = folder / "run.toml"
        harness.write_toml(config, golden_test.settings(case, run, "default", folder))
        harness.must(headrace.run("train", config))
        harness.must(headrace.run("export", folder / "run", folder / "out"))
        model = load(report, folder / "out")
        along, following = log_probabilities(model, tokens)
        worst = 0.0
        for token in range(0, len(following), max(1, len(following) // CANDIDATES)):
            data = folder / "tokens.bin"
            data.write_bytes(harness.token_file([*tokens, token]))
            loss = golden_test.evaluated(headrace, folder / "out", data, length)
            wanted = along + following[token].item()
            worst = max(worst, abs(-loss * length - wanted))
        report.check(
            f"log-probabilities within {LOG_PROBABILITY_ABSOLUTE:g}: at most {worst:.3g} off",
            worst <= LOG_PROBABILITY_ABSOLUTE,
        )


def main():
    transformers.logging.set_verbosity_error()
    report = harness.Report("exports in transformers")
    for case in map(pathlib.Path, sys.argv[2:]):
        print(case.name)
        check_case(report, sys.argv[1], case.resolve())
    report.finish()


if __name__ == "__main__":
    main()
