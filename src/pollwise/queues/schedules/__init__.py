"""Schedules: jobs that a queue puts by itself, at set times, the ticks.

`when` has the ticks of a schedule, `record` is what a queue keeps of one, `ticking` decides what
happens to the ticks that are due, and `calls` is `queue.schedules`. There is no scheduler process:
any worker puts the jobs that are due, and the store accepts only one of them.
"""
