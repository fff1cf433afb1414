"""Schedules: jobs that a queue puts by itself, at ticks.

`when` has the ticks of a schedule, `record` is what a queue keeps of one, `ticking` decides what
happens to the ticks that are due, and `calls` is `queue.schedules`. No process beats: any worker
puts what is due, and the store lets one of them win.
"""
