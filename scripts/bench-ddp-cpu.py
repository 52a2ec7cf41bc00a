#!/usr/bin/env python3
"""Step time of data-parallel training on CPU ranks: PyTorch DistributedDataParallel over gloo beside Muster, in one run.

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each. The two
sides alternate; every round gives the median of its steps; the table shows the median over rounds and the ratio.

  bench ddp-cpu [--ranks 2] [--rounds 3] [--steps 120] [--sequences 6,12] [--muster PATH]
"""
import argparse
import statistics

from bench_training import ROOT, run_muster, run_peer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sequences", default="6,12")
    parser.add_argument("--muster", default=str(ROOT / "build/bin/muster"))
    a = parser.parse_args()
    print(f"{'ranks':>5} {'sequences/rank':>15} {'PyTorch ms':>11} {'Muster ms':>10} {'ratio':>6}   rounds (PyTorch | Muster)")
    for sequences in map(int, a.sequences.split(",")):
        peer, ours = [], []
        for _ in range(a.rounds):
            peer.append(run_peer(a.ranks, sequences, a.steps))
            ours.append(run_muster(a.muster, a.ranks, sequences, a.steps))
        p, m = statistics.median(peer), statistics.median(ours)
        rows = " ".join(f"{t:.1f}" for t in peer) + " | " + " ".join(f"{t:.1f}" for t in ours)
        print(f"{a.ranks:>5} {sequences:>15} {p:>11.2f} {m:>10.2f} {m / p:>6.2f}   {rows}", flush=True)


if __name__ == "__main__":
    main()
