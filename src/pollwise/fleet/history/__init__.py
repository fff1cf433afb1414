"""The history of targets: periods in which a target was up or down, and roll-ups of its polls.

`values` has what is kept and for how long, `tracker` what a running target gathers, `packing` how
figures are stored, `recorder` hands finished polls to the trackers, and `views` has what people
see: uptimes, incidents, percentiles and strips.
"""
