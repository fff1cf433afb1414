"""What the code of a worker states for its whole queue, and a worker writes: schedules, limits."""
