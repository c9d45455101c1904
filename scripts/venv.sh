#!/bin/bash
# Makes a virtual environment of Python with the packages that a file of requirements names, unless it is there with the same.
# usage: scripts/venv.sh FOLDER REQUIREMENTS    (PYTHON in the environment names another python3)
set -euo pipefail
folder=$1 requirements=$2
has=$folder/$(basename "$requirements")
if [ -e "$has" ] && cmp --silent "$requirements" "$has"; then exit 0; fi
rm -rf "$folder"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
cp "$requirements" "$has"
