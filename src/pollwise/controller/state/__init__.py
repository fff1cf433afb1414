"""What the controller keeps beside the queue: jobs, runs, workers, tokens and logs."""
