"""A Flask site that puts tasks without an event loop, and waits for their results."""

from __future__ import annotations

from flask import Flask, abort, jsonify, request, url_for
from flask.typing import ResponseReturnValue

from photos import thumbnail, worker
from pollwise.errors import JobFailed

app = Flask(__name__)


@app.post("/thumbnails")
def make() -> ResponseReturnValue:
    """Put the task and answer at once: 202, and where the result will be."""
    photo = request.form["photo"]
    width = request.form.get("width", 200, type=int)
    job = thumbnail.put_sync(photo, width=width)
    return jsonify(job=job.id, result=url_for("result", job_id=job.id)), 202


@app.get("/thumbnails/<job_id>")
def result(job_id: str) -> ResponseReturnValue:
    """The result; `?wait=5` waits up to five seconds for it."""
    wait = min(request.args.get("wait", 0.0, type=float), 30.0)
    try:
        return jsonify(worker.sync_queue().result(job_id, timeout=wait))
    except TimeoutError:
        return jsonify(state="not finished; ask again"), 202
    except JobFailed as failed:
        if failed.state is None:
            abort(404)  # there is no such job, or its result was kept for long enough
        return jsonify(error=str(failed)), 500


@app.get("/preview/<photo>")
def preview(photo: str) -> ResponseReturnValue:
    """Put the task and wait for it in the same request: fine for work of a second or two."""
    try:
        return jsonify(thumbnail.put_sync(photo, width=50).result(timeout="10s"))
    except TimeoutError:
        return jsonify(error="no worker had time within 10 s"), 503
