"""Each source needs its own extra and no other's, and says which is missing."""

from __future__ import annotations

import subprocess
import sys

import pollwise.sources

#: How each is made, a package that it imports, and the extra that has it.
NEEDS = {
    "HttpJson('http://h')": ("httpx", "fleet"),
    "Feed('http://h')": ("httpcore", "fleet"),
    "Folder('.')": ("", ""),
    "SqlRows('sqlite:///x.db', 'SELECT 1 AS a', watermark='a')": ("", ""),
    "SqlRows('postgresql://h/d', 'SELECT 1 AS a', watermark='a')": ("psycopg", "postgres"),
    "Bucket('s3://bucket/x')": ("obstore", "objects"),
    "RedisStream('redis://h', 's')": ("redis", "redis"),
    "ImapFolder('h', 'u', 'p')": ("cryptography", "fleet"),
}
PACKAGES = (
    "httpx", "httpcore", "cryptography", "h2", "dns", "re2", "websockets", "psycopg", "obstore",
    "redis", "watchfiles",
)  # fmt: skip

#: Hides packages as if they were not installed, then says what making each source says.
CODE = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
import pollwise.sources as sources
for made in sys.argv[2:]:
    try:
        eval("sources." + made)
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("made")
"""


def test_what_is_missing_is_named_with_the_command_that_installs_it() -> None:
    command = [sys.executable, "-W", "error", "-c", CODE, ",".join(PACKAGES), *NEEDS]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    for made, said, (_, extra) in zip(NEEDS, run.stdout.splitlines(), NEEDS.values(), strict=True):
        if extra:
            assert f"pip install 'pollwise[{extra}]'" in said, f"{made}: {said}"
        else:
            assert said == "made", f"{made}: {said}"


def test_all_names_of_the_package_are_there() -> None:
    assert pollwise.sources.__all__ == sorted(pollwise.sources.__all__)
    for name in pollwise.sources.__all__:
        assert getattr(pollwise.sources, name).__doc__
    assert set(pollwise.sources.__all__) <= set(dir(pollwise.sources))
