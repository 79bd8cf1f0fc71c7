"""What every end-to-end test needs: running the binary, reading what it leaves, and checks.

Standard library only. A test makes one Report, calls check() for each fact, and ends with
report.finish(): exit code 0, 1 (a fact does not hold) or 77 (nothing could be checked here). All
files of a test lie in a scratch folder under the working directory (CTest's build folder), which
goes away unless a check failed or HEADRACE_KEEP is set.
"""

import array
import contextlib
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

OK, OPERATING, USAGE, DOES_NOT_FIT, CORRUPT, INTERRUPTED = 0, 1, 2, 3, 4, 130
HARDWARE_ABSENT = 77
SKIPPED = 77
# The columns of metrics.jsonl that must not depend on where anything lives.
COMPARED = ("step", "loss", "grad_norm", "lr", "tokens", "skipped")
TIMEOUT_S = 280


class Report:
    """Collects what was checked, prints it, and decides the exit code."""

    def __init__(self, name):
        self.name = name
        self.checked = self.failed = self.skipped = 0

    def check(self, fact, holds, detail=""):
        self.checked += 1
        if holds:
            print(f"ok    {fact}", flush=True)
            return True
        self.failed += 1
        print(f"FAIL  {fact}", flush=True)
        for line in str(detail() if callable(detail) else detail).splitlines():
            print(f"      {line}", flush=True)
        return False

    def equal(self, fact, found, expected):
        return self.check(fact, found == expected, lambda: f"found    {found}\nexpected {expected}")

    def skip(self, fact, reason):
        self.skipped += 1
        print(f"skip  {fact}: {reason}", flush=True)

    def finish(self):
        print(f"{self.name}: {self.checked} checked, {self.failed} failed, {self.skipped} skipped")
        if self.failed:
            sys.exit(1)
        sys.exit(0 if self.checked else SKIPPED)


@contextlib.contextmanager
def scratch(report, name):
    """A fresh folder on the build folder's filesystem (a store cannot live on tmpfs)."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=os.getcwd()))
    failed_before = report.failed
    try:
        yield folder
    except BaseException:
        print(f"the files are kept in {folder}", flush=True)
        raise
    if report.failed > failed_before or os.environ.get("HEADRACE_KEEP"):
        print(f"the files are kept in {folder}", flush=True)
    else:
        shutil.rmtree(folder)


class Outcome:
    def __init__(self, words, code, out, err):
        self.words, self.code, self.out, self.err = words, code, out, err

    def __str__(self):
        command = " ".join(str(word) for word in self.words)
        return f"$ {command}\nexit {self.code}\nstdout: {self.out}\nstderr: {self.err}"

    def json(self):
        return json.loads(self.out)


class Headrace:
    """The binary under test."""

    def __init__(self, binary):
        self.binary = str(pathlib.Path(binary).resolve())
        # The machine's profile is measured once for all tests of a build folder, not for the user.
        cache = os.path.join(os.getcwd(), "cache")
        self.environment = {**os.environ, "XDG_CACHE_HOME": cache, "LC_ALL": "C"}

    def run(self, *words, cwd=None, timeout_s=TIMEOUT_S, before=None, environment=None):
        """`before` runs in the child, ahead of the binary; `environment` replaces the usual one."""
        words = [self.binary, *map(str, words)]
        done = subprocess.run(
            words,
            cwd=cwd,
            env=self.environment if environment is None else environment,
            preexec_fn=before,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=timeout_s,
        )
        return Outcome(words, done.returncode, done.stdout, done.stderr)

    def start(self, *words, cwd=None):
        words = [self.binary, *map(str, words)]
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
        )


class Broken(Exception):
    """A step that the rest of a test stands on failed: its outcome is the message."""


def must(outcome, code=OK):
    if outcome.code != code:
        raise Broken(f"expected exit {code}\n{outcome}")
    return outcome


def stop_at(headrace, words, metrics, step, number=signal.SIGINT, delay_s=0.0):
    """Starts a run, sends the signal once metrics.jsonl holds `step`, and waits for the end."""
    return stop_when(headrace, words, lambda: last_step(metrics) >= step, number, delay_s)


def stop_when(headrace, words, reached, number, delay_s=0.0):
    """Starts a run, sends the signal once it has `reached` something, and waits for the end."""
    process = headrace.start(*words)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while process.poll() is None and not reached():
            if time.monotonic() > deadline:
                raise Broken(f"it has not come to where it is to be stopped after {TIMEOUT_S} s")
            time.sleep(0.0002)
        time.sleep(delay_s)
        if process.poll() is None:
            process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return Outcome([headrace.binary, *words], process.returncode, out, err)


def seeded_random():
    """Prints its seed, and takes it back from HEADRACE_SEED."""
    seed = int(os.environ.get("HEADRACE_SEED", "") or time.time_ns() % 1000000)
    print(f"      HEADRACE_SEED={seed}", flush=True)
    return random.Random(seed)


# ---- TOML ----


def toml_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, pathlib.Path)):
        return json.dumps(str(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def write_toml(path, sections):
    """sections: {"run": {"steps": 3}, "optim.group": [{...}, ...], ...}"""
    lines = []
    for name, keys in sections.items():
        for table in keys if isinstance(keys, list) else [keys]:
            lines.append(f"[[{name}]]" if isinstance(keys, list) else f"[{name}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in table.items()]
            lines.append("")
    path.write_text("\n".join(lines))
    return path


# ---- metrics.jsonl ----


def read_metrics(path):
    """Rows whose numbers are the text that stands in the file: equal text, equal bits."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line, parse_float=str, parse_int=str) for line in lines]


def first_difference(rows, expected, columns=COMPARED):
    """Where two lists of rows part, in words; "" where they do not."""
    for found, wanted in zip(rows, expected):
        for column in columns:
            if found[column] != wanted[column]:
                step, one, two = wanted["step"], found[column], wanted[column]
                return f"step {step}: {column} is {one}, expected {two}"
    if len(rows) != len(expected):
        return f"{len(rows)} rows, expected {len(expected)}"
    return ""


def last_step(path):
    """The step of the last whole row, 0 where there is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return 0
    rows = text[: text.rfind(b"\n") + 1].splitlines()
    return json.loads(rows[-1])["step"] if rows else 0


# ---- safetensors ----


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data

    def count(self):
        return math.prod(self.shape)

    def floats(self):
        """As Python floats, whatever the dtype."""
        if self.dtype == "F32":
            return floats_of(self.data)
        if self.dtype == "F16":
            return list(struct.unpack(f"<{len(self.data) // 2}e", self.data))
        if self.dtype == "BF16":
            wide = b"".join(b"\0\0" + self.data[i : i + 2] for i in range(0, len(self.data), 2))
            return floats_of(wide)
        raise ValueError(self.dtype)

    def as_f32(self):
        return array.array("f", self.floats()).tobytes()


def floats_of(data):
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def read_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    buffer = memoryview(content)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], entry["shape"], bytes(buffer[begin:end]))
    return tensors


def same_tensors(one, two):
    """What differs between two files of tensors, bit for bit, in words; "" where nothing does."""
    if one.keys() != two.keys():
        return f"tensors {sorted(one.keys() ^ two.keys())} are in one file only"
    for name, tensor in one.items():
        other = two[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            return f"{name}: {tensor.dtype} {tensor.shape} against {other.dtype} {other.shape}"
        if tensor.data != other.data:
            pairs = zip(tensor.floats(), other.floats())
            worst = max(abs(a - b) for a, b in pairs)
            return f"{name}: bytes differ, values by up to {worst:g}"
    return ""


def exported(headrace, run_dir, target):
    """The weights of a run as tensors in fp32."""
    must(headrace.run("export", run_dir, target, "--dtype", "f32"))
    return read_safetensors(target / "model.safetensors")


# ---- token files ----


def token_file(tokens, magic=20240520, version=1, count=None):
    """The bytes of an llm.c token file."""
    header = [magic, version, len(tokens) if count is None else count] + [0] * 253
    width = "H" if magic == 20240520 else "I"
    return struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}{width}", *tokens)


# ---- files ----


def fingerprint(folder):
    """{relative path: (mode, size, sha256)} of all that lies below a folder, links not followed."""
    result = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        state = path.lstat()
        digest = ""
        if stat.S_ISREG(state.st_mode):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        size = state.st_size if digest else 0
        result[str(path.relative_to(folder))] = (oct(state.st_mode), size, digest)
    return result


def changes(before, after):
    """What differs between two fingerprints, in words; "" where nothing does."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            lines.append(f"{name}: {before.get(name)} -> {after.get(name)}")
    return "\n".join(lines)


def flip_byte(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


# ---- the error form ----


def error_problems(outcome, code):
    """What is wrong with how a command failed, in words; "" where all is as it should be."""
    problems = []
    if outcome.code != code:
        problems.append(f"exit code {outcome.code}, expected {code}")
    if outcome.out:
        problems.append("stdout is not empty")
    lines = outcome.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if not errors:
        problems.append("no line begins with 'error: '")
    elif not re.search(r"^  (why |hint): ", outcome.err, re.MULTILINE):
        problems.append("neither why nor a hint is given")
    for line in lines:
        if re.match(r"\s+(why|hint)\s*:", line) and not re.match(r"  (why |hint): \S", line):
            problems.append(f"'{line}' is not '  why : ...' or '  hint: ...'")
    for sign in ("terminate called", "AddressSanitizer", "Assertion", "std::"):
        if sign in outcome.err:
            problems.append(f"'{sign}' in what it says")
    return "\n".join(problems)


def set_lines(text):
    """The --set KEY=VALUE words of each line of a message that has any, as arguments."""
    lines = []
    for line in text.splitlines():
        words = []
        for quoted, bare in re.findall(r"--set\s+(?:'([^']+)'|([^\s'`]+))", line):
            words += ["--set", (quoted or bare).rstrip(",;")]
        if words:
            lines.append(words)
    return lines


def set_arguments(text):
    """Those of the first such line."""
    return next(iter(set_lines(text)), [])


def quantity_bytes(text):
    """A size as it stands in a message, in bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)\s*([KMGT]?i?B)", text).groups()
    power = "BKMGT".index(unit[0]) if unit != "B" else 0
    return math.ceil(float(number) * (1024 if "i" in unit else 1000) ** power)
