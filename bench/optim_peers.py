#!/usr/bin/env python3
"""The CPU optimizer beside PyTorch's, DeepSpeed's and the 8-bit ones, in one interleaved run.

  bench/optim_peers.py --optim-bench build/release/bench/optim_bench --python PYTHON [--out FILE]

PYTHON is the interpreter of an environment with torch, deepspeed, bitsandbytes, torchao and ninja
(DeepSpeed compiles its optimizer on first use); what it lacks is left out with a warning. Every
contender runs once a round in a process of its own, right after optim_bench's stream of Adam's
shape; every second round goes backwards. A process does two steps to warm up (optim_bench one) and
gives the median of --steps timed ones. A figure is the median over rounds, with the fastest and
the slowest; "of stream" and "of ours" are medians of quotients within rounds. "Of ours" is against
the first line of its section: above 100 % a peer is faster than we are. Small arrays (--n below
100 million or so) stay in a large cache and say nothing about memory.

Bytes are those that a contender's passes must move for a parameter, without write-allocation (all
writes but those of copies are in place). Peers get huge pages where we ask for them
(THP_MEM_ALLOC_ENABLE=1, unless it is set already). Each peer's weights and first moment are
compared with AdamW in float64 on the first elements before its times count; formats of fewer bits
must change their weights.

The complete update: the gradient is bf16 and its norm is known; apply the clip factor, AdamW on
exact fp32 masters, new bf16 weights. Ours is one pass. DeepSpeed 0.19.8's kernel takes fp32 weights
with fp32 gradients only; its variants for bf16 gradients keep the weights themselves in bf16 and so
lose the master's low bits. So its way is ZeRO-Offload's: copy the gradient to fp32, multiply it,
step, copy the weights to bf16. It runs as ZeRO-Offload does, over the whole array, and, as the
fastest that can be made of the same calls, in blocks that stay in cache. PyTorch runs in the same
two ways; in blocks its kernel applies the clip factor itself (grad_scale).
"""
import argparse
import collections
import dataclasses
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

MILLION = 1_000_000
LR, BETAS, EPS, WEIGHT_DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.1
CLIP_FACTOR = 1.0 / (2.0 + 1e-6)  # the norm is 2, clipped at 1
WEIGHT = 0.02
SUBNORMAL = 1e-41
BLOCK = 1 << 18  # the fastest of 2^15 to 2^22 on two cores with 2 MiB of L2 cache each
WARMUP = 2
SECONDS_MAX = 30  # of timed steps in one process, for slow peers; two are always timed
CHECKED = 256
STREAM = "stream of Adam's shape"
RESULT = "RESULT "


@dataclasses.dataclass(frozen=True)
class Contender:
    section: str
    name: str             # of ours: the case of optim_bench
    gradient: str
    bytes_moved: float    # for a parameter
    bytes_kept: float     # for a parameter, all memory of its process at its peak
    library: str = ""     # of a peer
    weights: str = "fp32"
    states: str = "fp32"
    subnormal: bool = False
    zero_gradient: bool = False
    blocks: bool = False
    complete: bool = False


def ours(section, state, param, gradient):
    kept = {"fp32": 12, "bf16": 8, "q8": 5.25}[state]
    incoming = {"fp32": 4, "bf16": 2}[gradient]
    return Contender(section, f"adamw {state}, {param} param, {gradient} gradient", gradient,
                     2 * kept + incoming, kept + incoming)


FORMATS = [("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "fp32"), ("bf16", "bf16"), ("q8", "bf16")]
FP32, BF16 = "fp32 gradient", "bf16 gradient"
OLD = "subnormal moments, fp32 gradient"
DEAD = "subnormal moments, fp32 gradient of zeros"
COMPLETE = "complete update: bf16 gradient, clip, exact fp32 masters, bf16 weights"

CONTENDERS = [
    *[ours(FP32, state, param, "fp32") for state, param in FORMATS],
    Contender(FP32, "torch AdamW(fused) fp32", "fp32", 28, 16, "torch"),
    Contender(FP32, "DeepSpeedCPUAdam fp32", "fp32", 28, 16, "deepspeed"),
    Contender(FP32, "bitsandbytes AdamW8bit, fp32 weights", "fp32", 16, 30, "bitsandbytes",
              states="8-bit"),
    Contender(FP32, "torchao AdamW8bit, fp32 weights", "fp32", 16, 16, "torchao", states="8-bit"),

    *[ours(BF16, state, param, "bf16") for state, param in
      sorted(FORMATS, key=lambda one: one != ("fp32", "bf16"))],
    Contender(BF16, "DeepSpeedCPUAdam bf16 weights, fp32 states", "bf16", 22, 12, "deepspeed",
              weights="bf16"),
    Contender(BF16, "DeepSpeedCPUAdam all bf16", "bf16", 14, 8, "deepspeed", weights="bf16",
              states="bf16"),

    *[contender for section, zero in ((OLD, False), (DEAD, True)) for contender in (
        Contender(section,
                  f"subnormal moments: adamw fp32, {'zero ' if zero else ''}fp32 gradient",
                  "fp32", 28, 16, subnormal=True, zero_gradient=zero),
        Contender(section, "torch AdamW(fused) fp32, subnormal moments", "fp32", 28, 16, "torch",
                  subnormal=True, zero_gradient=zero),
        Contender(section, "DeepSpeedCPUAdam fp32, subnormal moments", "fp32", 28, 16, "deepspeed",
                  subnormal=True, zero_gradient=zero))],

    *[Contender(COMPLETE, f"complete: clip, adamw {state}, bf16 gradient and weights", "bf16",
                moved, kept, complete=True)
      for state, moved, kept in (("fp32", 26, 14), ("bf16", 18, 10), ("q8", 12.5, 7.25))],
    # Copy 6 bytes, clip 8, step 28, copy 6; in blocks the fp32 gradient stays in cache.
    Contender(COMPLETE, "torch fused: copy, clip, step, copy", "bf16", 48, 20, "torch",
              complete=True),
    Contender(COMPLETE, "torch fused, the same in blocks in cache", "bf16", 28, 16, "torch",
              complete=True, blocks=True),
    Contender(COMPLETE, "DeepSpeed fp32: copy, clip, step, copy", "bf16", 48, 20, "deepspeed",
              complete=True),
    Contender(COMPLETE, "DeepSpeed fp32, the same in blocks in cache", "bf16", 28, 16, "deepspeed",
              complete=True, blocks=True),
]


# The peers' side: a process for each measurement.

@dataclasses.dataclass
class Peer:
    """Tensors of one contender and the functions that use them."""
    parameter: object
    gradient: object             # as it comes in
    step: object                 # called with the number of the step, from 1
    moments: object              # returns both, once a step was made
    weights_out: object = None   # of the complete update


def make_optimizer(contender, parameter):
    settings = dict(lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)
    if contender.library == "torch":
        import torch
        return torch.optim.AdamW([parameter], fused=True, **settings)
    if contender.library == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam([parameter], adamw_mode=True,
                                fp32_optimizer_states=contender.states == "fp32", **settings)
    if contender.library == "bitsandbytes":
        from bitsandbytes.optim import AdamW8bit
        return AdamW8bit([parameter], **settings)
    from torchao.optim import AdamW8bit
    return AdamW8bit([parameter], **settings)


def make_tensors(contender, n):
    import torch
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    torch.manual_seed(1)
    pattern = (torch.randn(MILLION) * 1e-3).to(dtypes[contender.gradient])
    gradient = torch.empty(n, dtype=dtypes[contender.gradient])
    if contender.zero_gradient:
        pattern.zero_()
    for begin in range(0, n, MILLION):
        gradient[begin:begin + MILLION] = pattern[:n - begin]
    parameter = torch.nn.Parameter(torch.full((n,), WEIGHT, dtype=dtypes[contender.weights]))
    return parameter, gradient


def make_plain(contender, n):
    """The optimizer as the library's user calls it."""
    parameter, gradient = make_tensors(contender, n)
    parameter.grad = gradient
    optimizer = make_optimizer(contender, parameter)

    def moments():
        state = optimizer.state[parameter]
        return state["exp_avg"], state["exp_avg_sq"]

    return Peer(parameter, gradient, lambda number: optimizer.step(), moments)


def make_complete(contender, n):
    """The complete update, each pass over the whole array."""
    import torch
    parameter, gradient = make_tensors(contender, n)
    weights_out = torch.zeros(n, dtype=torch.bfloat16)
    parameter.grad = torch.empty(n)
    optimizer = make_optimizer(contender, parameter)
    norm = torch.tensor(2.0)

    def step(number):
        parameter.grad.copy_(gradient)
        if contender.library == "torch":
            torch.nn.utils.clip_grads_with_norm_([parameter], 1.0, norm)
        else:
            parameter.grad.mul_(CLIP_FACTOR)
        optimizer.step()
        weights_out.copy_(parameter.detach())

    def moments():
        state = optimizer.state[parameter]
        return state["exp_avg"], state["exp_avg_sq"]

    return Peer(parameter, gradient, step, moments, weights_out)


def make_blocks(contender, n):
    """The complete update block by block, with the calls that the optimizers' step() makes."""
    import torch
    parameter, gradient = make_tensors(contender, n)
    weights_out = torch.zeros(n, dtype=torch.bfloat16)
    moments = torch.zeros(n), torch.zeros(n)
    buffer = torch.empty(min(n, BLOCK))

    if contender.library == "torch":
        # The kernel divides the gradient by grad_scale.
        settings = dict(amsgrad=False, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS,
                        weight_decay=WEIGHT_DECAY, maximize=False,
                        grad_scale=torch.tensor(1 / CLIP_FACTOR), found_inf=torch.tensor(0.0))

        def update(number, param, grad, m, v):
            torch._fused_adamw_([param], [grad], [m], [v], [], [torch.tensor(float(number))],
                                **settings)
    else:
        optimizer = make_optimizer(contender, parameter)

        def update(number, param, grad, m, v):
            grad.mul_(CLIP_FACTOR)
            optimizer.ds_opt_adam.adam_update(optimizer.opt_id, number, LR, *BETAS, EPS,
                                              WEIGHT_DECAY, True, param, grad, m, v)

    def step(number):
        weights = parameter.detach()
        for begin in range(0, n, BLOCK):
            block = slice(begin, min(n, begin + BLOCK))
            grad = buffer[:block.stop - begin]
            grad.copy_(gradient[block])
            update(number, weights[block], grad, moments[0][block], moments[1][block])
            weights_out[block].copy_(weights[block])

    return Peer(parameter, gradient, step, lambda: moments, weights_out)


def expected(contender, gradient, steps):
    """Weights and first moment of AdamW in float64."""
    gradient = gradient.double() * (CLIP_FACTOR if contender.complete else 1.0)
    weights, m, v = gradient * 0 + WEIGHT, gradient * 0, gradient * 0
    for number in range(1, steps + 1):
        if contender.subnormal and number > 1:
            m, v = m * 0 + SUBNORMAL, v * 0 + SUBNORMAL
        m = BETAS[0] * m + (1 - BETAS[0]) * gradient
        v = BETAS[1] * v + (1 - BETAS[1]) * gradient * gradient
        weights = weights * (1 - LR * WEIGHT_DECAY)
        denominator = (v / (1 - BETAS[1] ** number)).sqrt() + EPS
        weights = weights - LR / (1 - BETAS[0] ** number) * m / denominator
    return weights, m


def check(contender, peer, steps):
    import torch
    weights = peer.parameter.detach()[:CHECKED]
    if contender.weights != "fp32" or contender.states != "fp32":
        assert torch.isfinite(weights).all() and (weights != WEIGHT).any(), "no update was made"
        return
    wanted, wanted_m = expected(contender, peer.gradient[:CHECKED], steps)
    torch.testing.assert_close(weights.double(), wanted, rtol=0, atol=2e-7)
    torch.testing.assert_close(peer.moments()[0][:CHECKED].double(), wanted_m, rtol=1e-4,
                               atol=1e-12)
    if peer.weights_out is not None:
        assert torch.equal(peer.weights_out[:CHECKED], weights.bfloat16()), "wrong bf16 weights"


def run_peer(contender, n, threads, steps):
    import importlib.metadata
    import torch
    torch.set_num_threads(threads)
    make = make_plain
    if contender.complete:
        make = make_blocks if contender.blocks else make_complete
    seconds = []
    with torch.no_grad():
        peer = make(contender, n)
        number = 0
        while number < WARMUP + steps:
            number += 1
            if contender.subnormal and number > 1:
                for moment in peer.moments():
                    moment.fill_(SUBNORMAL)
            begin = time.perf_counter()
            peer.step(number)
            if number > WARMUP:
                seconds.append(time.perf_counter() - begin)
            if len(seconds) >= 2 and sum(seconds) > SECONDS_MAX:
                break
        check(contender, peer, number)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(RESULT + json.dumps(dict(seconds=seconds, peak_bytes=peak,
                                   version=importlib.metadata.version(contender.library))))


# The measuring side; it needs the standard library only.

class Failure(Exception):
    pass


def be_first_to_go():
    """Should memory run out, the kernel ends this process rather than another."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def run_process(command, environment, timeout):
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True,
                              timeout=timeout, preexec_fn=be_first_to_go)
    except subprocess.TimeoutExpired:
        raise Failure(f"not done after {timeout:.0f} s") from None
    except OSError as error:
        raise Failure(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise Failure(f"ended with {done.returncode}: {lines[-1]}")
    return done.stdout.splitlines()


class Bench:
    def __init__(self, options):
        self.options = options
        self.versions = {}
        self.target = ""
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("OPENBLAS_")}
        threads = str(options.threads)
        self.environment.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads,
                                DS_ACCELERATOR="cpu")
        self.environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        if options.python:  # ninja lies beside it
            folder = os.path.dirname(os.path.abspath(options.python))
            self.environment["PATH"] = folder + os.pathsep + self.environment["PATH"]

    def run_case(self, name):
        """Seconds of each repetition of one case of optim_bench."""
        command = [self.options.optim_bench, str(self.options.threads),
                   str(self.options.n // MILLION), str(self.options.steps), "=" + name, "json"]
        cases = [json.loads(line) for line in
                 run_process(command, dict(os.environ), self.options.timeout)]
        found = next((one for one in cases if one["name"] == name), None)
        if found is None:
            raise Failure(f"optim_bench has no case of this name: {name}")
        self.target = found["target"]
        return found

    def run_peer(self, contender, n, steps):
        command = [self.options.python, os.path.abspath(__file__), "--child",
                   str(CONTENDERS.index(contender)), "--n", str(n), "--steps", str(steps),
                   "--threads", str(self.options.threads)]
        lines = run_process(command, self.environment, self.options.timeout)
        result = next((line for line in lines if line.startswith(RESULT)), None)
        if result is None:
            raise Failure("it printed no result")
        found = json.loads(result.removeprefix(RESULT))
        self.versions[contender.library] = found["version"]
        return found

    def measure(self, contender):
        libraries = 1e9 if contender.library else 0.1e9
        needed = contender.bytes_kept * self.options.n + libraries
        available = available_bytes()
        if needed > available:
            raise Failure(f"it needs about {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are "
                          "available; end other programs, or give a smaller --n")
        stream = self.run_case(STREAM)
        if contender.library:
            found = self.run_peer(contender, self.options.n, self.options.steps)
        else:
            found = self.run_case(contender.name)
        return dict(seconds=statistics.median(found["seconds"]), steps=found["seconds"],
                    stream_bytes_per_s=stream["elements"] * stream["bytes_per_parameter"] /
                    statistics.median(stream["seconds"]), peak_bytes=found.get("peak_bytes"))


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file
                    if line.startswith("MemAvailable"))


def warn(text):
    print(f"warning: {text}", file=sys.stderr, flush=True)


def usable(bench, contenders):
    """Without the contenders whose library is missing. Compiles what a library compiles first."""
    missing = set()
    for library in dict.fromkeys(one.library for one in contenders if one.library):
        some = [one for one in contenders if one.library == library]
        reason = "no --python was given"
        if bench.options.python:
            try:
                bench.run_peer(some[0], MILLION, 1)
                continue
            except Failure as failure:
                reason = f"{failure}; try {bench.options.python} -m pip install {library} ninja"
        warn(f"{library} is left out ({len(some)} contenders): {reason}")
        missing.add(library)
    return [one for one in contenders if one.library not in missing]


def measure_all(bench, contenders, out):
    """Measurements by contender and round. What fails is left out from then on."""
    measured = collections.defaultdict(dict)
    for round_number in range(bench.options.rounds):
        order = list(contenders) if round_number % 2 == 0 else list(reversed(contenders))
        for contender in order:
            try:
                found = bench.measure(contender)
            except Failure as failure:
                warn(f"{contender.name} ({contender.gradient} gradient) is left out: {failure}")
                contenders.remove(contender)
                continue
            measured[contender][round_number] = found
            write_json(out, dict(round=round_number, section=contender.section,
                                 name=contender.name, gradient=contender.gradient,
                                 n=bench.options.n, threads=bench.options.threads,
                                 bytes_per_parameter=contender.bytes_moved, **found))
        print(f"round {round_number + 1} of {bench.options.rounds} done", file=sys.stderr,
              flush=True)
    return measured


def write_json(out, record):
    if out:
        out.write(json.dumps(record) + "\n")
        out.flush()


def spread(values, form):
    return f"{min(values):{form}}-{max(values):{form}}"


def summarize(contender, rounds, baseline, n):
    seconds = [one["seconds"] for one in rounds.values()]
    rates = {number: n * contender.bytes_moved / one["seconds"] for number, one in rounds.items()}
    of_stream = [rates[number] / one["stream_bytes_per_s"] for number, one in rounds.items()]
    of_ours = [baseline[number]["seconds"] / one["seconds"] for number, one in rounds.items()
               if number in baseline]
    return seconds, of_stream, of_ours


def print_table(bench, measured, out):
    options = bench.options
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    print(f"{options.n // MILLION} million parameters, {options.threads} threads, {bench.target}, "
          f"medians of {options.rounds} rounds of {options.steps} steps; {versions or 'no peers'}; "
          f"{platform.machine()}, huge pages {huge_pages()}, {time.strftime('%d %b %Y')}")
    print(f"{'':<58}{'gradient':>9}{'ms':>10}{'fastest-slowest':>21}{'Mparam/s':>10}{'B':>7}"
          f"{'of stream':>11}{'of ours':>9}{'lowest-highest':>16}")
    section = None
    for contender in (one for one in CONTENDERS if one in measured):
        if contender.section != section:
            section = contender.section
            print(f"-- {section}")
        first = next(one for one in CONTENDERS if one.section == section)
        seconds, of_stream, of_ours = summarize(contender, measured[contender],
                                                measured.get(first, {}), options.n)
        middle = statistics.median(seconds)
        quotient = f"{100 * statistics.median(of_ours):.0f}%" if of_ours else "-"
        quotients = spread([100 * one for one in of_ours], ".0f") if of_ours else ""
        print(f"{contender.name:<58}{contender.gradient:>9}{middle * 1e3:>10.2f}"
              f"{spread([1e3 * one for one in seconds], '.2f'):>21}"
              f"{options.n / middle / 1e6:>10.0f}{contender.bytes_moved:>7.2f}"
              f"{100 * statistics.median(of_stream):>10.0f}%{quotient:>9}{quotients:>16}")
        write_json(out, dict(summary=True, section=section, name=contender.name,
                             gradient=contender.gradient, n=options.n, threads=options.threads,
                             rounds=len(seconds), seconds=middle, of_stream=of_stream,
                             of_ours=of_ours))


def huge_pages():
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return file.read().split("[")[1].split("]")[0]
    except OSError:
        return "unknown"


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optim-bench", default="build/release/bench/optim_bench")
    parser.add_argument("--python", help="with the peers; without it only ours is measured")
    parser.add_argument("--n", type=int, default=100 * MILLION, help="parameters, whole millions")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="timed in each process")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help="contenders whose section or name has one of these texts")
    parser.add_argument("--skip", nargs="+", default=[], metavar="TEXT",
                        help="but not those that have one of these")
    parser.add_argument("--timeout", type=float, default=900, help="of one process, in seconds")
    parser.add_argument("--out", help="JSON lines are appended to it")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.n <= 0 or options.n % MILLION:
        parser.error("--n counts whole millions, such as 100000000")
    for name in ("threads", "rounds", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    return options


def has_any(contender, texts):
    return any(text in contender.section or text in contender.name for text in texts)


def main():
    options = parse()
    if options.child is not None:
        run_peer(CONTENDERS[options.child], options.n, options.threads, options.steps)
        return 0
    contenders = [one for one in CONTENDERS if has_any(one, options.only)
                  and not has_any(one, options.skip)]
    if not contenders:
        print("error: --only and --skip leave no contender; they are texts from sections and names "
              "of the table, such as complete or DeepSpeed", file=sys.stderr)
        return 2
    bench = Bench(options)
    try:
        bench.run_case(STREAM)
    except Failure as failure:
        print(f"error: {options.optim_bench}: {failure}; build the target optim_bench "
              "(-DHEADRACE_BENCH=ON) and give it as --optim-bench", file=sys.stderr)
        return 1
    contenders = usable(bench, contenders)
    out = open(options.out, "a") if options.out else None
    measured = measure_all(bench, contenders, out)
    if not measured:
        print("error: nothing could be measured; the warnings above say why", file=sys.stderr)
        return 1
    print_table(bench, measured, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
