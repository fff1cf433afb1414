"""Inputs, artefacts and logs of jobs, and where their bytes are stored: a folder or a bucket."""
