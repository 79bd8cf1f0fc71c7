"""Checks of code blocks in Markdown, used by tidy_test.py: commands, flags, scripts and keys exist.

The binary's own --help is asked for commands and flags, and core/config_schema.cpp for keys, so a
document cannot drift from either.
"""

import re
import subprocess

from tidy_code import Finding

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\S*/)?headrace[ \t]+([a-z]+)(.*)$", re.MULTILINE)
SCRIPT = re.compile(r"(?:^|\s)(?:\./)?((?:scripts|\.ci|bench|tests)/[\w./-]+)")
SETTING = re.compile(r"--set[ =]+['\"]?([\w.]+)=")
TOML_SECTION = re.compile(r"^\[\[?([\w.]+)\]\]?")
TOML_KEY = re.compile(r"^([\w.]+)\s*=")


def config_keys(root):
    """Keys as the table spells them; members of a group or folder bare."""
    text = (root / "core/config_schema.cpp").read_text(encoding="utf-8")
    return set(re.findall(r'\.name = "([\w.]+)"', text))


class Help:
    """What the binary says of itself, asked once a command."""

    def __init__(self, ask):
        self.ask = ask
        self.texts = {}

    def text(self, *command):
        if command not in self.texts:
            self.texts[command] = self.ask(*command)
        return self.texts[command]

    def has_command(self, name):
        return re.search(rf"^\s+{name}\b", self.text(), re.MULTILINE) is not None

    def flags(self, name):
        return set(re.findall(r"--[a-z][\w-]*", self.text(name) + self.text()))


def run_help(binary):
    def ask(*command):
        result = subprocess.run([binary, *command, "--help"], capture_output=True, text=True,
                                check=False, timeout=60)
        return result.stdout + result.stderr
    return Help(ask)


def check_commands(path, line, block, helped):
    findings = []
    # A command goes on after a backslash.
    for match in COMMAND.finditer(block.replace("\\\n", " ")):
        name, rest = match.group(1), match.group(2).split("#")[0]
        if not helped.has_command(name):
            findings.append(Finding(path, line, f"`headrace {name}` is no command", "see --help"))
            continue
        # store list and the like: the flags of the nested command count too.
        known = helped.flags(name)
        for flag in re.findall(r"(?<!\S)\[?(--[a-z][\w-]*)", rest):
            if flag not in known:
                findings.append(Finding(
                    path, line, f"`headrace {name}` has no {flag}", "see its --help"))
    return findings


def toml_keys(block):
    section = ""
    for line in block.split("\n"):
        if match := TOML_SECTION.match(line):
            section = match.group(1) + "."
        elif match := TOML_KEY.match(line):
            yield section, match.group(1)


def check_keys(path, line, kind, block, keys):
    named = set(SETTING.findall(block))
    if kind == "toml":
        sections = {key.split(".")[0] for key in keys if "." in key}
        for section, key in toml_keys(block):
            # A block about another file (machine.toml) has other sections.
            if section.split(".")[0] in sections:
                is_group = section == "optim.group."
                named.add(key if is_group else section + key)
    return [Finding(path, line, f"'{name}' is no key of RUN.toml", "see docs/config.md")
            for name in sorted(named) if name not in keys]


def check_text(path, text, helped, keys, exists):
    findings = []
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        block = fence.group(2)
        findings += check_commands(path, line, block, helped)
        findings += check_keys(path, line, fence.group(1), block, keys)
        if fence.group(1) in ("", "bash", "sh", "console"):
            findings += [Finding(path, line, f"'{name}' does not exist", "name what is there")
                         for name in SCRIPT.findall(block) if not exists(name)]
    return findings


def check(root, names, binary):
    helped, keys = run_help(binary), config_keys(root)
    findings = []
    for name in names:
        if name.suffix == ".md":
            text = (root / name).read_text(encoding="utf-8")
            findings += check_text(name, text, helped, keys, lambda path: (root / path).exists())
    return findings


def self_test():
    helped = Help(lambda *command: "  train  trains\n--help --set" if not command else "--resume")
    keys = {"optim.lr", "optim.group", "match"}
    planted = ["headrace fly", "headrace train --fast", "headrace train --set optim.rl=1",
               "./scripts/none", "$ build/cli/headrace train \\\n  --fast"]
    findings = [Finding("self", 0, f"the planted fault is not found: {text}", "mend the check")
                for text in planted
                if not check_text("a.md", f"```\n{text}\n```\n", helped, keys, lambda _: False)]
    if not check_text("a.md", "```toml\n[optim]\nrl = 1\n```\n", helped, keys, lambda _: True):
        findings.append(Finding("self", 0, "an unknown key of TOML is not found", "mend it"))
    clean = ("```\nheadrace train a.toml --set optim.lr=1 --resume\n./scripts/x  # --fast\n```\n"
             "```toml\n[optim]\nlr = 1\n[[optim.group]]\nmatch = []\n[link]\nx = 1\n```\n")
    return findings + check_text("a.md", clean, helped, keys, lambda _: True)
