"""How the property tests draw their examples.

In CI the same tree must get the same verdict each time, so examples are drawn from the tests' own
names. Everywhere else they are drawn afresh: that is where new cases are found, and a case that
was found goes into its test by name.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
