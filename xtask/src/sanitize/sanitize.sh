#!/bin/sh
# Runs the programs of this bundle under Compute Sanitizer, on a machine with an NVIDIA GPU.
#   ./sanitize.sh                    every row that has no result yet, then the table
#   ./sanitize.sh --tool PATH        with this compute-sanitizer (2026.4 or newer)
#   ./sanitize.sh --rows TEXT        only rows with TEXT in their name
#   ./sanitize.sh --fresh            rows that have a result too
# RESULTS names the folder for the results; without it they are in results/ of this bundle.
# The exit status is 0 if every row has run and is as expected.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 2
exec "$here/bin/xtask" sanitize --programs "$here" --out "${RESULTS:-$here/results}" "$@"
