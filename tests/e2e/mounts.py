"""Small filesystems and read-only folders, for tests that root runs."""

import contextlib
import os
import subprocess


class Mounts:
    """Mounts that go away again; needs root and a kernel that lets it."""

    def __init__(self):
        self.undo = []

    def run(self, *words):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{words[0]}: {done.stderr.strip()}")

    def mount(self, *words):
        self.run("mount", *words)
        self.undo.append(words[-1])

    def close(self):
        for target in reversed(self.undo):
            self.run("umount", target)


@contextlib.contextmanager
def mounts(report, fact):
    """Skips what is in its body where mounting is not allowed."""
    if os.geteuid() != 0:
        report.skip(fact, "mounting needs root")
        yield None
        return
    held = Mounts()
    try:
        yield held
    finally:
        held.close()


@contextlib.contextmanager
def small_disk(report, fact, folder, megabytes):
    """A new ext4 filesystem in a file, mounted; None, and a skip, where that cannot be."""
    image, target = folder / "disk.img", folder / "disk"
    with mounts(report, fact) as held:
        try:
            if held:
                with open(image, "wb") as file:
                    file.truncate(megabytes << 20)
                target.mkdir()
                held.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image)
                held.mount("-o", "loop", image, target)
        except OSError as error:
            report.skip(fact, error)
            held = None
        yield target if held else None
