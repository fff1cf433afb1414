"""Where a fleet keeps its state: the contract in `base`, one folder per database."""
