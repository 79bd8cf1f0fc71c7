"""`cmake --install` gives a library that other programs find and can use, and no more than it says.

  install_test.py HEADRACE CMAKE BUILD_FOLDER EXAMPLE_FOLDER [BUILD_TYPE]
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            **options)
    if result.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def declared_functions(header):
    """The names that the C header promises."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return set(re.findall(r"HEADRACE_API[^;]*?(headrace_\w+)\(", text))


def exported_symbols(library):
    return {line.split()[-1].split("@")[0]
            for line in run("nm", "-D", "--defined-only", library).splitlines()}


def main():
    _, headrace, cmake, build, example = sys.argv
    with tempfile.TemporaryDirectory(dir=".") as folder:
        folder = pathlib.Path(folder).resolve()
        prefix = folder / "prefix"
        run(cmake, "--install", build, "--prefix", prefix)
        installed = prefix / "bin" / "headrace"
        assert run(installed, "--version") == run(headrace, "--version"), "another program"

        # The API and nothing else: a C++ symbol that leaked could clash with its user's own.
        (library,) = [path for path in prefix.rglob("libheadrace.so") if path.is_symlink()]
        declared = declared_functions(prefix / "include" / "headrace" / "optim.h")
        assert len(declared) >= 8, declared
        assert exported_symbols(library) == declared, exported_symbols(library) ^ declared
        static = [str(path) for path in prefix.rglob("*.a")]
        assert static == [], static

        # By CMake's package, after the tree has moved.
        moved = folder / "moved"
        prefix.rename(moved)
        run(cmake, "-S", example, "-B", folder / "cmake", f"-DCMAKE_PREFIX_PATH={moved}")
        run(cmake, "--build", folder / "cmake")
        assert run(folder / "cmake" / "fit_line").startswith("y = 2.00"), "the example went astray"

        # By pkg-config.
        (package,) = moved.rglob("headrace.pc")
        flags = run("pkg-config", "--cflags", "--libs", package).split()
        program = folder / "by_pkg_config"
        source = pathlib.Path(example) / "fit_line.c"
        run(shutil.which("cc") or "gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", source, *flags,
            "-lm", f"-Wl,-rpath,{package.parent.parent}", "-o", program)
        run(program)
    print("installed, found by CMake and by pkg-config, exports the C API only")


if __name__ == "__main__":
    main()
