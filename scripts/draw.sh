#!/bin/sh
# Prints what the random seeds of a run are drawn from: the commit, or the time where there is no git.
cd "$(dirname "$0")/.." || exit
git rev-parse --verify --quiet HEAD 2>/dev/null || date +%s
