"""The tasks of the photo service. Workers run them; the site only puts them."""

from __future__ import annotations

import os
import time

from pollwise import Reject, Worker

worker = Worker(os.environ.get("PHOTOS_QUEUE", "sqlite:///photos.db"))


@worker.task(timeout="1m")
def thumbnail(photo: str, width: int = 200) -> dict[str, object]:
    """Return where the thumbnail is. A plain function runs in a thread."""
    if not photo.endswith((".jpg", ".png")):
        raise Reject(f"{photo} is not a photo")  # no retry would help
    time.sleep(0.2)  # a real one opens the photo and makes it smaller
    return {"file": f"thumbnails/{width}/{photo}", "width": width}
