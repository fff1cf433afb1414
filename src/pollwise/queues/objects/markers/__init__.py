"""Small objects beside the jobs: which job has a `unique`, and the notes of a queue."""
