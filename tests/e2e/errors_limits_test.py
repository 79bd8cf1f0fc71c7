"""Errors of what the system allows: memory, threads, io_uring, another user.

python3 errors_limits_test.py BINARY GOLDEN_CASE_DIR [CASE ...]
"""

import ctypes
import os
import resource
import shutil
import struct
import subprocess

import harness
from errors_world import case, run_cases
from harness import OPERATING

NOBODY = 65534


def limited(limit, bytes_or_count):
    return lambda: resource.setrlimit(limit, (bytes_or_count, bytes_or_count))


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def forbid_io_uring():
    """As a container's seccomp profile does: io_uring_setup (425 everywhere) fails with EPERM."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    rules = [
        (load, 0, 0, 0),
        (jump_if_equal, 0, 1, 425),
        (give, 0, 0, 0x50001),
        (give, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    program = struct.pack("@HP", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, filter_mode, program):
        raise OSError(ctypes.get_errno(), "prctl")


@case("limits")
def limits(world):
    on_nvme = {"tiers": {"place": "nvme"}}
    path = world.config("limits", on_nvme)
    words = ["train", path]
    fact = "a limit of a file's size"
    world.fails(fact, OPERATING, *words, before=limited(resource.RLIMIT_FSIZE, 1 << 20))
    for files in range(4, 24):
        run = world.folder / "few-files-run"
        how = {"before": limited(resource.RLIMIT_NOFILE, files)}
        few = world.config("few-files", on_nvme)
        outcome = world.headrace.run("train", few, **how)
        begun = "step 1/" in outcome.out
        if outcome.code == harness.OK or begun or "shared libraries" in outcome.err:
            shutil.rmtree(run, ignore_errors=True)
            continue
        problems = harness.error_problems(outcome, OPERATING)
        fact = f"a start with {files} open files: exit 1, nothing is left"
        world.report.check(fact, not problems and not run.exists(), f"{problems}\n{outcome}")
    # Sanitizers need terabytes of addresses.
    asked = world.headrace.run("--version", before=limited(resource.RLIMIT_AS, 1 << 30))
    if asked.code != harness.OK:
        world.report.skip("limits of memory", asked.err[:100])
    else:
        for limit, name in ((resource.RLIMIT_DATA, "data"), (resource.RLIMIT_AS, "all")):
            for mebibytes in (12, 16, 20, 24, 28, 32, 40, 48, 64, 72, 80, 96, 128):
                how = {"before": limited(limit, mebibytes << 20)}
                outcome = world.headrace.run("plan", path, **how)
                loaded = "shared librar" not in outcome.err and "shared object" not in outcome.err
                problems = loaded and outcome.code and harness.error_problems(outcome, OPERATING)
                fact = f"{mebibytes} MiB of memory ({name}): a plan or an error"
                world.report.check(fact, not problems, f"{problems}\n{outcome}")
    no_cache = {"PATH": os.environ["PATH"]}  # neither HOME nor XDG_CACHE_HOME
    trained = world.headrace.run("train", path, environment=no_cache)
    world.report.equal("no home: trains all the same", trained.code, harness.OK)
    words += ["--overwrite"]
    trained = world.headrace.run(*words, before=forbid_io_uring)
    told = trained.code == harness.OK and "io_uring" in trained.err
    world.report.check("no io_uring: trains, and says so", told, trained)


def few_threads(world, changes, how):
    """A limit of processes: OpenMP and oneTBB would end the process without a word of ours."""

    def limited_nobody(processes):
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        become_nobody()

    words = ["/bin/sh", "-c", "true & wait"]
    tried = subprocess.run(
        words, preexec_fn=lambda: limited_nobody(1), capture_output=True, text=True
    )
    if "fork" not in tried.stderr:
        world.report.skip("a limit of processes", "it does not hold here")
        return
    how = {**how, "before": lambda: limited_nobody(8)}
    threads = {"run": {**changes["run"], "compute_threads": 4}, "optim": {"threads": 4}}
    path = world.config("few", {**changes, **threads})
    says = ["thread", "ulimit -u"]
    world.fails("a limit of processes", OPERATING, "train", path, says=says, **how)


@case("another user")
def another_user(world):
    """Without root's rights: closed folders, and 64 KiB of memory that may be locked."""
    if os.geteuid() != 0:
        world.report.skip("another user", "only root can become one")
        return
    world.folder.chmod(0o755)
    for file, command in ((world.headrace.binary, "--version"), ("/bin/cat", world.text)):
        try:
            reached = subprocess.run([file, command], preexec_fn=become_nobody, capture_output=True)
        except PermissionError as error:
            world.report.skip("another user", error)
            return
        if reached.returncode != 0:
            world.report.skip("another user", reached.stderr.decode())
            return
    open_folder, closed = world.folder / "open", world.folder / "closed"
    open_folder.mkdir()
    os.chown(open_folder, NOBODY, NOBODY)
    closed.mkdir(mode=0o700)
    environment = {**world.headrace.environment, "XDG_CACHE_HOME": str(open_folder / "cache")}
    how = {"before": become_nobody, "environment": environment}
    run = {"run": {"dir": open_folder / "run"}}

    def poor():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        become_nobody()

    on_nvme = {"place": "nvme", "nvme": [open_folder / "store"]}
    path = world.config("poor", {**run, "tiers": on_nvme})
    trained = world.headrace.run("train", path, **{**how, "before": poor})
    fact = "64 KiB of lockable memory: trains all the same"
    world.report.check(fact, trained.code == harness.OK, trained)
    rows = [
        harness.read_metrics(folder / "metrics.jsonl")
        for folder in (open_folder / "run", world.good)
    ]
    difference = harness.first_difference(*rows)
    world.report.check("64 KiB of lockable memory: equal metrics", not difference, difference)

    few_threads(world, {"run": {"dir": open_folder / "few"}}, how)
    path = world.config(
        "shut", {"run": {"dir": open_folder / "shut"}, "tiers": {"nvme": [closed / "s"]}}
    )
    world.fails(
        "a closed folder for the store", OPERATING, "train", path, says=[str(closed)], **how
    )
    path = world.config("shut", {"run": {"dir": closed / "run"}})
    world.fails("a closed folder for the run", OPERATING, "train", path, says=[str(closed)], **how)
    secret = world.folder / "secret.txt"
    secret.write_text("x" * 2000)
    secret.chmod(0o600)
    path = world.config("shut", {"run": {"dir": open_folder / "shut"}, "data": {"train": [secret]}})
    world.fails("data that may not be read", OPERATING, "train", path, says=[str(secret)], **how)
    path = world.config("shut", {"run": {"dir": world.good, "steps": 4}})
    world.fails("another's run", OPERATING, "train", path, says=[str(world.good)], **how)


if __name__ == "__main__":
    run_cases("errors_limits")
