"""`pollwise queue result`: wait for a job, and print what it returned."""

from __future__ import annotations

from typing import Annotated

import typer

from pollwise.cli.output import fail, print_json, say_aside
from pollwise.cli.queue.opening import Id, Url, with_queue
from pollwise.errors import CodecError, JobFailed

#: The exit codes for a job that failed, was cancelled or does not exist, and for one that has not
#: ended.
FAILED, NOT_YET = 1, 3


def result(
    url: Url,
    job_id: Id,
    timeout: Annotated[
        str | None, typer.Option(help="Wait at most this long: 30s, 5m. By default, until it ends.")
    ] = None,
) -> None:
    """Wait until a job has ended, and print its result as JSON.

    Exits with 1 if the job is dead, was cancelled, or does not exist (any more), and with 3 if the
    time is up before it has ended.

    Example: pollwise queue result sqlite:///jobs.db 17 --timeout 30s
    """
    try:
        value = with_queue(url, lambda queue: queue.result(job_id, timeout))
    except JobFailed as error:
        fail(str(error))
        if error.traceback:
            say_aside(error.traceback)
        raise typer.Exit(FAILED) from None
    except CodecError as error:
        raise CodecError(
            f"the result of job {job_id} is encoded, and commands do not decode it; wait for it in "
            f"a program whose queue has the codec ({error})"
        ) from None
    except TimeoutError as error:
        fail(str(error))
        raise typer.Exit(NOT_YET) from None
    print_json(value)
