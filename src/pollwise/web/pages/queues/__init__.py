"""The overview and the page of a queue: what needs attention, figures, jobs, kinds and workers."""
