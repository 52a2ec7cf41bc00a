#!/usr/bin/env python3
"""Seconds from the command to the end of the first training step, 2 CPU ranks: torchrun + DistributedDataParallel beside
`muster launch`, alternating, in one run.

  bench start [--ranks 2] [--rounds 5] [--muster PATH]
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

PEER = """
import importlib.util, os, torch, torch.distributed as dist
spec = importlib.util.spec_from_file_location("ddp", {ddp!r}); ddp = importlib.util.module_from_spec(spec); spec.loader.exec_module(ddp)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(ddp.build_model(torch))
optimizer = ddp.adamw(torch, model)
x = torch.randint(ddp.VOCAB, (6, ddp.CONTEXT))
model(x, x).backward(); optimizer.step()
if dist.get_rank() == 0: print("FIRST STEP DONE", flush=True)
dist.barrier(); dist.destroy_process_group()
"""


def seconds_until(command, pattern, env=None):
    """From the start of the command until a line of its output matches; then lets it end."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        seen, output = None, []
        for line in process.stdout:
            output.append(line)
            if seen is None and re.search(pattern, line):
                seen = time.perf_counter() - start
    if seen is None or process.returncode:
        sys.exit(f"bench start: {command[0]} failed ({process.returncode}): {''.join(output)[-2000:]}")
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--muster", default=str(ROOT / "build/bin/muster"))
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, script = pathlib.Path(folder) / "text.txt", pathlib.Path(folder) / "peer.py"
        text.write_text("".join(chr(48 + (i * i + i // 7) % 65) for i in range(200_000)) + "".join(chr(48 + i) for i in range(65)))
        script.write_text(PEER.format(ddp=str(ROOT / "scripts/bench_training.py")))
        peer = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={a.ranks}", str(script)]
        env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        ours = [a.muster, "launch", str(ROOT / "scripts/configs/shakespeare-char-cpu.yaml"), "-n", str(a.ranks), "--data", str(text),
                "--train-iters", "1", "--micro-batch-size", "6", "--global-batch-size", str(6 * a.ranks), "--eval-iters", "1",
                "--sample-tokens", "0", "--threads", "1", "--device", "cpu"]
        times = {"peer": [], "ours": []}
        for i in range(a.rounds + 1):  # the first round warms the file cache
            p = seconds_until(peer, "FIRST STEP DONE", env)
            m = seconds_until(ours + ["--run-dir", f"{folder}/run{i}"], r"step\s+1/1\b")
            if i:
                times["peer"].append(p)
                times["ours"].append(m)
    p, m = statistics.median(times["peer"]), statistics.median(times["ours"])
    print(f"{'ranks':>5} {'torchrun s':>11} {'muster s':>9} {'ratio':>6}   rounds (torchrun | muster)")
    print(f"{a.ranks:>5} {p:>11.2f} {m:>9.2f} {m / p:>6.2f}   " + " ".join(f"{t:.2f}" for t in times["peer"]) + " | "
          + " ".join(f"{t:.2f}" for t in times["ours"]))


if __name__ == "__main__":
    main()
