#!/usr/bin/env python3
"""Step time of data-parallel training on CPU ranks: PyTorch DistributedDataParallel over gloo beside Muster, in one run.

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each. The two
sides alternate; every round gives the median of its steps; the table shows the median over rounds and the ratio.

  bench ddp-cpu [--ranks 2] [--rounds 3] [--steps 120] [--sequences 6,12] [--muster PATH]
"""
from bench_training import HEADING, at_least, in_turns, list_of, options, run_muster, run_peer


def main():
    parser = options(__doc__, steps=120)
    parser.add_argument("--sequences", type=list_of(at_least(1)), default=[6, 12])
    a = parser.parse_args()
    print(f"{'ranks':>5} {'sequences/rank':>15} {HEADING}")
    for sequences in a.sequences:
        row = in_turns(a.rounds, lambda: run_peer(a.ranks, sequences, a.steps),
                       lambda: run_muster(a.muster, a.ranks, sequences, a.steps))
        print(f"{a.ranks:>5} {sequences:>15} {row}", flush=True)


if __name__ == "__main__":
    main()
