#!/usr/bin/env python3
"""All-reduce on the CPU: gloo (torch.distributed) against Muster's host backend, alternating, in one run.

scripts/bench allreduce-cpu [--build DIR] [--ranks 2,4] [--sizes BYTES,...] [--rounds N] [--transport auto|shm|ipc|tcp]
                            [--json FILE]
Each rank is a process with one thread. A figure is the median, over all rounds, of the time of one float32 all-reduce on rank 0.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = [4_000, 400_000, 3_200_000, 40_000_000]


def find_python():
    """The Python that has torch, or an end with advice."""
    python = os.environ.get("MUSTER_PYTHON") or os.path.join(ROOT, ".venv", "bin", "python")
    probe = "import torch.distributed as d, sys; sys.exit(0 if d.is_available() and d.is_gloo_available() else 1)"
    if not os.path.exists(python) or subprocess.run([python, "-c", probe], stderr=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"bench allreduce-cpu: {python} has no torch.distributed with gloo; run ./scripts/setup --full, "
                 "or set MUSTER_PYTHON to a Python that has torch")
    return python


def find_program(build):
    program = os.path.join(ROOT, build, "bin", "allreduce_bench")
    if not os.path.exists(program):
        sys.exit(f"bench allreduce-cpu: no {program}; build it: ninja -C {build} allreduce_bench")
    return program


def gloo_rank(rank, size, store):
    """The body of one gloo rank: orders from stdin, seconds of each iteration on rank 0 to stdout."""
    import time
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for line in sys.stdin:
        count, warmup, iterations = (int(word) for word in line.split())
        tensor = torch.ones(count // 4)
        seconds = []
        for i in range(warmup + iterations):
            if i % 8 == 0:
                tensor.fill_(1.0)
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if i >= warmup:
                seconds.append(time.perf_counter() - start)
        if rank == 0:
            print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


class Contestant:
    """A group of ranks that waits for orders."""

    def __init__(self, commands):
        self.ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands]

    def measure(self, size, warmup, iterations):
        for rank in self.ranks:
            rank.stdin.write(f"{size} {warmup} {iterations}\n")
            rank.stdin.flush()
        line = self.ranks[0].stdout.readline()
        if not line:
            sys.exit("bench allreduce-cpu: a rank has ended")
        return json.loads(line)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rank.kill()


def iterations_for(size):
    return 200 if size <= 10_000 else 60 if size <= 1_000_000 else 30 if size <= 10_000_000 else 8


def measure_ranks(size, arguments, python, program, folder):
    gloo = Contestant([[python, os.path.abspath(__file__), "--gloo-rank", str(rank), str(size), f"{folder}/store{size}"]
                       for rank in range(size)])
    muster = Contestant([[program, str(size), arguments.transport]])
    rows = []
    try:
        for count in arguments.sizes:
            samples = {"gloo": [], "muster": []}
            for _ in range(arguments.rounds):
                for name, contestant in (("gloo", gloo), ("muster", muster)):
                    samples[name] += contestant.measure(count, 3, iterations_for(count))
            medians = {name: statistics.median(values) * 1e3 for name, values in samples.items()}
            rows.append({"ranks": size, "bytes": count, "gloo_ms": medians["gloo"], "muster_ms": medians["muster"],
                         "samples": len(samples["gloo"])})
            print_row(rows[-1])
    finally:
        gloo.end()
        muster.end()
    return rows


def print_row(row):
    print(f"{row['ranks']:5d} {row['bytes']:11d} {row['gloo_ms']:10.3f} {row['muster_ms']:10.3f} "
          f"{row['gloo_ms'] / row['muster_ms']:7.2f} {row['samples']:8d}", flush=True)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    if sys.argv[1:2] == ["--gloo-rank"]:
        return gloo_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="build folder, from the repository's root")
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--sizes", type=numbers, default=SIZES, help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    python, program = find_python(), find_program(arguments.build)
    print(f"# {os.cpu_count()} cores; float32 all-reduce, {arguments.rounds} rounds, alternating; medians")
    print(f"{'ranks':>5} {'bytes':>11} {'gloo ms':>10} {'muster ms':>10} {'ratio':>7} {'samples':>8}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        for size in arguments.ranks:
            rows += measure_ranks(size, arguments, python, program, folder)
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
