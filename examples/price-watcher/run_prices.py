"""Open a shop on this machine, watch its price until it was low and high again, and exit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lamp_shop import open_shop

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    store = f"sqlite:///{folder / 'fleet.db'}"
    pollwise = [sys.executable, "-m", "pollwise", "fleet"]
    with open_shop() as address:
        environ = {**os.environ, "SHOP": address}
        run = [*pollwise, "run", "--store", store, "--log-level", "error"]
        with subprocess.Popen(
            run, cwd=HERE, env=environ, stdout=subprocess.PIPE, text=True
        ) as fleet:
            for line in fleet.stdout or ():
                print(line, end="", flush=True)
                if line.startswith("closed:"):
                    fleet.terminate()
        alerts = [*pollwise, "alerts", "--all", "--store", store]
        subprocess.run(alerts, cwd=HERE, env=environ, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
