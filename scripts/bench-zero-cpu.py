#!/usr/bin/env python3
"""Step time of each ZeRO stage on CPU ranks beside PyTorch's counterpart over gloo, in one run.

  stage 0  DistributedDataParallel
  stage 1  DistributedDataParallel and ZeroRedundancyOptimizer (AdamW)
  stage 2  FSDP2, parameters kept after the forward pass (reshard_after_forward=False)
  stage 3  FSDP2, parameters freed after the forward pass

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each. The two sides
alternate; every round gives the median of its steps; the table shows the median over rounds and the ratio.

  bench zero-cpu [--ranks 2] [--rounds 3] [--steps 80] [--sequences 6] [--stages 0,1,2,3] [--muster PATH]
"""
import argparse
import statistics

from bench_training import ROOT, run_muster, run_peer

PEERS = {0: "ddp", 1: "zero1", 2: "fsdp2", 3: "fsdp3"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--sequences", type=int, default=6)
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--muster", default=str(ROOT / "build/bin/muster"))
    a = parser.parse_args()
    print(f"{'stage':>5} {'PyTorch':>8} {'PyTorch ms':>11} {'Muster ms':>10} {'ratio':>6}   rounds (PyTorch | Muster)")
    for stage in map(int, a.stages.split(",")):
        peer, ours = [], []
        for _ in range(a.rounds):
            peer.append(run_peer(a.ranks, a.sequences, a.steps, PEERS[stage]))
            ours.append(run_muster(a.muster, a.ranks, a.sequences, a.steps, ["--zero-optimization.stage", str(stage)]))
        p, m = statistics.median(peer), statistics.median(ours)
        rows = " ".join(f"{t:.1f}" for t in peer) + " | " + " ".join(f"{t:.1f}" for t in ours)
        print(f"{stage:>5} {PEERS[stage]:>8} {p:>11.2f} {m:>10.2f} {m / p:>6.2f}   {rows}", flush=True)


if __name__ == "__main__":
    main()
