"""OpenTelemetry: `w3c` writes and reads the trace context in headers, `spans` makes the spans of
puts, runs and requests. Neither imports OpenTelemetry before the program has.
"""
