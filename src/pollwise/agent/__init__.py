"""The agent: takes jobs from a controller over HTTP and runs a command for each.

It only makes outbound requests, so it works behind NAT. `agent` polls and reports, `job` runs one
job, `commands` starts and ends its command and reads what it left, `link` makes the requests, and
`folder` keeps reports on disk until they are accepted.

await Agent(AgentOptions("http://localhost:8420", ["./build.sh", "{payload}"])).run()
"""

from __future__ import annotations

from pollwise.errors import MissingExtra

try:
    from pollwise.agent.agent import Agent
except MissingExtra as error:  # of the client, which has an extra of its own
    raise MissingExtra("an agent", "agent") from error
from pollwise.agent.options import AgentOptions

__all__ = ["Agent", "AgentOptions"]
