"""`python -m penstock.sim --seed N`: one world again; with `--count M` a row of them."""

from __future__ import annotations

import argparse
import sys

from penstock.sim.run import STEPS, SimulationError, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=STEPS, help="what clients do, in all")
    parser.add_argument("--trace", action="store_true", help="show everything that happens")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            print(run_seed(seed, arguments.steps, show=arguments.trace))
        except SimulationError as error:
            failed += 1
            print(error if not arguments.trace else str(error).splitlines()[-2:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
