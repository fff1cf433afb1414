#!/bin/sh -e
# What an agent runs for each job. Its output is the log; files in $POLLWISE_OUT become artefacts.
ref=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["ref"])')
echo "building $ref on $(uname -s)"
echo "0.5 packing" > "$POLLWISE_PROGRESS"
ls "$POLLWISE_INPUTS"
tar -czf "$POLLWISE_OUT/app-$ref.tar.gz" -C "$POLLWISE_INPUTS" .
echo "{\"files\": $(ls "$POLLWISE_INPUTS" | wc -l)}" > "$POLLWISE_RESULT"
echo "done"
