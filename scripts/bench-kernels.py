#!/usr/bin/env python3
"""The CPU kernels beside the ATen operations that do the same, one thread, in turns: microseconds a call and the ratio.

scripts/bench kernels [--build DIR] [--only NAME] [--rounds N]
"""
import argparse
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench kernels", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default="build", help="build folder (build)")
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    program = os.path.join(ROOT, options.build, "bin", "kernels_bench")
    if not os.path.exists(program):
        sys.exit(f"bench kernels: no {program}; build it: ninja -C {options.build} kernels_bench")
    os.execv(program, [program, options.only, str(options.rounds)])


if __name__ == "__main__":
    main()
