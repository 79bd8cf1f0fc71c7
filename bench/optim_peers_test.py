#!/usr/bin/env python3
"""optim_peers.py without the peers: optim_peers_test.py OPTIM_BENCH.

Every case of ours exists in the real optim_bench, with the bytes of the table; quotients are made
within rounds; a peer that is missing or breaks down costs its own lines only, with a warning.
Peers are played by a script that answers for the interpreter.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import optim_peers

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optim_peers.py")
OPTIM_BENCH = os.path.abspath(sys.argv.pop(1))
PEERS = [one for one in optim_peers.CONTENDERS if one.library]
OURS = [one for one in optim_peers.CONTENDERS if not one.library]

# Two steps of 1 s; torchao is not installed, and the second contender of DeepSpeed breaks down.
PLAYER = f"""#!{sys.executable}
import json, sys
sys.path.insert(0, {os.path.dirname(SCRIPT)!r})
import optim_peers
one = optim_peers.CONTENDERS[int(sys.argv[sys.argv.index("--child") + 1])]
if one.library == "torchao":
    sys.exit("ModuleNotFoundError: No module named 'torchao'")
if one.name.startswith("DeepSpeedCPUAdam bf16 weights"):
    sys.exit("broken")
print("Adam Optimizer #0 is created")
print(optim_peers.RESULT + json.dumps(dict(seconds=[1.0, 1.0], peak_bytes=1, version="1.2")))
"""


class OptimPeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out.jsonl")
        self.player = os.path.join(folder.name, "python")
        with open(self.player, "w") as file:
            file.write(PLAYER)
        os.chmod(self.player, 0o755)

    def run_script(self, *arguments, optim_bench=OPTIM_BENCH):
        return subprocess.run([sys.executable, "-B", SCRIPT, "--optim-bench", optim_bench,
                               "--threads", "1", "--steps", "1", *arguments],
                              capture_output=True, text=True)

    def records(self, summary):
        with open(self.out) as file:
            lines = [json.loads(line) for line in file]
        return [line for line in lines if line.get("summary", False) == summary]

    def test_all_of_ours_without_peers(self):
        done = self.run_script("--n", "1000000", "--rounds", "2", "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([one["name"] for one in self.records(True)],
                         [one.name for one in OURS], done.stderr)
        names = [one["name"] for one in self.records(False)]
        self.assertEqual(names[len(OURS):], names[:len(OURS)][::-1])  # the second round
        for library in ("torch", "deepspeed", "bitsandbytes", "torchao"):
            self.assertIn(f"warning: {library} is left out", done.stderr)

    def test_bytes_are_those_of_optim_bench(self):
        listed = subprocess.run([OPTIM_BENCH, "1", "1", "1", "", "json"], check=True,
                                capture_output=True, text=True).stdout
        cases = {one["name"]: one for one in map(json.loads, listed.splitlines())}
        for one in OURS:
            self.assertEqual(cases[one.name]["bytes_per_parameter"], one.bytes_moved, one.name)

    def test_missing_and_broken_peers(self):
        done = self.run_script("--n", "1000000", "--rounds", "1", "--out", self.out, "--python",
                               self.player)
        self.assertEqual(done.returncode, 0, done.stderr)
        measured = {(one["name"], one["section"]) for one in self.records(True)}
        for one in PEERS:
            lost = one.library == "torchao" or one.name.startswith("DeepSpeedCPUAdam bf16 weights")
            self.assertEqual((one.name, one.section) not in measured, lost, one.name)
        self.assertIn("warning: torchao is left out (1 contenders)", done.stderr)
        self.assertIn("No module named 'torchao'", done.stderr)
        self.assertIn("-m pip install torchao", done.stderr)
        self.assertIn("states (bf16 gradient) is left out: ended with 1: broken", done.stderr)
        self.assertIn("deepspeed 1.2", done.stdout)

    def test_only_and_skip(self):
        done = self.run_script("--n", "1000000", "--rounds", "1", "--out", self.out, "--only",
                               "complete", "--skip", "q8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([one["name"] for one in self.records(True)],
                         [one.name for one in OURS if one.complete and "q8" not in one.name])

    def test_quotients_are_made_within_rounds(self):
        one = OURS[0]
        rounds = {0: dict(seconds=2.0, stream_bytes_per_s=28.0),
                  1: dict(seconds=4.0, stream_bytes_per_s=14.0)}
        baseline = {1: dict(seconds=1.0), 2: dict(seconds=9.0)}
        seconds, of_stream, of_ours = optim_peers.summarize(one, rounds, baseline, 2)
        self.assertEqual((seconds, of_stream, of_ours), ([2.0, 4.0], [1.0, 1.0], [0.25]))

    def test_wrong_use(self):
        for arguments, text in ((("--n", "5"), "whole millions"), (("--rounds", "0"), "--rounds"),
                                (("--only", "nothing"), "leave no contender")):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)
        done = self.run_script("--n", "1000000", optim_bench="/nowhere/optim_bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("build the target optim_bench", done.stderr)


    def test_too_little_memory_is_a_failure_before_the_start(self):
        options = unittest.mock.Mock(n=1_000_000_000, threads=2, python=None)
        with unittest.mock.patch("optim_peers.available_bytes", return_value=2e9):
            with self.assertRaisesRegex(optim_peers.Failure, r"needs about 16\.1 GB, 2\.0 GB are"):
                optim_peers.Bench(options).measure(OURS[0])


if __name__ == "__main__":
    unittest.main()
