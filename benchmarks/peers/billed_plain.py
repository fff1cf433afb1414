"""The other consumers of benchmarks/billed.py, in their own environment.

    billed_plain.py loop ENDPOINT QUEUE THREADS     a boto3 loop: receive ten, held for 20 s; delete
                                                    each batch
    billed_plain.py celery ENDPOINT QUEUE           a Celery worker, by default with 8 concurrent
    billed_plain.py produce ENDPOINT QUEUE SECONDS  puts tasks for Celery at the times on its input

Each prints {"ready": true} when it runs. `loop` prints how long each job waited when asked to.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import quote, urlsplit

MODE, ENDPOINT, QUEUE = sys.argv[1:4]
#: Only our own lines go there: Celery prints a banner, and a warning about running as root.
OUT = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
if MODE == "celery":
    os.dup2(1, 2)


def say(**facts: Any) -> None:
    os.write(OUT, json.dumps(facts).encode() + b"\n")


def loop(threads: int) -> None:
    import boto3
    from botocore.config import Config

    waits: list[float] = []

    def one() -> None:
        sqs = boto3.session.Session().client(
            "sqs", endpoint_url=ENDPOINT, config=Config(read_timeout=90)
        )
        url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        while True:
            answer = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20, VisibilityTimeout=60
            )
            messages = answer.get("Messages", [])
            now = time.time()
            waits.extend(now - json.loads(message["Body"]) for message in messages)
            if messages:
                time.sleep(0.01)
                entries = [
                    {"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]}
                    for n, m in enumerate(messages)
                ]
                sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    for _ in range(threads):
        threading.Thread(target=one, daemon=True).start()
    say(ready=True)
    for _ in sys.stdin:
        say(waits=waits)


def app() -> Any:
    from celery import Celery  # type: ignore[import-not-found]

    host = urlsplit(ENDPOINT).netloc
    key = quote("test", safe="")
    made = Celery("billed", broker=f"sqs://{key}:{key}@{host}")
    made.conf.update(
        broker_transport_options={"region": "us-east-1", "is_secure": False},
        task_default_queue=QUEUE,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        task_acks_late=False,
    )

    @made.task(name="job")
    def job(sent: float) -> None:
        say(wait=time.time() - sent)
        time.sleep(0.01)

    return made


def celery() -> None:
    from celery.signals import worker_ready  # type: ignore[import-not-found]

    worker_ready.connect(lambda **_: say(ready=True), weak=False)
    app().worker_main(
        ["worker", "--pool", "threads", "--concurrency", "8", "--loglevel", "ERROR",
         "--without-gossip", "--without-mingle", "--without-heartbeat"]
    )  # fmt: skip


def produce() -> None:
    made = app()
    arrivals = json.loads(sys.stdin.readline())
    task = made.tasks["job"]
    with made.connection_for_write() as connection, connection.channel():
        say(ready=True)
        sys.stdin.readline()
        began = time.time()
        for arrival in arrivals:
            time.sleep(max(began + arrival - time.time(), 0.0))
            task.apply_async((time.time(),), connection=connection)
    say(done=True)


{"loop": lambda: loop(int(sys.argv[4])), "celery": celery, "produce": produce}[MODE]()
