"""A queue in Amazon SQS, standard or FIFO."""

from pollwise.queues.sqs.queue import SqsFifoQueue, SqsQueue

__all__ = ["SqsFifoQueue", "SqsQueue"]
