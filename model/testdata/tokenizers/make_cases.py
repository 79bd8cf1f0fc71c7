#!/usr/bin/env python3
"""Makes the tokenizers of this folder and the tokens that Hugging Face's `tokenizers` gives for texts.

    python make_cases.py        needs: pip install tokenizers (0.23.3 made what is here)

Writes texts.json, a list of texts; KIND.json, a tokenizer.json for each of four kinds; and
cases.json, a list of {"base": KIND, "set": {member: value, ...}, "first": f, "every": e, "ids": [...]}:
the tokens of texts[f::e] by the tokenizer of that kind with some members replaced ("model.x": a member
of model). Most changes see a sixth of the texts, each another one, which keeps the file small.
"""

import json
import pathlib
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).resolve().parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SENTENCES = [
    "The boat's crew didn't see the light, and they'll say it's the captain's fault.",
    "Water runs through the head race to the wheel; the wheel turns the stone.",
    "for (int i = 0; i < count; ++i) {\n    total += values[i];\n}\n",
    "def read(path):\n\tif not path:\n\t\treturn None  # nothing to read\n\n",
    "In 1969 there were 3,402 of them, or 12.5 % more than in 1968.",
    "آب از میان دریچه می‌گذرد و چرخ را می‌گرداند. این کار در سال ۱۴۰۲ آغاز شد.",
    "水流过水渠，推动水轮。这个水轮是一九六九年造的。",
    "पानी नहर से होकर पहिये को घुमाता है। यह काम १९६९ में शुरू हुआ।",
    "Вода идёт по каналу и вращает колесо.",
    "물이 수로를 지나 바퀴를 돌린다.",
    "水は水路を流れて水車を回す。",
    "L'eau coule à travers le bief, où l'été dernier on a vu des canards.",
    "https://example.org/a?b=1&c=%20#top",
]
PIECES = [
    " ", "  ", "    ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", " \n", "\n ", " \n\n  ", "\u00a0",
    "\u3000", "\u0085", "\u2028", "\u180e", "\u200b", "\u001c", "'s", "'S", "'re", "'LL", "'ſ", "'",
    "’s", "don't", "I'M", "hello", " hello", "Hello", "HELLO", "wheel", "the", "1", "12", "123",
    "1234567", "٣٤٥", "½", "²", "Ⅷ", "৳", "...", "!?", "?!\n", ".\r\n", "--", "—", "€", "$", "#include",
    "{}", "();", "=>", "naïve", "nai\u0308ve", "e\u0301", "\u212b", "\u1e9b\u0323", "\ufb01", "ﬀ",
    "a\u0315\u0300\u05ae\u0062", "\u1100\u1161\u11a8", "각", "क्षि", "हिन्दी", "می‌خواهم", "中文", "漢字かな", "ไทย",
    "👍", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇮🇷", "☺️", "𝒳", "\U0001f9d1\U0001f3fd\u200d\U0001f680", "<|endoftext|>",
    "<|end|>", "<|im_start|>", "<|", "|>", "<mask>", "<word>", "<norm\u00e9>", "<norme\u0301>", "aa", "aaa",
    "\x00", "\x7f", "_", "snake_case", "CamelCase", "3.14", "-1", "1e9", "0x1F", "a1b2", "\ufeff",
]
FIXED = [
    "", " ", "\n", "a", "<|endoftext|>", "<|endoftext|><|endoftext|>", "<|im_start|>user\nhi<|end|>",
    "text<|endoftext|>text", " <|endoftext|> ", "<|endoftext", "a" * 200, " " * 100, "\n" * 50,
    " " * 40 + "x", "\n \n \n x", "\t" * 9 + "x", "1" * 40, "ab" * 64, "=" * 80 + "\n", "あ" * 50,
    "x <mask> y", "x  <mask>  y", "<mask><mask> <mask>", "a<word>b", "a <word> b", "<word>", "é<word>", "_<word>",
    "<word> <word>", "<norm\u00e9>", "<norme\u0301>x", "'s's 'S 'sS", "it's IT'S it’s", "e\u0301" * 20,
    "unreachable words", " unreachable", "x\u0323\u0307", "x\u0307\u0323", "q\u0307\u0323 q",
]


def texts():
    made = random.Random(7)
    mixed = ["".join(made.choice(PIECES) for _ in range(made.randint(2, 12))) for _ in range(150)]
    cut = [s[made.randint(0, 5):made.randint(12, 60)] for s in SENTENCES]
    return FIXED + SENTENCES + cut + mixed


def corpus():
    made = random.Random(3)
    words = " ".join(SENTENCES).split(" ")
    lines = [" ".join(made.choices(words, k=12)) for _ in range(400)]
    return SENTENCES * 20 + lines + ["1 22 333 4444 2024", "  x\n    y\n\n"] * 20


def train(pre_tokenizer, normalizer, specials, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tokenizer.to_str())


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def kinds():
    gpt2 = train(byte_level(True), None, ["<|endoftext|>"], 620)
    gpt2["model"]["merges"] = [" ".join(pair) for pair in gpt2["model"]["merges"]]
    del gpt2["model"]["type"]  # as old files have it
    llama3 = train(sequence(split(LLAMA3), byte_level()), None, [], 620)
    size = len(llama3["model"]["vocab"])
    for word in ("Ġunreachable", "unreachable", "ĠHELLO"):
        llama3["model"]["vocab"][word] = size
        size += 1
    llama3["model"]["ignore_merges"] = True
    llama3["added_tokens"] = [
        added(size + i, text) for i, text in enumerate(["<|begin_of_text|>", "<|endoftext|>", "<|end|>"])]
    qwen2 = train(sequence(split(QWEN2), byte_level()), normalizers.NFC(), [], 620)
    size = len(qwen2["model"]["vocab"])
    qwen2["added_tokens"] = [
        added(size + i, text) for i, text in enumerate(["<|endoftext|>", "<|im_start|>", "<|end|>"])]
    smollm2 = train(
        sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(True)), None,
        ["<|endoftext|>", "<|im_start|>", "<|end|>"], 620)
    return {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "smollm2": smollm2}


def added(number, content, **flags):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
    return token | flags


def pre(part):
    return {"pre_tokenizer": json.loads(part.__getstate__().decode())}


def changes(made):
    """(kind, members to set) of every case."""
    size = len(made["qwen2"]["model"]["vocab"])
    yield from ((kind, {}) for kind in made)
    flags = [
        added(size, "<mask>", lstrip=True), added(size + 1, "<word>", single_word=True),
        added(size + 2, "<norm\u00e9>", normalized=True, special=False),
        added(size + 3, "<|end|>", rstrip=True), added(size + 4, "aa", normalized=True),
        added(size + 5, "aaa", normalized=True, single_word=True), added(size + 6, "<|"),
        added(size + 7, "<|endoftext|>", lstrip=True, rstrip=True), added(size + 8, "  "),
        added(made["qwen2"]["model"]["vocab"]["he"], "he", special=False)]
    yield "qwen2", {"added_tokens": flags}
    yield "qwen2", {"added_tokens": flags, "normalizer": None}
    yield "qwen2", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
    yield "llama3", {"model.ignore_merges": False}
    yield "gpt2", pre(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True))
    yield "gpt2", pre(byte_level())
    yield "gpt2", pre(sequence(pre_tokenizers.Digits(individual_digits=False), byte_level()))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield "gpt2", pre(sequence(split(r"[e\s]|\p{N}", behavior, invert), byte_level()))
        yield "gpt2", pre(sequence(pre_tokenizers.Split("l", behavior=behavior), byte_level(True)))
    yield "gpt2", pre(sequence(split(r"(?=\p{Lu})|(?<=\.)"), byte_level()))
    yield "gpt2", pre(sequence(split(r"[\p{Han}\p{Hiragana}]+|\w+|\d|[\w\-]\S"), byte_level()))
    yield "gpt2", pre(sequence(
        pre_tokenizers.Split("(){}", behavior="isolated"), split(r"\p{N}{1,3}|[\r\n]"),
        pre_tokenizers.Digits(individual_digits=True), byte_level(True)))


def with_members(base, members):
    changed = json.loads(json.dumps(base))
    for name, value in members.items():
        folder = changed
        *path, last = name.split(".")
        for part in path:
            folder = folder[part]
        folder[last] = value
    return changed


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")


def main():
    made = kinds()
    written = texts()
    cases = []
    for number, (base, members) in enumerate(changes(made)):
        tokenizer = Tokenizer.from_str(json.dumps(with_members(made[base], members)))
        every = 1 if not members or "added_tokens" in members else 6
        seen = written[number % every::every]
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in seen]
        cases.append(
            {"base": base, "set": members, "first": number % every, "every": every, "ids": ids})
    for kind, tokenizer in made.items():
        write(f"{kind}.json", tokenizer)
    write("texts.json", written)
    write("cases.json", cases)
    print(f"{len(cases)} cases of {len(written)} texts")


if __name__ == "__main__":
    main()
