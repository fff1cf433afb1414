"""The routes of a controller: jobs, workers, polls, push, logs, files, tokens and health. They read
requests and answer them; the work is done in `controller.jobs` and `controller.workers`.
"""
