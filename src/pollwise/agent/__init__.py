"""The program behind NAT: takes jobs from a controller over HTTP and runs a command for each.

await Agent(AgentOptions("http://localhost:8420", ["./build.sh", "{payload}"])).run()
"""

from __future__ import annotations

from pollwise.agent.agent import Agent
from pollwise.agent.options import AgentOptions

__all__ = ["Agent", "AgentOptions"]
