#!/usr/bin/env python3
"""Step time of each ZeRO stage on CPU ranks beside PyTorch's counterpart over gloo, in one run.

  stage 0  DistributedDataParallel
  stage 1  DistributedDataParallel and ZeroRedundancyOptimizer (AdamW, bucket views)
  stage 2  FSDP2, parameters kept after the forward pass (reshard_after_forward=False)
  stage 3  FSDP2, parameters freed after the forward pass

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each. The two sides
alternate; every round gives the median of its steps; the table shows the median over rounds and the ratio.

  bench zero-cpu [--ranks 2] [--rounds 3] [--steps 80] [--sequences 6] [--stages 0,1,2,3] [--muster PATH]
"""
import argparse

from bench_training import HEADING, at_least, in_turns, list_of, options, run_muster, run_peer

PEERS = {0: "ddp", 1: "zero1", 2: "fsdp2", 3: "fsdp3"}


def stage(text):
    if text not in map(str, PEERS):
        raise argparse.ArgumentTypeError(f"found '{text}', wanted stages of 0, 1, 2, 3 with commas between them")
    return int(text)


def main():
    parser = options(__doc__, steps=80)
    parser.add_argument("--sequences", type=at_least(1), default=6)
    parser.add_argument("--stages", type=list_of(stage), default=list(PEERS))
    a = parser.parse_args()
    print(f"{'stage':>5} {'PyTorch':>8} {HEADING}")
    for s in a.stages:
        row = in_turns(a.rounds, lambda: run_peer(a.ranks, a.sequences, a.steps, PEERS[s]),
                       lambda: run_muster(a.muster, a.ranks, a.sequences, a.steps, ["--zero-optimization.stage", str(s)]))
        print(f"{s:>5} {PEERS[s]:>8} {row}", flush=True)


if __name__ == "__main__":
    main()
