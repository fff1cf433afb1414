"""The outbox of the grocer."""

import os
from pathlib import Path

from pollwise import Outbox
from pollwise.contrib.django import database_url

outbox = Outbox(database_url("default"))


@outbox.handle("order.*", name="tell")
def tell(record: object) -> None:
    with Path(os.environ["SHOP_TOLD"]).open("a") as told:
        told.write(f"{record.payload}\n")  # type: ignore[attr-defined]
