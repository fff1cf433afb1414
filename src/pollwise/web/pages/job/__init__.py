"""The page of a job: what it carries, how its runs went, and the files to save from it."""
