"""Checks of one source file's text, used by tidy_test.py: each returns findings with a mend."""

import ast
import pathlib
import re
from dataclasses import dataclass

LINE_LENGTH_MAX = {".cpp": 100, ".cu": 100, ".hpp": 100, ".py": 100, ".bash": 100, ".cmake": 120}
FUNCTION_LINES_MAX = 70


@dataclass
class Finding:
    path: object
    line: int
    what: str
    mend: str

    def __str__(self):
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.what}; {self.mend}"


def is_test(path):
    return path.parts[0] in ("tests", "bench") or path.stem.endswith("_test") or (
        path.stem.startswith("test_") or "conformance" in path.stem)


def in_folder(*folders):
    return lambda path: str(path).startswith(folders)


def never(_path):
    return False


@dataclass
class Ban:
    pattern: str
    mend: str
    allowed: object = never  # path -> bool
    unless: str = ""  # a pattern on the line
    planted: str = ""  # what the self test looks for


# On C++ with comments and literals blanked out. (?<![\w.>:]) is a free function, std:: or not.
FREE = r"(?<![\w.>:])(?:std::|::)?"
BANS = [
    Ban(r"(?<!\w)assert\s*\(", "use HEADRACE_ASSERT (core/assert.hpp), which is on in release",
        planted="assert(x);"),
    Ban(FREE + r"(?:malloc|calloc|realloc|aligned_alloc|free)\s*\(",
        "memory comes from an arena; small things from containers",
        allowed=lambda path: "arena" in path.stem, planted="void* p = std::malloc(5);"),
    Ban(r"\bnew\s+[A-Za-z_:]", "use a container or std::make_unique",
        allowed=lambda path: "arena" in path.stem,
        # a factory of a class with a private constructor; an object that is never destroyed
        unless=r"unique_ptr<|\bstatic\b", planted="auto* p = new int[5];"),
    Ban(r"(?<!operator )\bdelete\s*(?:\[\s*\])?\s*[A-Za-z_:(*]",
        "use an owner: std::unique_ptr, Unique<Traits>",
        planted="delete[] p;"),
    Ban(r"\bcudaMalloc\w*\s*\(", "device memory comes from the arena of tiers/gpu",
        allowed=in_folder("tiers/gpu/"), planted="cudaMallocAsync(&p, 5);"),
    Ban(FREE + r"(?:printf|fprintf|vprintf|puts|fputs|putchar)\s*\(|\bstd::(?:cout|cerr|clog)\b"
        r"|\bfmt::print\b",
        "only cli/ prints; elsewhere return a Result or use core/log.hpp",
        allowed=lambda path: is_test(path) or in_folder("cli/")(path), planted="std::cout << 1;"),
    Ban(r"\bstd::endl\b", "write '\\n'", planted="out << std::endl;"),
    Ban(FREE + r"s?rand\s*\(|\bstd::random_device\b", "use core/random.hpp",
        allowed=is_test, planted="x = rand();"),
    Ban(r"(?:\.|->)detach\s*\(\s*\)", "every thread is joined by its owner",
        planted="thread.detach();"),
    Ban(FREE + r"(?:strerror|localtime|gmtime|strtok)\s*\(",
        "not thread-safe: errno_error() for errno, the _r form otherwise",
        planted="std::strerror(errno);"),
    Ban(FREE + r"(?:atoi|atol|atof|sscanf|sprintf|strcpy|strcat|gets)\s*\(|\bstd::sto[a-z]+\s*\(",
        "use std::from_chars or fmt", allowed=is_test, planted="std::stoi(text);"),
    Ban(FREE + r"(?:system|popen)\s*\(", "no shell", planted="system(command);"),
    Ban(r"#\s*include\s*<iostream>", "only cli/ prints",
        allowed=lambda path: is_test(path) or in_folder("cli/")(path),
        planted="#include <iostream>"),
]
TEST_BANS = [
    Ban(r"\bsleep_(?:for|until)\s*\(|" + FREE + r"u?sleep\s*\(",
        "no timing in tests: wait for an event", planted="std::this_thread::sleep_for(1s);"),
]

# A library that costs seconds to include stands in one .cpp behind a header of ours.
HEAVY = {
    "spdlog": re.compile(r"#\s*include\s*<spdlog/"),
    "CLI11": re.compile(r"#\s*include\s*<CLI/"),
    "toml++": re.compile(r"#\s*include\s*<toml\+\+/"),
    "nlohmann-json": re.compile(r"#\s*include\s*<nlohmann/"),
    "oneDNN": re.compile(r"#\s*include\s*<(?:oneapi/dnnl|dnnl)"),
}

# On the line of a banned call or on the one before it.
WAIVER = re.compile(r"// tidy_test: \w+ \w+")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\s*\(?(?:#|issue )\d+)")
MACHINE_PATH = re.compile(r"(?<![\w.}$])/(?:home|root|work|Users)/|(?<![\w.}$])/tmp\b")

LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![\w])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def blank_literals(text):
    """C++ without comments and literals; line breaks stay, so line numbers do."""
    def blank(match):
        kept = re.sub(r"[^\n]", " ", match.group())
        return kept if match.group().startswith("/") else '"' + kept[1:-1] + '"'
    # The name of an include is no literal.
    return LITERALS.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_lines(path, text):
    limit = LINE_LENGTH_MAX.get(path.suffix)
    if path.name == "CMakeLists.txt":
        limit = LINE_LENGTH_MAX[".cmake"]
    if limit is None and text.startswith("#!/usr/bin/env python3"):
        limit = LINE_LENGTH_MAX[".py"]
    if limit is None and text.startswith("#!/usr/bin/env bash"):
        limit = LINE_LENGTH_MAX[".bash"]
    if limit is None:
        return []
    return [Finding(path, number, f"a line of {len(line)} columns", f"the limit is {limit}")
            for number, line in enumerate(text.split("\n"), start=1) if len(line) > limit]


CONTROL = re.compile(r"^\s*(?:else\b|do\b|(?:if|for|while|switch|catch)\b)")
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b(?![^<]*\)\s*$)")


def cpp_functions(code):
    """(first line, lines) of each function body, its signature's line counted; lambdas belong to
    the function around them."""
    depth_of_function = None
    depth, start, line = 0, 0, 1
    begin_line = 1
    found = []
    for offset, char in enumerate(code):
        if char == "\n":
            line += 1
        if char == "{":
            header = code[start:offset]
            is_scope = SCOPE.search(header) is not None and "(" not in header
            is_body = ")" in header or not header.strip()
            if depth_of_function is None and not is_scope and is_body and not CONTROL.match(header):
                depth_of_function = depth
                begin_line = line - header.strip().count("\n")
            depth += 1
            start = offset + 1
        elif char == "}":
            depth -= 1
            if depth_of_function == depth:
                found.append((begin_line, line - begin_line + 1))
                depth_of_function = None
            start = offset + 1
        elif char == ";" and depth_of_function is None:
            start = offset + 1
    return found


def check_functions(path, text):
    if path.suffix in (".cpp", ".cu", ".hpp"):
        code = re.sub(r"^\s*#[^\n]*(?:\\\n[^\n]*)*", lambda m: "\n" * m.group().count("\n"),
                      blank_literals(text), flags=re.MULTILINE)
        lengths = cpp_functions(code)
    elif path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        lengths = [(node.lineno, node.end_lineno - node.lineno + 1)
                   for node in ast.walk(ast.parse(text))
                   if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    else:
        return []
    return [Finding(path, line, f"a function of {lines} lines",
                    f"the limit is {FUNCTION_LINES_MAX}: split it by what it does")
            for line, lines in lengths if lines > FUNCTION_LINES_MAX]


def check_bans(path, text):
    if path.suffix not in (".cpp", ".cu", ".hpp"):
        return []
    code = blank_literals(text)
    bans = BANS + (TEST_BANS if is_test(path) and path.parts[0] != "bench" else [])
    code_lines, text_lines = code.split("\n"), text.split("\n")
    findings = []
    for ban in bans:
        for match in () if ban.allowed(path) else re.finditer(ban.pattern, code):
            line = line_of(code, match.start())
            excused = ban.unless and re.search(ban.unless, code_lines[line - 1])
            if not excused and not any(WAIVER.search(t) for t in text_lines[max(0, line - 2):line]):
                findings.append(Finding(
                    path, line, f"'{match.group().strip()}' is banned",
                    f"{ban.mend} (or say why not: // tidy_test: REASON)"))
    return findings


def check_words(path, text):
    findings = [Finding(path, line_of(text, match.start()), f"'{match.group()}' without an issue",
                        "do it, or name the issue: TODO(#12)")
                for match in UNFINISHED.finditer(text)]
    if not is_test(path):
        findings += [Finding(path, line_of(text, match.start()),
                             f"'{match.group()}' is a path of one machine", "leave it out")
                     for match in MACHINE_PATH.finditer(text)]
    return findings


def check_header(path, text):
    # Highway includes its sources once per target, under a guard that it toggles.
    if path.suffix != ".hpp" or "#pragma once" in text or "HWY_TARGET_TOGGLE" in text:
        return []
    return [Finding(path, 1, "a header without #pragma once", "add it")]


def check_file(path, text):
    # These two files hold the patterns themselves.
    checks = [check_lines, check_functions]
    if path.name not in ("tidy_code.py", "tidy_test.py"):
        checks += [check_bans, check_words, check_header]
    return [finding for check in checks for finding in check(path, text)]


def check_heads(files):
    """A file starts with what it is; X.cpp may leave that to X.hpp."""
    return [Finding(name, 1, "a file without a comment at its head",
                    "say what it is, its invariant, thread and failure")
            for name, text in files.items()
            if name.suffix in (".cpp", ".cu", ".hpp") and not text.startswith("//")
            and (name.suffix == ".hpp" or name.with_suffix(".hpp") not in files)]


def check_heavy_headers(files):
    findings = []
    for library, pattern in HEAVY.items():
        users = sorted(name for name, text in files.items()
                       if name.suffix in (".cpp", ".hpp") and pattern.search(text))
        headers = [name for name in users if name.suffix == ".hpp"]
        for name in headers + (users if len(users) > 1 else []):
            findings.append(Finding(name, 0, f"includes {library}, as do {len(users) - 1} others",
                                    "a heavy library stands in one .cpp behind a header of ours"))
    return findings


def self_test():
    """Each check finds its planted fault, and nothing in a clean file."""
    code, header, test = map(
        pathlib.PurePosixPath, ("model/a.cpp", "model/a.hpp", "model/a_test.cpp"))
    body = "\n".join(["  x();"] * FUNCTION_LINES_MAX)
    planted = [(code, "// c\n" + ban.planted) for ban in BANS]
    planted += [(test, "// c\n" + ban.planted) for ban in TEST_BANS]
    planted += [
        (code, "// " + "x" * 100),
        (code, "// TO" + "DO: later"),
        (code, "// c\nauto p = \"/ho" + "me/me/x\";"),
        (code, f"// c\nnamespace a {{\nvoid f(int a) const {{\n{body}\n}}\n}}"),
        (code, f"// c\nclass A : B {{\n A() : a_{{1}} {{\n{body}\n}}\n}};"),
        (header, "// c\nint x;"),
        (pathlib.PurePosixPath("a.py"), "def f():\n" + "    f()\n" * FUNCTION_LINES_MAX),
    ]
    findings = [Finding("self", 0, f"a planted fault is not found: {text[:60]!r}", "mend the check")
                for path, text in planted if not check_file(path, text)]
    clean = ("// assert(x) new int\n#include <a>\nstatic_assert(sizeof(int) == 4);\n"
             "A(const A&) = delete;\n"
             "void f() { queue.free(1); g(\"printf(1)\", '\"'); snprintf(b); }\n"
             "int n = 65'536; void h() { x.time(); std::free_list l; }\n")
    findings += check_file(code, clean)
    if not check_heads({code: "int x;"}) or check_heads({code: "int x;", header: "// c"}):
        findings.append(Finding("self", 0, "a missing head is not found", "mend it"))
    heavy = {name: "#include <spdlog/spdlog.h>" for name in (code, test)}
    if len(check_heavy_headers(heavy)) != 2:
        findings.append(Finding("self", 0, "two users of a heavy header are not found", "mend it"))
    return findings
