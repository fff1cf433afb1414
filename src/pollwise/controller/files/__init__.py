"""Inputs, artefacts and logs of jobs, and where their bytes are stored."""
