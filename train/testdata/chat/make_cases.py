"""Conversations, their text and tokens by transformers, and which tokens are to be learned.

python3 make_cases.py TEMPLATES     needs transformers (5.x); writes cases.json beside itself

TEMPLATES: a folder with qwen2_5.jinja, qwen3.jinja, qwen3_instruct_2507.jinja, as the
Python package trl has it (trl/chat_templates). Templates that stand here and those of Qwen are
kept in cases.json, so that a test needs no package; tests/e2e/chat_test.py makes those of Llama 3.1
where the packages are.
"""

import json
import pathlib
import random
import re
import sys

from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parents[2] / "model/testdata/tokenizers"
CHATML = (
    "{% for message in messages %}SYSTEM{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}")
FIRST = ("{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nTEXT"
         "<|im_end|>\n' }}{% endif %}")
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
    "user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_tokenSPACE }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
SHORT = {
    "chatml": CHATML.replace("SYSTEM", ""),
    "smollm2": CHATML.replace("SYSTEM", FIRST.replace("TEXT", (
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face"))),
    "qwen2": CHATML.replace("SYSTEM", FIRST.replace("TEXT", "You are a helpful assistant.")),
    "llama3": LLAMA3,
    "mistral": MISTRAL.replace("SPACE", ""),
    "mistral-0.1": MISTRAL.replace("SPACE", " + ' '"),
}
# What lies around an assistant's content: its turn is learned up to the end of the group.
TURNS = {
    "chatml": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "llama3": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
    "mistral": r" \[/INST\](.*?<\|endoftext\|>)",
}
TOKENIZER = {"chatml": "qwen2", "llama3": "llama3", "mistral": "smollm2"}
WORDS = ["the wheel turns", "", " ", "\n", "\n\nwater\n", "  flow", "mill \t", "été 水流过水渠",
         "\u00a0stone\u2003", "1969, 3,402", "\u0085x\u001f", "a\r\n", "<think>\nwhy\n</think>\n\nso",
         "x</think>y</think>\n", "<tool_response>1</tool_response>", "it's <|end|> IT'S", "🌊🌊"]


def family(name):
    return "llama3" if name.startswith("llama") else name.split("-")[0] if name.startswith(
        "mistral") else "chatml"


def tokenizer_of(kind):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZERS / f"{TOKENIZER[kind]}.json"))
    tokenizer.bos_token, tokenizer.eos_token = "<|end|>", "<|endoftext|>"
    return tokenizer


def conversation(rng, with_system):
    messages = []
    if with_system and rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for _ in range(rng.randint(1, 4)):
        for role in ("user", "assistant"):
            content = "".join(rng.choices(WORDS, k=rng.randint(1, 2)))
            messages.append({"role": role, "content": content})
    return messages


def learned_of(name, text, ids, offsets):
    """One character a token, 1: any byte of it lies within a turn that is learned."""
    spans = [match.span(1) for match in re.finditer(TURNS[family(name)], text, re.DOTALL)]
    return "".join(str(int(number > 0 and any(a < end and b > begin for begin, end in spans)))
                   for number, (a, b) in zip(range(len(ids)), offsets))


def cases_of(name, template, rng, count):
    kind = family(name)
    tokenizer = tokenizer_of(kind)
    tokenizer.chat_template = template
    for _ in range(count):
        messages = conversation(rng, kind != "mistral")
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer.apply_chat_template(messages)["input_ids"]
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded["input_ids"] == ids
        learned = learned_of(name, text, ids, encoded["offset_mapping"])
        asked = tokenizer.apply_chat_template(messages[:-1], tokenize=False,
                                              add_generation_prompt=True)
        yield {"messages": messages, "text": text, "ids": ids, "learned": learned,
               "asked": asked}


def make(folder, names, seed=1, count=7):
    rng = random.Random(seed)
    templates = dict(SHORT)
    for name in names:
        templates[name] = (pathlib.Path(folder) / f"{name}.jinja").read_text(encoding="utf-8")
    return [{"name": name, "template": template, "tokenizer": TOKENIZER[family(name)],
             "cases": list(cases_of(name, template, rng, count))}
            for name, template in templates.items()]


def main():
    made = make(sys.argv[1], ["qwen2_5", "qwen3", "qwen3_instruct_2507"])
    lines = []
    for one in made:
        cases = ",\n".join(json.dumps(case) for case in one["cases"])
        head = json.dumps({key: value for key, value in one.items() if key != "cases"})
        lines.append(f'{head[:-1]}, "cases": [\n{cases}]}}')
    (HERE / "cases.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
