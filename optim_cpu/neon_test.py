"""The optimizer's vector code compiles for 64-bit Arm, with NEON and not only as scalar code.

  neon_test.py ROOT COMPILER      exit code 77 where there is no cross compiler
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Highway takes NEON only together with the AES instructions.
FLAGS = ["-std=c++20", "-O2", "-march=armv8-a+crypto", "-ffp-contract=off", "-Wall", "-Wextra",
         "-Werror"]


def main():
    _, root, compiler = sys.argv
    root = pathlib.Path(root)
    if shutil.which(compiler) is None:
        print(f"skipped: there is no {compiler}")
        return 77
    sources = sorted(path for path in (root / "optim_cpu").glob("*.cpp")
                     if "HWY_EXPORT" in path.read_text())
    assert len(sources) >= 4, sources
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            compiled = pathlib.Path(folder) / (source.stem + ".o")
            subprocess.run([compiler, *FLAGS, "-I", root, "-I", root / "include", "-c", source,
                            "-o", compiled], check=True)
            # Highway's namespace of the instruction set, as in the mangled names.
            assert b"N_NEON" in compiled.read_bytes(), f"{source.name} has no NEON code"
            print(f"{source.name}: NEON")
    return 0


if __name__ == "__main__":
    sys.exit(main())
