"""Files that come with a job: a multipart body, received completely before the job is put."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from pollwise.controller.files.artefacts import Artefacts, checked_name
from pollwise.controller.files.blobs import is_no_room, no_room
from pollwise.controller.http.answers import HttpError, invalid
from pollwise.controller.http.requests import declared_length, pieces, plain_only, too_large

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

#: How much of a file is read at a time, in bytes.
PIECE = 256 * 1024
#: The most bytes for the heads of the parts.
HEADS = 1024 * 1024


class UploadedFiles:
    """The files of a request, by name."""

    def __init__(self, files: dict[str, UploadFile], artefacts: Artefacts, by: str) -> None:
        self._files = files
        self._artefacts = artefacts
        self._by = by

    async def store(self, folder: str) -> None:
        """Store them as inputs in a folder."""
        for name, file in self._files.items():
            await self._artefacts.save(
                folder,
                name,
                _pieces_of(file),
                input=True,
                content_type=file.content_type,
                length=file.size,
                by=self._by,
            )


@contextlib.asynccontextmanager
async def receive_multipart(
    request: Request, controller: Controller, by: str
) -> AsyncIterator[tuple[str, UploadedFiles]]:
    """The JSON in the part `job`, and the other parts as temporary files."""
    options = controller.options
    plain_only(request.headers.get("content-encoding"))
    limit = options.artefact_limit + options.body_limit + HEADS
    declared = declared_length(request)
    if declared is not None and declared > limit:
        raise too_large(limit)
    parser = MultiPartParser(
        request.headers,
        pieces(request, limit),
        max_files=options.inputs_max + 1,  # `job` may be sent as a file
        max_fields=10,
        max_part_size=options.body_limit,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HttpError(
            400, "bad_multipart", error.message, "Send a part `job` with JSON, and files."
        ) from None
    except (KeyError, ValueError, ClientDisconnect):
        raise HttpError(
            400, "bad_multipart", "the multipart body cannot be read",
            "Send a part `job` with JSON, and files.",
        ) from None  # fmt: skip
    except OSError as error:  # of the temporary files
        if is_no_room(error):
            raise no_room() from None
        raise
    try:
        given: Any = None
        files: dict[str, UploadFile] = {}
        for field, value in form.multi_items():
            if field == "job" and given is None:
                given = await _text_of(value, options.body_limit)
            elif isinstance(value, UploadFile):
                name = checked_name(value.filename or field)
                if name in files:
                    raise invalid(f"two files have the name {name[:80]!r}")
                files[name] = value
            else:
                raise invalid(f"the part {field[:40]!r} is not a file; give it a filename")
        if given is None:
            raise invalid("there is no part `job`: the job, as JSON")
        if len(files) > options.inputs_max:
            raise invalid(f"there are {len(files)} files; at most {options.inputs_max}")
        yield given, UploadedFiles(files, controller.artefacts, by)
    finally:
        await form.close()


async def _text_of(value: UploadFile | str, limit: int) -> str | bytes:
    if isinstance(value, str):
        return value
    if value.size is not None and value.size > limit:
        raise too_large(limit)
    return await value.read()


async def _pieces_of(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(PIECE):
        yield piece
